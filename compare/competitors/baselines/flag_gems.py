"""FlagGems' Triton port of FlashAttention 2 with a block table (`flash_attn_varlen_func`), on any GPU that it knows.

A public Triton kernel over a paged cache that a plain `pip install flag-gems` brings to NVIDIA too; docs/claims.md says
what else was looked at.
"""

import torch

from common.spec import UnsupportedFeature
from common.spec.kernel import Precision, launches
from compare.competitors.baselines import bare_files

NAME = "baseline/flag_gems"
RELEASE = ("flag-gems", "5.0.2", "2026-04", "Apache-2.0", "Triton", 1009)
SUPPORTS = frozenset({"causal", "non_causal", "sliding_window", "softcap"})
CONTRACT = Precision(dot="tf32")  # its dots name no precision


if not torch.cuda.is_available():
    raise ImportError("FlagGems asks for its GPU when it is imported; none is here")
_attend = bare_files.library("flag_gems").flash_attn_varlen_func
DEFAULT = None
workspace = bare_files.no_scratch


@launches(NAME, SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """One call of FlagGems' function, into the live rows of `out`."""
    if batch.shape.dtype is torch.float32:
        raise UnsupportedFeature(NAME, "dtype float32", "float16, bfloat16")
    live = slice(0, min(batch.stats.num_tokens, batch.num_tokens))
    _attend(
        batch.query[live],
        batch.key_cache,
        batch.value_cache,
        batch.stats.max_query_len,
        batch.query_start_loc,
        batch.stats.max_seq_len,
        seqused_k=batch.seq_lens,
        softmax_scale=batch.softmax_scale,
        causal=features.causal,
        window_size=bare_files.window_of(features),
        softcap=features.softcap or 0.0,
        block_table=batch.block_table,
        out=out[live],
        fa_version=2,
    )
