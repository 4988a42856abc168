"""AITER's `paged_attention_decode`, of its Triton kernels: one query token a sequence; it runs on NVIDIA too.

The package asks for ROCm when it is imported, so its two files are loaded alone. Its pages are [heads, slots, size],
which a view of ours is. Scales of K and of V are 1, on the host, where it reads them.
"""

import logging
from types import ModuleType

import torch

from common import interpreter
from common.spec import UnsupportedFeature
from common.spec.kernel import Precision, launches
from compare.competitors.baselines import bare_files

NAME = "baseline/aiter_decode"
RELEASE = ("amd-aiter", "0.1.7.post2.dev18", "2025-11", "BSD", "Triton", 672)
SUPPORTS = frozenset({"causal", "alibi"})
CONTRACT = Precision(dot="tf32")  # its dots name no precision
LIMITS = {"max_query_len": 1, "block_size": [16, 32, 64, 128, 256, 512], "dtype": ["float16", "bfloat16"]}
if interpreter.wanted():
    LIMITS["dtype"] = ["float16"]  # the interpreter has no scalar of bf16
DEFAULT = None
_TRITON = "aiter.ops.triton"
_KERNELS = f"{_TRITON}._triton_kernels.pa_decode"


def _load() -> tuple[ModuleType, dict[torch.dtype, object]]:
    """The module that has the function, and Triton's dtypes."""
    import triton.language as tl

    folder = bare_files.folder_of("aiter", ["ops/triton/pa_decode", "ops/triton/_triton_kernels/pa_decode"])
    held = {
        f"{_TRITON}.utils.logger": {"AiterTritonLogger": lambda: logging.getLogger(NAME)},
        f"{_TRITON}._triton_kernels": {},
    }
    with bare_files.standing_in(held):
        bare_files.execute(_KERNELS, folder / "ops/triton/_triton_kernels/pa_decode.py")
        module = bare_files.execute(f"{_TRITON}.pa_decode", folder / "ops/triton/pa_decode.py")
    return module, {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


_module, _TYPES = _load()
_ONE = torch.ones(1)

workspace = bare_files.no_scratch


@launches(NAME, SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """One call, into the rows of `out`. Raises UnsupportedFeature unless each sequence has one query token."""
    bare_files.expect_decodes(NAME, batch)
    if batch.shape.dtype not in _TYPES:
        raise UnsupportedFeature(NAME, f"dtype {batch.shape.dtype}", "float16, bfloat16")
    live = slice(0, batch.num_seqs)
    _module.paged_attention_decode(
        out[live],
        batch.query[live],
        batch.key_cache.transpose(1, 2),
        batch.value_cache.transpose(1, 2),
        batch.seq_lens,
        batch.block_table,
        batch.softmax_scale,
        batch.stats.max_seq_len,
        _TYPES[batch.shape.dtype],
        _ONE,
        _ONE,
        alibi_slopes=features.alibi_slopes,
    )
