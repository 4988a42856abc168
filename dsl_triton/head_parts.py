"""Heads of 80, 96, 144, 160 and 192 lanes in two parts: a product over 64 or 128 lanes and one over the rest, in place
of one over 128 or 256 (ours).

Q and the sums of V are tuples, (first lanes, the rest), or (all lanes,) of other heads. Both parts add to the same
scores, so the softmax does not change. This saves a quarter or more of the loads, the products and the shared memory.
"""

import triton
import triton.language as tl

from dsl_triton.binding import padded
from dsl_triton.features import finished, narrow, query_operand
from dsl_triton.masks import not_before
from dsl_triton.page_runs import attend_runs, find_runs, load_key_runs, load_runs
from dsl_triton.primitives import (
    base2_scale,
    find_slots,
    load_keys,
    load_kv_tile,
    load_rows,
    logits,
    normalise,
    products,
    softmax_init,
    softmax_weights,
    store_partial,
    store_rows,
    sum_values,
)


@triton.constexpr_function
def first_part(head_size):
    """Lanes of the first of two parts (common.spec.kernel.first_part)."""
    return padded(head_size) // 2


@triton.jit
def load_query(
    ptr, strides, row, head, live, r, cache_ptr, HEAD_SIZE: tl.constexpr, PARTS: tl.constexpr
):  # fmt: skip
    """Q as a tuple of parts and r, as `query_operand` leaves them."""
    q = load_parts(ptr, strides, row, head, live, HEAD_SIZE, PARTS)
    if PARTS == 1:
        only, r = query_operand(q[0], r, cache_ptr)
        return (only,), r
    else:
        return q, r


@triton.jit
def load_parts(ptr, strides, row, head, live, HEAD_SIZE: tl.constexpr, PARTS: tl.constexpr):
    """load_rows as a tuple of parts."""
    if PARTS == 1:
        return (load_rows(ptr, strides, row, head, live, HEAD_SIZE),)
    else:
        FIRST: tl.constexpr = first_part(HEAD_SIZE)
        first = load_rows(ptr, strides, row, head, live, FIRST)
        return (first, load_rows(ptr + FIRST, strides, row, head, live, HEAD_SIZE - FIRST))


@triton.jit
def init_parts(f, head, live, segment, q, VALUE_SIZE: tl.constexpr, PARTS: tl.constexpr):
    """softmax_init of a query in parts."""
    if PARTS == 1:
        m, l, acc = softmax_init(f, head, live, segment, q[0], VALUE_SIZE)
        return m, l, (acc,)
    else:
        FIRST: tl.constexpr = first_part(VALUE_SIZE)
        m, l, acc = softmax_init(f, head, live, segment, q[0], FIRST)
        return m, l, (acc, tl.zeros([acc.shape[0], padded(VALUE_SIZE - FIRST)], tl.float32))


@triton.jit
def attend_parts(
    j, q, m, l, acc, query_pos, seq_len, first_key, end_key, kv_head, softmax_scale, f, r,
    key_cache_ptr, value_cache_ptr, block_table_ptr, key_strides, value_strides,
    HEAD_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE_SIZE: tl.constexpr,
    RUN: tl.constexpr, PARTS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """attend_runs of a query in parts."""
    if PARTS == 1:
        m, l, only = attend_runs(
            j, q[0], m, l, acc[0], query_pos, seq_len, first_key, end_key, kv_head, softmax_scale, f, r,
            key_cache_ptr, value_cache_ptr, block_table_ptr, key_strides, value_strides,
            HEAD_SIZE, VALUE_SIZE, BLOCK_SIZE, TILE_SIZE, RUN, MASKED,
        )  # fmt: skip
        return m, l, (only,)
    else:
        FIRST: tl.constexpr = first_part(HEAD_SIZE)
        REST: tl.constexpr = HEAD_SIZE - FIRST
        DTYPE: tl.constexpr = q[0].dtype
        v_strides = key_strides if value_strides is None else value_strides
        key_pos = j * TILE_SIZE + tl.arange(0, TILE_SIZE)
        wanted = not_before(first_key, key_pos, key_pos < end_key, f)
        if RUN == 1:
            page, slot = find_slots(block_table_ptr, key_pos, first_key, end_key, f, BLOCK_SIZE, MASKED)
        else:
            page, slot = find_runs(block_table_ptr, j, first_key, end_key, f, BLOCK_SIZE, TILE_SIZE, RUN, MASKED)
        at = (page, slot, kv_head, wanted, f)
        k = _load_keys(key_cache_ptr, key_strides, at, FIRST, TILE_SIZE, RUN, DTYPE)
        s = products(q[0], k, f)
        k = _load_keys(key_cache_ptr + FIRST, key_strides, at, REST, TILE_SIZE, RUN, DTYPE)
        s = products(q[1], k, f, s)
        s = logits(s, 0, query_pos, key_pos, seq_len, softmax_scale, f, r, MASKED)
        v = _load_values(value_cache_ptr, v_strides, at, FIRST, TILE_SIZE, RUN, DTYPE, MASKED)
        rest = _load_values(value_cache_ptr + FIRST, v_strides, at, REST, TILE_SIZE, RUN, DTYPE, MASKED)
        p, alpha, m, l = softmax_weights(s, 0, m, l, base2_scale(softmax_scale, f, r), f, r, MASKED)
        # Triton spreads warps as a chain's last product needs: over 16 lanes, each warp would compute all scores.
        acc_rest = sum_values(p, rest, alpha, acc[1])
        return m, l, (sum_values(p, v, alpha, acc[0]), acc_rest)


@triton.jit
def _load_keys(ptr, strides, at, LANES: tl.constexpr, TILE_SIZE: tl.constexpr, RUN: tl.constexpr, DTYPE: tl.constexpr):
    """The first LANES lanes of K from ptr on, by keys or by runs."""
    page, slot, kv_head, wanted, f = at
    if RUN == 1:
        return load_keys(ptr, strides, page, slot, kv_head, wanted, f, LANES, DTYPE)
    else:
        return load_key_runs(ptr, strides, page, slot, kv_head, wanted, f, LANES, TILE_SIZE, RUN, DTYPE)


@triton.jit
def _load_values(
    ptr, strides, at, LANES: tl.constexpr, TILE_SIZE: tl.constexpr, RUN: tl.constexpr, DTYPE: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """The first LANES lanes of V from ptr on, by keys or by runs."""
    page, slot, kv_head, wanted, f = at
    if RUN == 1:
        return load_kv_tile(ptr, strides, page, slot, kv_head, wanted, f, LANES, DTYPE, MASKED)
    else:
        return load_runs(ptr, strides, page, slot, kv_head, wanted, f, LANES, TILE_SIZE, RUN, DTYPE, MASKED)


@triton.jit
def narrow_parts(acc, VALUE_SIZE: tl.constexpr, PARTS: tl.constexpr):
    """narrow of sums in parts."""
    if PARTS == 1:
        return (narrow(acc[0], VALUE_SIZE),)
    else:
        FIRST: tl.constexpr = first_part(VALUE_SIZE)
        return (narrow(acc[0], FIRST), narrow(acc[1], VALUE_SIZE - FIRST))


@triton.jit
def finished_parts(acc, cache_ptr, f, r, VALUE_SIZE: tl.constexpr, PARTS: tl.constexpr):
    """finished of sums in parts, narrowed."""
    acc = narrow_parts(acc, VALUE_SIZE, PARTS)
    if PARTS == 1:
        return (finished(acc[0], cache_ptr, f, r),)
    else:
        return (finished(acc[0], cache_ptr, f, r), finished(acc[1], cache_ptr, f, r))


@triton.jit
def store_parts(
    ptr, strides, row, head, live, acc, l, cache_ptr, kv_head, f, r, VALUE_SIZE: tl.constexpr, PARTS: tl.constexpr
):  # fmt: skip
    """Normalise the sums of V and store them."""
    acc = finished_parts(acc, cache_ptr, f, r, VALUE_SIZE, PARTS)
    store_sums(ptr, strides, row, head, live, acc, l, kv_head, f, VALUE_SIZE, PARTS)


@triton.jit
def store_sums(
    ptr, strides, row, head, live, acc, l, kv_head, f, VALUE_SIZE: tl.constexpr, PARTS: tl.constexpr
):  # fmt: skip
    """Normalise sums of V that are finished and store them."""
    FIRST: tl.constexpr = VALUE_SIZE if PARTS == 1 else first_part(VALUE_SIZE)
    store_rows(ptr, strides, row, head, live, normalise(acc[0], l, kv_head, f), FIRST)
    if PARTS == 2:
        x = normalise(acc[1], l, kv_head, f)
        store_rows(ptr + FIRST, strides, row, head, live, x, VALUE_SIZE - FIRST)


@triton.jit
def store_partial_sums(
    partial, segment, row, head, live, m, l, acc, VALUE_SIZE: tl.constexpr, PARTS: tl.constexpr
):  # fmt: skip
    """store_partial of sums in parts, narrowed."""
    FIRST: tl.constexpr = VALUE_SIZE if PARTS == 1 else first_part(VALUE_SIZE)
    store_partial(partial, segment, row, head, live, m, l, acc[0], FIRST)
    if PARTS == 2:
        rest = partial.acc + FIRST + segment.to(tl.int64) * partial.acc_strides[0]
        store_rows(rest, partial.acc_strides[1:], row, head, live, acc[1], VALUE_SIZE - FIRST)
