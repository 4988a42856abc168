"""The plan of a step against a list made and sorted on the host."""

import itertools
import random
from types import SimpleNamespace

import pytest
import torch

from common.cases.batch import make_batch
from common.spec import AttentionShape, Features, SpecError
from common.spec.metadata import ANY_QUERY, cdiv, query_start_loc, seq_lens
from common.spec.workspaces import SegmentScratch
from dsl_triton import step_plan
from dsl_triton.reduce_segments import reduce_segments
from dsl_triton.step_plan import END, HOLE, make_plan, make_space, most_blocks

TILE, SHORT = 16, 3


def planned(lens, block_q, segments, causal, window=None):
    """The items that are written, as rows of ints, where every entry held something else before."""
    tokens = sum(query for query, _ in lens)
    batch = SimpleNamespace(
        query_start_loc=query_start_loc(lens), seq_lens=seq_lens(lens), num_tokens=tokens, num_seqs=len(lens)
    )
    plan = make_space(most_blocks(tokens, len(lens), block_q, SHORT) + 1, segments, torch.device("cpu")).fill_(77)
    features = Features(causal=causal, sliding_window=window)
    counters = torch.tensor([5, 3], dtype=torch.int32)  # of a launch that was broken off
    count = make_plan(plan, counters, batch, features, block_q, TILE, segments, SHORT)
    assert counters.tolist() == [0, 0] or not count
    assert (plan[count:] == 77).all(), "written beyond what is said"
    return plan[:count].tolist()


def expected(lens, block_q, segments, causal, window=None):
    """Fields as FIELDS says, in the documented order; a window leaves the order as it is without."""
    blocks, start = [], 0
    for seq, (query, keys) in enumerate(lens):
        for block in range(cdiv(query, block_q) if query > SHORT else 0):
            first = block * block_q
            end = keys - query + min(first + block_q, query) if causal else keys
            tiles = max(cdiv(max(end, 0), TILE), 1)
            position, stop, lowest = keys - query + first, tiles, 0
            if window:
                if not causal:
                    stop = max(cdiv(min(keys, position + min(block_q, query - first) + window - 1), TILE), 1)
                lowest = min(max(position - window + 1, 0) // TILE, stop - 1)
            blocks.append((-tiles, seq, -block, lowest, stop, [seq, start + first, query - first, position, keys]))
        start += query
    items = []
    for _, _, _, lowest, stop, fields in sorted(blocks):
        each = cdiv(stop - lowest, segments)
        for segment in range(segments):
            begin, end = (min(lowest + at * each, stop) for at in (segment, segment + 1))
            items.append([*fields, begin, end, segment if each < stop - lowest else -1] if begin < end else None)
    return items


def random_lens(rng):
    lens = []
    for _ in range(rng.choice([1, 2, 7, 40])):
        query = rng.choice([0, 1, 3, 4, 16, rng.randint(0, 90)])
        lens.append((query, rng.choice([query, query + rng.randint(0, 200), rng.randint(0, 90)])))
    return lens


def same(found, wanted):
    for item, want in zip(found, wanted, strict=False):
        assert item == want if want else item[0] == HOLE.value
    assert all(item[0] == END.value for item in found[len(wanted) :])


@pytest.mark.parametrize("segments", [1, 3])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "all"])
@pytest.mark.parametrize("seed", range(8))
def test_the_plan_is_the_sorted_list(seed, causal, segments):
    rng = random.Random(seed)
    for window in (None, None, 1, rng.randint(2, 150)):
        lens, block_q = random_lens(rng), rng.choice([8, 14, 18, 21, 25, 32, 42])
        wanted = expected(lens, block_q, segments, causal, window)
        found = planned(lens, block_q, segments, causal, window)
        assert len(found) >= len(wanted)
        same(found, wanted)


@pytest.mark.parametrize("count", [step_plan.SEQUENCES, step_plan.SEQUENCES + 1, 3 * step_plan.SEQUENCES + 5])
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
    assert all(item[0] == END.value for item in planned([(1, 90), (3, 10), (0, 0)], 16, 2, True))


def test_a_plan_without_room_is_refused_before_any_launch():
    batch = SimpleNamespace(num_tokens=64, num_seqs=2)
    plan = make_space(5, 2, torch.device("cpu"))
    with pytest.raises(SpecError, match=r"a plan of 10 items.*room for 12"):
        make_plan(plan, torch.zeros(2, dtype=torch.int32), batch, Features(), 16, TILE, 2, SHORT)
