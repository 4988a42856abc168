"""FlashAttention 3 on a paged cache, at the settings that serving engines document.

Looks for `flash_attn_interface` (the project's own package), `vllm_fa3` (vLLM's build unpacked beside it) and vLLM
itself, in this order. As vLLM does, the scheduler's metadata is made once per step and outside the call. Importing this
module raises ImportError with the reason where no build can run here.
"""

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

import torch

from common.gpus import Gpu
from common.spec import AttentionShape, Features, PagedBatch, UnsupportedFeature
from common.spec.kernel import Precision, launches
from compare.competitors.baselines.bare_files import no_scratch, own_words, scales_of, window_of

NAME = "baseline/flash_attn3"
RELEASE = ("vllm", "0.25.1", "", "BSD-3-Clause", "CUDA", 0)
FA_VERSION = 3
_OWN = "flash_attn_interface"
_VLLM = ("vllm_fa3.flash_attn_interface", "vllm.vllm_flash_attn.flash_attn_interface")

SUPPORTS = frozenset({"causal", "non_causal", "sliding_window", "softcap"})
ASKS = frozenset({"fp8_kv", "fp8_query", "head_size_512"})  # the library is asked, and refuses in its own words
CONTRACT = Precision()
LIMITS = {"dtype": ["float16", "bfloat16"], "block_size": [*range(16, 1025, 16)], "head_size": [*range(8, 257, 8)]}


def _find() -> ModuleType:
    """The interface of a build that can run here. Raises ImportError naming what was tried."""
    if not torch.cuda.is_available() or torch.version.cuda is None:
        raise ImportError("FlashAttention 3 needs an NVIDIA GPU of compute capability 9.x; none is here")
    major, minor = torch.cuda.get_device_capability()
    if major != 9:
        raise ImportError(f"FlashAttention 3 needs compute capability 9.x; this GPU has {major}.{minor}")
    tried = []
    for name in (_OWN, *_VLLM):
        try:
            module = importlib.import_module(name)
        except (ImportError, OSError) as error:
            tried.append(f"{name}: {error}")
            continue
        if name in _VLLM and not module.FA3_AVAILABLE:
            tried.append(f"{name}: {module.FA3_UNAVAILABLE_REASON}")
            continue
        return module
    raise ImportError("no build of FlashAttention 3: " + "; ".join(tried))


_interface = _find()
print(f"{NAME}: {_interface.__name__} from {_interface.__file__}, fa_version={FA_VERSION}", file=sys.stderr)


@dataclass(frozen=True)
class Config:
    """num_splits: programs that share one sequence; 0 lets the library decide, which is its default."""

    num_splits: int = 0
    fa_version: int = FA_VERSION


DEFAULT = Config()


def space(shape: AttentionShape, gpu: Gpu) -> Iterator[Config]:
    """The library's own choice, and the upper bound that vLLM sets under graphs."""
    yield Config(0)
    yield Config(32)


workspace = no_scratch


def _refuse(batch: PagedBatch) -> None:
    shape = batch.shape
    if shape.dtype is torch.float32:
        raise UnsupportedFeature(NAME, "dtype float32", "float16, bfloat16")
    if shape.block_size % 16:
        raise UnsupportedFeature(NAME, f"block_size {shape.block_size}", "a multiple of 16")


def prepare(
    batch: PagedBatch, features: Features, config: Config, workspace: torch.Tensor | None
) -> torch.Tensor | None:
    """The step's scheduler_metadata. It depends on the lengths alone, which all layers and page sets share.

    None without causality: the library refuses its own metadata there, for their size, in batches of several lengths.
    """
    _refuse(batch)
    if workspace is not None or _interface.__name__ not in _VLLM or not features.causal:
        return workspace
    with own_words(NAME, batch):
        return _metadata(batch, features, config)


def _metadata(batch: PagedBatch, features: Features, config: Config) -> torch.Tensor:
    shape, stats = batch.shape, batch.stats
    return _interface.get_scheduler_metadata(
        batch_size=batch.num_seqs,
        max_seqlen_q=stats.max_query_len,
        max_seqlen_k=stats.max_seq_len,
        num_heads_q=shape.num_query_heads,
        num_heads_kv=shape.num_kv_heads,
        headdim=shape.head_size,
        cache_seqlens=batch.seq_lens,
        qkv_dtype=shape.dtype,
        cu_seqlens_q=batch.query_start_loc,
        page_size=shape.block_size,
        causal=features.causal,
        window_size=window_of(features),
        has_softcap=features.softcap is not None,
        num_splits=config.num_splits,
    )


@launches(NAME, SUPPORTS | ASKS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """One call of the library, into `out`."""
    _refuse(batch)
    with own_words(NAME, batch):
        _call(batch, features, out, config, workspace)


def _call(
    batch: PagedBatch, features: Features, out: torch.Tensor, config: Config, scheduled: torch.Tensor | None
) -> None:
    common = {
        "softmax_scale": batch.softmax_scale,
        "causal": features.causal,
        "window_size": list(window_of(features)),
        "softcap": features.softcap or 0.0,
        "num_splits": config.num_splits,
        **(scales_of(features, batch) if batch.shape.quantised else {}),
    }
    if _interface.__name__ in _VLLM:
        _interface.flash_attn_varlen_func(
            batch.query,
            batch.key_cache,
            batch.value_cache,
            batch.stats.max_query_len,
            batch.query_start_loc,
            batch.stats.max_seq_len,
            seqused_k=batch.seq_lens,
            block_table=batch.block_table,
            out=out,
            scheduler_metadata=scheduled,
            fa_version=FA_VERSION,
            **common,
        )
        return
    found = _interface.flash_attn_with_kvcache(  # has no `out`: the copy is in the time, and is small beside the call
        batch.query,
        batch.key_cache,
        batch.value_cache,
        cache_seqlens=batch.seq_lens,
        page_table=batch.block_table,
        cu_seqlens_q=batch.query_start_loc,
        max_seqlen_q=batch.stats.max_query_len,
        **common | {"window_size": window_of(features)},
    )
    live = slice(0, batch.stats.num_tokens)
    out[live] = found[live]
