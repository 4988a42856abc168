"""The plan of a step: segments of its Q Blocks, longest sequences first, made on the device by one small launch.

Grid: bound of Q Blocks / BLOCKS, from numbers that a captured graph knows; lengths are read on the device. Nothing is
sorted: every Q Block counts those before it. Order: sequences with more tiles first, equal ones as in the batch; in a
sequence the last Q Block first. So what is left at the end is small, and programs that run together read the same K and
V from L2. Segments of a Q Block are neighbours. The plan is of one KV head: each has the same items. Sequences of both
classes are compared in tiles of `unit` keys.

The device chooses the number of segments of a Q Block for each class (segment_tiles): the number that ends first if
each program takes the next item when it is done with one. The items of short queries come first, as each class has a
launch of its own, and an item says where the copy of its sequence's keys lies (copy_pages.py).
"""

from dataclasses import dataclass

import helion.language as hl
import torch

from common.spec import Features, PagedBatch, step_plan
from common.spec.features import WIDEST
from common.spec.metadata import cdiv as host_cdiv
from common.spec.step_plan import (
    AT_ONCE,
    COUNTERS,
    FIRST_ITEM,
    HOLE,
    ITEMS,
    MERGES,
    NOWHERE,
    REFUSED,
    SHORT_AT_ONCE,
    SHORT_ITEMS,
    Cut,
)
from dsl_helion.arithmetic import cdiv, div, int32
from dsl_helion.binding import kernel, run
from dsl_helion.copy_pages import region_tiles
from dsl_helion.features import bundle
from dsl_helion.masks import kv_tile_range

CHUNK = 16  # segments written at a time, and numbers of segments compared
# Costs in tiles that one program reads: of a wave of all programs, and of a wave of the merge of decodes, 1 us each on
# an H200. A wave of the merge of prompts costs one tile.
TURN, MERGE = 6, 3
PART = 1 / 16  # of a tile: what the merge takes for each segment of a Q Block


@dataclass(frozen=True)
class _Plan:
    num_warps: int = 4
    num_stages: int = 1


def sequences_at(seq, there, lengths, short_queries, short_q, block_q):
    """For sequences: first query row, query_len, seq_len, Q Blocks, tokens of a Q Block, and whether queries are short.

    lengths: query_start_loc, seq_lens, num_tokens, max_keys. A sequence beyond the capacity, with rows past num_tokens
    or more than max_keys keys, has -1 keys, and the rows that exist.
    """
    query_start_loc, seq_lens, num_tokens, max_keys = lengths
    start = hl.load(query_start_loc, [seq], extra_mask=there)
    stop = hl.load(query_start_loc, [seq + 1], extra_mask=there)
    seq_len = hl.load(seq_lens, [seq], extra_mask=there)
    seq_len = torch.where((stop > start) & ((stop > num_tokens) | (seq_len > max_keys)), -1, seq_len)
    most = hl.full([], num_tokens, dtype=torch.int32)
    start = torch.minimum(start, most)
    query_len = torch.minimum(stop, most) - start
    short = query_len <= short_queries
    tokens = torch.where(short, int32(short_q), int32(block_q))
    return start, query_len, seq_len, q_blocks(query_len + tokens - 1, short, short_q, block_q), tokens, short


def q_blocks(tokens, short, short_q, block_q):
    """Q Blocks of `tokens` query tokens, by the class of the query."""
    return torch.where(short, div(tokens, short_q), div(tokens, block_q))


def mean_keys(query_len, seq_len, f):
    """Keys that a sequence's Q Blocks see, without a window, on average."""
    return seq_len - div(query_len, 2) if f["non_causal"] is None else seq_len


def order_tiles(seq_len, unit):
    """Tiles of a sequence by which it is ordered: without a window, at least one."""
    return torch.maximum(cdiv(torch.maximum(seq_len, int32(0)), unit), int32(1))


def seen_tiles(seq, there, first_pos, last_pos, seq_len, short, f, short_tile, tile):
    """Tiles [lowest, stop) of their class that Q Blocks see; at least one."""
    _, _, lowest, _, _, stop = kv_tile_range(seq, first_pos, last_pos, seq_len, f, tile, there)
    _, _, low, _, _, high = kv_tile_range(seq, first_pos, last_pos, seq_len, f, short_tile, there)
    stop = torch.maximum(torch.where(short, high, stop), int32(1))
    return torch.minimum(torch.where(short, low, lowest), stop - 1), stop


def longest_tiles(seq_len, block_q, sees, unit):
    """Tiles of a sequence's longest Q Block, at least one. sees: keys that a query token sees at most."""
    return torch.maximum(cdiv(torch.minimum(seq_len, block_q + int32(sees)), unit), int32(1))


def with_more(longest, work, which, query_len, seq_len, count, block_q, sees, f, unit):
    """Tiles of the longest Q Block, and of all, with those of the sequences that are `which`."""
    most = torch.where(which & (count > 0), longest_tiles(seq_len, block_q, sees, unit), 1)
    more = torch.where(which, count * longest_tiles(mean_keys(query_len, seq_len, f), block_q, sees, unit), 0)
    return torch.maximum(longest, most.amax(0)), work + more.to(torch.float32).sum(0)


def segment_tiles(longest, work, items, rows, programs, rows_at_most, num_kv_heads, merge, each):
    """The entry of `each`, tiles of a segment, with which the items end first.

    longest, work: tiles of the longest Q Block, and of all. items, rows: how many items there are, and rows of scratch,
    with each choice, under one KV head. merge: the cost of the merge, in tiles. The bytes and products of all items are
    the same for every choice. What differs is latency: of the tiles that the last program reads, of the waves, and of
    the merge.
    """
    turns = cdiv(items * num_kv_heads, programs).to(torch.float32)
    mean = work / torch.maximum(items, int32(1)).to(torch.float32)
    cost = (turns - 1.0) * mean + each.to(torch.float32) + turns * TURN
    cost = torch.where(each < longest, cost + merge + cdiv(longest, each).to(torch.float32) * PART, cost)
    cost = torch.where(rows <= rows_at_most, cost, float("inf"))
    return torch.where(cost <= cost.amin(0), each, 0).amax(0)


def merge_turns(rows, programs, at_once):
    """Waves of a merge of so many rows: a wave has `at_once` rows for each program that takes items."""
    return cdiv(rows, int32(programs * at_once))


def choices_of(longest, chunk):
    """Tiles of a segment where the longest Q Block has 1, 1, 2, 3, 4, 6, 8, ... segments."""
    halvings = hl.arange(chunk)
    return cdiv(longest, ((2 + halvings % 2) << (halvings // 2)) >> 1)


def counted(items, rows, seq_len, count, choices, tokens, sees, unit, ratio):
    """Items, and rows of scratch, with those of more sequences [sequence], with each choice of tiles a segment."""
    n = count[:, None] * cdiv(longest_tiles(seq_len, tokens, sees, unit)[:, None], choices[None, :])
    more = torch.where(n > count[:, None], n * tokens[:, None] * ratio, 0)
    return items + n.sum(0, dtype=torch.int32), rows + more.sum(0).to(torch.int32)


def store_counters(counters, numbers, items, shorts, merges, refused):
    """Write the COUNTERS of a plan; those that launches count by begin at 0. numbers: how many there are."""
    of = hl.arange(numbers)
    found = torch.where(of == ITEMS, items, torch.where(of == SHORT_ITEMS, shorts, 0))
    found = torch.where(of == MERGES, merges, found)
    hl.store(counters, [of], torch.where(of == REFUSED, refused, found))


def store_item(plan, item, here, seq, of_segment, of_block):
    """Write the FIELDS of items [Q Block, segment]. of_segment: start, stop, part, of that size; of_block: row, left,
    position, seq_len, parts, scratch, short, first and region, of each Q Block."""
    start, stop, part = of_segment
    row, left, position, seq_len, parts, scratch, short, first, region = of_block
    none = part * 0
    hl.store(plan, [item, 0], seq, extra_mask=here)
    hl.store(plan, [item, 1], row[:, None] + none, extra_mask=here)
    hl.store(plan, [item, 2], left[:, None] + none, extra_mask=here)
    hl.store(plan, [item, 3], position[:, None] + none, extra_mask=here)
    hl.store(plan, [item, 4], seq_len[:, None] + none, extra_mask=here)
    hl.store(plan, [item, 5], start, extra_mask=here)
    hl.store(plan, [item, 6], stop, extra_mask=here)
    hl.store(plan, [item, 7], part, extra_mask=here)
    hl.store(plan, [item, 8], parts[:, None] + none, extra_mask=here)
    hl.store(plan, [item, 9], scratch[:, None] + none, extra_mask=here)
    hl.store(plan, [item, 10], short[:, None].to(torch.int32) + none, extra_mask=here)
    hl.store(plan, [item, 11], first[:, None] + none, extra_mask=here)
    hl.store(plan, [item, 12], region[:, None] + none, extra_mask=here)


def _plan_kernel(
    plan: torch.Tensor,  # i32 [items, SIZE]
    counters: torch.Tensor,  # i32 [COUNTERS]
    query_start_loc: torch.Tensor,  # i32 [num_seqs + 1]
    seq_lens: torch.Tensor,  # i32 [num_seqs]
    num_tokens: int,
    max_keys: int,  # of a sequence
    groups: int,  # of Q Blocks, at most
    programs: int,  # that take the items of long queries under all KV heads, and of short ones
    short_programs: int,
    rows_at_most: int,  # of scratch for one KV head
    num_kv_heads: int,
    sees: int,
    copied: int,  # tiles of one KV head that may be copied; -1: none are
    f: dict,
    short_queries: hl.constexpr, short_q: hl.constexpr, short_tile: hl.constexpr, block_q: hl.constexpr,
    tile: hl.constexpr, unit: hl.constexpr, ratio: hl.constexpr, blocks: hl.constexpr, sequences: hl.constexpr,
    chunk: hl.constexpr, numbers: hl.constexpr,
) -> None:  # fmt: skip
    num_seqs = seq_lens.size(0)
    hl.specialize((plan.size(1), counters.size(0)))
    limits = num_tokens, max_keys
    of_batch = (query_start_loc, seq_lens, *limits), short_queries, short_q, block_q
    for program in hl.grid(groups):
        number = program * blocks + hl.arange(blocks)  # of a Q Block, sequence by sequence
        seq, before = number * 0, number * 0  # its sequence, Q Blocks of those before it
        total, refused = hl.zeros([], dtype=torch.int32), hl.zeros([], dtype=torch.int32)
        long_tokens, short_tokens = hl.zeros([], dtype=torch.int32), hl.zeros([], dtype=torch.int32)  # of queries
        longest, longest_short = hl.full([], 1, dtype=torch.int32), hl.full([], 1, dtype=torch.int32)  # their tiles
        work, work_short = hl.zeros([], dtype=torch.float32), hl.zeros([], dtype=torch.float32)  # tiles of all
        for begin in hl.grid(0, num_seqs, sequences):
            index = begin + hl.arange(sequences)
            there = index < num_seqs
            _, query_len_a, seq_len_a, count_a, tokens_a, short_a = sequences_at(index, there, *of_batch)
            ends = total + hl.cumsum(count_a, 0)
            ended = ends[None, :] <= number[:, None]
            seq = seq + ended.to(torch.int32).sum(1).to(torch.int32)
            before = torch.maximum(before, torch.where(ended, ends[None, :], 0).amax(1))
            total = total + count_a.sum(0, dtype=torch.int32)
            refused = torch.maximum(refused, (seq_len_a < 0).to(torch.int32).amax(0))
            long_tokens = long_tokens + torch.where(short_a, 0, query_len_a).sum(0, dtype=torch.int32)
            short_tokens = short_tokens + torch.where(short_a, query_len_a, 0).sum(0, dtype=torch.int32)
            of = query_len_a, seq_len_a, count_a, tokens_a, sees, f, unit
            longest, work = with_more(longest, work, ~short_a, *of)
            longest_short, work_short = with_more(longest_short, work_short, short_a, *of)
        live = number < total
        start, query_len, seq_len, count, tokens, short = sequences_at(seq, live, *of_batch)
        first = (number - before) * tokens
        tiles = order_tiles(seq_len, unit)

        choices, of_short = choices_of(longest, chunk), choices_of(longest_short, chunk)
        items, rows, short_items, short_rows = choices * 0, choices * 0, choices * 0, choices * 0
        for begin in hl.grid(0, num_seqs, sequences):
            index = begin + hl.arange(sequences)
            there = index < num_seqs
            _, _, seq_len_b, count_b, tokens_b, short_b = sequences_at(index, there, *of_batch)
            how = tokens_b, sees, unit, ratio
            items, rows = counted(items, rows, seq_len_b, torch.where(short_b, 0, count_b), choices, *how)
            short_items, short_rows = counted(
                short_items, short_rows, seq_len_b, torch.where(short_b, count_b, 0), of_short, *how
            )
        most_rows = torch.where((long_tokens > 0) & (short_tokens > 0), int32(rows_at_most // 2), int32(rows_at_most))
        how = most_rows, num_kv_heads
        merge = merge_turns(long_tokens * (ratio * num_kv_heads), programs, AT_ONCE)
        each = segment_tiles(longest, work, items, rows, int32(programs), *how, merge, choices)
        merge = MERGE * merge_turns(short_tokens * (ratio * num_kv_heads), short_programs, SHORT_AT_ONCE)
        each_short = segment_tiles(
            longest_short, work_short, short_items, short_rows, int32(short_programs), *how, merge, of_short
        )
        merges = torch.where((each < longest) | (each_short < longest_short), total, 0)

        own = cdiv(longest_tiles(seq_len, tokens, sees, unit), torch.where(short, each_short, each))
        place = (count - 1 - (number - before)) * own  # items before this one, here of its sequence
        scratch = place * tokens * ratio
        num_items = hl.zeros([], dtype=torch.int32)
        shorts = hl.zeros([], dtype=torch.int32)  # items of short queries, and their rows of scratch
        rows_of_shorts = hl.zeros([], dtype=torch.int32)
        region = number * 0
        for begin in hl.grid(0, num_seqs, sequences):
            index = begin + hl.arange(sequences)
            there = index < num_seqs
            _, _, seq_len_c, count_c, tokens_c, short_c = sequences_at(index, there, *of_batch)
            earlier = index[None, :] < seq[:, None]  # of as many tiles too these come first
            segments = cdiv(longest_tiles(seq_len_c, tokens_c, sees, unit), torch.where(short_c, each_short, each))
            first_ones = order_tiles(seq_len_c, unit)[None, :] > tiles[:, None] - earlier.to(torch.int32)
            same = (index[None, :] != seq[:, None]) & (short_c[None, :] == short[:, None])
            more = torch.where(first_ones & same, (count_c * segments)[None, :], 0)
            place = place + more.sum(1).to(torch.int32)
            of_part = torch.where(segments > 1, tokens_c * ratio, 0)
            short_ones = torch.where(short_c, count_c * segments, 0)
            shorts = shorts + short_ones.sum(0, dtype=torch.int32)
            rows_of_shorts = rows_of_shorts + (short_ones * of_part).sum(0, dtype=torch.int32)
            _, _, copied_c = region_tiles(query_start_loc, seq_lens, index, there, f, tile, short_queries, limits)
            region = region + torch.where(earlier, copied_c[None, :], 0).sum(1).to(torch.int32)
            scratch = scratch + (of_part[None, :] * more).sum(1).to(torch.int32)
            num_items = num_items + (count_c * segments).sum(0, dtype=torch.int32)
        place = place + torch.where(short, 0, shorts)
        scratch = scratch + torch.where(short, 0, rows_of_shorts)
        low, _, own_tiles = region_tiles(query_start_loc, seq_lens, seq, live, f, tile, short_queries, limits)
        region = torch.where(short | (region + own_tiles > copied), NOWHERE, region - low)
        if program == 0:
            store_counters(counters, numbers, num_items, shorts, merges, refused)

        position = seq_len - query_len + first
        last_pos = position + torch.minimum(tokens, query_len - first) - 1
        lowest, stop = seen_tiles(seq, live, position, last_pos, seq_len, short, f, short_tile, tile)
        per_segment = cdiv(stop - lowest, own)
        used = cdiv(stop - lowest, per_segment)
        hl.store(plan, [number, FIRST_ITEM], torch.where(used > 1, place, -1), extra_mask=live)
        for done in hl.grid(0, torch.where(live, own, 0).amax(0), chunk):
            segment = (done + hl.arange(chunk))[None, :]
            item = place[:, None] + segment
            here = live[:, None] & (segment < own[:, None])
            begins = lowest[:, None] + segment * per_segment[:, None]
            entry = torch.where(segment < used[:, None], seq[:, None], HOLE)
            ends = torch.minimum(begins + per_segment[:, None], stop[:, None])
            of_segment = torch.minimum(begins, stop[:, None]), ends, torch.where(used[:, None] > 1, segment, -1)
            sums = torch.where(own > 1, scratch, 0)
            of_block = start + first, query_len - first, position, seq_len, used, sums, short, first, region
            store_item(plan, item, here, entry, of_segment, of_block)


_counts = "num_seqs", "num_tokens", "max_keys", "groups", "programs", "short_programs", "sees", "copied"
_plan = kernel(_plan_kernel, *_counts)


def item_at(plan, item):
    """seq, and the other FIELDS of an item."""
    row, left, position = hl.load(plan, [item, 1]), hl.load(plan, [item, 2]), hl.load(plan, [item, 3])
    seq_len, start, stop = hl.load(plan, [item, 4]), hl.load(plan, [item, 5]), hl.load(plan, [item, 6])
    part, parts, scratch = hl.load(plan, [item, 7]), hl.load(plan, [item, 8]), hl.load(plan, [item, 9])
    short, first, region = hl.load(plan, [item, 10]), hl.load(plan, [item, 11]), hl.load(plan, [item, 12])
    fields = row, left, position, seq_len, start, stop, part, parts, scratch, short, first, region
    return hl.load(plan, [item, 0]), fields


def make_plan(plan, counters, batch: PagedBatch, features: Features, cut: Cut) -> int:
    """Fill `plan` with the items of the batch's sequences.

    Sets `counters`: zeros for launches to count in, even if an earlier launch was interrupted; the number of items,
    HOLEs among them; whether a sequence is beyond the capacity. Returns the most entries that may be written; a capture
    of larger batches keeps that number. Raises SpecError if the plan has no room. Only features that hide keys count.
    """
    items, blocks = cut.ensure_room(plan, batch), cut.most_blocks(batch.num_tokens, batch.num_seqs)
    args = (
        plan, counters, batch.query_start_loc, batch.seq_lens, batch.num_tokens,
        batch.block_table.shape[1] * batch.shape.block_size, max(host_cdiv(blocks, step_plan.BLOCKS), 1), cut.programs,
        cut.short_programs, cut.rows, batch.shape.num_kv_heads, min(features.sees, WIDEST), cut.copied or -1,
        bundle(step_plan.mask_of(features)),
        cut.longest_short, *cut.short, *cut.long, cut.unit, batch.shape.queries_per_kv, step_plan.BLOCKS,
        step_plan.at_once(batch.num_seqs), CHUNK, COUNTERS,
    )  # fmt: skip
    run(_plan, _Plan(), args)
    return items
