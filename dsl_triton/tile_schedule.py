"""Which program takes which tiles of a batch: every program computes it from query_start_loc and seq_lens.

An item is a Q Block under one KV head. All tiles of a class of sequences (SHORTEST .. LONGEST query tokens) stand in
one line, sequence by sequence, KV head by KV head, item by item; a place in the line is a slot. The line is cut into
equal intervals, one a program, however the lengths are distributed. Nothing is stored: a program needs one sum over the
sequences, which fit into one vector, so no launch precedes the first product.

Under a causal mask the items of a sequence grow one by one. They stand in pairs, the last with the first, the last but
one with the second: all pairs of a sequence take as many slots as its middle pair, so the line's length is a closed
form. Where an item has more tiles than slots, its last slot takes the rest: a wrong length costs balance only.
"""

import triton
import triton.language as tl

from dsl_triton.masks import kv_tile_range


@triton.jit
def sequence_at(seq, there, query_start_loc_ptr, seq_lens_ptr, num_tokens, max_keys):
    """First query row, query_len, seq_len and `refused` of sequences, where `there`; else an empty one.

    A sequence beyond the capacity, with rows past num_tokens or more than max_keys keys, is refused: it keeps the rows
    that exist and has no key.
    """
    start = tl.load(query_start_loc_ptr + seq, mask=there, other=0)
    stop = tl.load(query_start_loc_ptr + seq + 1, mask=there, other=0)
    seq_len = tl.load(seq_lens_ptr + seq, mask=there, other=0)
    refused = (stop > start) & ((stop > num_tokens) | (seq_len > max_keys))
    start = tl.minimum(start, num_tokens)
    return start, tl.minimum(stop, num_tokens) - start, tl.where(refused, 0, seq_len), refused


@triton.jit
def q_block_range(seq, q_block, query_len, seq_len, f, BLOCK_Q: tl.constexpr, TILE_SIZE: tl.constexpr, there=True):
    """kv_tile_range of the sequence's q_block-th Q Block."""
    first = q_block * BLOCK_Q
    last = tl.minimum(first + BLOCK_Q, query_len) - 1
    context_len = seq_len - query_len
    return kv_tile_range(seq, context_len + first, context_len + last, seq_len, f, TILE_SIZE, there)


@triton.jit
def q_block_slots(seq, q_block, query_len, seq_len, f, BLOCK_Q: tl.constexpr, TILE_SIZE: tl.constexpr, there=True):
    """Its tiles; 1 where it sees no key, for its rows are written all the same."""
    _, _, lo, _, _, hi = q_block_range(seq, q_block, query_len, seq_len, f, BLOCK_Q, TILE_SIZE, there)
    return tl.maximum(hi - lo, 1)


@triton.jit
def sequence_slots(seq, query_len, seq_len, f, BLOCK_Q: tl.constexpr, TILE_SIZE: tl.constexpr, there=True):
    """Slots of a pair of Q Blocks and of all Q Blocks of a sequence, under one KV head."""
    blocks = tl.cdiv(query_len, BLOCK_Q)
    middle = q_block_slots(seq, (blocks - 1) // 2, query_len, seq_len, f, BLOCK_Q, TILE_SIZE, there)
    pair = middle + q_block_slots(seq, blocks // 2, query_len, seq_len, f, BLOCK_Q, TILE_SIZE, there)
    return pair, blocks // 2 * pair + blocks % 2 * middle


@triton.jit
def line_of(
    query_start_loc_ptr, seq_lens_ptr, num_seqs, num_tokens, max_keys, f,
    NUM_KV_HEADS: tl.constexpr, SHORTEST: tl.constexpr, LONGEST: tl.constexpr, BLOCK_Q: tl.constexpr,
    TILE_SIZE: tl.constexpr, SEQS: tl.constexpr, PROGRAMS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Where each sequence of the class ends in the line, int32 [SEQS]; the line's length; whether items stay whole, in
    a slot each; whether a sequence was refused.

    Items stay whole where each has a program of its own and the longest has at most WHOLE slots more than a program's
    even share: a piece costs a search, first loads that nothing hides and a part to merge. 32 decodes of 512 keys take
    24.6 us whole and 29.5 cut.
    """
    seq = tl.arange(0, SEQS)
    _, query_len, seq_len, refused = sequence_at(
        seq, seq < num_seqs, query_start_loc_ptr, seq_lens_ptr, num_tokens, max_keys
    )
    pair, slots = sequence_slots(seq, query_len, seq_len, f, BLOCK_Q, TILE_SIZE, seq < num_seqs)
    served = (query_len >= SHORTEST) & (query_len <= LONGEST)
    items = tl.where(served, tl.cdiv(query_len, BLOCK_Q) * NUM_KV_HEADS, 0)
    slots = tl.where(served, slots * NUM_KV_HEADS, 0)
    longest = tl.max(tl.where(served, tl.minimum(pair, tl.cdiv(seq_len, TILE_SIZE)), 0), 0)
    uncut = (tl.sum(items, 0) <= PROGRAMS) & (longest <= tl.cdiv(tl.sum(slots, 0), PROGRAMS) + WHOLE)
    ends = tl.cumsum(tl.where(uncut, items, slots), 0)
    return ends, tl.max(ends, 0), uncut, tl.max(refused.to(tl.int32), 0)


@triton.jit
def item_at(
    slot, ends, uncut, query_start_loc_ptr, seq_lens_ptr, num_tokens, max_keys, f,
    BLOCK_Q: tl.constexpr, TILE_SIZE: tl.constexpr,
):  # fmt: skip
    """The item that holds a slot of the line: sequence, KV head, Q Block, and its slots [begin, end)."""
    seq = tl.sum((ends <= slot).to(tl.int32), 0)
    base = tl.max(tl.where(ends <= slot, ends, 0), 0)
    _, query_len, seq_len, _ = sequence_at(seq, True, query_start_loc_ptr, seq_lens_ptr, num_tokens, max_keys)
    blocks = tl.cdiv(query_len, BLOCK_Q)
    pair, slots = sequence_slots(seq, query_len, seq_len, f, BLOCK_Q, TILE_SIZE)
    pair, slots = tl.where(uncut, 2, pair), tl.where(uncut, blocks, slots)
    kv_head = (slot - base) // slots
    base += kv_head * slots
    number = tl.minimum((slot - base) // pair, (blocks - 1) // 2)
    base += number * pair
    last = blocks - 1 - number  # the pair is Q Blocks `last` and `number`, in this order
    of_last = tl.where(uncut, 1, q_block_slots(seq, last, query_len, seq_len, f, BLOCK_Q, TILE_SIZE))
    of_last = tl.where(last == number, of_last, tl.minimum(of_last, pair - 1))
    second = slot - base >= of_last
    begin = tl.where(second, base + of_last, base)
    end = tl.where(second, base + pair, base + of_last)
    return seq, kv_head, tl.where(second, number, last), begin, end


@triton.jit
def interval(program, length, PROGRAMS: tl.constexpr, SNAP: tl.constexpr):
    """A program's slots [slot, stop), how many it has, and how far a cut moves to the border of an item that it meets:
    at most SNAP, and a quarter of the interval."""
    per_program = tl.maximum(tl.cdiv(length, PROGRAMS), 1)
    slot = tl.minimum(program * per_program, length)
    return slot, tl.minimum(slot + per_program, length), per_program, tl.minimum(per_program // 4, SNAP)


@triton.jit
def piece_of(slot, stop, begin, end, snap):
    """What [slot, stop) has of an item [begin, end) that holds `slot`: both cuts moved, possibly nothing."""
    from_slot = tl.where(slot - begin <= snap, begin, tl.where(end - slot <= snap, end, slot))
    to_slot = tl.where(stop - begin <= snap, begin, tl.where(end - stop <= snap, end, stop))
    return from_slot, tl.where(stop < end, to_slot, end)
