"""The plan of a step: segments of its Q Blocks, longest sequences first, made on the device by one small launch.

Grid: bound of Q Blocks / BLOCKS, from numbers that a captured graph knows; lengths are read on the device. Nothing is
sorted: every Q Block counts those before it. Order: sequences with more tiles first, equal ones as in the batch; in a
sequence the last Q Block first. So what is left at the end is small, and programs that run together read the same K and
V from L2. Segments of a Q Block are neighbours. The plan is of one KV head: each has the same items. Sequences of both
classes are compared in tiles of UNIT keys.

The host gives the number of segments of a Q Block, or the device chooses it for each class (segment_tiles): the number
that ends first if each program takes the next item when it is done with one. Then the items of short queries come
first, as each class has a launch of its own, and an item says where the copy of its keys lies (copy_pages.py).
"""

import triton
import triton.language as tl

from common.spec import Features, PagedBatch, step_plan
from common.spec.features import WIDEST
from common.spec.metadata import cdiv
from common.spec.step_plan import Cut
from dsl_triton.copy_pages import region_tiles
from dsl_triton.features import bundle
from dsl_triton.masks import kv_tile_range

SIZE, COUNTERS = tl.constexpr(step_plan.SIZE), tl.constexpr(step_plan.COUNTERS)
BLOCKS = tl.constexpr(step_plan.BLOCKS)
ITEMS, SHORT_ITEMS = tl.constexpr(step_plan.ITEMS), tl.constexpr(step_plan.SHORT_ITEMS)
REFUSED, MERGES = tl.constexpr(step_plan.REFUSED), tl.constexpr(step_plan.MERGES)
AT_ONCE, SHORT_AT_ONCE = tl.constexpr(step_plan.AT_ONCE), tl.constexpr(step_plan.SHORT_AT_ONCE)
FIRST_ITEM = tl.constexpr(step_plan.FIRST_ITEM)
END, HOLE, NOWHERE = (tl.constexpr(value) for value in (step_plan.END, step_plan.HOLE, step_plan.NOWHERE))
CHUNK = tl.constexpr(16)  # segments written at a time, and numbers of segments compared
# Costs in tiles that one program reads: of a wave of all programs, and of a wave of the merge of decodes, 1 us each on
# an H200. A wave of the merge of prompts costs one tile.
TURN, MERGE = tl.constexpr(6), tl.constexpr(3)
PART = tl.constexpr(1 / 16)  # of a tile: what the merge takes for each segment of a Q Block


@triton.jit
def sequences_at(
    seq, there, lengths, SHORT: tl.constexpr, SHORT_Q: tl.constexpr, BLOCK_Q: tl.constexpr
):  # fmt: skip
    """For sequences: first query row, query_len, seq_len, Q Blocks, tokens of a Q Block, and whether queries are short.

    lengths: query_start_loc, seq_lens, num_tokens, max_keys. A sequence beyond the capacity, with rows past num_tokens
    or more than max_keys keys, has -1 keys, and the rows that exist.
    """
    query_start_loc_ptr, seq_lens_ptr, num_tokens, max_keys = lengths
    start = tl.load(query_start_loc_ptr + seq, mask=there, other=0)
    stop = tl.load(query_start_loc_ptr + seq + 1, mask=there, other=0)
    seq_len = tl.load(seq_lens_ptr + seq, mask=there, other=0)
    seq_len = tl.where((stop > start) & ((stop > num_tokens) | (seq_len > max_keys)), -1, seq_len)
    start = tl.minimum(start, num_tokens)
    query_len = tl.minimum(stop, num_tokens) - start
    short = query_len <= SHORT
    block_q = tl.where(short, SHORT_Q, BLOCK_Q)
    return start, query_len, seq_len, q_blocks(query_len + block_q - 1, short, SHORT_Q, BLOCK_Q), block_q, short


@triton.jit
def q_blocks(tokens, short, SHORT_Q: tl.constexpr, BLOCK_Q: tl.constexpr):
    """Q Blocks of `tokens` query tokens, by the class of the query; 0 for short queries if SHORT_Q is 0."""
    return tl.where(short, tokens // SHORT_Q if SHORT_Q > 0 else 0, tokens // BLOCK_Q)


@triton.jit
def mean_keys(query_len, seq_len, f):
    """Keys that a sequence's Q Blocks see, without a window, on average."""
    return seq_len - query_len // 2 if f.non_causal is None else seq_len


@triton.jit
def order_tiles(seq_len, UNIT: tl.constexpr):
    """Tiles of a sequence by which it is ordered: without a window, at least one."""
    return tl.maximum(tl.cdiv(tl.maximum(seq_len, 0), UNIT), 1)


@triton.jit
def seen_tiles(seq, there, first_pos, last_pos, seq_len, short, f, SHORT_TILE: tl.constexpr, TILE: tl.constexpr):
    """Tiles [lowest, stop) of their class that Q Blocks see; at least one."""
    _, _, lowest, _, _, stop = kv_tile_range(seq, first_pos, last_pos, seq_len, f, TILE, there)
    if SHORT_TILE > 0:
        _, _, low, _, _, high = kv_tile_range(seq, first_pos, last_pos, seq_len, f, SHORT_TILE, there)
        lowest, stop = tl.where(short, low, lowest), tl.where(short, high, stop)
    stop = tl.maximum(stop, 1)
    return tl.minimum(lowest, stop - 1), stop


@triton.jit
def longest_tiles(seq_len, block_q, sees, UNIT: tl.constexpr):
    """Tiles of a sequence's longest Q Block, at least one. sees: keys that a query token sees at most."""
    return tl.maximum(tl.cdiv(tl.minimum(seq_len, sees + block_q), UNIT), 1)


@triton.jit
def with_more(longest, work, which, query_len, seq_len, count, block_q, sees, f, UNIT: tl.constexpr):
    """Tiles of the longest Q Block, and of all, with those of the sequences that are `which`."""
    most = tl.where(which & (count > 0), longest_tiles(seq_len, block_q, sees, UNIT), 1)
    more = tl.where(which, count * longest_tiles(mean_keys(query_len, seq_len, f), block_q, sees, UNIT), 0)
    return tl.maximum(longest, tl.max(most, 0)), work + tl.sum(more.to(tl.float32), 0)


@triton.jit
def segment_tiles(
    longest, work, items, rows, programs, rows_at_most, num_kv_heads, merge, each
):  # fmt: skip
    """The entry of `each`, tiles of a segment, with which the items end first.

    longest, work: tiles of the longest Q Block, and of all. items, rows: how many items there are, and rows of scratch,
    with each choice, under one KV head. merge: the cost of the merge, in tiles. The bytes and products of all items are
    the same for every choice. What differs is latency: of the tiles that the last program reads, of the waves, and of
    the merge.
    """
    turns = tl.cdiv(items * num_kv_heads, programs).to(tl.float32)
    mean = work / tl.maximum(items, 1).to(tl.float32)
    cost = (turns - 1.0) * mean + each.to(tl.float32) + turns * TURN
    cost = tl.where(each < longest, cost + merge + tl.cdiv(longest, each).to(tl.float32) * PART, cost)
    cost = tl.where(rows <= rows_at_most, cost, float("inf"))
    return tl.max(tl.where(cost <= tl.min(cost, 0), each, 0), 0)


@triton.jit
def merge_turns(rows, programs, AT_ONCE: tl.constexpr):
    """Waves of a merge of so many rows: a wave has AT_ONCE rows for each program that takes items."""
    return tl.cdiv(rows, AT_ONCE * programs)


@triton.jit
def choices_of(longest):
    """Tiles of a segment where the longest Q Block has 1, 1, 2, 3, 4, 6, 8, ... segments."""
    halvings = tl.arange(0, CHUNK)
    return tl.cdiv(longest, (((2 + halvings % 2) << (halvings // 2)) >> 1))


@triton.jit
def tiles_by_choice(
    num_seqs, lengths, tokens, longest, work, programs, rows_at_most, num_kv_heads, sees,
    SHORT: tl.constexpr, SHORT_Q: tl.constexpr, BLOCK_Q: tl.constexpr, UNIT: tl.constexpr, RATIO: tl.constexpr,
    SEQUENCES: tl.constexpr,
):  # fmt: skip
    """Tiles of a segment of long and of short queries, as `segment_tiles`. tokens, longest, work, programs: of both."""
    choices, of_short = choices_of(longest[0]), choices_of(longest[1])
    items, short_items = choices * 0, choices * 0
    rows, short_rows = choices * 0, choices * 0
    for begin in range(0, num_seqs, SEQUENCES):
        index = begin + tl.arange(0, SEQUENCES)
        _, _, s, c, b, short = sequences_at(index, index < num_seqs, lengths, SHORT, SHORT_Q, BLOCK_Q)
        short = short[:, None]
        each = tl.where(short, of_short[None, :], choices[None, :])
        n = c[:, None] * tl.cdiv(longest_tiles(s, b, sees, UNIT)[:, None], each)
        of_parts = tl.where(n > c[:, None], n * b[:, None] * RATIO, 0)
        items += tl.sum(tl.where(short, 0, n), 0)
        short_items += tl.sum(tl.where(short, n, 0), 0)
        rows += tl.sum(tl.where(short, 0, of_parts), 0)
        short_rows += tl.sum(tl.where(short, of_parts, 0), 0)
    merge = merge_turns(tokens[0] * RATIO * num_kv_heads, programs[0], AT_ONCE)
    of_long = segment_tiles(longest[0], work[0], items, rows, programs[0], rows_at_most, num_kv_heads, merge, choices)
    merge = MERGE * merge_turns(tokens[1] * RATIO * num_kv_heads, programs[1], SHORT_AT_ONCE)
    return of_long, segment_tiles(
        longest[1], work[1], short_items, short_rows, programs[1], rows_at_most, num_kv_heads, merge, of_short
    )


@triton.jit
def store_counters(counters_ptr, items, shorts, merges, refused):
    """Write the COUNTERS of a plan, by its first program; those that launches count by begin at 0."""
    of = tl.arange(0, COUNTERS)
    found = tl.where(of == ITEMS, items, tl.where(of == SHORT_ITEMS, shorts, 0))
    found = tl.where(of == MERGES, merges, found)
    tl.store(counters_ptr + of, tl.where(of == REFUSED, refused, found), mask=tl.program_id(0) == 0)


@triton.jit
def store_item(item, here, seq, of_segment, of_block):
    """Write the FIELDS of items [Q Block, segment] but the region. of_segment: start, stop and part, of that size;
    of_block: row, left, position, seq_len, parts, scratch, short and first, of each Q Block."""
    start, stop, part = of_segment
    row, left, position, seq_len, parts, scratch, short, first = of_block
    none = part * 0
    tl.store(item, seq, mask=here)
    tl.store(item + 1, row[:, None] + none, mask=here)
    tl.store(item + 2, left[:, None] + none, mask=here)
    tl.store(item + 3, position[:, None] + none, mask=here)
    tl.store(item + 4, seq_len[:, None] + none, mask=here)
    tl.store(item + 5, start, mask=here)
    tl.store(item + 6, stop, mask=here)
    tl.store(item + 7, part, mask=here)
    tl.store(item + 8, parts[:, None] + none, mask=here)
    tl.store(item + 9, scratch[:, None] + none, mask=here)
    tl.store(item + 10, short[:, None].to(tl.int32) + none, mask=here)
    tl.store(item + 11, first[:, None] + none, mask=here)


@triton.jit(do_not_specialize=["num_seqs", "num_tokens", "max_keys", "blocks", "segments", "sees", "copied"])
def _plan_kernel(
    plan_ptr,  # i32 [items, SIZE]
    counters_ptr,  # i32 [COUNTERS]
    query_start_loc_ptr,  # i32 [num_seqs + 1]
    seq_lens_ptr,  # i32 [num_seqs]
    num_seqs,
    num_tokens,
    max_keys,  # of a sequence
    blocks,  # Q Blocks at most; what is left over is END
    segments,  # of a Q Block, at most; not read with CHOICE
    programs,  # that take the items of long queries under all KV heads, and of short ones; not read without CHOICE
    short_programs,
    rows_at_most,  # of scratch for one KV head
    num_kv_heads, sees,
    copied,  # tiles of one KV head that may be copied; -1: none are
    f,
    SHORT: tl.constexpr, SHORT_Q: tl.constexpr, SHORT_TILE: tl.constexpr, BLOCK_Q: tl.constexpr, TILE: tl.constexpr,
    UNIT: tl.constexpr, RATIO: tl.constexpr, CHOICE: tl.constexpr, SEQUENCES: tl.constexpr,
):  # fmt: skip
    lengths, limits = (query_start_loc_ptr, seq_lens_ptr, num_tokens, max_keys), (num_tokens, max_keys)
    number = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)  # of a Q Block, sequence by sequence
    seq = number * 0
    before = number * 0  # Q Blocks of the sequences before its own
    total = 0
    refused = 0
    long_tokens = 0  # of long queries, and of short ones
    short_tokens = 0
    longest = 1  # their tiles: of the longest, and of all
    work = 0.0
    longest_short = 1
    work_short = 0.0
    for begin in range(0, num_seqs, SEQUENCES):
        index = begin + tl.arange(0, SEQUENCES)
        there = index < num_seqs
        _, query_len, seq_len, count, block_q, of_short = sequences_at(index, there, lengths, SHORT, SHORT_Q, BLOCK_Q)
        ends = total + tl.cumsum(count, 0)
        ended = ends[None, :] <= number[:, None]
        seq += tl.sum(ended.to(tl.int32), 1)
        before = tl.maximum(before, tl.max(tl.where(ended, ends[None, :], 0), 1))
        total += tl.sum(count, 0)
        refused = tl.maximum(refused, tl.max((seq_len < 0).to(tl.int32), 0))
        if CHOICE:
            long_tokens += tl.sum(tl.where(of_short, 0, query_len), 0)
            short_tokens += tl.sum(tl.where(of_short, query_len, 0), 0)
            of = query_len, seq_len, count, block_q, sees, f, UNIT
            longest, work = with_more(longest, work, ~of_short, *of)
            longest_short, work_short = with_more(longest_short, work_short, of_short, *of)
    live = number < total
    start, query_len, seq_len, count, block_q, short = sequences_at(seq, live, lengths, SHORT, SHORT_Q, BLOCK_Q)
    first = (number - before) * block_q
    tiles = order_tiles(seq_len, UNIT)

    each = longest
    each_short = longest_short
    own = number * 0 + segments
    if CHOICE:
        rows = tl.where((long_tokens > 0) & (short_tokens > 0), rows_at_most // 2, rows_at_most)  # of either class
        each, each_short = tiles_by_choice(
            num_seqs, lengths, (long_tokens, short_tokens), (longest, longest_short), (work, work_short),
            (programs, short_programs), rows, num_kv_heads, sees, SHORT, SHORT_Q, BLOCK_Q, UNIT, RATIO, SEQUENCES,
        )  # fmt: skip
        own = tl.cdiv(longest_tiles(seq_len, block_q, sees, UNIT), tl.where(short, each_short, each))
    rank = count - 1 - (number - before)  # Q Blocks that come before this one: here those of its own sequence
    place = rank * own  # items that come before this one, and rows of scratch
    scratch = place * block_q * RATIO
    items = 0
    of_shorts = 0  # items of short queries, and their rows of scratch
    shorts_rows = 0
    region = number * 0
    for begin in range(0, num_seqs, SEQUENCES):
        index = begin + tl.arange(0, SEQUENCES)
        _, _, s, c, b, of_short = sequences_at(index, index < num_seqs, lengths, SHORT, SHORT_Q, BLOCK_Q)
        earlier = index[None, :] < seq[:, None]  # of as many tiles too these come first
        n = index * 0 + segments
        if CHOICE:
            n = tl.cdiv(longest_tiles(s, b, sees, UNIT), tl.where(of_short, each_short, each))
        more = tl.where(order_tiles(s, UNIT)[None, :] > tiles[:, None] - earlier.to(tl.int32), (c * n)[None, :], 0)
        more = tl.where(index[None, :] == seq[:, None], 0, more)
        of_part = tl.where(n > 1, b * RATIO, 0)
        if CHOICE:
            more = tl.where(of_short[None, :] == short[:, None], more, 0)
            shorts = tl.where(of_short, c * n, 0)
            of_shorts += tl.sum(shorts, 0)
            shorts_rows += tl.sum(shorts * of_part, 0)
            there = index < num_seqs
            _, _, tiles_of = region_tiles(query_start_loc_ptr, seq_lens_ptr, index, there, f, TILE, SHORT, limits)
            region += tl.sum(tl.where(earlier, tiles_of[None, :], 0), 1)
        place += tl.sum(more, 1)
        scratch += tl.sum(of_part[None, :] * more, 1)
        items += tl.sum(c * n, 0)
    if CHOICE:
        place += tl.where(short, 0, of_shorts)
        scratch += tl.where(short, 0, shorts_rows)
        low, _, tiles_of = region_tiles(query_start_loc_ptr, seq_lens_ptr, seq, live, f, TILE, SHORT, limits)
        region = tl.where(short | (region + tiles_of > copied), NOWHERE, region - low)
    merges = tl.where((each < longest) | (each_short < longest_short), total, 0)
    store_counters(counters_ptr, items, of_shorts, merges, refused)

    position = seq_len - query_len + first
    last_pos = position + tl.minimum(block_q, query_len - first) - 1
    lowest, stop = seen_tiles(seq, live, position, last_pos, seq_len, short, f, SHORT_TILE, TILE)
    per_segment = tl.cdiv(stop - lowest, own)
    used = tl.cdiv(stop - lowest, per_segment)
    place = tl.where(live, place, items + (number - total) * own)
    keep = (number < blocks) & (live | (not CHOICE))
    if CHOICE:
        tl.store(plan_ptr + number * SIZE + FIRST_ITEM, tl.where(used > 1, place, -1), mask=keep)
    for done in range(0, tl.max(own, 0), CHUNK):
        segment = done + tl.arange(0, CHUNK)[None, :]
        item = plan_ptr + (place[:, None] + segment) * SIZE
        here = keep[:, None] & (segment < own[:, None])
        begins = lowest[:, None] + segment * per_segment[:, None]
        entry = tl.where(live[:, None], tl.where(segment < used[:, None], seq[:, None], HOLE), END)
        stops = tl.minimum(begins + per_segment[:, None], stop[:, None])
        of_segment = tl.minimum(begins, stop[:, None]), stops, tl.where(used[:, None] > 1, segment, -1)
        sums = tl.where(own > 1, scratch, 0)
        of_block = start + first, query_len - first, position, seq_len, used, sums, short, first
        store_item(item, here, entry, of_segment, of_block)
        if CHOICE:
            tl.store(item + 12, region[:, None] + segment * 0, mask=here)


@triton.jit
def item_at(item_ptr, there=None):
    """seq, and the other FIELDS of an item. there: mask of the loads."""
    row, left = tl.load(item_ptr + 1, mask=there), tl.load(item_ptr + 2, mask=there)
    position, seq_len = tl.load(item_ptr + 3, mask=there), tl.load(item_ptr + 4, mask=there)
    start, stop = tl.load(item_ptr + 5, mask=there), tl.load(item_ptr + 6, mask=there)
    part, parts = tl.load(item_ptr + 7, mask=there), tl.load(item_ptr + 8, mask=there)
    scratch, short = tl.load(item_ptr + 9, mask=there), tl.load(item_ptr + 10, mask=there)
    first, region = tl.load(item_ptr + 11, mask=there), tl.load(item_ptr + 12, mask=there)
    fields = row, left, position, seq_len, start, stop, part, parts, scratch, short, first, region
    return tl.load(item_ptr, mask=there), fields


def make_plan(plan, counters, batch: PagedBatch, features: Features, cut: Cut) -> int:
    """Fill `plan` with the items of the batch's sequences; where the host cuts them, END stands behind them.

    Sets `counters`: zeros for launches to count in, even if an earlier launch was interrupted; the number of items,
    HOLEs among them; whether a sequence is beyond the capacity. Returns the most entries that may be written; a capture
    of larger batches keeps that number. Raises SpecError if the plan has no room. Only features that hide keys count.
    """
    items, blocks = cut.ensure_room(plan, batch), cut.most_blocks(batch.num_tokens, batch.num_seqs)
    short_q, short_tile = cut.short or (0, 0)
    _plan_kernel[(max(cdiv(blocks, step_plan.BLOCKS), 1),)](
        plan, counters, batch.query_start_loc, batch.seq_lens, batch.num_seqs, batch.num_tokens,
        batch.block_table.shape[1] * batch.shape.block_size, blocks, cut.segments, cut.programs,
        cut.short_programs, cut.rows,
        batch.shape.num_kv_heads, min(features.sees, WIDEST), cut.copied or -1, bundle(step_plan.mask_of(features)),
        SHORT=cut.longest_short, SHORT_Q=short_q, SHORT_TILE=short_tile, BLOCK_Q=cut.long[0], TILE=cut.long[1],
        UNIT=cut.unit, RATIO=batch.shape.queries_per_kv, CHOICE=not cut.segments,
        SEQUENCES=step_plan.at_once(batch.num_seqs), num_warps=4,
    )  # fmt: skip
    return items
