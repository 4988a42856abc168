"""Which keys a row sees, and which tiles hold them. The two answers must agree.

dsl_helion/masks.py says the same in Helion.
"""

import triton
import triton.language as tl


@triton.jit
def visible(query_pos, key_pos, seq_len, f, r):
    """bool [BLOCK_M, TILE_SIZE]: may the query at absolute position q see the key at k. `kv_tile_range` must agree.

    A row sees one interval around its own position. Flags and spans move its ends and add no comparison. q is negative
    where a sequence has fewer keys than queries.
    """
    q = tl.expand_dims(query_pos, 1)
    k = tl.expand_dims(key_pos, 0)
    if f.non_causal is None:
        last = query_pos
        if f.causal_per_sequence is not None:
            if f.sliding_window is not None:
                last = tl.where(r.causal == 0, query_pos + f.sliding_window - 1, last)
            else:
                last = tl.where(r.causal == 0, seq_len - 1, last)
        if f.spans is not None:
            last = tl.maximum(last, r.span_last)
        if f.spans is not None or f.causal_per_sequence is not None:
            last = tl.minimum(last, seq_len - 1)
        seen = k <= tl.expand_dims(last, 1)
    else:
        seen = k < seq_len
    if f.spans is not None:
        if f.sliding_window is not None:
            seen = seen & (k >= tl.expand_dims(tl.minimum(query_pos - f.sliding_window + 1, r.span_first), 1))
        if f.chunk is not None:
            seen = seen & (k >= tl.expand_dims(tl.minimum(r.chunk_first, r.span_first), 1))
    else:
        if f.sliding_window is not None:
            seen = seen & (q - k < f.sliding_window)
            if f.non_causal is not None:
                seen = seen & (k - q < f.sliding_window)
        if f.chunk is not None:
            seen = seen & (k >= tl.expand_dims(r.chunk_first, 1))
    return seen


@triton.jit
def not_before(first_key, key_pos, wanted, f):
    """The `wanted` keys of a tile from first_key on, which kv_tile_range gives. Keys before it may hold NaN."""
    if f.sliding_window is not None or f.chunk is not None:
        return wanted & (key_pos >= first_key)
    else:
        return wanted


@triton.jit
def nearest_page(index, first_key, end_key, f, BLOCK_SIZE: tl.constexpr):
    """For each `index` the nearest page of the sequence that holds a key of first_key .. end_key; at least one does."""
    index = tl.minimum(index, (end_key - 1) // BLOCK_SIZE)
    if f.sliding_window is not None or f.chunk is not None:
        index = tl.maximum(index, first_key // BLOCK_SIZE)
    return index


@triton.jit
def span_keys(seq, there, first_pos, last_pos, f):
    """First and last key that spans show to some row at first_pos .. last_pos, then those that they show to all rows.

    A row is in at most one span and always sees its own key. Without spans these four bound nothing. `there`: the
    sequences that exist, where `seq` is several.
    """
    some_first = first_pos
    some_last = first_pos
    all_first = last_pos
    all_last = first_pos
    span_ptr = f.spans + seq.to(tl.int64) * f.spans_strides[0]
    for _ in range(f.max_spans):
        first = tl.load(span_ptr, mask=there, other=0)
        last = tl.load(span_ptr + f.spans_strides[2], mask=there, other=0)
        met = (first < last) & (first <= last_pos) & (last >= first_pos)
        some_first = tl.where(met, tl.minimum(some_first, first), some_first)
        some_last = tl.where(met, tl.maximum(some_last, last), some_last)
        held = met & (first <= first_pos) & (last >= last_pos)
        all_first = tl.where(held, first, all_first)
        all_last = tl.where(held, last, all_last)
        span_ptr += f.spans_strides[1]
    return some_first, some_last, all_first, all_last


@triton.jit
def kv_tile_range(seq, first_pos, last_pos, seq_len, f, tile_size, there=True):
    """Keys and tiles that the rows at absolute positions first_pos .. last_pos of sequence `seq` need.

    Returns first_key, end_key (every key between is visible to some row, none outside to any) and four tile indices lo
    <= full_lo <= full_hi <= hi: tiles [lo, hi) hold those keys, and every row sees every key of [full_lo, full_hi),
    where no key has a bias of its own either. `there`: the sequences that exist, where `seq` is several.

    The range has no holes: each row sees an interval around its own position, and rows are neighbours.
    """
    first_key = 0
    end_key = seq_len
    full_end = seq_len
    lo = 0
    full_lo = 0
    if f.non_causal is None:
        end_key = last_pos + 1
        full_end = first_pos + 1
        if f.causal_per_sequence is not None:
            causal = tl.load(f.causal_per_sequence + seq, mask=there, other=1) != 0
            if f.sliding_window is not None:
                end_key = tl.where(causal, end_key, last_pos + f.sliding_window)
                full_end = tl.where(causal, full_end, first_pos + f.sliding_window)
            else:
                end_key = tl.where(causal, end_key, seq_len)
                full_end = tl.where(causal, full_end, seq_len)
    elif f.sliding_window is not None:
        end_key = tl.minimum(seq_len, last_pos + f.sliding_window)
        full_end = tl.minimum(seq_len, first_pos + f.sliding_window)
    if f.spans is not None:
        some_first, some_last, all_first, all_last = span_keys(seq, there, first_pos, last_pos, f)
        # a span may end at the largest int32: cut it before adding one
        end_key = tl.maximum(end_key, tl.minimum(some_last, seq_len - 1) + 1)
        full_end = tl.maximum(full_end, tl.minimum(all_last, seq_len - 1) + 1)
    if f.spans is not None or f.causal_per_sequence is not None:
        full_end = tl.minimum(full_end, seq_len)
    if f.tree_bias is not None:  # the context is at least this long, or the first row is outside the tree
        full_end = tl.minimum(full_end, first_pos - f.tree_size + 1)
    # all rows lie before the first key: nothing is visible, and every range is empty
    end_key = tl.maximum(tl.minimum(end_key, seq_len), 0)
    full_end = tl.maximum(full_end, 0)
    hi = tl.cdiv(end_key, tile_size)
    if f.sliding_window is not None:
        first_key = first_pos - f.sliding_window + 1
        full_first = last_pos - f.sliding_window + 1
    if f.chunk is not None:
        first_key = (first_pos // f.chunk - f.chunk_lookback) * f.chunk
        full_first = (last_pos // f.chunk - f.chunk_lookback) * f.chunk
    if f.sliding_window is not None or f.chunk is not None:
        if f.spans is not None:
            first_key = tl.minimum(first_key, some_first)
            full_first = tl.minimum(full_first, all_first)
        first_key = tl.maximum(first_key, 0)
        lo = tl.minimum(first_key // tile_size, hi)
        full_lo = tl.cdiv(tl.maximum(full_first, 0), tile_size)
        full_lo = tl.minimum(tl.maximum(full_lo, lo), hi)
    full_hi = tl.minimum(tl.maximum(full_end // tile_size, full_lo), hi)
    return first_key, end_key, lo, full_lo, full_hi, hi


@triton.jit
def clip_range(start, stop, full_lo, full_hi, f):
    """The part [full_start, full_stop) of tiles [start, stop) that every row sees entirely."""
    full_start = start
    if f.sliding_window is not None or f.chunk is not None:
        full_start = tl.minimum(tl.maximum(full_lo, start), stop)
    full_stop = tl.minimum(tl.maximum(full_hi, full_start), stop)
    return full_start, full_stop


@triton.jit
def join_loops(full_lo, full_hi, hi, key_cache_ptr, f, BLOCK_M: tl.constexpr):
    """Bounds of the loop without masks; empty for Q Blocks of up to 16 rows, whose tiles all run in the masked loop.

    Each loop begins with three chained loads that nothing hides, and masks of few rows are cheap: 128 decodes of 512
    keys take 56 us in one loop and 62 in three. A cache of 8 bits keeps its loops, because conversions already take as
    long as its bytes; a tree bias too, because masked tiles load it.
    """
    if BLOCK_M <= 16 and key_cache_ptr.dtype.element_ty.primitive_bitwidth > 8 and f.tree_bias is None:
        return hi, hi  # the compiler drops a loop that ends where it begins
    else:
        return full_lo, full_hi


@triton.jit
def segment_range(segment, lo, full_lo, full_hi, hi, f, num_segments):
    """Tiles of one segment of [lo, hi), and how many segments have tiles.

    Returns start, full_start, full_stop, stop as kv_tile_range does, and `used`. Tiles are dealt evenly over at most
    num_segments segments, so a short sequence uses few.
    """
    per_segment = tl.maximum(tl.cdiv(hi - lo, num_segments), 1)
    used = tl.cdiv(hi - lo, per_segment)
    start = tl.minimum(lo + segment * per_segment, hi)
    stop = tl.minimum(start + per_segment, hi)
    full_start, full_stop = clip_range(start, stop, full_lo, full_hi, f)
    return start, full_start, full_stop, stop, used
