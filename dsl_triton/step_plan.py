"""The plan of a step: segments of its Q Blocks, most tiles first, made on the device by one small launch.

Grid: bound of Q Blocks / BLOCKS, from numbers that a captured graph knows; lengths are read on the device. Nothing is
sorted: every Q Block counts those before it. A sequence's Q Blocks with more than T tiles are its last ones, so how
many they are is one division (_longer). Order: most tiles first; of as many, the sequence that comes first; in a
sequence the last Q Block first. Segments of a Q Block stand side by side; KV heads are not planned, as each has the
same items.
"""

import torch
import triton
import triton.language as tl

from common.spec import Features, PagedBatch, SpecError
from common.spec.metadata import cdiv

# of an item, int32: its sequence (or END, HOLE), first query row of the batch, query tokens of the sequence from there
# on, position of that row (negative where nothing is before it), keys of the sequence, tiles [start, stop), and which
# part of its Q Block's sums it is; -1 where it is all of them
FIELDS = ("seq", "row", "left", "position", "seq_len", "start", "stop", "part")
SIZE = tl.constexpr(len(FIELDS))
END, HOLE = tl.constexpr(-1), tl.constexpr(-2)  # no item from here on; a segment that its Q Block is too short for
BLOCKS, SEQUENCES = 16, 128  # Q Blocks a program, sequences that they are compared with at a time


@triton.jit
def _sequences(seq, there, query_start_loc_ptr, seq_lens_ptr, BLOCK_Q: tl.constexpr, SHORT: tl.constexpr):
    """First query row, query_len, seq_len and number of Q Blocks: none of short queries."""
    start = tl.load(query_start_loc_ptr + seq, mask=there, other=0)
    query_len = tl.load(query_start_loc_ptr + seq + 1, mask=there, other=0) - start
    seq_len = tl.load(seq_lens_ptr + seq, mask=there, other=0)
    return start, query_len, seq_len, tl.where(query_len > SHORT, tl.cdiv(query_len, BLOCK_Q), 0)


@triton.jit
def _longer(T, context, seq_len, blocks, BLOCK_Q: tl.constexpr, TILE: tl.constexpr, CAUSAL: tl.constexpr):
    """How many of a sequence's Q Blocks have more than T tiles; each counts at least one, even without a key."""
    count = blocks
    if CAUSAL:
        count = blocks - tl.minimum(tl.maximum(T * TILE - context, 0) // BLOCK_Q, tl.maximum(blocks - 1, 0))
    return tl.where(T <= 0, blocks, tl.where(seq_len > T * TILE, count, 0))


@triton.jit(do_not_specialize=["num_seqs", "blocks", "window", "segments"])
def _plan_kernel(
    plan_ptr,  # i32 [blocks * segments, SIZE]
    counters_ptr,  # i32 [2]
    query_start_loc_ptr,  # i32 [num_seqs + 1]
    seq_lens_ptr,  # i32 [num_seqs]
    num_seqs,
    blocks,  # Q Blocks at most; entries that are left over are END
    window,  # keys before and with a token's own that it sees; not read without WINDOW
    segments,  # of a Q Block, at most
    BLOCK_Q: tl.constexpr, TILE: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SHORT: tl.constexpr,
    BLOCKS: tl.constexpr, SEQUENCES: tl.constexpr,
):  # fmt: skip
    tl.store(counters_ptr + tl.arange(0, 2), tl.zeros([2], tl.int32), mask=tl.program_id(0) == 0)
    number = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)  # of a Q Block, sequence by sequence
    seq = number * 0
    before = number * 0  # Q Blocks of the sequences before its own
    total = 0
    for begin in range(0, num_seqs, SEQUENCES):
        index = begin + tl.arange(0, SEQUENCES)
        _, _, _, count = _sequences(index, index < num_seqs, query_start_loc_ptr, seq_lens_ptr, BLOCK_Q, SHORT)
        ends = total + tl.cumsum(count, 0)
        ended = ends[None, :] <= number[:, None]
        seq += tl.sum(ended.to(tl.int32), 1)
        before = tl.maximum(before, tl.max(tl.where(ended, ends[None, :], 0), 1))
        total += tl.sum(count, 0)
    live = number < total
    start, query_len, seq_len, count = _sequences(seq, live, query_start_loc_ptr, seq_lens_ptr, BLOCK_Q, SHORT)
    first = (number - before) * BLOCK_Q
    end_key = seq_len
    if CAUSAL:
        end_key = seq_len - query_len + tl.minimum(first + BLOCK_Q, query_len)
    tiles = tl.maximum(tl.cdiv(tl.maximum(end_key, 0), TILE), 1)

    rank = count - 1 - (number - before)  # Q Blocks that come before this one: here those of its own sequence
    for begin in range(0, num_seqs, SEQUENCES):
        index = begin + tl.arange(0, SEQUENCES)
        _, q, s, c = _sequences(index, index < num_seqs, query_start_loc_ptr, seq_lens_ptr, BLOCK_Q, SHORT)
        as_many = index[None, :] < seq[:, None]  # those too come first that have as many tiles
        more = _longer(
            tiles[:, None] - as_many.to(tl.int32), (s - q)[None, :], s[None, :], c[None, :], BLOCK_Q, TILE, CAUSAL
        )
        rank += tl.sum(tl.where(index[None, :] == seq[:, None], 0, more), 1)

    place = tl.where(live, rank, number)
    position = seq_len - query_len + first
    lowest = tiles * 0
    if WINDOW:  # the order stays that of the whole sequences, in which the last Q Blocks still come first
        if not CAUSAL:
            end_key = tl.minimum(seq_len, position + tl.minimum(BLOCK_Q, query_len - first) + window - 1)
            tiles = tl.maximum(tl.cdiv(tl.maximum(end_key, 0), TILE), 1)
        lowest = tl.minimum(tl.maximum(position - window + 1, 0) // TILE, tiles - 1)
    each = tl.cdiv(tiles - lowest, segments)
    used = tl.cdiv(tiles - lowest, each)
    for segment in range(segments):
        item = plan_ptr + (place * segments + segment) * SIZE
        keep = number < blocks
        tl.store(item, tl.where(live, tl.where(segment < used, seq, HOLE), END), mask=keep)
        tl.store(item + 1, start + first, mask=keep)
        tl.store(item + 2, query_len - first, mask=keep)
        tl.store(item + 3, position, mask=keep)
        tl.store(item + 4, seq_len, mask=keep)
        tl.store(item + 5, tl.minimum(lowest + segment * each, tiles), mask=keep)
        tl.store(item + 6, tl.minimum(lowest + segment * each + each, tiles), mask=keep)
        tl.store(item + 7, tl.where(used > 1, segment, -1), mask=keep)


def most_blocks(num_tokens: int, num_seqs: int, block_q: int, short: int) -> int:
    """Q Blocks, at most, of sequences with more than `short` query tokens; needs no lengths."""
    return num_tokens // block_q + min(num_seqs, num_tokens // (short + 1))


def num_items(batch: PagedBatch, block_q: int, segments: int, short: int) -> int:
    """Entries of the plan of a batch, at most: what make_plan writes."""
    return most_blocks(batch.num_tokens, batch.num_seqs, block_q, short) * segments


def make_space(num_blocks: int, segments: int, device: torch.device) -> torch.Tensor:
    """int32 [items, fields] for the plan of so many Q Blocks. From torch.zeros: no other scratch may lie over it."""
    return torch.zeros((num_blocks * segments, len(FIELDS)), dtype=torch.int32, device=device)


def make_plan(
    plan: torch.Tensor,
    counters: torch.Tensor,
    batch: PagedBatch,
    features: Features,
    block_q: int,
    tile_size: int,
    segments: int,
    short: int,
) -> int:
    """Fill `plan` with the items of sequences of more than `short` query tokens, and END behind them.

    Sets `counters` (int32 [2]), in which launches count, to zero, whatever a launch that was broken off left there.
    Returns how many entries were written at most; a capture of larger batches keeps that number. Raises SpecError where
    the plan has no room. Of the features only causality and the window count.
    """
    items = num_items(batch, block_q, segments, short)
    if plan.shape[0] < items:
        raise SpecError("workspace", f"a plan of {plan.shape[0]} items", f"room for {items}")
    blocks = items // segments
    _plan_kernel[(cdiv(blocks, BLOCKS),)](
        plan, counters, batch.query_start_loc, batch.seq_lens, batch.num_seqs, blocks,
        features.sliding_window or 0, segments,
        BLOCK_Q=block_q, TILE=tile_size, CAUSAL=features.causal, WINDOW=features.sliding_window is not None,
        SHORT=short, BLOCKS=BLOCKS, SEQUENCES=SEQUENCES, num_warps=4,
    )  # fmt: skip
    return items
