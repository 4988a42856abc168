"""The plan of a step against a list made and sorted on the host."""

import itertools
import random
from types import SimpleNamespace

import pytest
import torch

from common.cases.batch import make_batch
from common.spec import AttentionShape, Features, SpecError
from common.spec.metadata import ANY_QUERY, cdiv, query_start_loc, seq_lens
from common.spec.step_plan import (
    COUNTERS,
    END,
    FEW,
    FIELDS,
    FIRST_ITEM,
    HOLE,
    ITEMS,
    MANY,
    MERGES,
    NOWHERE,
    REFUSED,
    SHORT_ITEMS,
    Cut,
)
from common.spec.workspaces import SegmentScratch
from dsl_triton.reduce_segments import reduce_segments
from dsl_triton.step_plan import make_plan
from dsls import slow_in_helion

TILE, SHORT, HEADS, RATIO = 16, 3, 2, 4
NATIVE = FIELDS.index("part") + 1  # fields that the native kernel reads


def planned(lens, block_q, segments, causal, window=None):
    """The items that are written, as rows of ints, where every entry held something else before."""
    tokens = sum(query for query, _ in lens)
    batch = given(lens)
    cut = Cut((block_q, TILE), SHORT, segments=segments)
    plan = cut.make_space(tokens + block_q, len(lens), torch.device("cpu")).fill_(77)
    features = Features(causal=causal, sliding_window=window)
    counters = torch.full((COUNTERS,), 9, dtype=torch.int32)  # of a launch that was broken off
    count = make_plan(plan, counters, batch, features, cut)
    assert counters[:2].tolist() == [0, 0]
    assert (plan[count:] == 77).all(), "written beyond what is said"
    return plan[:count, :NATIVE].tolist()


def given(lens, keys=2**20):
    """A batch of these lengths, as far as a plan reads it."""
    shape = SimpleNamespace(block_size=1, num_kv_heads=HEADS, queries_per_kv=RATIO)
    return SimpleNamespace(
        query_start_loc=query_start_loc(lens), seq_lens=seq_lens(lens), num_tokens=sum(query for query, _ in lens),
        num_seqs=len(lens), shape=shape, block_table=torch.empty(len(lens), keys, device="meta"),
    )  # fmt: skip


def expected(lens, block_q, segments, causal, window=None):
    """The items of a cut of long queries into so many segments each, as far as the native kernel reads them."""
    items = chosen(lens, Cut((block_q, TILE), SHORT, segments=segments), causal, window)
    return [item and item[:NATIVE] for item in items]


def random_lens(rng):
    lens = []
    for _ in range(rng.choice([1, 2, 7, 20])):
        query = rng.choice([0, 1, 3, 4, 16, rng.randint(0, 90)])
        lens.append((query, rng.choice([query, query + rng.randint(0, 200), rng.randint(0, 90)])))
    return lens


def same(found, wanted):
    for item, want in zip(found, wanted, strict=False):
        assert item == want if want else item[0] == HOLE
    assert all(item[0] == END for item in found[len(wanted) :])


@pytest.mark.parametrize("segments", [1, 3])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "all"])
@pytest.mark.parametrize("seed", range(8))
def test_the_plan_is_the_sorted_list(seed, causal, segments):
    rng = random.Random(seed)
    for window in (None, 1, rng.randint(2, 150)):
        lens, block_q = random_lens(rng), rng.choice([8, 14, 18, 21, 25, 32, 42])
        wanted = expected(lens, block_q, segments, causal, window)
        found = planned(lens, block_q, segments, causal, window)
        assert len(found) >= len(wanted)
        same(found, wanted)


@pytest.mark.parametrize("count", [FEW, FEW + 1, MANY + 1, 3 * MANY + 5])
def test_sequences_are_compared_some_at_a_time(count):
    rng = random.Random(count)
    lens = [rng.choice([(1, 50), (4, 20), (17, 17), (9, 60)]) for _ in range(count)]
    same(planned(lens, 8, 1, True), expected(lens, 8, 1, True))


def merged(lens, block_q, segments, features):
    """How many segments the reduction merges for each query token; 0 where it writes nothing."""
    shape = AttentionShape(1, 1, 16, 16, torch.float32)
    batch = make_batch(lens, shape)
    out = torch.full_like(batch.query, -0.5)
    parts = SegmentScratch.of(shape, segments, batch.num_tokens, torch.device("cpu"))
    parts.m.zero_(), parts.l.fill_(1.0)
    parts.acc.copy_(torch.arange(segments).view(-1, 1, 1, 1).expand(parts.acc.shape))  # of n the mean is (n - 1) / 2
    config = SimpleNamespace(num_segments=segments, tile_size=TILE, overlap=False)
    reduce_segments(batch, features, out, config, parts, None, block_q, ANY_QUERY, False, SHORT + 1)
    return (2 * out[:, 0, 0] + 1).tolist()


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "all"])
@pytest.mark.parametrize("seed", range(6))
def test_the_reduction_merges_the_segments_of_the_plan(seed, causal):
    """The two count tiles by code of their own."""
    rng = random.Random(seed)
    for window in (None, rng.randint(1, 40), rng.randint(1, 200)):
        block_q, segments = rng.choice([8, 14, 18, 25, 32]), rng.choice([2, 3, 7])
        queries = [rng.choice([1, 16, 17, rng.randint(18, 64)]) for _ in range(2)]
        lens = [(query, query + rng.choice([0, rng.randint(0, 250)])) for query in queries]
        count = merged(lens, block_q, segments, Features(causal=causal, sliding_window=window))
        blocks = {}
        for seq, row, left, _, _, *part in planned(lens, block_q, segments, causal, window):
            if seq >= 0:
                blocks.setdefault((row, min(left, block_q)), []).append(part)
        assert sum(tokens for _, tokens in blocks) == sum(query for query in queries if query > SHORT)
        for (row, tokens), mine in blocks.items():
            parts = [part for _, _, part in sorted(mine)]
            assert parts == (list(range(len(mine))) if len(mine) > 1 else [-1])
            assert count[row : row + tokens] == [len(mine) if len(mine) > 1 else 0] * tokens
            assert all(a[1] == b[0] for a, b in itertools.pairwise(sorted(mine)))  # no tile twice, none left out


def test_nothing_is_planned_for_short_queries_alone():
    assert all(item[0] == END for item in planned([(1, 90), (3, 10), (0, 0)], 16, 2, True))


def test_a_plan_without_room_is_refused_before_any_launch():
    batch, cut = SimpleNamespace(num_tokens=64, num_seqs=2), Cut((16, TILE), SHORT, segments=2)
    plan = torch.zeros(10, len(FIELDS), dtype=torch.int32)
    with pytest.raises(SpecError, match=r"a plan of 10 items.*room for 12"):
        make_plan(plan, torch.zeros(COUNTERS, dtype=torch.int32), batch, Features(), cut)


CUT = Cut((8, 32), 3, (2, TILE), programs=40, short_programs=56, rows=150, copied=9)


def tiles_each(sequences, cut, short):
    """The tiles of a segment of one class where the device cuts: the documented cost of every number of segments, on
    the host."""
    both = len({s[-1] for s in sequences if s[4]}) > 1
    sequences = [s for s in sequences if s[-1] == short and s[4]]
    longest = max([s[5] for s in sequences], default=1)
    programs, most_rows, costs = cut.short_programs if short else cut.programs, cut.rows // 2 if both else cut.rows, []
    merged = sum(s[0] for s in sequences) * RATIO * HEADS
    merge = 3 * cdiv(merged, 4 * programs) if short else cdiv(merged, 8 * programs)
    for halving in range(16):
        each = cdiv(longest, (2 + halving % 2 << halving // 2) >> 1)
        items = sum(s[4] * cdiv(s[5], each) for s in sequences)
        rows = sum(s[4] * cdiv(s[5], each) * s[2] * RATIO for s in sequences if s[5] > each)
        turns, mean = cdiv(items * HEADS, programs), sum(s[6] for s in sequences) / max(items, 1)
        cost = (turns - 1) * mean + each + turns * 6 + (merge + cdiv(longest, each) / 16 if each < longest else 0)
        costs.append((cost if rows <= most_rows else float("inf"), -each))
    return -min(costs)[1]


def chosen(lens, cut, causal, window):
    """Items as FIELDS says, in the documented order; None for a hole. A window leaves the order as it is without."""
    sequences, start = [], 0
    for query, keys in lens:
        short = query <= cut.longest_short
        block_q, tile = cut.long if cut.short is None or not short else cut.short
        seen = (window if causal else 2 * window - 1) if window else 2**30

        def tiles(n, seen=seen, block_q=block_q):
            return max(cdiv(min(n, seen + block_q), cut.unit), 1)

        count = cdiv(query, block_q) if cut.short or not short else 0
        work = float(count * tiles(keys - query // 2 if causal else keys))
        sequences.append((query, keys, block_q, tile, count, tiles(keys), work, start, int(short)))
        start += query
    each = [0 if cut.segments else tiles_each(sequences, cut, of_short) for of_short in (0, 1)]
    blocks, held = [], 0
    for seq, (query, keys, block_q, tile, count, n, _, start, short) in enumerate(sequences):
        region = NOWHERE
        if not short:  # all tiles that its rows see are copied, behind those of the sequences before
            end = keys if causal or not window else min(keys, keys - 1 + window)
            least = min(max(keys - query - window + 1, 0) // tile, cdiv(end, tile)) if window else 0
            held += cdiv(end, tile) - least
            region = held - cdiv(end, tile) if held <= cut.copied else NOWHERE
        for block in range(count):
            first = block * block_q
            end = keys - query + min(first + block_q, query) if causal else keys
            position, low, stop = keys - query + first, 0, cdiv(max(end, 0), tile)
            if window:
                if not causal:
                    stop = cdiv(max(min(keys, position + min(block_q, query - first) + window - 1), 0), tile)
                low = min(max(position - window + 1, 0) // tile, stop)
            stop = max(stop, 1)
            of_order = max(cdiv(max(keys, 0), cut.unit), 1)
            fields = [seq, start + first, query - first, position, keys]
            order = -short, -of_order, seq, -block
            blocks.append(
                (*order, min(low, stop - 1), stop, cut.segments or cdiv(n, each[short]), block_q, fields, region)
            )
    items, rows = [], 0
    for short, _, _, block, low, stop, n, block_q, fields, region in sorted(blocks):
        per = cdiv(stop - low, n)
        used = cdiv(stop - low, per)
        for segment in range(n):
            begin, end = (min(low + at * per, stop) for at in (segment, segment + 1))
            part = [segment if used > 1 else -1, used, rows if n > 1 else 0, -short, -block * block_q, region]
            items.append([*fields, begin, end, *part] if segment < used else None)
        rows += n * block_q * RATIO if n > 1 else 0
    assert cut.segments or rows <= cut.rows
    return items


@pytest.mark.parametrize("causal", [True, slow_in_helion(False)], ids=["causal", "all"])
@pytest.mark.parametrize("seed", [pytest.param(n, marks=[] if n < 2 else pytest.mark.slow_in_helion) for n in range(8)])
def test_the_device_cuts_what_ends_soonest(dsl, seed, causal):
    rng = random.Random(seed)
    for window in (None, rng.randint(1, 200)):
        lens = [(query, max(query, keys)) for query, keys in random_lens(rng)] if seed else [(1, 900), (1, 40)]
        batch = given(lens)
        plan = CUT.make_space(batch.num_tokens, batch.num_seqs, torch.device("cpu")).fill_(77)
        counters = torch.full((COUNTERS,), 9, dtype=torch.int32)
        features = Features(causal=causal, sliding_window=window)
        dsl.module("step_plan").make_plan(plan, counters, batch, features, CUT)
        wanted = chosen(lens, CUT, causal, window)
        found = {number: value for number, value in enumerate(counters.tolist()) if value}
        assert found.pop(ITEMS, 0) == len(wanted) and found.keys() <= {SHORT_ITEMS, MERGES}
        for item, want in zip(plan[:, : len(FIELDS)].tolist(), wanted, strict=False):
            assert (item if want else item[0]) == (want or HOLE), (lens, item, want)
        assert (plan[len(wanted) :] == 77).all()
        merged = [item for item in plan[: counters[MERGES], FIRST_ITEM].tolist() if item >= 0]
        assert sorted(merged) == [at for at, item in enumerate(wanted) if item and item[FIELDS.index("part")] == 0]
        assert all(
            bool(item[FIELDS.index("short")]) == (at < counters[SHORT_ITEMS]) for at, item in enumerate(wanted) if item
        )


def test_a_sequence_beyond_the_capacity_has_no_keys_and_the_rows_that_exist(dsl):
    batch = given([(1, 40), (2, 90), (9, 20)], keys=64)
    batch.num_tokens = 8
    plan = CUT.make_space(batch.num_tokens, batch.num_seqs, torch.device("cpu"))
    counters = torch.zeros(COUNTERS, dtype=torch.int32)
    dsl.module("step_plan").make_plan(plan, counters, batch, Features(), CUT)
    items = plan[: counters[ITEMS]].tolist()
    assert counters[REFUSED] == 1
    assert sorted((item[0], item[1], item[2], item[4]) for item in items) == [
        (0, 0, 1, 40),
        (1, 1, 2, -1),
        (2, 3, 5, -1),
    ]
