"""The nouns of an attention kernel, in Helion; dsl_triton/primitives.py says the same in Triton.

Every feature lives here, at four seams: `dequantise` (after a load), `score`, `visible` with `kv_tile_range`, and
`softmax_init`. Kernel files pass the bundle `f` on and never name a feature; a feature that is off is None and its
branch is not compiled. Scores, m and l are in base 2 (log2 e is folded into the scale): exp2 is one instruction.

Helpers are inlined into the kernel. They address with `hl.load` and `hl.store`: `t[index]` and `x[:, None]` do not
lower in a helper, nor does a loop. Page, slot and row indices are int64 before a stride multiplies them.

Shapes: block_m rows of a Q Block (a row is one query token under one query head), tile_size keys, head_size lanes
(Helion pads them to a power of two by itself).
"""

import helion.language as hl
import torch

from common.spec import Features

LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453
WIDEST = 2**30  # a window that no sequence can exceed; position + window then stays inside int32


def bundle(features: Features) -> dict[str, int | float | torch.Tensor | None]:
    """common.spec.Features as a kernel argument; sinks float [num_query_heads]."""
    window = features.sliding_window
    return {
        "non_causal": None if features.causal else 1,
        "sliding_window": None if window is None else min(window, WIDEST),
        "softcap": features.softcap,
        "sinks": features.sinks,
    }


def div(a, b):
    """a // b of a tensor that is not negative: one operation, where torch's // takes 13 to round negatives down."""
    return torch.div(a, b, rounding_mode="trunc")


def mod(a, b):
    """a % b of a tensor that is not negative."""
    return torch.fmod(a, b)


def cdiv(a, b):
    return div(a + b - 1, b)


def q_block_rows(first, kv_head, query_len, queries_per_kv, block_m):
    """Rows of the Q Block whose first query token is `first`: query token, query head, and whether the row is real.

    Row r is token r // queries_per_kv under head r % queries_per_kv of the group; a ratio that does not divide block_m
    leaves rows at the end, which would be the next Q Block's first token.
    """
    row = hl.arange(block_m)
    token = first + div(row, queries_per_kv)
    head = kv_head * queries_per_kv + mod(row, queries_per_kv)
    live = (token < query_len) & (row < block_m // queries_per_kv * queries_per_kv)
    return token, head, live


def load_rows(tensor, row, head, live):
    """[block_m, head_size] of a tensor [num_tokens, num_query_heads, head_size]; zeros where not `live`."""
    at = [row.to(torch.int64).unsqueeze(1), head.to(torch.int64).unsqueeze(1), slice(None)]
    return hl.load(tensor, at, extra_mask=live.unsqueeze(1).unsqueeze(2)).squeeze(1)


def store_rows(tensor, row, head, live, x):
    """The inverse of load_rows, cast to the tensor's dtype; nothing is written where not `live`."""
    at = [row.to(torch.int64).unsqueeze(1), head.to(torch.int64).unsqueeze(1), slice(None)]
    hl.store(tensor, at, x.to(tensor.dtype).unsqueeze(1), extra_mask=live.unsqueeze(1).unsqueeze(2))


def store_lse(tensor, row, head, live, m, l):
    """Natural-log LSE, float32; -inf for a row that saw nothing. Nothing where the caller did not ask (None)."""
    if tensor is not None:
        lse = (m + torch.log2(l)) * LN2
        at = [row.to(torch.int64).unsqueeze(1), head.to(torch.int64).unsqueeze(1)]
        hl.store(tensor, at, lse.unsqueeze(1), extra_mask=live.unsqueeze(1))


def store_partial(partial, segment, row, head, live, m, l, acc):
    """What one segment found, into (acc [segments, tokens, heads, head_size], m, l); nothing where that is None."""
    to_acc, to_m, to_l = partial
    if to_acc is not None:
        at = [segment, row.to(torch.int64).unsqueeze(1), head.to(torch.int64).unsqueeze(1)]
        keep = live.unsqueeze(1)
        hl.store(to_acc, [*at, slice(None)], acc.unsqueeze(1), extra_mask=keep.unsqueeze(2))
        hl.store(to_m, at, m.unsqueeze(1), extra_mask=keep)
        hl.store(to_l, at, l.unsqueeze(1), extra_mask=keep)


def load_partial(partial, part, row, head, live):
    """m, l [segments] and acc [segments, head_size] of one row; where not `live` as a segment without keys."""
    of_acc, of_m, of_l = partial
    m = hl.load(of_m, [part, row, head], extra_mask=live)
    l = hl.load(of_l, [part, row, head], extra_mask=live)
    acc = hl.load(of_acc, [part, row, head, slice(None)], extra_mask=live.unsqueeze(1))
    return torch.where(live, m, float("-inf")), l, acc


def softmax_init(f, head, live, segment, seq_len, block_m, head_size):
    """m [block_m], l [block_m], acc [block_m, head_size] before any key.

    A sink is a key with score `sink` and value zero, so it is where the running max starts, with sum 1; once per row,
    so only the first of several segments has it, and none where the sequence has no key: there LSE is -inf.
    """
    m = hl.full([block_m], float("-inf"), dtype=torch.float32)
    l = hl.zeros([block_m], dtype=torch.float32)
    if f["sinks"] is not None:
        logit = hl.load(f["sinks"], [head], extra_mask=live).to(torch.float32) * LOG2E
        m = torch.where(live & (segment == 0) & (seq_len > 0), logit, m)
        l = torch.where(m > float("-inf"), 1.0, l)
    acc = hl.zeros([block_m, head_size], dtype=torch.float32)
    return m, l, acc


def visible(query_pos, key_pos, seq_len, f):
    """bool [block_m, tile_size]: may the query at absolute position q see the key at k. `kv_tile_range` must agree."""
    q = query_pos.unsqueeze(1)
    k = key_pos.unsqueeze(0)
    if f["non_causal"] is None:
        seen = k <= q
    else:
        seen = (k < seq_len) & (q >= 0)
    if f["sliding_window"] is not None:
        seen = seen & (q - k < f["sliding_window"])
        if f["non_causal"] is not None:
            seen = seen & (k - q < f["sliding_window"])
    return seen


def kv_tile_range(first_pos, last_pos, seq_len, f, tile_size):
    """Which keys and tiles the rows at absolute positions first_pos .. last_pos need.

    Returns first_key, end_key (every key between is visible to some row, none outside to any) and four tile indices
    lo <= full_lo <= full_hi <= hi: tiles [lo, hi) hold those keys, and every row sees every key of [full_lo, full_hi).
    """
    zero = hl.zeros([], dtype=torch.int32)
    first_key = zero
    end_key = seq_len
    full_end = seq_len
    lo = zero
    full_lo = zero
    if f["non_causal"] is None:
        end_key = last_pos + 1
        full_end = first_pos + 1
    elif f["sliding_window"] is not None:
        end_key = torch.minimum(seq_len, last_pos + f["sliding_window"])
        full_end = torch.minimum(seq_len, first_pos + f["sliding_window"])
    # a sequence without keys has negative positions: nothing is visible, every range is empty
    end_key = torch.maximum(torch.minimum(end_key, seq_len), zero)
    full_end = torch.maximum(full_end, zero)
    hi = cdiv(end_key, tile_size)
    if f["sliding_window"] is not None:
        first_key = torch.maximum(first_pos - f["sliding_window"] + 1, zero)
        lo = torch.minimum(div(first_key, tile_size), hi)
        full_lo = cdiv(torch.maximum(last_pos - f["sliding_window"] + 1, zero), tile_size)
        full_lo = torch.minimum(torch.maximum(full_lo, lo), hi)
    full_hi = torch.minimum(torch.maximum(div(full_end, tile_size), full_lo), hi)
    return first_key, end_key, lo, full_lo, full_hi, hi


def clip_range(start, stop, full_lo, full_hi, f):
    """Of the tiles [start, stop) those that every row sees entirely, [full_start, full_stop), both inside it."""
    full_start = start
    if f["sliding_window"] is not None:
        full_start = torch.minimum(torch.maximum(full_lo, start), stop)
    return full_start, torch.minimum(torch.maximum(full_hi, full_start), stop)


def segment_range(segment, lo, full_lo, full_hi, hi, f, num_segments):
    """The tiles of one segment of [lo, hi), and how many segments have any.

    Returns start, full_start, full_stop, stop as kv_tile_range does, and `used`: the tiles are dealt evenly over at
    most num_segments segments, so a short sequence uses few.
    """
    per_segment = torch.maximum(cdiv(hi - lo, num_segments), hl.full([], 1, dtype=torch.int32))
    used = cdiv(hi - lo, per_segment)
    start = torch.minimum(lo + segment * per_segment, hi)
    stop = torch.minimum(start + per_segment, hi)
    full_start, full_stop = clip_range(start, stop, full_lo, full_hi, f)
    return start, full_start, full_stop, stop, used


def find_slots(block_table, seq, j, key_pos, first_key, end_key, block_size, page_rows, gather, tile_size, masked):
    """What load_kv_tile indexes the cache with, int64, in one of three forms (binding.Gather).

    page: page ids [tile_size // block_size]. flat: rows [tile_size]. 2idx: page ids and slots [tile_size].
    Entries of keys outside first_key .. end_key are never read: past the sequence the table holds garbage, or ends.
    """
    if gather == "page":
        index = j * (tile_size // block_size) + hl.arange(tile_size // block_size)
        wanted = (index * block_size < end_key) & ((index + 1) * block_size > first_key)
    else:
        index = div(key_pos, block_size)
        wanted = (key_pos >= first_key) & (key_pos < end_key)
    if masked:
        page = hl.load(block_table, [seq.to(torch.int64), index], extra_mask=wanted).to(torch.int64)
    else:
        page = hl.load(block_table, [seq.to(torch.int64), index]).to(torch.int64)
    slot = mod(key_pos, block_size).to(torch.int64)
    if gather == "flat":
        page = page * page_rows + slot
    return page, slot


def dequantise(x, f):
    """Stored K or V to the values that it stands for."""
    return x


def load_kv_tile(cache, page, slot, kv_head, wanted, f, block_size, gather, tile_size, masked):
    """K or V [tile_size, head_size] of one KV head, gathered page by page.

    Keys that are not `wanted` give zeros: their slots may hold NaN, and 0 * NaN would reach the output.
    """
    head = hl.full([], kv_head, dtype=torch.int64)
    if gather == "page":
        at = [page, slice(None), head, slice(None)]
        keep = wanted.reshape(tile_size // block_size, block_size).unsqueeze(2)
    elif gather == "flat":
        at = [page, head, slice(None)]
        keep = wanted.unsqueeze(1)
    else:
        at = [page.unsqueeze(1), slot.unsqueeze(1), head, slice(None)]
        keep = wanted.unsqueeze(1).unsqueeze(2)
    if masked:
        x = hl.load(cache, at, extra_mask=keep)
    else:
        x = hl.load(cache, at)
    if gather == "page":
        x = x.reshape(tile_size, cache.size(-1))
    elif gather == "2idx":
        x = x.squeeze(1)
    return dequantise(x, f)


def score(q, k, softmax_scale, f):
    """Logits [block_m, tile_size], which `base2_scale` takes to base 2: raw products, or soft-capped natural logits.

    torch.tanh is the device library's: 1 - 2 / (exp(2y) + 1) cancels for small y (fp32 rows at 5.7 of their budget),
    and the quotient of exponentials would give inf / inf from y = 44 on.
    """
    s = hl.dot(q, k.transpose(0, 1), out_dtype=torch.float32)
    if f["softcap"] is not None:
        return torch.tanh(s * (softmax_scale / f["softcap"])) * f["softcap"]
    else:
        return s


def base2_scale(softmax_scale, f):
    """Score x this = base-2 logit: the scale waits until here, where it is one operand of a multiply-add."""
    if f["softcap"] is not None:
        return LOG2E
    else:
        return softmax_scale * LOG2E


def softmax_step(s, v, m, l, acc, base2, masked):
    """One step of the online softmax over scores s [block_m, tile_size] and values v [tile_size, head_size].

    m is in base 2, s is not yet: scaling the row's maximum instead of each score saves a multiplication in six, and
    the registers of a second copy of s.
    """
    m_new = torch.maximum(m, s.amax(1) * base2)
    shift = m_new
    if masked:  # a row that has seen nothing yet keeps m = -inf, and -inf - -inf is NaN
        shift = torch.where(m_new == float("-inf"), 0.0, m_new)
    p = torch.exp2(s * base2 - shift.unsqueeze(1))
    alpha = torch.exp2(m - shift)
    l = l * alpha + p.sum(1)
    acc = hl.dot(p.to(v.dtype), v, acc=acc * alpha.unsqueeze(1))
    return m_new, l, acc


def attend_tile(
    j, q, m, l, acc, query_pos, seq, seq_len, first_key, end_key, kv_head, softmax_scale, f,
    key_cache, value_cache, block_table, block_size, page_rows, gather, tile_size, masked,
):  # fmt: skip
    """Tile j of the sequence: load K, score, mask where `masked`, load V, step. Returns the new m, l, acc.

    Only V is masked on load: what an unwanted K scores is replaced, and the page 0 that stands for it exists.
    """
    key_pos = j * tile_size + hl.arange(tile_size)
    wanted = (key_pos >= first_key) & (key_pos < end_key)
    page, slot = find_slots(
        block_table, seq, j, key_pos, first_key, end_key, block_size, page_rows, gather, tile_size, masked
    )
    k = load_kv_tile(key_cache, page, slot, kv_head, wanted, f, block_size, gather, tile_size, False)
    s = score(q, k, softmax_scale, f)
    if masked:
        s = torch.where(visible(query_pos, key_pos, seq_len, f), s, float("-inf"))
    v = load_kv_tile(value_cache, page, slot, kv_head, wanted, f, block_size, gather, tile_size, masked)
    return softmax_step(s, v, m, l, acc, base2_scale(softmax_scale, f), masked)


def normalise(acc, l):
    """acc / l [block_m, head_size]; a row that saw nothing gives zeros."""
    return acc / torch.where(l > 0.0, l, 1.0).unsqueeze(1)
