"""Which keys a row sees, and which tiles hold them: the two say the same, or a kernel is wrong.

dsl_triton/masks.py says the same in Triton.
"""

import helion.language as hl
import torch

from dsl_helion.arithmetic import cdiv, div


def visible(query_pos, key_pos, seq_len, f, r):
    """bool [block_m, tile_size]: may the query at absolute position q see the key at k. `kv_tile_range` must agree.

    Without causality the row has no say but by its shape; a row of a cross attention may have a negative position.
    """
    q = query_pos.unsqueeze(1)
    k = key_pos.unsqueeze(0)
    if f["non_causal"] is None:
        seen = k <= q
        if f["causal_per_sequence"] is not None:
            seen = seen | ((r["causal"] == 0) & (k < seq_len))
    elif f["cross"] is None:
        seen = (k < seq_len) & (q >= 0)
    else:
        seen = (k < seq_len) & (q < seq_len)
    if f["sliding_window"] is not None:
        seen = seen & (q - k < f["sliding_window"])
        if f["non_causal"] is not None or f["causal_per_sequence"] is not None:
            seen = seen & (k - q < f["sliding_window"])
    if f["chunk"] is not None:
        seen = seen & (k >= r["chunk_first"].unsqueeze(1))
    if f["spans"] is not None:
        spanned = (k >= r["span_first"].unsqueeze(1)) & (k <= r["span_last"].unsqueeze(1))
        seen = (seen | spanned) & (k < seq_len)
    return seen


def seen_keys(wanted, seen, f, r):
    """Of the `wanted` keys of a tile those that some real row sees, bool [tile_size].

    The others may hold NaN, as pages behind a window do. Where kv_tile_range is exact there are no others.
    """
    if f["spans"] is not None or f["causal_per_sequence"] is not None:
        return wanted & ((seen & r["live"].unsqueeze(1)).to(torch.int32).amax(0) > 0)
    else:
        return wanted


def zero_unseen(v, wanted, f):
    """V [tile_size, value_size] of a tile that was loaded whole, without what seen_keys left out."""
    if f["spans"] is not None or f["causal_per_sequence"] is not None:
        return torch.where(wanted.unsqueeze(1), v, 0.0)
    else:
        return v


def not_before(first_key, key_pos, wanted, f):
    """Of the `wanted` keys of a tile those from first_key on, as kv_tile_range gives it: others may hold NaN."""
    if f["sliding_window"] is not None or f["chunk"] is not None:
        return wanted & (key_pos >= first_key)
    else:
        return wanted


def kv_tile_range(first_pos, last_pos, seq_len, f, tile_size):
    """Which keys and tiles the rows at absolute positions first_pos .. last_pos need.

    Returns first_key, end_key (every key between is visible to some row, none outside to any) and four tile indices
    lo <= full_lo <= full_hi <= hi: tiles [lo, hi) hold those keys, and every row sees every key of [full_lo, full_hi),
    where no key has a bias of its own either.

    Spans, and sequences that may not be causal, take the range of any span or flag: keys that no row sees are in it.
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
        if f["causal_per_sequence"] is not None:
            end_key = seq_len
            if f["sliding_window"] is not None:
                end_key = last_pos + f["sliding_window"]
    elif f["sliding_window"] is not None:
        end_key = torch.minimum(seq_len, last_pos + f["sliding_window"])
        full_end = torch.minimum(seq_len, first_pos + f["sliding_window"])
    if f["spans"] is not None:
        end_key = seq_len
    if f["tree_bias"] is not None:  # the context is at least so long, or the first row is none of the tree's
        full_end = torch.minimum(full_end, first_pos - f["tree_size"] + 1)
    # a sequence without keys has negative positions: nothing is visible, every range is empty
    end_key = torch.maximum(torch.minimum(end_key, seq_len), zero)
    full_end = torch.maximum(full_end, zero)
    hi = cdiv(end_key, tile_size)
    if f["sliding_window"] is not None:
        first_key = torch.maximum(first_pos - f["sliding_window"] + 1, zero)
        lo = torch.minimum(div(first_key, tile_size), hi)
        full_lo = cdiv(torch.maximum(last_pos - f["sliding_window"] + 1, zero), tile_size)
        full_lo = torch.minimum(torch.maximum(full_lo, lo), hi)
    if f["chunk"] is not None:
        first_key = torch.maximum((div(first_pos, f["chunk"]) - f["chunk_lookback"]) * f["chunk"], zero)
        lo = torch.minimum(div(first_key, tile_size), hi)
        full_lo = torch.maximum((div(last_pos, f["chunk"]) - f["chunk_lookback"]) * f["chunk"], zero)
        full_lo = torch.minimum(torch.maximum(cdiv(full_lo, tile_size), lo), hi)
    if f["spans"] is not None:
        first_key = zero
        lo = zero
    full_hi = torch.minimum(torch.maximum(div(full_end, tile_size), full_lo), hi)
    return first_key, end_key, lo, full_lo, full_hi, hi


def clip_range(start, stop, full_lo, full_hi, f):
    """Of the tiles [start, stop) those that every row sees entirely, [full_start, full_stop), both inside it."""
    full_start = start
    if f["sliding_window"] is not None or f["chunk"] is not None:
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
