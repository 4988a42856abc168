"""conch-triton-kernels' `paged_attention`: one query token a sequence, with parts of a sequence side by side."""

from common.spec.kernel import Precision, launches
from compare.competitors.baselines import bare_files

NAME = "baseline/conch_decode"
RELEASE = ("conch-triton-kernels", "1.3", "2025-09", "Apache-2.0", "Triton", 147)
SUPPORTS = frozenset({"causal", "softcap"})
CONTRACT = Precision(dot="tf32")  # its dots name no precision
LIMITS = {"block_size": [16, 32, 64, 128, 256, 512, 1024], "max_query_len": 1}
DEFAULT = None


workspace = bare_files.no_scratch
_attend = bare_files.library("conch.ops.attention.paged_attention").paged_attention


@launches(NAME, SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """One call, into the rows of `out`. Raises UnsupportedFeature unless each sequence has one query token."""
    bare_files.expect_decodes(NAME, batch)
    live = slice(0, batch.num_seqs)
    _attend(
        batch.query[live],
        batch.key_cache,
        batch.value_cache,
        batch.block_table,
        batch.seq_lens,
        output=out[live],
        scale=batch.softmax_scale,
        softcap=features.softcap or 0.0,
    )
