"""Which program takes which tiles of a batch: every program computes it from query_start_loc and seq_lens.

An item is a Q Block under one KV head. All tiles of a class of sequences (shortest .. longest query tokens) stand in
one line, sequence by sequence, KV head by KV head, item by item; a place in the line is a slot. The line is cut into
equal intervals, one a program, however the lengths are distributed. Nothing is stored: a program needs one sum over the
sequences, which fit into one vector, so no launch precedes the first product.

Under a causal mask the items of a sequence grow one by one. They stand in pairs, the last with the first, the last but
one with the second: all pairs of a sequence take as many slots as its middle pair, so the line's length is a closed
form. Where an item has more tiles than slots, its last slot takes the rest: a wrong length costs balance only.
"""

import helion.language as hl
import torch

from dsl_helion.arithmetic import cdiv, div, mod
from dsl_helion.masks import kv_tile_range


def sequence_at(seq, there, query_start_loc, seq_lens, num_tokens, max_keys):
    """First query row, query_len, seq_len and `refused` of sequences, where `there`; else an empty one.

    A sequence beyond the capacity, with rows past num_tokens or more than max_keys keys, is refused: it keeps the rows
    that exist and has no key.
    """
    start = hl.load(query_start_loc, [seq], extra_mask=there)
    stop = hl.load(query_start_loc, [seq + 1], extra_mask=there)
    seq_len = hl.load(seq_lens, [seq], extra_mask=there)
    refused = (stop > start) & ((stop > num_tokens) | (seq_len > max_keys))
    most = hl.full([], num_tokens, dtype=torch.int32)
    start = torch.minimum(start, most)
    return start, torch.minimum(stop, most) - start, torch.where(refused, 0, seq_len), refused


def q_block_range(seq, q_block, query_len, seq_len, f, block_q, tile_size, there=None):
    """kv_tile_range of the sequence's q_block-th Q Block."""
    first = q_block * block_q
    last = torch.minimum(first + block_q, query_len) - 1
    context_len = seq_len - query_len
    return kv_tile_range(seq, context_len + first, context_len + last, seq_len, f, tile_size, there)


def q_block_slots(seq, q_block, query_len, seq_len, f, block_q, tile_size, there=None):
    """Its tiles; 1 where it sees no key, for its rows are written all the same."""
    _, _, lo, _, _, hi = q_block_range(seq, q_block, query_len, seq_len, f, block_q, tile_size, there)
    return torch.maximum(hi - lo, hl.full([], 1, dtype=torch.int32))


def sequence_slots(seq, query_len, seq_len, f, block_q, tile_size, there=None):
    """Slots of a pair of Q Blocks and of all Q Blocks of a sequence, under one KV head."""
    blocks = cdiv(query_len, block_q)
    middle = q_block_slots(seq, div(blocks - 1, 2), query_len, seq_len, f, block_q, tile_size, there)
    pair = middle + q_block_slots(seq, div(blocks, 2), query_len, seq_len, f, block_q, tile_size, there)
    return pair, div(blocks, 2) * pair + mod(blocks, 2) * middle


def line_of(
    query_start_loc, seq_lens, num_seqs, num_tokens, max_keys, f, num_kv_heads, shortest, longest, block_q, tile_size,
    seqs, programs, whole,
):  # fmt: skip
    """Where each sequence of the class ends in the line, int32 [seqs]; the line's length; whether items stay whole, in
    a slot each; whether a sequence was refused.

    Items stay whole where each has a program of its own and the longest has at most `whole` slots more than a program's
    even share: a piece costs a search, first loads that nothing hides and a part to merge.
    """
    seq = hl.arange(seqs)
    _, query_len, seq_len, refused = sequence_at(seq, seq < num_seqs, query_start_loc, seq_lens, num_tokens, max_keys)
    pair, slots = sequence_slots(seq, query_len, seq_len, f, block_q, tile_size, seq < num_seqs)
    served = (query_len >= shortest) & (query_len <= longest)
    items = torch.where(served, cdiv(query_len, block_q) * num_kv_heads, 0)
    slots = torch.where(served, slots * num_kv_heads, 0)
    longest_item = torch.where(served, torch.minimum(pair, cdiv(seq_len, tile_size)), 0).amax(0)
    share = cdiv(slots.sum(0).to(torch.int32), programs)
    uncut = (items.sum(0).to(torch.int32) <= programs) & (longest_item <= share + whole)
    ends = hl.cumsum(torch.where(uncut, items, slots), 0)
    return ends, ends.amax(0), uncut, refused.to(torch.int32).amax(0)


def item_at(slot, ends, uncut, query_start_loc, seq_lens, num_tokens, max_keys, f, block_q, tile_size):
    """The item that holds a slot of the line: sequence, KV head, Q Block, and its slots [begin, end)."""
    seq = (ends <= slot).to(torch.int32).sum(0).to(torch.int32)
    base = torch.where(ends <= slot, ends, 0).amax(0)
    _, query_len, seq_len, _ = sequence_at(seq, None, query_start_loc, seq_lens, num_tokens, max_keys)
    blocks = cdiv(query_len, block_q)
    pair, slots = sequence_slots(seq, query_len, seq_len, f, block_q, tile_size)
    pair, slots = torch.where(uncut, 2, pair), torch.where(uncut, blocks, slots)
    kv_head = div(slot - base, slots)
    base = base + kv_head * slots
    number = torch.minimum(div(slot - base, pair), div(blocks - 1, 2))
    base = base + number * pair
    last = blocks - 1 - number  # the pair is Q Blocks `last` and `number`, in this order
    of_last = torch.where(uncut, 1, q_block_slots(seq, last, query_len, seq_len, f, block_q, tile_size))
    of_last = torch.where(last == number, of_last, torch.minimum(of_last, pair - 1))
    second = slot - base >= of_last
    begin = torch.where(second, base + of_last, base)
    end = torch.where(second, base + pair, base + of_last)
    return seq, kv_head, torch.where(second, number, last), begin, end


def interval(program, length, programs, snap):
    """A program's slots [slot, stop), how many it has, and how far a cut moves to the border of an item that it meets:
    at most snap, and a quarter of the interval."""
    per_program = torch.maximum(cdiv(length, programs), hl.full([], 1, dtype=torch.int32))
    slot = torch.minimum(program * per_program, length)
    moved = torch.minimum(div(per_program, 4), hl.full([], snap, dtype=torch.int32))
    return slot, torch.minimum(slot + per_program, length), per_program, moved


def piece_of(slot, stop, begin, end, snap):
    """What [slot, stop) has of an item [begin, end) that holds `slot`: both cuts moved, possibly nothing."""
    from_slot = torch.where(slot - begin <= snap, begin, torch.where(end - slot <= snap, end, slot))
    to_slot = torch.where(stop - begin <= snap, begin, torch.where(end - stop <= snap, end, stop))
    return from_slot, torch.where(stop < end, to_slot, end)
