"""The nouns of an attention kernel, in Helion; dsl_triton/primitives.py says the same in Triton.

Every feature lives at a few seams (docs/features.md lists them): `dequantise` after a load, `logits`, `visible` with
`kv_tile_range` in masks.py, `softmax_init`, `normalise` and others. Kernel files pass the bundle `f` and the row
operands `r` (features.py) on and never name a feature; a feature that is off is None and its branch is not compiled.
Scores, m and l are in base 2 (log2 e is folded into the scale): exp2 is one instruction.

Helpers are inlined into the kernel. They address with `hl.load` and `hl.store`: `t[index]` and `x[:, None]` do not
lower in a helper, nor does a loop. Page, slot and row indices are int64 before a stride multiplies them.

Shapes: block_m rows of a Q Block (a row is one query token under one query head), tile_size keys, head_size lanes of Q
and K, value_size of V and of the output; Helion pads them to a power of two.
"""

import helion.language as hl
import torch

from dsl_helion.arithmetic import div, int32, mod, quotient_and_rest, square_root, tanh
from dsl_helion.binding import deals_lanes, is_power_of_two, largest, product_dtype, product_lanes, value_dtype
from dsl_helion.features import HEADROOM, deal_lanes, head_scale, widen
from dsl_helion.masks import nearest_page, not_before, visible

LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453


def begins(index, query_start, seq, block_q):
    """Whether sequence `seq`, whose query begins at row `query_start`, does so at or before a Q Block.

    Its first Q Block has the number query_start // block_q + seq; this asks without a quotient, for block_q may be no
    constant. block_q None: a row in place of a Q Block.
    """
    if block_q is None:
        return query_start <= index
    else:
        return query_start < (index - seq + 1) * int32(block_q)


def is_other(index, query_start, query_end, seq, left, right, block_q):
    """Whether a Q Block or row belongs to another of the sequences [left, right) than `seq`, and there is another."""
    before = begins(index, query_start, seq, block_q).logical_not() & (left < seq)
    return before | (begins(index, query_end, seq + 1, block_q) & (seq + 1 < right))


def sequence_at(query_start_loc, seq_lens, seq):
    """Where the query of a sequence begins and ends, and its keys: loads that do not wait for each other."""
    return hl.load(query_start_loc, [seq]), hl.load(query_start_loc, [seq + 1]), hl.load(seq_lens, [seq])


def other_half(index, query_start, seq, left, right, block_q):
    """One step of a binary search: the part of the sequences [left, right) behind or before `seq` that holds a Q Block
    or row, and the middle sequence of that part."""
    after = begins(index, query_start, seq, block_q)
    left = torch.where(after, seq + 1, left)
    right = torch.where(after, right, seq)
    return left, right, div(left + right, 2)


def q_block_rows(first, kv_head, query_len, queries_per_kv, block_m):
    """Rows of the Q Block whose first query token is `first`: query token, query head, and whether the row is real.

    Row r is token r // queries_per_kv under head r % queries_per_kv of the group. A ratio that does not divide block_m
    leaves the last rows unused.
    """
    row = hl.arange(block_m)
    token = first + div(row, queries_per_kv)
    head = kv_head * queries_per_kv + mod(row, queries_per_kv)
    live = (token < query_len) & (row < block_m // queries_per_kv * queries_per_kv)
    return token, head, live


def load_rows(tensor, row, head, live):
    """[block_m, head_size] of a tensor [num_tokens, num_query_heads, head_size]; zeros where not `live`.

    Loaded with two axes where lanes allow it: `wgmma` reads a tensor that was reshaped from three through registers.
    """
    at = [row.to(torch.int64).unsqueeze(1), head.to(torch.int64).unsqueeze(1)]
    if is_power_of_two(tensor.size(2)):
        return stored(hl.load(tensor, [*at, hl.arange(tensor.size(2)).unsqueeze(0)], extra_mask=live.unsqueeze(1)))
    else:
        return stored(hl.load(tensor, [*at, slice(None)], extra_mask=live.unsqueeze(1).unsqueeze(2)).squeeze(1))


def stored(x):
    """What was loaded, in its own dtype: bytes are e4m3fnuz (binding.loadable)."""
    return x.view(torch.float8_e4m3fnuz) if x.dtype == torch.uint8 else x


def store_rows(tensor, row, head, live, x, lanes=slice(None)):
    """The inverse of load_rows, cast to the tensor's dtype; nothing is written where not `live`."""
    at = [row.to(torch.int64).unsqueeze(1), head.to(torch.int64).unsqueeze(1), lanes]
    x = cut(x, tensor.dtype).to(tensor.dtype)
    hl.store(tensor, at, x.unsqueeze(1), extra_mask=live.unsqueeze(1).unsqueeze(2))


def cut(x, dtype):
    """Clamp x to the range of an 8-bit dtype, NaN as it is; x itself where the dtype is wider."""
    if dtype.itemsize == 1:
        x = torch.where(x > largest(dtype), largest(dtype), x)
        x = torch.where(x < -largest(dtype), -largest(dtype), x)
    return x


def store_lse(tensor, row, head, live, m, l):
    """Write the natural-log LSE, float32: -inf for a row without key and sink. Writes nothing where tensor is None."""
    if tensor is not None:
        lse = (m + torch.log2(l)) * LN2
        at = [row.to(torch.int64).unsqueeze(1), head.to(torch.int64).unsqueeze(1)]
        hl.store(tensor, at, lse.unsqueeze(1), extra_mask=live.unsqueeze(1))


def store_partial(partial, segment, row, head, live, m, l, acc, lanes=slice(None)):
    """Store the m, l and acc of one segment into (acc [segments, tokens, heads, head_size], m, l); None: do nothing."""
    to_acc, to_m, to_l = partial
    if to_acc is not None:
        at = [segment, row.to(torch.int64).unsqueeze(1), head.to(torch.int64).unsqueeze(1)]
        keep = live.unsqueeze(1)
        hl.store(to_acc, [*at, lanes], acc.unsqueeze(1), extra_mask=keep.unsqueeze(2))
        hl.store(to_m, at, m.unsqueeze(1), extra_mask=keep)
        hl.store(to_l, at, l.unsqueeze(1), extra_mask=keep)


def softmax_init(f, head, live, segment, q, value_size):
    """m [block_m], l as split_sums has it, acc [block_m, product_lanes] before any key; q as `query_operand` left it.

    A sink is a key with score `sink` and value zero: the running max starts there, with sum 1. Each row has it once, so
    only the first of several segments starts with it.
    """
    block_m = q.size(0)
    m = hl.full([block_m], float("-inf"), dtype=torch.float32)
    l = hl.zeros([block_m], dtype=torch.float32)
    if f["sinks"] is not None:
        logit = hl.load(f["sinks"], [head], extra_mask=live).to(torch.float32) * LOG2E
        m = torch.where(live & (segment == 0), logit, m)
        l = torch.where(m > float("-inf"), 1.0, l)
    acc = hl.zeros([block_m, product_lanes(value_size, q.size(1), q.dtype)], dtype=torch.float32)
    return m, split_sums(l, f), acc


def wide_index(number):
    """A grid's number as an index of 64 bits among others of rank 2: Helion writes x[:, None] for a tensor of any rank,
    which Triton 3.9 refuses of rank 0."""
    return hl.full([1, 1], number, dtype=torch.int64)


def find_slots(block_table, seq, j, key_pos, first_key, end_key, f, block_size, page_rows, gather, tile_size, masked):
    """What load_kv_tile indexes the cache with, in one of three forms (binding.Gather).

    page: page ids, int64 [tile_size // block_size]. flat: rows, int32 [tile_size]. 2idx: page ids and slots, int64
    [tile_size].
    Only pages with a key of first_key .. end_key are looked up: past the sequence the table ends or holds garbage. With
    `masked` other keys take the nearest such page, whose slots may still hold NaN.
    """
    index, slot = quotient_and_rest(key_pos, block_size)
    if gather == "page":
        index = j * (tile_size // block_size) + hl.arange(tile_size // block_size)
    if masked:
        index = nearest_page(index, first_key, end_key, f, block_size)
    page = hl.load(block_table, [seq.to(torch.int64), index])
    if gather == "flat":  # in 32 bits, which hold all rows (binding.gather_form): page_rows is no constant
        return page.to(torch.int32) * page_rows + slot, slot
    return page.to(torch.int64), slot.to(torch.int64)


def dequantise(x, dtype):
    """Convert stored K or V to an operand of a product, exactly. Scales come later: to scores, P or the output."""
    x = stored(x)
    return x if x.dtype == dtype or dtype is None else x.to(dtype)


def dequantise_values(v, dtype):
    """Convert stored V [tile_size, value_size] to an operand of a product."""
    if deals_lanes(v.dtype, v.size(1)):
        v = deal_lanes(v)
    return dequantise(v, dtype)


def load_kv_tile(cache, page, slot, kv_head, wanted, block_size, gather, tile_size, dtype, masked):
    """K or V [tile_size, head_size] of one KV head, gathered page by page.

    Keys that are not `wanted` give zeros: their slots may hold NaN, and 0 * NaN is NaN. A tile has two axes where lanes
    allow it: Triton copies three to shared memory without swizzling, and banks conflict.
    kv_head: a grid's number, which takes no register and no axis, or a tensor where the grid has other numbers, as in
    static_grid.
    """
    if gather == "page":
        keep = wanted.reshape(tile_size // block_size, block_size).unsqueeze(2)
        if isinstance(kv_head, torch.Tensor):
            at = [page.unsqueeze(1), hl.arange(block_size).unsqueeze(0), wide_index(kv_head), slice(None)]
        else:
            at = [page, slice(None), kv_head, slice(None)]
    elif gather == "flat" and not isinstance(kv_head, torch.Tensor) and not is_power_of_two(cache.size(-1)):
        at = [page.to(torch.int64), kv_head, slice(None)]
        keep = wanted.unsqueeze(1)
    else:  # rows are widened behind their second axis: before it Triton moves them between threads twice, for K and V
        keys = [page.unsqueeze(1).to(torch.int64)] if gather == "flat" else [page.unsqueeze(1), slot.unsqueeze(1)]
        if is_power_of_two(cache.size(-1)):
            at, keep = [*keys, wide_index(kv_head), hl.arange(cache.size(-1)).unsqueeze(0)], wanted.unsqueeze(1)
        else:
            at, keep = [*keys, wide_index(kv_head), slice(None)], wanted.unsqueeze(1).unsqueeze(2)
    if masked:
        x = hl.load(cache, at, extra_mask=keep)
    else:
        x = hl.load(cache, at)
    if gather == "page":
        x = x.reshape(tile_size, cache.size(-1))
    elif x.ndim == 3:
        x = x.squeeze(1)
    return dequantise(x, dtype)


def load_keys(cache, page, slot, kv_head, wanted, f, block_size, gather, tile_size, dtype):
    """K of one KV head for `products`: [tile_size, head_size], or [head_size, tile_size] with transposed_keys."""
    if f["transposed_keys"] is None:
        return load_kv_tile(cache, page, slot, kv_head, wanted, block_size, gather, tile_size, dtype, False)
    lane, head = hl.arange(cache.size(-1)).unsqueeze(1), wide_index(kv_head)
    if gather == "page":
        slots = hl.arange(block_size).unsqueeze(0).unsqueeze(0)
        x = hl.load(cache, [page.unsqueeze(0).unsqueeze(2), slots, head, lane.unsqueeze(2)])
        x = x.reshape(cache.size(-1), tile_size)
    elif gather == "flat":
        x = hl.load(cache, [page.unsqueeze(0).to(torch.int64), head, lane])
    else:
        x = hl.load(cache, [page.unsqueeze(0), slot.unsqueeze(0), head, lane])
    return dequantise(x, dtype)


def load_token_scales(
    scales, block_table, seq, j, key_pos, first_key, end_key, f, kv_head, wanted, block_size, tile_size, masked
):
    """Scales of the `wanted` keys, float32 [tile_size], 0 for others; None without scales per token.

    Addressed by page and slot in every gather form: the rows of a flat cache are not those of its scales.
    """
    if scales is None:
        return None
    page, slot = find_slots(
        block_table, seq, j, key_pos, first_key, end_key, f, block_size, 0, "2idx", tile_size, masked
    )
    at = [page.unsqueeze(1), slot.unsqueeze(1), wide_index(kv_head)]
    return hl.load(scales, at, extra_mask=wanted.unsqueeze(1)).squeeze(1)


def products(q, k, f, s=None):
    """q . k of every row and key, float32 [block_m, tile_size], added to s. k: as load_keys gives it."""
    dtype = product_dtype(q.dtype)
    k = dequantise(k, dtype)
    if f["transposed_keys"] is None:
        k = k.transpose(0, 1)
    return hl.dot(dequantise(q, dtype), k, acc=s, out_dtype=torch.float32)


def logit_scale(softmax_scale, f, r):
    """The factor from a product of stored elements to a logit, without scales per token."""
    return softmax_scale if r["logit_scale"] is None else softmax_scale * r["logit_scale"]


def logits(s, q, key_scales, query_pos, key_pos, seq_len, softmax_scale, f, r, masked):
    """Scores of products s, -inf where a row does not see a key.

    Scores are raw products, or natural logits where a feature needs them; `base2_scale` takes either to base 2.
    """
    scale = logit_scale(softmax_scale, f, r)
    if r["row_scale"] is not None:
        s = s * r["row_scale"].unsqueeze(1)
    if f["key_token_scales"] is not None:
        s = s * key_scales.unsqueeze(0)
    if f["softcap"] is not None:
        s = tanh(s * (scale / f["softcap"]), q.dtype) * f["softcap"]
    elif f["alibi_slopes"] is not None or f["tree_bias"] is not None:
        s = s * scale
    if f["alibi_slopes"] is not None:
        distance = query_pos.unsqueeze(1) - key_pos.unsqueeze(0)
        if f["alibi_sqrt"] is not None:  # cut as whole numbers: one instruction, of floats that may be NaN three
            distance = square_root(torch.clamp(distance, min=0).to(torch.float32), q.dtype)
        else:
            distance = distance.to(torch.float32)
        s = s - r["slope"].unsqueeze(1) * distance
    if masked:
        if f["tree_bias"] is not None:
            token = r["token"].unsqueeze(1)
            column = (key_pos - r["context_len"]).unsqueeze(0)
            inside = (token < f["tree_size"]) & (column >= 0) & (column < f["tree_size"])
            s = s + hl.load(f["tree_bias"], [token, column], extra_mask=inside).to(torch.float32)
        seen = visible(query_pos, key_pos, seq_len, f, r)
        s = torch.where(seen, s, float("-inf"))
    return s


def base2_scale(softmax_scale, f, r):
    """The factor from a score to a base-2 logit. softmax_step applies it as one operand of a multiply-add."""
    if f["softcap"] is not None or f["alibi_slopes"] is not None or f["tree_bias"] is not None:
        return LOG2E
    else:
        return logit_scale(softmax_scale, f, r) * LOG2E


def split_sums(l, f):
    """l [block_m] as `add_sums` takes it: [block_m, 4, 4], l in the first place, for under 64 rows and tiles of under
    128 keys; else as it is.

    Several warps share the keys of so few rows. A sum over all keys of a tile would take shuffles, and 3 of its 8
    barriers on sm_90. Here each place sums its own keys, and join_sums adds the places once. Tiles of 128 keys would
    spill: they leave no registers for the places.
    """
    if f["split_sums"] is not None:
        four = hl.arange(4)
        first = (four.unsqueeze(0) + four.unsqueeze(1)) == 0
        l = torch.where(first.unsqueeze(0), l.unsqueeze(1).unsqueeze(2), 0.0)
    return l


def add_sums(l, alpha, p, f):
    """l * alpha + sums of p [block_m, tile_size] over keys. A thread's keys of 16 x 8 products share a place of l."""
    if f["split_sums"] is not None:
        p = p.reshape(p.size(0), p.size(1) // 32, 4, 4, 2)
        return l * alpha.unsqueeze(1).unsqueeze(2) + p.sum(4).sum(1)
    else:
        return l * alpha + p.sum(1)


def join_sums(l, f):
    """The inverse of split_sums, under another name: Helion gives a variable one rank."""
    return l.sum(2).sum(1) if f["split_sums"] is not None else l


def softmax_weights(s, value_scales, m, l, base2, f, r, masked):
    """P of scores s [block_m, tile_size], alpha, by which the sums of V so far are multiplied, and the new m and l.

    m is in base 2, s is not yet. Scaling the row's maximum, not each score, saves the registers of a second copy of s.
    P in fp16 beside a bf16 query carries HEADROOM until `finished`.
    """
    m_new = torch.maximum(m, s.amax(1) * base2)
    shift = m_new
    if masked:  # a row that has seen nothing yet keeps m = -inf, and -inf - -inf is NaN
        shift = torch.where(m_new == float("-inf"), 0.0, m_new)
    p = torch.exp2(s * base2 - shift.unsqueeze(1))
    alpha = torch.exp2(m - shift)
    l = add_sums(l, alpha, p, f)
    if f["value_token_scales"] is not None:
        p = p * value_scales.unsqueeze(0)
    elif r["row_scale"] is not None:  # a logit beyond 2^24 may exceed the rounded maximum: P would be Inf in fp16
        p = torch.where(p > 1.0, HEADROOM, p * HEADROOM)
    return p, alpha, m_new, l


def sum_values(p, v, alpha, acc):
    """acc * alpha + P . V, of V [tile_size, value_size]."""
    return hl.dot(p.to(v.dtype), widen(v, acc.size(1)), acc=acc * alpha.unsqueeze(1))


def softmax_step(s, v, value_scales, m, l, acc, base2, f, r, masked):
    """One step of the online softmax over scores s [block_m, tile_size] and values v [tile_size, value_size]."""
    p, alpha, m, l = softmax_weights(s, value_scales, m, l, base2, f, r, masked)
    return m, l, sum_values(p, v, alpha, acc)


def attend_tile(
    j, q, m, l, acc, query_pos, seq, seq_len, first_key, end_key, kv_head, softmax_scale, f,
    r, key_cache, value_cache, block_table, block_size, page_rows, gather, tile_size, masked,
):  # fmt: skip
    """Tile j of the sequence: load K, score, mask where `masked`, load V, step. Returns the new m, l, acc.

    Only V is masked on load: scores of unwanted keys are replaced, and their page exists.
    """
    key_pos = j * tile_size + hl.arange(tile_size)
    wanted = not_before(first_key, key_pos, key_pos < end_key, f)
    page, slot = find_slots(
        block_table, seq, j, key_pos, first_key, end_key, f, block_size, page_rows, gather, tile_size, masked
    )
    tile = block_table, seq, j, key_pos, first_key, end_key, f, kv_head
    k = load_keys(key_cache, page, slot, kv_head, wanted, f, block_size, gather, tile_size, q.dtype)
    scales = load_token_scales(f["key_token_scales"], *tile, wanted, block_size, tile_size, masked)
    s = logits(products(q, k, f), q, scales, query_pos, key_pos, seq_len, softmax_scale, f, r, masked)
    v = load_kv_tile(value_cache, page, slot, kv_head, wanted, block_size, gather, tile_size, None, masked)
    v = dequantise_values(v, value_dtype(q.dtype, f["value_token_scales"] is not None))
    scales = load_token_scales(f["value_token_scales"], *tile, wanted, block_size, tile_size, masked)
    return softmax_step(s, v, scales, m, l, acc, base2_scale(softmax_scale, f, r), f, r, masked)


def normalise(acc, l, kv_head, f):
    """Output rows [block_m, value_size]: acc / l, times the scales that are left; zeros for rows that saw no key."""
    return rescale(acc / torch.where(l > 0.0, l, 1.0).unsqueeze(1), kv_head, f)


def rescale(x, kv_head, f):
    """Multiply rows x of one KV head, of any shape, by V's scale and divide them by the output's."""
    if f["value_scale"] is not None:
        x = x * head_scale(f["value_scale"], f["value_scale_stride"], kv_head)
    if f["out_scale"] is not None:
        x = x / hl.load(f["out_scale"], [0])
    return x
