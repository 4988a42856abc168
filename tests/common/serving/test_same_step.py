"""A step's plan is taken again by the calls that it was made for, and by no others."""

from dataclasses import replace

import pytest
import torch

from common.cases.batch import make_batch
from common.oracle.reference import reference
from common.oracle.tolerance import check
from common.serving.prepared import made_for
from common.spec import AttentionShape, Features
from dsl_triton import plan_paged_attention, static_grid

SHAPE = AttentionShape(4, 2, 16, 16, torch.float32)
LENS = [(1, 70), (20, 90), (9, 40)]


def arguments(batch):
    names = ("query", "key_cache", "value_cache", "block_table", "query_start_loc", "seq_lens")
    return [getattr(batch, name) for name in names]


@pytest.fixture
def planned(monkeypatch):
    """static_grid by a plan; the numbers of query tokens that plans were made for."""
    part = static_grid.Part(16, 16, 4)
    config = static_grid.Config(part, replace(part, block_m=32), planned=True)
    monkeypatch.setattr(static_grid, "DEFAULT", config)  # what a CPU takes
    made, prepare = [], static_grid.planned_grid.prepare

    def counted(batch, *others):
        made.append(batch.num_tokens)
        prepare(batch, *others)

    monkeypatch.setattr(static_grid.planned_grid, "prepare", counted)
    return made


def test_layers_of_a_step_take_the_plan_of_the_first(planned):
    plan = plan_paged_attention(SHAPE, 40, 4, 128, "cpu", kernel="static_grid")
    for step in (LENS, [(3, 33), (30, 120)]):
        for layer in range(3):
            batch = make_batch(step, SHAPE, seed=layer)
            out = torch.empty_like(batch.query)
            plan(*arguments(batch), max_query_len=None, max_seq_len=None, out=out, same_step=layer > 0)
            verdict = check(out, None, batch, Features(), static_grid.CONTRACT, reference(batch, Features()))
            assert verdict.ok, f"layer {layer} of {step}: {verdict.reason}"
    assert planned == [30, 33]


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
