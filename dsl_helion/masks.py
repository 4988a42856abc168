"""Which keys a row sees, and which tiles hold them. The two answers must agree.

dsl_triton/masks.py says the same in Triton.
"""

import helion.language as hl
import torch

from dsl_helion.arithmetic import cdiv, div, int32


def visible(query_pos, key_pos, seq_len, f, r):
    """bool [block_m, tile_size]: may the query at absolute position q see the key at k. `kv_tile_range` must agree.

    A row sees one interval around its own position. Flags and spans move its ends and add no comparison. q is negative
    where a sequence has fewer keys than queries.
    """
    q = query_pos.unsqueeze(1)
    k = key_pos.unsqueeze(0)
    if f["non_causal"] is None:
        last = query_pos
        if f["causal_per_sequence"] is not None:
            if f["sliding_window"] is not None:
                last = torch.where(r["causal"] == 0, query_pos + int32(f["sliding_window"]) - 1, last)
            else:
                last = torch.where(r["causal"] == 0, seq_len - 1, last)
        if f["spans"] is not None:
            last = torch.maximum(last, r["span_last"])
        if f["spans"] is not None or f["causal_per_sequence"] is not None:
            last = torch.minimum(last, seq_len - 1)
        seen = k <= last.unsqueeze(1)
    else:
        seen = k < seq_len
    if f["spans"] is not None:
        if f["sliding_window"] is not None:
            first = torch.minimum(query_pos - int32(f["sliding_window"]) + 1, r["span_first"])
            seen = seen & (k >= first.unsqueeze(1))
        if f["chunk"] is not None:
            seen = seen & (k >= torch.minimum(r["chunk_first"], r["span_first"]).unsqueeze(1))
    else:
        if f["sliding_window"] is not None:
            seen = seen & (q - k < int32(f["sliding_window"]))
            if f["non_causal"] is not None:
                seen = seen & (k - q < int32(f["sliding_window"]))
        if f["chunk"] is not None:
            seen = seen & (k >= r["chunk_first"].unsqueeze(1))
    return seen


def not_before(first_key, key_pos, wanted, f):
    """The `wanted` keys of a tile from first_key on, which kv_tile_range gives. Keys before it may hold NaN."""
    if f["sliding_window"] is not None or f["chunk"] is not None:
        return wanted & (key_pos >= first_key)
    else:
        return wanted


def nearest_page(index, first_key, end_key, f, block_size):
    """For each `index` the nearest page of the sequence that holds a key of first_key .. end_key; at least one does."""
    index = torch.minimum(index, div(end_key - 1, block_size))
    if f["sliding_window"] is not None or f["chunk"] is not None:
        index = torch.maximum(index, div(first_key, block_size))
    return index


def span_keys(seq, there, first_pos, last_pos, f):
    """First and last key that spans show to some row at first_pos .. last_pos, then those that they show to all rows.

    A row is in at most one span and always sees its own key. Without spans these four bound nothing. `there`: the
    sequences that exist, where `seq` is several.
    """
    span = hl.arange(f["max_spans"])
    real = span < f["spans"].size(1)
    if there is None or there.ndim == 0:
        at = [seq, span]
    else:
        at = [seq.unsqueeze(1), span.unsqueeze(0)]
        real = there.unsqueeze(1) & real.unsqueeze(0)
        first_pos = first_pos.unsqueeze(1)
        last_pos = last_pos.unsqueeze(1)
    first = hl.load(f["spans"], [*at, 0], extra_mask=real)
    last = hl.load(f["spans"], [*at, 1], extra_mask=real)
    met = real & (first < last) & (first <= last_pos) & (last >= first_pos)
    some_first = torch.where(met, torch.minimum(first, first_pos), first_pos).amin(-1)
    some_last = torch.where(met, torch.maximum(last, first_pos), first_pos).amax(-1)
    held = met & (first <= first_pos) & (last >= last_pos)
    all_first = torch.where(held, first, last_pos).amin(-1)
    all_last = torch.where(held, last, first_pos).amax(-1)
    return some_first, some_last, all_first, all_last


def kv_tile_range(seq, first_pos, last_pos, seq_len, f, tile_size, there=None):
    """Keys and tiles that the rows at absolute positions first_pos .. last_pos of sequence `seq` need.

    Returns first_key, end_key (every key between is visible to some row, none outside to any) and four tile indices lo
    <= full_lo <= full_hi <= hi: tiles [lo, hi) hold those keys, and every row sees every key of [full_lo, full_hi),
    where no key has a bias of its own either. `there`: the sequences that exist, where `seq` is several.

    The range has no holes: each row sees an interval around its own position, and rows are neighbours.
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
            causal = hl.load(f["causal_per_sequence"], [seq], extra_mask=there) != 0
            if f["sliding_window"] is not None:
                end_key = torch.where(causal, end_key, last_pos + int32(f["sliding_window"]))
                full_end = torch.where(causal, full_end, first_pos + int32(f["sliding_window"]))
            else:
                end_key = torch.where(causal, end_key, seq_len)
                full_end = torch.where(causal, full_end, seq_len)
    elif f["sliding_window"] is not None:
        end_key = torch.minimum(seq_len, last_pos + int32(f["sliding_window"]))
        full_end = torch.minimum(seq_len, first_pos + int32(f["sliding_window"]))
    if f["spans"] is not None:
        some_first, some_last, all_first, all_last = span_keys(seq, there, first_pos, last_pos, f)
        # a span may end at the largest int32: cut it before adding one
        end_key = torch.maximum(end_key, torch.minimum(some_last, seq_len - 1) + 1)
        full_end = torch.maximum(full_end, torch.minimum(all_last, seq_len - 1) + 1)
    if f["spans"] is not None or f["causal_per_sequence"] is not None:
        full_end = torch.minimum(full_end, seq_len)
    if f["tree_bias"] is not None:  # the context is at least this long, or the first row is outside the tree
        full_end = torch.minimum(full_end, first_pos - int32(f["tree_size"]) + 1)
    # all rows lie before the first key: nothing is visible, and every range is empty
    end_key = torch.maximum(torch.minimum(end_key, seq_len), zero)
    full_end = torch.maximum(full_end, zero)
    hi = cdiv(end_key, tile_size)
    if f["sliding_window"] is not None:
        first_key = first_pos - int32(f["sliding_window"]) + 1
        full_first = last_pos - int32(f["sliding_window"]) + 1
    if f["chunk"] is not None:
        first_key = (div(first_pos, int32(f["chunk"])) - int32(f["chunk_lookback"])) * int32(f["chunk"])
        full_first = (div(last_pos, int32(f["chunk"])) - int32(f["chunk_lookback"])) * int32(f["chunk"])
    if f["sliding_window"] is not None or f["chunk"] is not None:
        if f["spans"] is not None:
            first_key = torch.minimum(first_key, some_first)
            full_first = torch.minimum(full_first, all_first)
        first_key = torch.maximum(first_key, zero)
        lo = torch.minimum(div(first_key, tile_size), hi)
        full_lo = cdiv(torch.maximum(full_first, zero), tile_size)
        full_lo = torch.minimum(torch.maximum(full_lo, lo), hi)
    full_hi = torch.minimum(torch.maximum(div(full_end, tile_size), full_lo), hi)
    return first_key, end_key, lo, full_lo, full_hi, hi


def clip_range(start, stop, full_lo, full_hi, f):
    """The part [full_start, full_stop) of tiles [start, stop) that every row sees entirely."""
    full_start = start
    if f["sliding_window"] is not None or f["chunk"] is not None:
        full_start = torch.minimum(torch.maximum(full_lo, start), stop)
    return full_start, torch.minimum(torch.maximum(full_hi, full_start), stop)


def join_loops(full_lo, full_hi, hi, key_cache, f, few_rows):
    """Bounds of the loop without masks; empty for Q Blocks of up to 16 rows, whose tiles all run in the masked loop.

    Each loop begins with three chained loads that nothing hides, and masks of few rows are cheap: 128 decodes of 512
    keys take 57 us in one loop and 61 in three. A cache of 8 bits keeps its loops, because conversions already take as
    long as its bytes; a tree bias too, because masked tiles load it.
    """
    if few_rows and key_cache.dtype.itemsize > 1 and f["tree_bias"] is None:
        return hi, hi  # the compiler drops a loop that ends where it begins
    else:
        return full_lo, full_hi


def tiles_of_segment(tiles, num_segments):
    """Tiles of each of at most num_segments segments that share so many: the first ones have as many, at least one."""
    return torch.maximum(cdiv(tiles, int32(num_segments)), int32(1))


def segment_range(segment, lo, full_lo, full_hi, hi, f, num_segments):
    """Tiles of one segment of [lo, hi), and how many segments have tiles.

    Returns start, full_start, full_stop, stop as kv_tile_range does, and `used`. Tiles are dealt evenly over at most
    num_segments segments, so a short sequence uses few.
    """
    # Helion counts in 64 bits beside a tile size and takes the sum for one of 32; a quotient of 64 bits is a call
    tiles = (hi - lo).to(torch.int64).to(torch.int32)
    per_segment = tiles_of_segment(tiles, num_segments)
    used = cdiv(tiles, per_segment)
    start = torch.minimum(lo + int32(segment) * per_segment, hi)
    stop = torch.minimum(start + per_segment, hi)
    full_start, full_stop = clip_range(start, stop, full_lo, full_hi, f)
    return start, full_start, full_stop, stop, used
