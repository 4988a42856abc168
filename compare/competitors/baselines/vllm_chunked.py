"""vLLM's older Triton pair, `chunked_prefill_paged_decode`: `context_attention_fwd` for prompts and
`kernel_paged_attention_2d` for decodes, as its backend ROCM_ATTN calls them.

Found as `vllm_triton` is: an installed vLLM, else the two files alone in a package `vllm_triton_032` on the path. The
kernels take an x-packed cache by its strides, so a cache of ours goes in as a view of one pack a head.
"""

import contextlib
import importlib
import logging
from types import ModuleType, SimpleNamespace

import torch

from common.spec.kernel import Precision, launches
from compare.competitors.baselines import bare_files, vllm_files

NAME = "baseline/vllm_chunked"
RELEASE = ("vllm", "0.32.0", "2026-10", "Apache-2.0", "Triton", 406)
SUPPORTS = frozenset({"causal", "sliding_window", "sinks"})
CONTRACT = Precision(dot="tf32")  # its dots name no precision
LIMITS = {"block_size": [*range(16, 1025, 16)], "head_size": [32, 64, 80, 96, 128, 160, 192, 224, 256]}
DEFAULT = None
_BARE, _OPS = "vllm_triton_032", "vllm.v1.attention.ops"
_FILES = ("prefix_prefill", "chunked_prefill_paged_decode")


def _held() -> dict[str, dict[str, object]]:
    """What the two files read of vLLM beside what its unified kernel reads."""
    held = vllm_files.held()
    capability = torch.cuda.get_device_capability() if torch.cuda.is_available() else (9, 0)
    platform = held["vllm.platforms"]["current_platform"]
    platform.get_device_capability, platform.has_device_capability = lambda: capability, lambda _: True
    logger = SimpleNamespace(warning_once=logging.getLogger(NAME).debug)
    return held | {
        "vllm._custom_ops": {},
        "vllm.logger": {"init_logger": lambda _: logger},
        "vllm.platforms.rocm": {"use_rocm_custom_paged_attention": lambda *_: False},
    }


def _load() -> tuple[ModuleType, bool]:
    """The module that has the function, and whether it is a bare file, which imports again when it is called."""
    with contextlib.suppress(ImportError, OSError, AttributeError, RuntimeError):
        return importlib.import_module(f"{_OPS}.{_FILES[1]}"), False
    folder = bare_files.folder_of(_BARE, _FILES)
    with bare_files.standing_in(_held()):
        return [bare_files.execute(f"{_OPS}.{name}", folder / f"{name}.py") for name in _FILES][1], True


_module, _bare = _load()


def workspace(shape, capacity, config) -> torch.Tensor:
    """The scale of K and of V, 1, that the kernels read."""
    return torch.ones(1, device=capacity.device)


@launches(NAME, SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """One call, into the live rows of `out`."""
    stats = batch.stats
    live = slice(0, min(stats.num_tokens, batch.num_tokens))
    keys = batch.key_cache.permute(0, 2, 3, 1)[..., None].transpose(2, 4)  # [blocks, heads, 1, slots, size]
    with bare_files.standing_in(_held()) if _bare else contextlib.nullcontext():
        _module.chunked_prefill_paged_decode(
            batch.query[live],
            None if batch.key is None else batch.key[live],
            None if batch.value is None else batch.value[live],
            out[live],
            "auto",
            keys,
            batch.value_cache.permute(0, 2, 3, 1),
            batch.block_table,
            batch.query_start_loc,
            batch.seq_lens,
            stats.max_seq_len,
            stats.max_query_len,
            workspace,
            workspace,
            sliding_window=features.sliding_window or 0,
            sm_scale=batch.softmax_scale,
            sinks=features.sinks,
        )
