"""A step's plan serves the calls that show the same keys, and no others."""

import pytest
import torch

from common.cases.batch import make_batch
from common.serving.prepared import made_for
from common.spec import AttentionShape, Features

SHAPE = AttentionShape(4, 2, 16, 16, torch.float32)
LENS = [(1, 70), (20, 90), (9, 40)]


@pytest.mark.parametrize(
    "other",
    [{"sliding_window": 8}, {"chunk": 16}, {"chunk": 32, "chunk_lookback": 1}, {"causal": False}, {"spans": 1}],
    ids=str,
)
def test_a_plan_is_not_taken_for_what_shows_other_keys(other):
    batch = make_batch(LENS, SHAPE)
    if "spans" in other:
        other = {"spans": torch.zeros(3, 1, 2, dtype=torch.int32)}
    assert made_for(batch, Features(**other)) != made_for(batch, Features())
    assert made_for(batch, Features(softcap=3.0)) == made_for(batch, Features())
