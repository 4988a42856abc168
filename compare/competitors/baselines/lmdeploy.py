"""LMDeploy's Triton kernels, called as its PyTorch engine calls them: decodes by `flash_attn_with_kvcache`, other
batches by `flatten_kv_cache`, which copies the pages, and `flash_attn_varlen_func`.

The package imports an engine, so its files are loaded alone. The result is a new tensor, copied into `out`.
"""

import enum
import logging

import torch

from common import interpreter
from common.spec import UnsupportedFeature
from common.spec.kernel import Precision, launches
from compare.competitors.baselines import bare_files

NAME = "baseline/lmdeploy"
RELEASE = ("lmdeploy", "0.18.0", "2026-09", "Apache-2.0", "Triton", 1137)
SUPPORTS = frozenset({"causal", "non_causal", "sliding_window", "softcap", "sinks", "alibi", "value_size"})
CONTRACT = Precision(dot="tf32")  # its dots name no precision
LIMITS = {"block_size": [16, 32, 64, 128, 256]}  # its engine's pages; tiles of decodes are pages
DEFAULT = None
_KERNELS = "lmdeploy.pytorch.kernels.cuda"
_FILES = ("turbo_quant", "pagedattention", "flashattention", "flatten_kv_cache")


class QuantPolicy(enum.IntEnum):
    """LMDeploy's kinds of cache, by their numbers; this project asks for NONE alone."""

    NONE = 0
    INT4 = 4
    INT8 = 8
    FP8 = 16
    FP8_E5M2 = 17
    TURBO_QUANT = 42


def _props(device=None) -> dict[str, object]:
    """What its kernels ask of a GPU; without one, of an H200."""
    found = torch.cuda.get_device_capability() if torch.cuda.is_available() else (9, 0)
    return {"multi_processor_count": bare_files.units(), "compute_capability": found, "warps_per_sm": 64}


def _load():
    folder = bare_files.folder_of("lmdeploy", [f"pytorch/kernels/cuda/{name}" for name in _FILES])
    held = {
        "lmdeploy.messages": {"QuantPolicy": QuantPolicy},
        "lmdeploy.utils": {"get_logger": logging.getLogger},
        f"{_KERNELS}.utils": {"get_device_props": _props, "is_cuda": torch.cuda.is_available},
    }
    with bare_files.standing_in(held):
        made = [bare_files.execute(f"{_KERNELS}.{name}", folder / f"pytorch/kernels/cuda/{name}.py") for name in _FILES]
    for module in made if interpreter.wanted() else ():  # it keeps functions of tl, which the interpreter replaces
        vars(module).update({name: late for name, late in _late().items() if hasattr(module, name)})
    return made


def _late() -> dict[str, object]:
    """The interpreter's functions, found when they are called."""
    import triton.language as tl
    from triton.language.extra import libdevice

    return {
        "tl_log2": lambda x: tl.log2(x),
        "tl_exp2": lambda x: tl.exp2(x),
        "fast_dividef": lambda x, y: x / y,
        "tanh": lambda x: libdevice.tanh(x),
    }


_, _paged, _flash, _flatten = _load()

workspace = bare_files.no_scratch


@launches(NAME, SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """One call, copied into the live rows of `out`."""
    stats, lens, size = batch.stats, batch.seq_lens, batch.shape.block_size
    live = slice(0, min(stats.num_tokens, batch.num_tokens))
    window = features.sliding_window
    if window == 1:
        raise UnsupportedFeature(NAME, "a window of the query's own key", "windows from 2 on: 0 is none")
    asked = {
        "max_seqlen_q": stats.max_query_len,
        "softmax_scale": batch.softmax_scale,
        "causal": features.causal,
        "window_size": -1 if window is None else window - 1,  # it counts the keys before the query's own
        "softcap": features.softcap or -1.0,
        "alibi_slopes": features.alibi_slopes,
        "sinks": features.sinks,
    }
    if stats.max_query_len == 1 and stats.num_tokens == batch.num_seqs:
        caches = batch.key_cache, batch.value_cache
        found = _paged.flash_attn_with_kvcache(batch.query[live], *caches, lens, batch.block_table, **asked)
    else:
        starts = torch.nn.functional.pad(lens.cumsum(0, dtype=torch.int32), (1, 0))
        held = -(-stats.total_seq_len // size) * size + size
        keys, values = _flatten.flatten_kv_cache(
            batch.key_cache, batch.value_cache, lens, batch.block_table,
            start_loc=starts[:-1], out_size=held, out_dtype=batch.query.dtype,
        )  # fmt: skip
        found = _flash.flash_attn_varlen_func(batch.query[live], keys, values, batch.query_start_loc, starts, **asked)
    out[live].copy_(found)
