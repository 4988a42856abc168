"""Q Blocks (paper 4.4): a program takes several query tokens under all query heads of one KV head.

Grid: Q Blocks x num_kv_heads, one axis. New over naive.py: K and V of a KV head are read once for BLOCK_M rows, so the
products become matrix products. Each program finds its sequence by binary search, so the grid needs no lengths. Tiles
that every row sees run in a loop without masks; the causal diagonal, a window's left edge and the sequence's end run in
masked loops. Q Blocks of few rows use one masked loop for all tiles (masks.join_loops).
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import triton
import triton.language as tl

from common.spec import AttentionShape, Cdna, Gpu
from common.spec.kernel import SEAMS, Capacity, Precision, launches
from dsl_triton.binding import as_tensor, block_m_of, cache_strides, fits
from dsl_triton.features import bundle, finished, narrow, query_operand, row_operands
from dsl_triton.masks import join_loops, kv_tile_range
from dsl_triton.primitives import (
    attend_range,
    attend_tile,
    head_and_block,
    load_rows,
    locate_q_block,
    normalise,
    q_block_rows,
    softmax_init,
    store_lse,
    store_rows,
)

SUPPORTS = SEAMS | {"lse", "full_graph", "batch_invariant"}
CONTRACT = Precision()


@dataclass(frozen=True)
class Config(Cdna):
    """block_m: rows of a Q Block; raised to the GQA ratio's next power of two where that is larger."""

    block_m: int = 16
    tile_size: int = 32
    num_warps: int = 4
    num_stages: int = 2


DEFAULT = Config()


def space(shape: AttentionShape, gpu: Gpu) -> Iterator[Config]:
    """Configs whose operands fit into shared memory and whose accumulator fits into registers."""
    axes = (16, 32, 64, 128), (16, 32, 64, 128), (2, 4, 8), (1, 2, 3, 4)
    for block_m, tile_size, num_warps, num_stages in itertools.product(*axes):
        if fits(block_m, tile_size, num_warps, num_stages, shape, gpu):
            yield Config(block_m, tile_size, num_warps, num_stages)


@triton.jit(do_not_specialize=["num_seqs"])  # do not recompile for num_seqs == 1
def _q_block_kernel(
    query,  # [num_tokens, num_query_heads, HEAD_SIZE]
    key_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, HEAD_SIZE]
    value_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, VALUE_SIZE]
    block_table,  # i32 or i64 [num_seqs, max_blocks]
    query_start_loc_ptr,  # i32 [num_seqs + 1]
    seq_lens_ptr,  # i32 [num_seqs]
    out,  # [num_tokens, num_query_heads, VALUE_SIZE]
    lse,  # f32 [num_tokens, num_query_heads] or None
    num_seqs,
    softmax_scale,
    f,
    key_strides, value_strides,
    NUM_KV_HEADS: tl.constexpr, QUERIES_PER_KV: tl.constexpr, HEAD_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, TILE_SIZE: tl.constexpr,
):  # fmt: skip
    BLOCK_Q: tl.constexpr = BLOCK_M // QUERIES_PER_KV
    # One axis: others hold 65,535 programs at most. The last Q Blocks of a prefill see most keys and start first.
    kv_head, q_block_idx = head_and_block(f, NUM_KV_HEADS, LAST_FIRST=True)
    seq, query_start, query_len, seq_len, first = locate_q_block(
        q_block_idx, query_start_loc_ptr, seq_lens_ptr, num_seqs, BLOCK_Q
    )
    if first < query_len:
        context_len = seq_len - query_len
        token, head, live = q_block_rows(first, kv_head, query_len, QUERIES_PER_KV, BLOCK_M)
        query_pos = context_len + token
        last_pos = context_len + tl.minimum(first + BLOCK_Q, query_len) - 1
        q = load_rows(query.ptr, query.strides, query_start + token, head, live, HEAD_SIZE)  # [BLOCK_M, HEAD_PADDED]
        r = row_operands(f, seq, kv_head, token, head, live, context_len)
        q, r = query_operand(q, r, key_cache_ptr)
        m, l, acc = softmax_init(f, head, live, 0, q, VALUE_SIZE)
        first_key, end_key, lo, full_lo, full_hi, hi = kv_tile_range(
            seq, context_len + first, last_pos, seq_len, f, TILE_SIZE
        )
        full_lo, full_hi = join_loops(full_lo, full_hi, hi, key_cache_ptr, f, BLOCK_M)
        table_ptr = block_table.ptr + seq.to(tl.int64) * block_table.strides[0]
        m, l, acc = attend_range(
            attend_tile, lo, full_lo, full_hi, hi, q, m, l, acc, (
                query_pos, seq_len, first_key, end_key, kv_head, softmax_scale, f, r,
                key_cache_ptr, value_cache_ptr, table_ptr, key_strides, value_strides,
                HEAD_SIZE, VALUE_SIZE, BLOCK_SIZE, TILE_SIZE,
            ), TILE_SIZE,
        )  # fmt: skip
        acc = finished(narrow(acc, VALUE_SIZE), value_cache_ptr, f, r)
        store_rows(out.ptr, out.strides, query_start + token, head, live, normalise(acc, l, kv_head, f), VALUE_SIZE)
        store_lse(lse.ptr, lse.strides, query_start + token, head, live, m, l)


def workspace(shape: AttentionShape, capacity: Capacity, config: Config) -> None:
    """No scratch."""


@launches("triton/q_block", SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """Write out (and lse) of every query token."""
    shape = batch.shape
    block_m = block_m_of(config, shape)
    q_blocks = batch.num_q_blocks(block_m)
    _q_block_kernel[(shape.num_kv_heads * q_blocks,)](
        as_tensor(batch.query), batch.key_cache, batch.value_cache, as_tensor(batch.block_table),
        batch.query_start_loc, batch.seq_lens, as_tensor(out), as_tensor(lse), batch.num_seqs, batch.softmax_scale,
        bundle(features, config), *cache_strides(batch),
        NUM_KV_HEADS=shape.num_kv_heads, QUERIES_PER_KV=shape.queries_per_kv, HEAD_SIZE=shape.head_size,
        VALUE_SIZE=shape.value_lanes, BLOCK_SIZE=shape.block_size, BLOCK_M=block_m, TILE_SIZE=config.tile_size,
        num_warps=config.num_warps, num_stages=config.num_stages, **config.options(),
    )  # fmt: skip
