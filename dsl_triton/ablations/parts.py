"""What q_block.py does with a Q Block, as a function, for kernels that choose the Q Block in another way."""

import triton
import triton.language as tl

from dsl_triton.features import row_operands
from dsl_triton.masks import join_loops, kv_tile_range
from dsl_triton.primitives import (
    attend_range,
    attend_tile,
    load_rows,
    normalise,
    q_block_rows,
    softmax_init,
    store_lse,
    store_rows,
)


@triton.jit
def attend_q_block(
    seq, query_start, query_len, seq_len, first, kv_head, query_ptr, key_cache_ptr, value_cache_ptr, block_table_ptr,
    out_ptr, lse_ptr, softmax_scale, f,
    query_strides, key_strides, value_strides, block_table_strides, out_strides, lse_strides,
    QUERIES_PER_KV: tl.constexpr, HEAD_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_M: tl.constexpr,
    TILE_SIZE: tl.constexpr,
):  # fmt: skip
    """The Q Block of BLOCK_M rows that begins at query token `first` of a sequence, from its rows to its output."""
    context_len = seq_len - query_len
    token, head, live = q_block_rows(first, kv_head, query_len, QUERIES_PER_KV, BLOCK_M)
    query_pos = context_len + token
    last_pos = context_len + tl.minimum(first + BLOCK_M // QUERIES_PER_KV, query_len) - 1
    q = load_rows(query_ptr, query_strides, query_start + token, head, live, HEAD_SIZE)  # [BLOCK_M, HEAD_PADDED]
    r = row_operands(f, seq, kv_head, token, head, live, context_len)
    m, l, acc = softmax_init(f, head, live, 0, q, HEAD_SIZE)
    first_key, end_key, lo, full_lo, full_hi, hi = kv_tile_range(
        seq, context_len + first, last_pos, seq_len, f, TILE_SIZE
    )
    full_lo, full_hi = join_loops(full_lo, full_hi, hi, key_cache_ptr, f, BLOCK_M)
    table_ptr = block_table_ptr + seq.to(tl.int64) * block_table_strides[0]
    m, l, acc = attend_range(
        attend_tile, lo, full_lo, full_hi, hi, q, m, l, acc, (
            query_pos, seq_len, first_key, end_key, kv_head, softmax_scale, f, r,
            key_cache_ptr, value_cache_ptr, table_ptr, key_strides, value_strides,
            HEAD_SIZE, HEAD_SIZE, BLOCK_SIZE, TILE_SIZE,
        ), TILE_SIZE,
    )  # fmt: skip
    store_rows(out_ptr, out_strides, query_start + token, head, live, normalise(acc, l, kv_head, f), HEAD_SIZE)
    store_lse(lse_ptr, lse_strides, query_start + token, head, live, m, l)
