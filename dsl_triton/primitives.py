"""The nouns of an attention kernel, in Triton; dsl_helion/primitives.py says the same in Helion.

Every feature lives at a few seams (docs/features.md lists them): `dequantise` after a load, `logits`, `visible` with
`kv_tile_range` in masks.py, `softmax_init`, `normalise` and others. Kernel files pass the bundle `f` and the row
operands `r` (features.py) on and never name a feature; a feature that is off is None and its branch is not compiled.
Scores, m and l are in base 2 (log2 e is folded into the scale): exp2 is one instruction.

Shapes: BLOCK_M rows of a Q Block (a row is one query token under one query head), TILE_SIZE keys, HEAD_PADDED lanes of
Q and K, VALUE_PADDED of V and of the output.
"""

import triton
import triton.language as tl

from dsl_triton.binding import deals_lanes, is_ptx, largest, padded, product_lanes, value_dtype, widens_pairs
from dsl_triton.features import HEADROOM, deal_lanes, widen, widen_pairs
from dsl_triton.masks import nearest_page, not_before, visible

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def head_and_block(f, NUM_KV_HEADS: tl.constexpr, LAST_FIRST: tl.constexpr = False):
    """This program's KV head and its number among the programs of that head, counted down with LAST_FIRST.

    Heads are the fast axis of the grid, unless f.xcds is set. The hardware assigns programs to f.xcds dies in turn, so
    each die gets neighbouring places here, with heads as the slow axis (AITER's remap, and Helion's xcd_remap).
    """
    program = tl.program_id(0)
    if f.xcds is None:
        kv_head = program % NUM_KV_HEADS
        block = (tl.num_programs(0) - 1 - program if LAST_FIRST else program) // NUM_KV_HEADS
    else:
        die = program % f.xcds
        least = tl.num_programs(0) // f.xcds  # programs of a die; the first `more` dies have one more
        more = tl.num_programs(0) % f.xcds
        place = die * least + tl.minimum(die, more) + program // f.xcds
        blocks = tl.num_programs(0) // NUM_KV_HEADS
        kv_head = place // blocks
        block = blocks - 1 - place % blocks if LAST_FIRST else place % blocks
    return kv_head, block


@triton.jit
def first_index(query_start, seq, BLOCK_Q: tl.constexpr):
    """Number of the first Q Block of sequence `seq`, whose query begins at row `query_start`.

    It needs no lengths of other sequences; at most one Q Block a sequence has no rows. BLOCK_Q None: count query rows,
    not Q Blocks.
    """
    if BLOCK_Q is None:
        return query_start
    else:
        return query_start // BLOCK_Q + seq


@triton.jit
def search_sequence(index, left, right, query_start_loc_ptr, BLOCK_Q: tl.constexpr):
    """The last of the sequences [left, right) that begins at or before a Q Block or query row: a binary search."""
    seq = left
    while right - seq > 1:
        middle = (seq + right) // 2
        if first_index(tl.load(query_start_loc_ptr + middle), middle, BLOCK_Q) <= index:
            seq = middle
        else:
            right = middle
    return seq


@triton.jit
def locate_q_block(index, query_start_loc_ptr, seq_lens_ptr, num_seqs, BLOCK_Q: tl.constexpr):
    """The sequence of a Q Block: seq, query_start, query_len, seq_len, and the Q Block's first token in the query.

    BLOCK_Q None: locate a query row. The first guess is exact where every query has one token: three loads at once then
    replace log2(num_seqs) + 2 loads in a chain.
    """
    if BLOCK_Q is None:
        seq = tl.minimum(index, num_seqs - 1)
    else:
        seq = tl.minimum(index - (index + 1) // (BLOCK_Q + 1), num_seqs - 1)
    query_start = tl.load(query_start_loc_ptr + seq)
    query_end = tl.load(query_start_loc_ptr + seq + 1)
    seq_len = tl.load(seq_lens_ptr + seq)
    begins = first_index(query_start, seq, BLOCK_Q) <= index
    if (begins & (first_index(query_end, seq + 1, BLOCK_Q) > index)) == 0:
        right = tl.where(begins, num_seqs, seq)
        seq = search_sequence(index, tl.where(begins, seq, 0), right, query_start_loc_ptr, BLOCK_Q)
        query_start = tl.load(query_start_loc_ptr + seq)
        query_end = tl.load(query_start_loc_ptr + seq + 1)
        seq_len = tl.load(seq_lens_ptr + seq)
    first = index - first_index(query_start, seq, BLOCK_Q)
    if BLOCK_Q is not None:
        first *= BLOCK_Q
    return seq, query_start, query_end - query_start, seq_len, first


@triton.jit
def q_block_rows(first, kv_head, query_len, QUERIES_PER_KV: tl.constexpr, BLOCK_M: tl.constexpr):
    """Rows of the Q Block whose first query token is `first`: query token, query head, and whether the row is real.

    Row r is token r // QUERIES_PER_KV under head r % QUERIES_PER_KV of the group. A ratio that does not divide BLOCK_M
    leaves the last rows unused.
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
    x = cut(x, ptr.dtype.element_ty)
    tl.store(ptr + tl.expand_dims(offset, 1) + tl.expand_dims(lane, 0), x.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def cut(x, DTYPE: tl.constexpr):
    """Clamp x to the range of an 8-bit dtype, NaN as it is; x itself where the dtype is wider."""
    if DTYPE.primitive_bitwidth == 8:
        x = tl.where(x > largest(DTYPE), largest(DTYPE), x)
        x = tl.where(x < -largest(DTYPE), -largest(DTYPE), x)
    return x


@triton.jit
def store_lse(ptr, strides, row, head, live, m, l):
    """Write the natural-log LSE, float32: -inf for a row without key and sink. Writes nothing where ptr is None."""
    if ptr is not None:
        lse = (m + tl.log2(l)) * LN2
        tl.store(ptr + row.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[1], lse, mask=live)


@triton.jit
def store_partial(
    partial, segment, row, head, live, m, l, acc, VALUE_SIZE: tl.constexpr
):  # fmt: skip
    """Store the m, l and acc of one segment into a binding.Partial."""
    part = segment.to(tl.int64)
    to = partial.acc + part * partial.acc_strides[0]
    store_rows(to, partial.acc_strides[1:], row, head, live, acc, VALUE_SIZE)
    at = part * partial.m_strides[0] + row.to(tl.int64) * partial.m_strides[1] + head
    tl.store(partial.m + at, m, mask=live)
    tl.store(partial.l + at, l, mask=live)


@triton.jit
def softmax_init(f, head, live, segment, q, VALUE_SIZE: tl.constexpr):
    """m [BLOCK_M], l [BLOCK_M], acc [BLOCK_M, product_lanes] before any key; q as `query_operand` left it.

    A sink is a key with score `sink` and value zero: the running max starts there, with sum 1. Each row has it once, so
    only the first of several segments starts with it.
    """
    BLOCK_M: tl.constexpr = q.shape[0]
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    if f.sinks is not None:
        sink = tl.load(f.sinks + head, mask=live, other=float("-inf")).to(tl.float32) * LOG2E
        m = tl.where(segment == 0, sink, m)
        l = tl.where(m > float("-inf"), 1.0, l)
    acc = tl.zeros([BLOCK_M, product_lanes(VALUE_SIZE, q.shape[1], BLOCK_M, q.dtype)], tl.float32)
    return m, l, acc


@triton.jit
def find_slots(block_table_ptr, key_pos, first_key, end_key, f, BLOCK_SIZE: tl.constexpr, MASKED: tl.constexpr):
    """Page id and slot within the page, int64 [TILE_SIZE], of each key of one sequence's block-table row.

    Only pages with a key of first_key .. end_key are looked up: past the sequence the table ends or holds garbage. With
    MASKED other keys take the nearest such page, whose slots may still hold NaN. Unsigned division compiles to a shift,
    which saves 30% of the instructions of a tile on sm_90.
    """
    at = key_pos.to(tl.uint32)
    index = (at // BLOCK_SIZE).to(tl.int32)
    if MASKED:
        index = nearest_page(index, first_key, end_key, f, BLOCK_SIZE)
    return tl.load(block_table_ptr + index).to(tl.int64), (at % BLOCK_SIZE).to(tl.int64)


@triton.jit
def row_offset(page, slot, strides):
    """Elements from the first slot of a cache to others, int64; strides: as binding.cache_strides has them.

    By rows an address is one register times a constant. The number of rows of a page is a run-time value: if it were a
    constant, Triton would keep the slots' part of all addresses in registers of its own.
    """
    if len(strides) == 3:
        row = page.to(tl.int32) * strides[0] + slot.to(tl.int32)
        return row.to(tl.int64) * strides[1]
    else:
        return page * strides[0] + slot * strides[1]


@triton.jit
def dequantise(x, DTYPE: tl.constexpr):
    """Convert stored K or V to an operand of a product, exactly. Scales come later: to scores, P or the output."""
    return x.to(DTYPE)


@triton.jit
def dequantise_values(v, DTYPE: tl.constexpr, ROWS: tl.constexpr):
    """Convert stored V [TILE_SIZE, VALUE_PADDED] to an operand of a product of ROWS rows."""
    if deals_lanes(v.dtype, ROWS):
        v = deal_lanes(v)
    PTX: tl.constexpr = is_ptx()
    if widens_pairs(v.dtype, DTYPE, ROWS, PTX):
        return widen_pairs(v)
    else:
        return dequantise(v, DTYPE)


@triton.jit
def load_kv_tile(
    cache_ptr, strides, page, slot, kv_head, wanted, f,
    HEAD_SIZE: tl.constexpr, DTYPE: tl.constexpr, MASKED: tl.constexpr, LANES: tl.constexpr = 1,
):  # fmt: skip
    """K or V [TILE_SIZE, HEAD_PADDED] of one KV head, gathered page by page.

    LANES: the axis of the lanes: 1, or 0 for [HEAD_PADDED, TILE_SIZE].
    Keys that are not `wanted` give zeros: their slots may hold NaN, and 0 * NaN is NaN.
    """
    HEAD_PADDED: tl.constexpr = padded(HEAD_SIZE)
    KEPT: tl.constexpr = "" if f.stream is None else ".cg"
    lane = tl.arange(0, HEAD_PADDED)
    offset = row_offset(page, slot, strides)
    base = cache_ptr + kv_head.to(tl.int64) * strides[2]
    ptrs = base + tl.expand_dims(offset, LANES) + tl.expand_dims(lane, 1 - LANES)
    inside = tl.expand_dims(lane < HEAD_SIZE, 1 - LANES)
    if MASKED and HEAD_PADDED != HEAD_SIZE:
        x = tl.load(ptrs, mask=tl.expand_dims(wanted, LANES) & inside, other=0.0, cache_modifier=KEPT)
    elif MASKED:
        x = tl.load(ptrs, mask=tl.expand_dims(wanted, LANES), other=0.0, cache_modifier=KEPT)
    elif HEAD_PADDED != HEAD_SIZE:
        x = tl.load(ptrs, mask=inside, other=0.0, cache_modifier=KEPT)
    else:
        x = tl.load(ptrs, cache_modifier=KEPT)
    return dequantise(x, DTYPE)


@triton.jit
def load_keys(cache_ptr, strides, page, slot, kv_head, wanted, f, HEAD_SIZE: tl.constexpr, DTYPE: tl.constexpr):
    """K of one KV head for `products`: [TILE_SIZE, HEAD_PADDED], or [HEAD_PADDED, TILE_SIZE] with f.transposed_keys."""
    LANES: tl.constexpr = 1 if f.transposed_keys is None else 0
    return load_kv_tile(cache_ptr, strides, page, slot, kv_head, wanted, f, HEAD_SIZE, DTYPE, False, LANES)


@triton.jit
def load_token_scales(scales_ptr, strides, page, slot, kv_head, wanted):
    """Scales of the `wanted` keys, float32 [TILE_SIZE], 0 for others; 0 where scales_ptr is None."""
    if scales_ptr is not None:
        offset = page * strides[0] + slot * strides[1] + kv_head.to(tl.int64) * strides[2]
        return tl.load(scales_ptr + offset, mask=wanted, other=0.0)
    else:
        return 0


@triton.jit
def products(q, k, f, s=None):
    """q . k of every row and key, float32 [BLOCK_M, TILE_SIZE], added to s. Triton multiplies fp8 of at least 32 lanes.

    k: as load_keys gives it.
    """
    if q.dtype.is_fp8() and q.shape[1] < 32:
        q = q.to(tl.float16)
        k = k.to(tl.float16)
    if f.transposed_keys is None:
        k = tl.trans(k)
    return tl.dot(q, k, s, input_precision="ieee")


@triton.jit
def logit_scale(softmax_scale, f, r):
    """The factor from a product of stored elements to a logit, without scales per token."""
    if f.key_scale is not None or f.query_scale is not None:
        return softmax_scale * r.logit_scale
    else:
        return softmax_scale


@triton.jit
def logits(s, key_scales, query_pos, key_pos, seq_len, softmax_scale, f, r, MASKED: tl.constexpr):
    """Scores of products s, -inf where a row does not see a key.

    Scores are raw products, or natural logits where a feature needs them; `base2_scale` takes either to base 2. tanh(y)
    = 1 - 2 / (exp(2y) + 1) saturates to +-1, where a quotient of exponentials would become inf / inf.
    """
    scale = logit_scale(softmax_scale, f, r)
    if r.row_scale.dtype.is_floating():
        s *= tl.expand_dims(r.row_scale, 1)
    if f.key_token_scales is not None:
        s *= tl.expand_dims(key_scales, 0)
    if f.softcap is not None:
        y = s * (scale / f.softcap)
        s = f.softcap * (1.0 - 2.0 / (tl.exp2(y * (2.0 * LOG2E)) + 1.0))
    elif f.alibi_slopes is not None or f.tree_bias is not None:
        s *= scale
    if f.alibi_slopes is not None:
        distance = (tl.expand_dims(query_pos, 1) - tl.expand_dims(key_pos, 0)).to(tl.float32)
        if f.alibi_sqrt is not None:
            distance = tl.sqrt(tl.maximum(distance, 0.0))
        s -= tl.expand_dims(r.slope, 1) * distance
    if MASKED:
        if f.tree_bias is not None:
            token = tl.expand_dims(r.token, 1)
            column = tl.expand_dims(key_pos - r.context_len, 0)
            inside = (token < f.tree_size) & (column >= 0) & (column < f.tree_size)
            at = token * f.tree_strides[0] + column * f.tree_strides[1]
            s += tl.load(f.tree_bias + at, mask=inside, other=0.0).to(tl.float32)
        seen = visible(query_pos, key_pos, seq_len, f, r)
        s = tl.where(seen, s, float("-inf"))
    return s


@triton.jit
def base2_scale(softmax_scale, f, r):
    """The factor from a score to a base-2 logit. softmax_step applies it as one operand of a multiply-add."""
    if f.softcap is not None or f.alibi_slopes is not None or f.tree_bias is not None:
        return LOG2E
    else:
        return logit_scale(softmax_scale, f, r) * LOG2E


@triton.jit
def split_sums(l, BLOCK_M: tl.constexpr, TILE_SIZE: tl.constexpr):
    """l [BLOCK_M] as `add_sums` takes it: [BLOCK_M, 4, 4], l in the first place, for under 64 rows and tiles of under
    128 keys; else as it is.

    Several warps share the keys of so few rows. A sum over all keys of a tile would take shuffles, and 3 of its 9
    barriers on sm_90. Here each place sums its own keys, and join_sums adds the places once. Tiles of 128 keys would
    spill: they leave no registers for the places.
    """
    if BLOCK_M < 64 and TILE_SIZE < 128:
        four = tl.arange(0, 4)
        first = (tl.expand_dims(four, 0) + tl.expand_dims(four, 1)) == 0
        l = tl.where(tl.expand_dims(first, 0), tl.expand_dims(tl.expand_dims(l, 1), 2), 0.0)
    return l


@triton.jit
def add_sums(l, alpha, p):
    """l * alpha + sums of p [BLOCK_M, TILE_SIZE] over keys. A thread's keys of 16 x 8 products share a place of l."""
    if len(l.shape) == 1:
        return l * alpha + tl.sum(p, 1)
    else:
        BLOCK_M: tl.constexpr = p.shape[0]
        TILE_SIZE: tl.constexpr = p.shape[1]
        PAIR: tl.constexpr = 2 if TILE_SIZE >= 32 else 1
        p = tl.reshape(p, [BLOCK_M, TILE_SIZE // (16 * PAIR), 4, 4, PAIR])
        return l * tl.expand_dims(tl.expand_dims(alpha, 1), 2) + tl.sum(tl.sum(p, 4), 1)


@triton.jit
def join_sums(l):
    """The inverse of split_sums."""
    if len(l.shape) > 1:
        l = tl.sum(tl.sum(l, 2), 1)
    return l


@triton.jit
def softmax_weights(s, value_scales, m, l, base2, f, r, MASKED: tl.constexpr):
    """P of scores s [BLOCK_M, TILE_SIZE], alpha, by which the sums of V so far are multiplied, and the new m and l.

    m is in base 2, s is not yet. Scaling the row's maximum, not each score, saves the registers of a second copy of s:
    33 spills a tile of 128 x 64 on sm_90. P in fp16 beside a bf16 query carries HEADROOM until `finished`.
    """
    m_new = tl.maximum(m, tl.max(s, 1) * base2)
    shift = m_new
    if MASKED:  # a row that has seen nothing yet keeps m = -inf, and -inf - -inf is NaN
        shift = tl.where(m_new == float("-inf"), 0.0, m_new)
    p = tl.exp2(s * base2 - tl.expand_dims(shift, 1))
    alpha = tl.exp2(m - shift)
    l = add_sums(l, alpha, p)
    if f.value_token_scales is not None:
        p *= tl.expand_dims(value_scales, 0)
    elif r.row_scale.dtype.is_floating():  # a logit beyond 2^24 may exceed the rounded maximum: P would be Inf in fp16
        p = tl.where(p > 1.0, HEADROOM, p * HEADROOM)
    return p, alpha, m_new, l


@triton.jit
def sum_values(p, v, alpha, acc):
    """acc * alpha + P . V, of V [TILE_SIZE, VALUE_PADDED]."""
    return tl.dot(p.to(v.dtype), widen(v, acc.shape[1]), acc * tl.expand_dims(alpha, 1), input_precision="ieee")


@triton.jit
def softmax_step(s, v, value_scales, m, l, acc, base2, f, r, MASKED: tl.constexpr):
    """One step of the online softmax: scores s [BLOCK_M, TILE_SIZE], values v [TILE_SIZE, VALUE_PADDED]."""
    p, alpha, m, l = softmax_weights(s, value_scales, m, l, base2, f, r, MASKED)
    return m, l, sum_values(p, v, alpha, acc)


@triton.jit
def attend_tile(
    j, q, m, l, acc, query_pos, seq_len, first_key, end_key, kv_head, softmax_scale, f, r,
    key_cache_ptr, value_cache_ptr, block_table_ptr, key_strides, value_strides,
    HEAD_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE_SIZE: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Tile j of the sequence: load K, score, mask where MASKED, load V, step. Returns the new m, l, acc.

    Only V is masked on load: scores of unwanted keys are replaced, and their page exists. Masking K too takes
    registers, and 5% of a long decode on an H200.
    """
    key_pos = j * TILE_SIZE + tl.arange(0, TILE_SIZE)
    wanted = not_before(first_key, key_pos, key_pos < end_key, f)
    page, slot = find_slots(block_table_ptr, key_pos, first_key, end_key, f, BLOCK_SIZE, MASKED)
    k = load_keys(key_cache_ptr, key_strides, page, slot, kv_head, wanted, f, HEAD_SIZE, q.dtype)
    scales = load_token_scales(f.key_token_scales, f.key_token_strides, page, slot, kv_head, wanted)
    s = logits(products(q, k, f), scales, query_pos, key_pos, seq_len, softmax_scale, f, r, MASKED)
    STORED: tl.constexpr = value_cache_ptr.dtype.element_ty
    v_strides = key_strides if value_strides is None else value_strides
    v = load_kv_tile(value_cache_ptr, v_strides, page, slot, kv_head, wanted, f, VALUE_SIZE, STORED, MASKED)
    v = dequantise_values(v, value_dtype(q.dtype, f.value_token_scales is not None), acc.shape[0])
    scales = load_token_scales(f.value_token_scales, f.value_token_strides, page, slot, kv_head, wanted)
    return softmax_step(s, v, scales, m, l, acc, base2_scale(softmax_scale, f, r), f, r, MASKED)


@triton.jit
def attend_range(
    attend: tl.constexpr, start, full_start, full_stop, stop, q, m, l, acc, operands, TILE_SIZE: tl.constexpr
):
    """Attend to tiles [start, stop) of the sequence, those of [full_start, full_stop) without masks. Returns m, l, acc.

    attend: attend_tile, or one that reads K and V from elsewhere. operands: its arguments from query_pos to MASKED.
    """
    l = split_sums(l, m.shape[0], TILE_SIZE)
    for j in range(start, full_start):
        m, l, acc = attend(j, q, m, l, acc, *operands, MASKED=True)
    for j in range(full_start, full_stop):
        m, l, acc = attend(j, q, m, l, acc, *operands, MASKED=False)
    for j in range(full_stop, stop):
        m, l, acc = attend(j, q, m, l, acc, *operands, MASKED=True)
    return m, join_sums(l), acc


@triton.jit
def normalise(acc, l, kv_head, f):
    """Output rows [BLOCK_M, VALUE_PADDED]: acc / l, times the scales that are left; zeros for rows that saw no key.

    Rows in parts are normalised once, after their sums were added.
    """
    return rescale(acc / tl.expand_dims(tl.where(l > 0.0, l, 1.0), 1), kv_head, f)


@triton.jit
def rescale(x, kv_head, f):
    """Multiply rows x of one KV head, of any shape, by V's scale and divide them by the output's."""
    if f.value_scale is not None:
        x *= tl.load(f.value_scale + kv_head * f.value_scale_stride)
    if f.out_scale is not None:
        x /= tl.load(f.out_scale)
    return x
