"""A tile cut into runs of keys that cannot leave a page (paper 4.6): one page id and one 64-bit product for each run.

Tiles begin at multiples of their size, so a run of gcd(page, tile) keys lies in one page. A tile of whole pages is
loaded as [pages, page, head]; a tile inside a page has one run, whose page id is a scalar; a tile of 64 keys over pages
of 784 is four runs of 16. dsl_helion/page_runs.py says the same in Helion.

Do not widen the page ids of runs to one per key for a load with two axes: the compiler no longer sees that lanes are
neighbours, loads 2 bytes at a time and pipelines nothing.
"""

import math
from typing import Literal

import triton
import triton.language as tl

from common.spec import PagedBatch
from dsl_triton.binding import padded, value_dtype
from dsl_triton.masks import not_before
from dsl_triton.primitives import (
    attend_tile,
    base2_scale,
    dequantise,
    dequantise_values,
    find_slots,
    logits,
    products,
    softmax_step,
)

# How K and V are addressed through the block table; both give the same result.
#   key   a page id for each key: any strides, any page
#   run   a page id for each run of keys that cannot leave a page
Gather = Literal["key", "run"]


def run_length(asked: Gather, batch: PagedBatch, tile_size: int) -> int:
    """How many keys of a tile share a page id: 1 for "key", else the largest power of two in tile and page.

    Also 1 where a page spans 2^31 elements: runs address a page in 32 bits.
    """
    span = (batch.shape.block_size - 1) * max(batch.key_cache.stride(1), batch.value_cache.stride(1))
    if asked == "key" or span + max(batch.shape.head_size, batch.shape.value_lanes) >= 2**31:
        return 1
    return math.gcd(batch.shape.block_size, tile_size)


@triton.jit
def find_runs(
    block_table_ptr, j, first_key, end_key, f,
    BLOCK_SIZE: tl.constexpr, TILE_SIZE: tl.constexpr, RUN: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Page id, int64, and slot, int32, of the first key of each run of tile j: [TILE_SIZE // RUN], or scalars of one.

    Every tile has a wanted key, so the page of its only run may be read.
    """
    if RUN == TILE_SIZE:
        first = tl.cast(j * TILE_SIZE, tl.int32)
        page, slot = find_slots(block_table_ptr, first, first_key, end_key, f, BLOCK_SIZE, False)
    else:
        run_pos = j * TILE_SIZE + tl.arange(0, TILE_SIZE // RUN) * RUN
        page, slot = find_slots(block_table_ptr, run_pos, first_key, end_key, f, BLOCK_SIZE, MASKED)
    if RUN == BLOCK_SIZE:  # whole pages: the compiler does not know that the slot is 0
        slot = slot * 0
    return page, slot.to(tl.int32)


@triton.jit
def load_runs(
    cache_ptr, strides, page, slot, kv_head, wanted, f,
    HEAD_SIZE: tl.constexpr, TILE_SIZE: tl.constexpr, RUN: tl.constexpr, DTYPE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """K or V [TILE_SIZE, HEAD_PADDED] of one KV head, loaded as [runs, RUN, HEAD_PADDED].

    Keys that are not `wanted` give zeros. Offsets within a page have 32 bits (run_length).
    """
    HEAD_PADDED: tl.constexpr = padded(HEAD_SIZE)
    KEPT: tl.constexpr = "" if f.stream is None else ".cg"
    lane = tl.arange(0, HEAD_PADDED)
    base = cache_ptr + kv_head.to(tl.int64) * strides[2]
    offset = page * strides[0] + slot * strides[1]
    along = tl.expand_dims(tl.arange(0, RUN) * strides[1], 1) + tl.expand_dims(lane, 0)
    inside = tl.expand_dims(lane < HEAD_SIZE, 0)
    keep = tl.expand_dims(wanted, 1)
    if RUN == TILE_SIZE:
        ptrs = (base + offset) + along
    else:
        ptrs = base + tl.expand_dims(tl.expand_dims(offset, 1), 2) + tl.expand_dims(along, 0)
        inside = tl.expand_dims(inside, 0)
        keep = tl.expand_dims(tl.reshape(wanted, [TILE_SIZE // RUN, RUN]), 2)
    if MASKED:
        x = tl.load(ptrs, mask=keep & inside, other=0.0, cache_modifier=KEPT)
    elif HEAD_PADDED != HEAD_SIZE:
        x = tl.load(ptrs, mask=inside, other=0.0, cache_modifier=KEPT)
    else:
        x = tl.load(ptrs, cache_modifier=KEPT)
    return dequantise(tl.reshape(x, [TILE_SIZE, HEAD_PADDED]), DTYPE)


@triton.jit
def load_key_runs(
    cache_ptr, strides, page, slot, kv_head, wanted, f,
    HEAD_SIZE: tl.constexpr, TILE_SIZE: tl.constexpr, RUN: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """primitives.load_keys by runs."""
    if f.transposed_keys is None:
        return load_runs(cache_ptr, strides, page, slot, kv_head, wanted, f, HEAD_SIZE, TILE_SIZE, RUN, DTYPE, False)
    else:
        HEAD_PADDED: tl.constexpr = padded(HEAD_SIZE)
        KEPT: tl.constexpr = "" if f.stream is None else ".cg"
        lane = tl.arange(0, HEAD_PADDED)
        base = cache_ptr + kv_head.to(tl.int64) * strides[2]
        offset = page * strides[0] + slot * strides[1]
        along = tl.expand_dims(tl.arange(0, RUN) * strides[1], 0) + tl.expand_dims(lane, 1)
        inside = tl.expand_dims(lane < HEAD_SIZE, 1)
        if RUN == TILE_SIZE:
            ptrs = (base + offset) + along
        else:
            ptrs = base + tl.expand_dims(tl.expand_dims(offset, 0), 2) + tl.expand_dims(along, 1)
            inside = tl.expand_dims(inside, 2)
        if HEAD_PADDED != HEAD_SIZE:
            x = tl.load(ptrs, mask=inside, other=0.0, cache_modifier=KEPT)
        else:
            x = tl.load(ptrs, cache_modifier=KEPT)
        return dequantise(tl.reshape(x, [HEAD_PADDED, TILE_SIZE]), DTYPE)


@triton.jit
def load_run_scales(
    scales_ptr, strides, page, slot, kv_head, wanted, TILE_SIZE: tl.constexpr, RUN: tl.constexpr
):  # fmt: skip
    """primitives.load_token_scales by runs."""
    if scales_ptr is not None:
        offset = page * strides[0] + slot * strides[1]
        along = tl.arange(0, RUN) * strides[1]
        if RUN == TILE_SIZE:
            offset = offset + along
        else:
            offset = tl.reshape(tl.expand_dims(offset, 1) + tl.expand_dims(along, 0), [TILE_SIZE])
        return tl.load(scales_ptr + kv_head.to(tl.int64) * strides[2] + offset, mask=wanted, other=0.0)
    else:
        return 0


@triton.jit
def attend_runs(
    j, q, m, l, acc, query_pos, seq_len, first_key, end_key, kv_head, softmax_scale, f, r,
    key_cache_ptr, value_cache_ptr, block_table_ptr, key_strides, value_strides,
    HEAD_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE_SIZE: tl.constexpr,
    RUN: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """attend_tile with K and V loaded in runs of RUN keys; with RUN == 1 attend_tile itself."""
    if RUN == 1:
        return attend_tile(
            j, q, m, l, acc, query_pos, seq_len, first_key, end_key, kv_head, softmax_scale, f, r,
            key_cache_ptr, value_cache_ptr, block_table_ptr, key_strides, value_strides,
            HEAD_SIZE, VALUE_SIZE, BLOCK_SIZE, TILE_SIZE, MASKED,
        )  # fmt: skip
    else:
        v_strides = key_strides if value_strides is None else value_strides
        key_pos = j * TILE_SIZE + tl.arange(0, TILE_SIZE)
        wanted = not_before(first_key, key_pos, key_pos < end_key, f)
        page, slot = find_runs(block_table_ptr, j, first_key, end_key, f, BLOCK_SIZE, TILE_SIZE, RUN, MASKED)
        k = load_key_runs(
            key_cache_ptr, key_strides, page, slot, kv_head, wanted, f, HEAD_SIZE, TILE_SIZE, RUN, q.dtype
        )  # fmt: skip
        scales = load_run_scales(
            f.key_token_scales, f.key_token_strides, page, slot, kv_head, wanted, TILE_SIZE, RUN
        )  # fmt: skip
        s = logits(products(q, k, f), scales, query_pos, key_pos, seq_len, softmax_scale, f, r, MASKED)
        STORED: tl.constexpr = value_cache_ptr.dtype.element_ty
        v = load_runs(
            value_cache_ptr, v_strides, page, slot, kv_head, wanted, f, VALUE_SIZE, TILE_SIZE, RUN, STORED, MASKED
        )
        v = dequantise_values(v, value_dtype(q.dtype, f.value_token_scales is not None), acc.shape[0])
        scales = load_run_scales(
            f.value_token_scales, f.value_token_strides, page, slot, kv_head, wanted, TILE_SIZE, RUN
        )  # fmt: skip
        return softmax_step(s, v, scales, m, l, acc, base2_scale(softmax_scale, f, r), f, r, MASKED)
