"""parallel_softmax beside a kernel for long queries: it serves the short ones, and writes no other row."""

import pytest
import torch

from calls import launched, unwritten
from common.cases.batch import make_batch
from common.spec import AttentionShape, Features, PagedBatch
from common.spec.kernel import Capacity

SHAPE = AttentionShape(8, 2, 32, 16, torch.float32)
LONGEST = 3


def short_queries(module, config, batch: PagedBatch) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = unwritten(batch)
    scratch = module.workspace(SHAPE, Capacity.of(batch), config, LONGEST)
    module.attend_segments(batch, Features(), out, config, scratch, lse, LONGEST)
    return out, lse


@pytest.mark.parametrize(
    "lens",
    [[(1, 90), (20, 30), (3, 70), (0, 4), (4, 9)], [(1, 90), (4, 30), (3, 70)]],
    ids=["places-by-sequence", "places-by-token"],
)
@pytest.mark.slow_in_helion
def test_only_rows_of_short_queries_are_written_and_as_alone(dsl, lens: list[tuple[int, int]]) -> None:
    module = dsl.module("parallel_softmax")
    config = module.Config(16, 16, 3)
    batch = make_batch(lens, SHAPE)
    assert (batch.num_seqs * LONGEST < batch.num_tokens) == (len(lens) == 5)
    out, lse = short_queries(module, config, batch)
    whole, whole_lse = launched(module, batch, Features(), config)
    start = 0
    for query_len, _ in lens:
        rows = slice(start, start + query_len)
        if query_len <= LONGEST:
            assert torch.equal(out[rows], whole[rows]) and torch.equal(lse[rows], whole_lse[rows])
        else:
            assert bool(out[rows].isnan().all()) and bool(lse[rows].isnan().all())
        start += query_len
