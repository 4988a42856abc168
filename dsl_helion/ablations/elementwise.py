"""q_block.py with sums of element-wise products in place of its two matrix products (the paper's negative result, 8).

The kernel is q_block.py's own; only the two functions that multiply stand here. Products and sums are of float32, as in
a matrix product; P is rounded to V's dtype as there.
"""

from collections.abc import Iterator
from itertools import product
from types import ModuleType

import torch

from common.spec import AttentionShape, Gpu
from common.spec.kernel import launches
from common.spec.metadata import BatchStats
from dsl_helion import primitives, q_block
from dsl_helion.ablations import SUPPORTS, with_nouns
from dsl_helion.binding import cache_view, gather_form, run, smallest_block_m
from dsl_helion.features import bundle
from dsl_helion.q_block import CONTRACT, Config, workspace

__all__ = ["CONTRACT", "SUPPORTS", "Config", "workspace"]

DEFAULT = Config(tile_size=16, num_warps=8)  # as in Triton: the products of a tile are a tensor [rows, keys, lanes]


def default(heuristics: ModuleType, shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> Config:
    return DEFAULT


def space(shape: AttentionShape, gpu: Gpu) -> Iterator[Config]:
    """Few: nothing larger fits into registers."""
    for gather, num_warps, num_stages in product(("page", "flat"), (4, 8), (1, 2, 3)):
        yield Config(16, 16, gather, num_warps=num_warps, num_stages=num_stages)


def _products(q, k, f):
    products = q.to(torch.float32).unsqueeze(1) * k.to(torch.float32).unsqueeze(0)  # [block_m, tile_size, lanes]
    return products.sum(2)


def _softmax_step(s, v, value_scales, m, l, acc, base2, f, r, masked):
    m_new = torch.maximum(m, s.amax(1) * base2)
    shift = m_new
    if masked:
        shift = torch.where(m_new == float("-inf"), 0.0, m_new)
    p = torch.exp2(s * base2 - shift.unsqueeze(1))
    alpha = torch.exp2(m - shift)
    l = l * alpha + p.sum(1)
    # of [block_m, lanes, tile_size]: summed over the middle, Triton would make a matrix product of it
    terms = p.to(v.dtype).to(torch.float32).unsqueeze(1) * v.to(torch.float32).transpose(0, 1).unsqueeze(0)
    return m_new, l, acc * alpha.unsqueeze(1) + terms.sum(2)


_primitives = with_nouns(primitives, f"{__name__}_primitives", products=_products, softmax_step=_softmax_step)
_q_block = with_nouns(q_block, f"{__name__}_q_block", attend_tile=_primitives.attend_tile)


@launches("helion/ablations.elementwise", SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """Write out (and lse) of every query token."""
    shape = batch.shape
    gather, page_rows = gather_form(config.gather, batch, config.tile_size)
    blocks = [max(config.block_m, smallest_block_m(shape)), config.tile_size]
    args = (
        batch.query, cache_view(batch.key_cache, gather, page_rows), cache_view(batch.value_cache, gather, page_rows),
        batch.block_table, batch.query_start_loc, batch.seq_lens, out, lse, batch.softmax_scale, bundle(features),
        shape.num_kv_heads, shape.block_size, page_rows, gather, smallest_block_m(shape), blocks[0] <= 16,
    )  # fmt: skip
    run(_q_block._q_block, config, args, block_sizes=blocks, loop_orders=[[1, 0]])
