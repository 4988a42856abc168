"""q_block.py with sums of element-wise products in place of its two matrix products (the paper's negative result, 8).

The kernel is q_block.py's own; only the two functions that multiply stand here. Products and sums are of float32, as in
a matrix product; P is rounded to V's dtype as there.
"""

import itertools
from collections.abc import Iterator
from types import ModuleType

import triton
import triton.language as tl

from common.spec import AttentionShape, Gpu
from common.spec.kernel import launches
from common.spec.metadata import BatchStats
from dsl_triton import primitives, q_block
from dsl_triton.ablations import SUPPORTS, with_nouns
from dsl_triton.binding import smallest_block_m, strides
from dsl_triton.features import bundle
from dsl_triton.q_block import CONTRACT, Config, workspace

__all__ = ["CONTRACT", "SUPPORTS", "Config", "workspace"]

# The products of a tile are a tensor [rows, keys, lanes]: of 16 keys and 128 lanes eight warps hold it in registers on
# sm_90, four spill a thousand times.
DEFAULT = Config(tile_size=16, num_warps=8)


def default(heuristics: ModuleType, shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> Config:
    return DEFAULT


def space(shape: AttentionShape, gpu: Gpu) -> Iterator[Config]:
    """Few: nothing larger fits into registers."""
    for num_warps, num_stages in itertools.product((4, 8), (1, 2, 3)):
        yield Config(16, 16, num_warps, num_stages)


@triton.jit
def _products(q, k, f):
    products = tl.expand_dims(q.to(tl.float32), 1) * tl.expand_dims(k.to(tl.float32), 0)  # [BLOCK_M, TILE_SIZE, lanes]
    return tl.sum(products, 2)


@triton.jit
def _softmax_step(s, v, value_scales, m, l, acc, base2, f, r, MASKED: tl.constexpr):
    m_new = tl.maximum(m, tl.max(s, 1) * base2)
    shift = m_new
    if MASKED:
        shift = tl.where(m_new == float("-inf"), 0.0, m_new)
    p = tl.exp2(s * base2 - tl.expand_dims(shift, 1))
    alpha = tl.exp2(m - shift)
    l = primitives.add_sums(l, alpha, p)
    # [BLOCK_M, lanes, TILE_SIZE]. Summed over the middle of [BLOCK_M, TILE_SIZE, lanes] it would be a matrix product:
    # Triton recognises that form, and multiplies in tf32.
    products = tl.expand_dims(p.to(v.dtype).to(tl.float32), 1) * tl.expand_dims(tl.trans(v.to(tl.float32)), 0)
    return m_new, l, acc * tl.expand_dims(alpha, 1) + tl.sum(products, 2)


_attend_tile = with_nouns(primitives.attend_tile, products=_products, softmax_step=_softmax_step)
_elementwise_kernel = with_nouns(q_block._q_block_kernel, attend_tile=_attend_tile)


@launches("triton/ablations.elementwise", SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """Write out (and lse) of every query token."""
    shape = batch.shape
    block_m = max(config.block_m, smallest_block_m(shape))
    q_blocks = batch.num_q_blocks(block_m)
    _elementwise_kernel[(shape.num_kv_heads * q_blocks,)](
        batch.query, batch.key_cache, batch.value_cache, batch.block_table, batch.query_start_loc, batch.seq_lens,
        out, lse, batch.num_seqs, batch.softmax_scale, bundle(features),
        batch.query.stride(), batch.key_cache.stride(), batch.value_cache.stride(), batch.block_table.stride(),
        out.stride(), strides(lse),
        NUM_KV_HEADS=shape.num_kv_heads, QUERIES_PER_KV=shape.queries_per_kv, HEAD_SIZE=shape.head_size,
        VALUE_SIZE=shape.head_size, BLOCK_SIZE=shape.block_size, BLOCK_M=block_m, TILE_SIZE=config.tile_size,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
