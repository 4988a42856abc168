"""The two halves of q_block.py's kernel as functions, for kernels that vary one and keep the other."""

import triton
import triton.language as tl

from dsl_triton.features import row_operands
from dsl_triton.masks import join_loops, kv_tile_range
from dsl_triton.primitives import (
    attend_tile,
    load_rows,
    normalise,
    q_block_rows,
    softmax_init,
    store_lse,
    store_rows,
)


@triton.jit
def find_sequence(q_block_idx, query_start_loc_ptr, num_seqs, BLOCK_Q: tl.constexpr):
    """The last sequence that begins at or before a Q Block; sequence i does at query_start_loc[i] // BLOCK_Q + i."""
    guess = tl.minimum(q_block_idx - (q_block_idx + 1) // (BLOCK_Q + 1), num_seqs - 1)
    begins = tl.load(query_start_loc_ptr + guess) // BLOCK_Q + guess <= q_block_idx
    ends = tl.load(query_start_loc_ptr + guess + 1) // BLOCK_Q + guess + 1 > q_block_idx
    left = tl.where(begins, guess, 0)
    right = tl.where(begins & ends, guess + 1, tl.where(begins, num_seqs, guess))
    while right - left > 1:
        middle = (left + right) // 2
        if tl.load(query_start_loc_ptr + middle) // BLOCK_Q + middle <= q_block_idx:
            left = middle
        else:
            right = middle
    return left


@triton.jit
def attend_q_block(
    seq, first, query_start, query_len, kv_head, query_ptr, key_cache_ptr, value_cache_ptr, block_table_ptr,
    seq_lens_ptr, out_ptr, lse_ptr, softmax_scale, f,
    query_strides, key_strides, value_strides, block_table_strides, out_strides, lse_strides,
    QUERIES_PER_KV: tl.constexpr, HEAD_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_M: tl.constexpr,
    TILE_SIZE: tl.constexpr,
):  # fmt: skip
    """The Q Block of BLOCK_M rows that begins at query token `first` of a sequence, from its rows to its output."""
    seq_len = tl.load(seq_lens_ptr + seq)
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
    for j in range(lo, full_lo):
        m, l, acc = attend_tile(
            j, q, m, l, acc, query_pos, seq_len, first_key, end_key, kv_head, softmax_scale, f, r,
            key_cache_ptr, value_cache_ptr, table_ptr, key_strides, value_strides,
            HEAD_SIZE, HEAD_SIZE, BLOCK_SIZE, TILE_SIZE, MASKED=True,
        )  # fmt: skip
    for j in range(full_lo, full_hi):
        m, l, acc = attend_tile(
            j, q, m, l, acc, query_pos, seq_len, first_key, end_key, kv_head, softmax_scale, f, r,
            key_cache_ptr, value_cache_ptr, table_ptr, key_strides, value_strides,
            HEAD_SIZE, HEAD_SIZE, BLOCK_SIZE, TILE_SIZE, MASKED=False,
        )  # fmt: skip
    for j in range(full_hi, hi):
        m, l, acc = attend_tile(
            j, q, m, l, acc, query_pos, seq_len, first_key, end_key, kv_head, softmax_scale, f, r,
            key_cache_ptr, value_cache_ptr, table_ptr, key_strides, value_strides,
            HEAD_SIZE, HEAD_SIZE, BLOCK_SIZE, TILE_SIZE, MASKED=True,
        )  # fmt: skip
    store_rows(out_ptr, out_strides, query_start + token, head, live, normalise(acc, l, kv_head, f), HEAD_SIZE)
    store_lse(lse_ptr, lse_strides, query_start + token, head, live, m, l)
