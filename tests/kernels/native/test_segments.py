"""What the plan of a step cuts into segments is what the reduction merges: the two count tiles by code of their own."""

import itertools
import random
from types import SimpleNamespace

import pytest
import torch

from common.spec import Features
from common.spec.metadata import cdiv
from dsl_triton import step_plan
from dsl_triton.features import bundle
from dsl_triton.masks import kv_tile_range, segment_range
from dsl_triton.step_plan import END, HOLE, make_plan, make_space

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

TILE, TOKENS = 16, 64


@triton.jit
def _merged(used_ptr, query_len, seq_len, segments, f, BLOCK_Q: tl.constexpr, TILE: tl.constexpr):
    """Segments that reduce_segments reads for each query token, by its own lines."""
    for token in range(0, query_len):
        first = token // BLOCK_Q * BLOCK_Q
        last_pos = seq_len - query_len + tl.minimum(first + BLOCK_Q, query_len) - 1
        _, _, lo, full_lo, full_hi, hi = kv_tile_range(0, seq_len - query_len + first, last_pos, seq_len, f, TILE)
        _, _, _, _, used = segment_range(0, lo, full_lo, full_hi, hi, f, segments)
        tl.store(used_ptr + token, used)


def planned(lens, block_q, segments, features, short):
    starts = [0]
    for query_len, _ in lens:
        starts.append(starts[-1] + query_len)
    batch = SimpleNamespace(
        num_tokens=starts[-1], num_seqs=len(lens), query_start_loc=torch.tensor(starts, dtype=torch.int32),
        seq_lens=torch.tensor([keys for _, keys in lens], dtype=torch.int32),
    )  # fmt: skip
    blocks = step_plan.most_blocks(starts[-1], len(lens), block_q, short)
    plan = make_space(blocks, segments, torch.device("cpu"))
    make_plan(plan, batch, features, block_q, TILE, segments, short)
    return [item for item in plan.tolist() if item[0] not in (END.value, HOLE.value)], starts


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "all"])
@pytest.mark.parametrize("seed", range(6))
def test_the_reduction_merges_the_segments_of_the_plan(seed, causal):
    rng = random.Random(seed)
    for window in (None, rng.randint(1, 40), rng.randint(1, 200)):
        features = Features(causal=causal, sliding_window=window)
        block_q, segments, short = rng.choice([8, 14, 18, 25, 32]), rng.choice([2, 3, 7]), rng.choice([0, 16])
        queries = [rng.choice([1, 16, 17, rng.randint(18, TOKENS)]) for _ in range(2)]
        lens = [(query_len, query_len + rng.choice([0, rng.randint(0, 250)])) for query_len in queries]
        items, starts = planned(lens, block_q, segments, features, short)
        for seq, (query_len, seq_len) in enumerate(lens):
            used = torch.full((TOKENS,), -1, dtype=torch.int32)
            _merged[(1,)](used, query_len, seq_len, segments, bundle(features), BLOCK_Q=block_q, TILE=TILE)
            for first in range(0, query_len if query_len > short else 0, block_q):
                mine = sorted(i[5:] for i in items if i[0] == seq and i[1] == starts[seq] + first)
                count = int(used[first])
                assert [part for _, _, part in mine] == (list(range(count)) if count > 1 else [-1])
                assert all(a[1] == b[0] for a, b in itertools.pairwise(mine))  # no tile twice, none left out
                assert mine[-1][1] <= cdiv(seq_len, TILE)
