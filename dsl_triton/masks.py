"""Which keys a row sees, and which tiles hold them: the two say the same, or a kernel is wrong.

dsl_helion/masks.py says the same in Helion.
"""

import triton
import triton.language as tl


@triton.jit
def visible(query_pos, key_pos, seq_len, f, r):
    """bool [BLOCK_M, TILE_SIZE]: may the query at absolute position q see the key at k. `kv_tile_range` must agree."""
    q = tl.expand_dims(query_pos, 1)
    k = tl.expand_dims(key_pos, 0)
    if f.non_causal is None:
        seen = k <= q
        if f.causal_per_sequence is not None:
            seen = seen | ((r.causal == 0) & (k < seq_len))
    else:
        seen = k < seq_len
    if f.sliding_window is not None:
        seen = seen & (q - k < f.sliding_window)
        if f.non_causal is not None or f.causal_per_sequence is not None:
            seen = seen & (k - q < f.sliding_window)
    if f.chunk is not None:
        seen = seen & (k >= tl.expand_dims(r.chunk_first, 1))
    if f.spans is not None:
        spanned = (k >= tl.expand_dims(r.span_first, 1)) & (k <= tl.expand_dims(r.span_last, 1))
        seen = (seen | spanned) & (k < seq_len)
    return seen


@triton.jit
def seen_keys(wanted, seen, f, r):
    """Of the `wanted` keys of a tile those that some real row sees, bool [TILE_SIZE].

    The others may hold NaN, as pages behind a window do. Where kv_tile_range is exact there are no others.
    """
    if f.spans is not None or f.causal_per_sequence is not None:
        wanted = (tl.max((seen & tl.expand_dims(r.live, 1)).to(tl.int32), 0) > 0) & wanted
    return wanted


@triton.jit
def zero_unseen(v, wanted, f):
    """V [TILE_SIZE, VALUE_PADDED] of a tile that was loaded whole, without what seen_keys left out."""
    if f.spans is not None or f.causal_per_sequence is not None:
        v = tl.where(tl.expand_dims(wanted, 1), v, 0.0)
    return v


@triton.jit
def not_before(first_key, key_pos, wanted, f):
    """Of the `wanted` keys of a tile those from first_key on, as kv_tile_range gives it: others may hold NaN."""
    if f.sliding_window is not None or f.chunk is not None:
        return wanted & (key_pos >= first_key)
    else:
        return wanted


@triton.jit
def kv_tile_range(first_pos, last_pos, seq_len, f, TILE_SIZE: tl.constexpr):
    """Which keys and tiles the rows at absolute positions first_pos .. last_pos need.

    Returns first_key, end_key (every key between is visible to some row, none outside to any) and four tile indices
    lo <= full_lo <= full_hi <= hi: tiles [lo, hi) hold those keys, and every row sees every key of [full_lo, full_hi),
    where no key has a bias of its own either.

    Spans, and sequences that may not be causal, take the range of any span or flag: keys that no row sees are in it.
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
            end_key = seq_len
            if f.sliding_window is not None:
                end_key = last_pos + f.sliding_window
    elif f.sliding_window is not None:
        end_key = tl.minimum(seq_len, last_pos + f.sliding_window)
        full_end = tl.minimum(seq_len, first_pos + f.sliding_window)
    if f.spans is not None:
        end_key = seq_len
    if f.tree_bias is not None:  # the context is at least so long, or the first row is none of the tree's
        full_end = tl.minimum(full_end, first_pos - f.tree_size + 1)
    # a sequence without keys has negative positions: nothing is visible, every range is empty
    end_key = tl.maximum(tl.minimum(end_key, seq_len), 0)
    full_end = tl.maximum(full_end, 0)
    hi = tl.cdiv(end_key, TILE_SIZE)
    if f.sliding_window is not None:
        first_key = tl.maximum(first_pos - f.sliding_window + 1, 0)
        lo = tl.minimum(first_key // TILE_SIZE, hi)
        full_lo = tl.cdiv(tl.maximum(last_pos - f.sliding_window + 1, 0), TILE_SIZE)
        full_lo = tl.minimum(tl.maximum(full_lo, lo), hi)
    if f.chunk is not None:
        first_key = tl.maximum((first_pos // f.chunk - f.chunk_lookback) * f.chunk, 0)
        lo = tl.minimum(first_key // TILE_SIZE, hi)
        full_lo = tl.cdiv(tl.maximum((last_pos // f.chunk - f.chunk_lookback) * f.chunk, 0), TILE_SIZE)
        full_lo = tl.minimum(tl.maximum(full_lo, lo), hi)
    if f.spans is not None:
        first_key = 0
        lo = 0
    full_hi = tl.minimum(tl.maximum(full_end // TILE_SIZE, full_lo), hi)
    return first_key, end_key, lo, full_lo, full_hi, hi


@triton.jit
def clip_range(start, stop, full_lo, full_hi, f):
    """Of the tiles [start, stop) those that every row sees entirely, [full_start, full_stop), both inside it."""
    full_start = start
    if f.sliding_window is not None or f.chunk is not None:
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
