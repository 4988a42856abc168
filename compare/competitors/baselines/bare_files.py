"""A peer's kernel files without their package: what they import of it stands in for it while they are loaded.

In: a package on the path that holds the files unchanged, the names that they import and what they read there. Out:
their modules. The project ships no such file.
"""

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from common.spec import AttentionShape, Features, PagedBatch, UnsupportedFeature
from common.spec.kernel import Capacity, asked_of_shape

UNITS = 132  # of an H200, for which a peer chooses where no GPU is


def units(absent: int = UNITS) -> int:
    """The SMs or compute units of the GPU here; `absent` without one."""
    return torch.cuda.get_device_properties(0).multi_processor_count if torch.cuda.is_available() else absent


def library(name: str) -> ModuleType:
    """A peer's installed package, by the name of a module in it. Raises ImportError."""
    return importlib.import_module(name)


def no_scratch(shape: AttentionShape, capacity: Capacity, config: None) -> None:
    """The workspace of a peer that allocates in its call."""


def window_of(features: Features) -> tuple[int, int]:
    """Keys before and behind the query's own; -1 is no limit."""
    left = -1 if features.sliding_window is None else features.sliding_window - 1
    return left, 0 if features.causal else left


def unified(batch: PagedBatch, features: Features, out: torch.Tensor) -> dict[str, Any]:
    """The arguments of vLLM's `unified_attention` that AITER's fork has too, over the live rows of query and `out`."""
    stats = batch.stats
    live = slice(0, min(stats.num_tokens, batch.num_tokens))
    return {
        "q": batch.query[live], "k": batch.key_cache, "v": batch.value_cache, "out": out[live],
        "cu_seqlens_q": batch.query_start_loc, "max_seqlen_q": stats.max_query_len, "seqused_k": batch.seq_lens,
        "max_seqlen_k": stats.max_seq_len, "softmax_scale": batch.softmax_scale, "causal": features.causal,
        "window_size": window_of(features), "block_table": batch.block_table, "softcap": features.softcap or 0,
        "sinks": features.sinks,
    }  # fmt: skip


@contextlib.contextmanager
def own_words(name: str, batch: PagedBatch) -> Iterator[None]:
    """What a library says to a batch of 8 bits or of wide heads, as UnsupportedFeature; other batches are not caught.

    So such a batch is refused by the library and by no list here. A failure of the GPU, or no memory, stays what it is.
    """
    try:
        yield
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if not asked_of_shape(batch.shape) or "CUDA error" in said or isinstance(error, torch.OutOfMemoryError):
            raise
        raise UnsupportedFeature(name, f"what it answers with {said!r:.300}", "what it takes") from error


def scales_of(features: Features, batch: PagedBatch) -> dict[str, torch.Tensor | None]:
    """q_descale, k_descale and v_descale as vLLM gives them, views [num_seqs, num_kv_heads]; None where there is none.

    Raises RuntimeError for scales per token, which are no such views.
    """
    given = {"q": features.query_scale, "k": features.key_scale, "v": features.value_scale}
    size = batch.num_seqs, batch.shape.num_kv_heads
    return {f"{name}_descale": None if one is None else one.expand(size) for name, one in given.items()}


def expect_decodes(name: str, batch: PagedBatch) -> None:
    """Raises UnsupportedFeature unless each sequence has one query token."""
    if batch.stats.max_query_len > 1 or batch.stats.num_tokens != batch.num_seqs:
        raise UnsupportedFeature(name, "query lengths other than 1", "decodes alone")


def pool(name: str, cache: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The cache as a pool [slots, KV heads, size], and how many slots its pages are apart. Raises UnsupportedFeature
    where that is no whole number."""
    slot = cache.stride(1)
    if cache.stride(0) % slot:
        raise UnsupportedFeature(name, f"pages {cache.stride(0)} elements apart", f"a multiple of a slot's {slot}")
    apart = cache.stride(0) // slot
    slots = max(0, (cache.shape[0] - 1) * apart + cache.shape[1])
    return cache.as_strided((slots, *cache.shape[2:]), cache.stride()[1:]), apart


def folder_of(package: str, files: Sequence[str]) -> Path:
    """Where a package's files NAME.py lie. Raises ImportError where the package or a file is missing."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise ImportError(f"no package {package}")
    folder = Path(next(iter(spec.submodule_search_locations or ())))
    for name in files:
        if not (folder / f"{name}.py").is_file():
            raise ImportError(f"{package} has no {name}.py")
    return folder


@contextlib.contextmanager
def standing_in(held: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Inside, an import of a module of `held`, all of one package, finds these members; afterwards sys.modules is as it
    was."""
    package = next(iter(held)).split(".")[0]
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] == package}
    for name in before:
        del sys.modules[name]
    sys.modules.update(_modules(held))
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == package]:
            del sys.modules[name]
        sys.modules.update(before)


def _modules(held: Mapping[str, Mapping[str, Any]]) -> dict[str, ModuleType]:
    modules: dict[str, ModuleType] = {}
    for name, members in held.items():
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            path = ".".join(parts[:depth])
            module = modules.setdefault(path, ModuleType(path))
            module.__path__ = []
            if depth > 1:
                setattr(modules[".".join(parts[: depth - 1])], parts[depth - 1], module)
        vars(modules[name]).update(members)
    return modules


def execute(name: str, file: Path) -> ModuleType:
    """A file as the module `name`; triton reads the source of its kernels from the file."""
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
