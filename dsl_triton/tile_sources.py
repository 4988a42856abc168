"""Where a tile of keys can come from besides pages of whole heads: x-packed pages, and the step's own K and V.

The rest of a step is primitives.attend_tile's; dsl_helion/tile_sources.py says the same in Helion.
"""

import triton
import triton.language as tl

from dsl_triton.binding import padded, value_dtype
from dsl_triton.masks import not_before
from dsl_triton.primitives import (
    attend_tile,
    base2_scale,
    dequantise,
    dequantise_values,
    find_slots,
    load_keys,
    load_kv_tile,
    load_token_scales,
    logits,
    products,
    softmax_step,
)


@triton.jit
def load_packed_tile(
    cache_ptr, strides, page, slot, kv_head, wanted,
    HEAD_SIZE: tl.constexpr, X: tl.constexpr, DTYPE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """K [TILE_SIZE, HEAD_PADDED] of one KV head out of [num_blocks, num_kv_heads, HEAD_SIZE / X, BLOCK_SIZE, X].

    V, [num_blocks, num_kv_heads, HEAD_SIZE, BLOCK_SIZE], is the same with X = 1. Keys that are not `wanted` give zeros.
    """
    lane = tl.arange(0, padded(HEAD_SIZE))
    inside = tl.expand_dims(lane < HEAD_SIZE, 0)
    offset = page * strides[0] + slot * X
    along = lane // X * strides[2] + lane % X
    ptrs = (cache_ptr + kv_head.to(tl.int64) * strides[1]) + tl.expand_dims(offset, 1) + tl.expand_dims(along, 0)
    if MASKED:
        x = tl.load(ptrs, mask=tl.expand_dims(wanted, 1) & inside, other=0.0)
    elif padded(HEAD_SIZE) != HEAD_SIZE:
        x = tl.load(ptrs, mask=inside, other=0.0)
    else:
        x = tl.load(ptrs)
    return dequantise(x, DTYPE)


@triton.jit
def attend_paged_tile(
    j, q, m, l, acc, query_pos, seq_len, first_key, end_key, kv_head, softmax_scale, f, r,
    key_cache_ptr, value_cache_ptr, block_table_ptr, key_strides, value_strides,
    HEAD_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE_SIZE: tl.constexpr,
    X: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """attend_tile over pages of either layout; X: lanes that lie together in an x-packed K, None for whole heads."""
    if X is None:
        return attend_tile(
            j, q, m, l, acc, query_pos, seq_len, first_key, end_key, kv_head, softmax_scale, f, r,
            key_cache_ptr, value_cache_ptr, block_table_ptr, key_strides, value_strides,
            HEAD_SIZE, VALUE_SIZE, BLOCK_SIZE, TILE_SIZE, MASKED,
        )  # fmt: skip
    else:
        key_pos = j * TILE_SIZE + tl.arange(0, TILE_SIZE)
        wanted = not_before(first_key, key_pos, key_pos < end_key, f)
        page, slot = find_slots(block_table_ptr, key_pos, first_key, end_key, f, BLOCK_SIZE, MASKED)
        k = load_packed_tile(key_cache_ptr, key_strides, page, slot, kv_head, wanted, HEAD_SIZE, X, q.dtype, False)
        if f.transposed_keys is not None:
            k = tl.trans(k)
        scales = load_token_scales(f.key_token_scales, f.key_token_strides, page, slot, kv_head, wanted)
        s = logits(products(q, k, f), scales, query_pos, key_pos, seq_len, softmax_scale, f, r, MASKED)
        STORED: tl.constexpr = value_cache_ptr.dtype.element_ty
        v = load_packed_tile(value_cache_ptr, value_strides, page, slot, kv_head, wanted, VALUE_SIZE, 1, STORED, MASKED)
        v = dequantise_values(v, value_dtype(q.dtype, f.value_token_scales is not None), acc.shape[0])
        scales = load_token_scales(f.value_token_scales, f.value_token_strides, page, slot, kv_head, wanted)
        return softmax_step(s, v, scales, m, l, acc, base2_scale(softmax_scale, f, r), f, r, MASKED)


@triton.jit
def attend_new_tile(
    j, q, m, l, acc, token, new_len, first_key, end_key, kv_head, softmax_scale, f, r,
    key_ptr, value_ptr, new_start, strides,
    HEAD_SIZE: tl.constexpr, TILE_SIZE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """attend_tile over a sequence's new tokens, counted from the first that has a key: rows new_start on of K and V
    [num_tokens, num_kv_heads, HEAD_SIZE]; strides are those of a cache that holds all of them in one page.

    Rows that are not wanted belong to other sequences, or lie past the tensors: K reads the first instead.
    """
    key_pos = j * TILE_SIZE + tl.arange(0, TILE_SIZE)
    wanted = (key_pos >= first_key) & (key_pos < end_key)
    row = new_start + key_pos
    if MASKED:
        row = tl.where(wanted, row, new_start)
    page = tl.zeros_like(row)
    k = load_keys(key_ptr, strides, page, row.to(tl.int64), kv_head, wanted, f, HEAD_SIZE, q.dtype)
    s = logits(products(q, k, f), 0, token, key_pos, new_len, softmax_scale, f, r, MASKED)
    v = load_kv_tile(value_ptr, strides, page, row.to(tl.int64), kv_head, wanted, f, HEAD_SIZE, q.dtype, MASKED)
    return softmax_step(s, v, 0, m, l, acc, base2_scale(softmax_scale, f, r), f, r, MASKED)
