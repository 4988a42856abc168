"""xFormers' `triton_splitk`: attention over pages for short queries of one length, in Triton.

Pages lie one behind another, and its bias takes the lengths from the host: `prepare` makes it, once a step. Tiles are
at most as long as a page, so a subclass names shorter ones than 64 where pages are. The result is copied into `out`.
"""

import torch

from common import interpreter
from common.spec import PagedBatch, UnsupportedFeature
from common.spec.kernel import Precision, launches
from common.spec.metadata import lens_of
from compare.competitors.baselines import bare_files

NAME = "baseline/xformers_splitk"
RELEASE = ("xformers", "0.0.35", "2026-02", "BSD-3-Clause", "Triton", 452)
SUPPORTS = frozenset({"causal"})
CONTRACT = Precision(dot="tf32")  # its dots name no precision
MOST_QUERIES = 16  # "Query length should not be larger than 16 for causal"
LIMITS = {
    "dtype": ["float16", "bfloat16"],
    "head_size": [16, 32, 64, 128, 256, 512],
    "block_size": [*range(16, 1025, 16)],
    "max_query_len": MOST_QUERIES,
}
if interpreter.wanted():
    LIMITS["head_size"].remove(128)  # there it asks for the GPU's capability
DEFAULT = None


_fmha = bare_files.library("xformers.ops.fmha")
_OPERATORS = {
    tile: type(f"FwOp{tile}", (_fmha.triton_splitk.FwOp,), {"BLOCK_N": tile, "__module__": __name__})
    for tile in (16, 32, 64)
}


workspace = bare_files.no_scratch


def prepare(batch: PagedBatch, features, config, workspace: object) -> object:
    """The bias of these lengths, once a step. Raises UnsupportedFeature for queries of several lengths."""
    if workspace is not None:
        return workspace
    lens = list(lens_of(batch.query_start_loc, batch.seq_lens))
    queries, keys = [one for one, _ in lens], [one for _, one in lens]
    if len(set(queries)) > 1 or max(queries) > MOST_QUERIES:
        raise UnsupportedFeature(NAME, f"query lengths {min(queries)} to {max(queries)}", "one, of at most 16")
    size = batch.shape.block_size
    (_, apart), (_, other) = bare_files.pool(NAME, batch.key_cache), bare_files.pool(NAME, batch.value_cache)
    if apart != other or apart % size:
        raise UnsupportedFeature(
            NAME, f"pages of K {apart} slots apart, of V {other}", f"a multiple of {size}, as many"
        )
    kind = _fmha.attn_bias.PagedBlockDiagonalCausalWithOffsetPaddedKeysMask
    return kind.from_seqlens(queries, keys, batch.block_table * (apart // size), size, device=batch.device)


def _pool(cache: torch.Tensor, groups: int) -> torch.Tensor:
    """The cache as [1, slots, KV heads, queries a KV head, size]."""
    return bare_files.pool(NAME, cache)[0][None, :, :, None].expand(-1, -1, -1, groups, -1)


@launches(NAME, SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """One call, copied into the live rows of `out`."""
    bias = prepare(batch, features, config, workspace)
    live, groups = slice(0, min(batch.stats.num_tokens, batch.num_tokens)), batch.shape.queries_per_kv
    query = batch.query[live].unflatten(1, (batch.shape.num_kv_heads, groups))[None]
    pools = _pool(batch.key_cache, groups), _pool(batch.value_cache, groups)
    tile = max(tile for tile in _OPERATORS if batch.shape.block_size % tile == 0)
    asked = _fmha.triton_splitk.Inputs(query, *pools, attn_bias=bias, scale=batch.softmax_scale)
    found, _ = _OPERATORS[tile].apply(asked, needs_gradient=False)
    out[live].copy_(found.view_as(out[live]))
