"""conch-triton-kernels' `varlen_attention`: its paged kernel for prompts and mixed batches, in plain Triton.

The package is pure Python. `conch_decode` is its kernel for one query token a sequence.
"""

from common.spec.kernel import Precision, launches
from compare.competitors.baselines import bare_files

NAME = "baseline/conch"
RELEASE = ("conch-triton-kernels", "1.3", "2025-09", "Apache-2.0", "Triton", 239)
SUPPORTS = frozenset({"causal", "non_causal", "softcap"})
CONTRACT = Precision(dot="tf32")  # its dots name no precision
LIMITS = {"block_size": [16, 32, 64, 128, 256, 512, 1024]}  # "must be power of two!", says its launcher
DEFAULT = None


workspace = bare_files.no_scratch
_attend = bare_files.library("conch.ops.attention.varlen_attention").varlen_attention


@launches(NAME, SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """One call, into the live rows of `out`."""
    live = slice(0, min(batch.stats.num_tokens, batch.num_tokens))
    _attend(
        batch.query[live],
        batch.key_cache,
        batch.value_cache,
        batch.query_start_loc,
        batch.stats.max_query_len,
        batch.seq_lens,
        batch.stats.max_seq_len,
        batch.block_table,
        output=out[live],
        causal=features.causal,
        scale=batch.softmax_scale,
        softcap=features.softcap or 0.0,
        strict=True,
    )
