"""The nouns of an attention kernel, in Triton; dsl_helion/primitives.py says the same in Helion.

Every feature lives here, at four seams: `dequantise` (after a load), `score`, `visible` with `kv_tile_range`, and
`softmax_init`. Kernel files pass the bundle `f` on and never name a feature; a feature that is off is None and its
branch is not compiled. Scores, m and l are in base 2 (log2 e is folded into the scale): exp2 is one instruction.

Shapes: BLOCK_M rows of a Q Block (a row is one query token under one query head), TILE_SIZE keys, HEAD_PADDED lanes.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from common.spec import Features
from dsl_triton.binding import padded

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
WIDEST = 2**30  # a window that no sequence can exceed; position + window then stays inside int32


class Bundle(NamedTuple):
    """common.spec.Features as a kernel argument."""

    non_causal: int | None
    sliding_window: int | None
    softcap: float | None
    sinks: torch.Tensor | None  # float [num_query_heads]


def bundle(features: Features) -> Bundle:
    window = features.sliding_window
    window = None if window is None else min(window, WIDEST)
    return Bundle(None if features.causal else 1, window, features.softcap, features.sinks)


@triton.jit
def q_block_rows(first, kv_head, query_len, QUERIES_PER_KV: tl.constexpr, BLOCK_M: tl.constexpr):
    """Rows of the Q Block whose first query token is `first`: query token, query head, and whether the row is real.

    Row r is token r // QUERIES_PER_KV under head r % QUERIES_PER_KV of the group; a ratio that does not divide BLOCK_M
    leaves rows at the end, which would be the next Q Block's first token.
    """
    row = tl.arange(0, BLOCK_M)
    token = first + row // QUERIES_PER_KV
    head = kv_head * QUERIES_PER_KV + row % QUERIES_PER_KV
    live = (token < query_len) & (row < BLOCK_M // QUERIES_PER_KV * QUERIES_PER_KV)
    return token, head, live


@triton.jit
def load_rows(ptr, strides, row, head, live, HEAD_SIZE: tl.constexpr):
    """[BLOCK_M, HEAD_PADDED] of a tensor [num_tokens, num_query_heads, HEAD_SIZE]; zeros where not `live`."""
    lane = tl.arange(0, padded(HEAD_SIZE))
    offset = row.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[1]
    mask = tl.expand_dims(live, 1) & tl.expand_dims(lane < HEAD_SIZE, 0)
    return tl.load(ptr + tl.expand_dims(offset, 1) + tl.expand_dims(lane, 0), mask=mask, other=0.0)


@triton.jit
def store_rows(ptr, strides, row, head, live, x, HEAD_SIZE: tl.constexpr):
    """The inverse of load_rows, cast to the tensor's dtype; nothing is written where not `live`."""
    lane = tl.arange(0, padded(HEAD_SIZE))
    offset = row.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[1]
    mask = tl.expand_dims(live, 1) & tl.expand_dims(lane < HEAD_SIZE, 0)
    tl.store(ptr + tl.expand_dims(offset, 1) + tl.expand_dims(lane, 0), x.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def store_lse(ptr, strides, row, head, live, m, l):
    """Natural-log LSE, float32; -inf for a row that saw nothing. Nothing where the caller did not ask (ptr is None)."""
    if ptr is not None:
        lse = (m + tl.log2(l)) * LN2
        tl.store(ptr + row.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[1], lse, mask=live)


@triton.jit
def softmax_init(f, head, live, segment, seq_len, BLOCK_M: tl.constexpr, HEAD_SIZE: tl.constexpr):
    """m [BLOCK_M], l [BLOCK_M], acc [BLOCK_M, HEAD_PADDED] before any key.

    A sink is a key with score `sink` and value zero, so it is where the running max starts, with sum 1; once per row,
    so only the first of several segments has it, and none where the sequence has no key: there LSE is -inf.
    """
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    if f.sinks is not None:
        sink = tl.load(f.sinks + head, mask=live, other=float("-inf")).to(tl.float32) * LOG2E
        m = tl.where((segment == 0) & (seq_len > 0), sink, m)
        l = tl.where(m > float("-inf"), 1.0, l)
    acc = tl.zeros([BLOCK_M, padded(HEAD_SIZE)], tl.float32)
    return m, l, acc


@triton.jit
def visible(query_pos, key_pos, seq_len, f):
    """bool [BLOCK_M, TILE_SIZE]: may the query at absolute position q see the key at k. `kv_tile_range` must agree."""
    q = tl.expand_dims(query_pos, 1)
    k = tl.expand_dims(key_pos, 0)
    if f.non_causal is None:
        seen = k <= q
    else:
        seen = k < seq_len
    if f.sliding_window is not None:
        seen = seen & (q - k < f.sliding_window)
        if f.non_causal is not None:
            seen = seen & (k - q < f.sliding_window)
    return seen


@triton.jit
def kv_tile_range(first_pos, last_pos, seq_len, f, TILE_SIZE: tl.constexpr):
    """Which keys and tiles the rows at absolute positions first_pos .. last_pos need.

    Returns first_key, end_key (every key between is visible to some row, none outside to any) and four tile indices
    lo <= full_lo <= full_hi <= hi: tiles [lo, hi) hold those keys, and every row sees every key of [full_lo, full_hi).
    """
    first_key = 0
    end_key = seq_len
    full_end = seq_len
    lo = 0
    full_lo = 0
    if f.non_causal is None:
        end_key = last_pos + 1
        full_end = first_pos + 1
    elif f.sliding_window is not None:
        end_key = tl.minimum(seq_len, last_pos + f.sliding_window)
        full_end = tl.minimum(seq_len, first_pos + f.sliding_window)
    # a sequence without keys has negative positions: nothing is visible, every range is empty
    end_key = tl.maximum(tl.minimum(end_key, seq_len), 0)
    full_end = tl.maximum(full_end, 0)
    hi = tl.cdiv(end_key, TILE_SIZE)
    if f.sliding_window is not None:
        first_key = tl.maximum(first_pos - f.sliding_window + 1, 0)
        lo = tl.minimum(first_key // TILE_SIZE, hi)
        full_lo = tl.cdiv(tl.maximum(last_pos - f.sliding_window + 1, 0), TILE_SIZE)
        full_lo = tl.minimum(tl.maximum(full_lo, lo), hi)
    full_hi = tl.minimum(tl.maximum(full_end // TILE_SIZE, full_lo), hi)
    return first_key, end_key, lo, full_lo, full_hi, hi


@triton.jit
def clip_range(start, stop, full_lo, full_hi, f):
    """Of the tiles [start, stop) those that every row sees entirely, [full_start, full_stop), both inside it."""
    full_start = start
    if f.sliding_window is not None:
        full_start = tl.minimum(tl.maximum(full_lo, start), stop)
    full_stop = tl.minimum(tl.maximum(full_hi, full_start), stop)
    return full_start, full_stop


@triton.jit
def segment_range(segment, lo, full_lo, full_hi, hi, f, NUM_SEGMENTS: tl.constexpr):
    """The tiles of one segment of [lo, hi), and how many segments have any.

    Returns start, full_start, full_stop, stop as kv_tile_range does, and `used`: the tiles are dealt evenly over at
    most NUM_SEGMENTS segments, so a short sequence uses few.
    """
    per_segment = tl.maximum(tl.cdiv(hi - lo, NUM_SEGMENTS), 1)
    used = tl.cdiv(hi - lo, per_segment)
    start = tl.minimum(lo + segment * per_segment, hi)
    stop = tl.minimum(start + per_segment, hi)
    full_start, full_stop = clip_range(start, stop, full_lo, full_hi, f)
    return start, full_start, full_stop, stop, used


@triton.jit
def find_slots(block_table_ptr, key_pos, wanted, BLOCK_SIZE: tl.constexpr, MASKED: tl.constexpr):
    """Page id and slot within the page, int64 [TILE_SIZE], of each key of one sequence's block-table row.

    Entries of keys that are not `wanted` are never read: past the sequence the table holds garbage, or ends.
    """
    if MASKED:
        page = tl.load(block_table_ptr + key_pos // BLOCK_SIZE, mask=wanted, other=0)
    else:
        page = tl.load(block_table_ptr + key_pos // BLOCK_SIZE)
    return page.to(tl.int64), (key_pos % BLOCK_SIZE).to(tl.int64)


@triton.jit
def dequantise(x, f):
    """Stored K or V to the values that it stands for."""
    return x


@triton.jit
def load_kv_tile(cache_ptr, strides, page, slot, kv_head, wanted, f, HEAD_SIZE: tl.constexpr, MASKED: tl.constexpr):
    """K or V [TILE_SIZE, HEAD_PADDED] of one KV head, gathered page by page.

    Keys that are not `wanted` give zeros: their slots may hold NaN, and 0 * NaN would reach the output.
    """
    HEAD_PADDED: tl.constexpr = padded(HEAD_SIZE)
    lane = tl.arange(0, HEAD_PADDED)
    offset = page * strides[0] + slot * strides[1]
    ptrs = (cache_ptr + kv_head.to(tl.int64) * strides[2]) + tl.expand_dims(offset, 1) + tl.expand_dims(lane, 0)
    if MASKED and HEAD_PADDED != HEAD_SIZE:
        x = tl.load(ptrs, mask=tl.expand_dims(wanted, 1) & tl.expand_dims(lane < HEAD_SIZE, 0), other=0.0)
    elif MASKED:
        x = tl.load(ptrs, mask=tl.expand_dims(wanted, 1), other=0.0)
    elif HEAD_PADDED != HEAD_SIZE:
        x = tl.load(ptrs, mask=tl.expand_dims(lane < HEAD_SIZE, 0), other=0.0)
    else:
        x = tl.load(ptrs)
    return dequantise(x, f)


@triton.jit
def score(q, k, softmax_scale, f):
    """Logits [BLOCK_M, TILE_SIZE], which `base2_scale` takes to base 2: raw products, or soft-capped natural logits.

    tanh(y) = 1 - 2 / (exp(2y) + 1) saturates to +-1; the quotient of exponentials would give inf / inf from y = 44 on.
    """
    s = tl.dot(q, tl.trans(k), input_precision="ieee")
    if f.softcap is not None:
        y = s * (softmax_scale / f.softcap)
        s = f.softcap * (1.0 - 2.0 / (tl.exp2(y * (2.0 * LOG2E)) + 1.0))
    return s


@triton.jit
def base2_scale(softmax_scale, f):
    """Score x this = base-2 logit: the scale waits until here, where it is one operand of a multiply-add."""
    if f.softcap is not None:
        return LOG2E
    else:
        return softmax_scale * LOG2E


@triton.jit
def softmax_step(s, v, m, l, acc, base2, MASKED: tl.constexpr):
    """One step of the online softmax: scores s [BLOCK_M, TILE_SIZE], values v [TILE_SIZE, HEAD_PADDED].

    m is in base 2, s is not yet: scaling the row's maximum instead of each score saves a multiplication in six and the
    registers of a second copy of s (128 rows x 64 keys on sm_90: 769 to 624 instructions a tile, 33 spills to none).
    """
    m_new = tl.maximum(m, tl.max(s, 1) * base2)
    shift = m_new
    if MASKED:  # a row that has seen nothing yet keeps m = -inf, and -inf - -inf is NaN
        shift = tl.where(m_new == float("-inf"), 0.0, m_new)
    p = tl.exp2(s * base2 - tl.expand_dims(shift, 1))
    alpha = tl.exp2(m - shift)
    l = l * alpha + tl.sum(p, 1)
    acc = tl.dot(p.to(v.dtype), v, acc * tl.expand_dims(alpha, 1), input_precision="ieee")
    return m_new, l, acc


@triton.jit
def attend_tile(
    j, q, m, l, acc, query_pos, seq_len, first_key, end_key, kv_head, softmax_scale, f,
    key_cache_ptr, value_cache_ptr, block_table_ptr, key_strides, value_strides,
    HEAD_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE_SIZE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Tile j of the sequence: load K, score, mask where MASKED, load V, step. Returns the new m, l, acc.

    Only V is masked on load: what an unwanted K scores is replaced, and the page 0 that stands for it exists. Masking K
    as well costs 12 registers, and with them 5% of a long decode on an H200 (206 against 197 us at 128 x 2048).
    """
    key_pos = j * TILE_SIZE + tl.arange(0, TILE_SIZE)
    wanted = (key_pos >= first_key) & (key_pos < end_key)
    page, slot = find_slots(block_table_ptr, key_pos, wanted, BLOCK_SIZE, MASKED)
    k = load_kv_tile(key_cache_ptr, key_strides, page, slot, kv_head, wanted, f, HEAD_SIZE, False)
    s = score(q, k, softmax_scale, f)
    if MASKED:
        s = tl.where(visible(query_pos, key_pos, seq_len, f), s, float("-inf"))
    v = load_kv_tile(value_cache_ptr, value_strides, page, slot, kv_head, wanted, f, HEAD_SIZE, MASKED)
    return softmax_step(s, v, m, l, acc, base2_scale(softmax_scale, f), MASKED)


@triton.jit
def normalise(acc, l):
    """acc / l [BLOCK_M, HEAD_PADDED]; a row that saw nothing gives zeros."""
    return acc / tl.expand_dims(tl.where(l > 0.0, l, 1.0), 1)
