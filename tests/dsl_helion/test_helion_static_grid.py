"""Helion's static grid through one workspace: any batch, what exceeds the capacity, and the larger tensors refused."""

import random

import pytest
import torch

from capacity import at_capacity, bits, poisoned, random_lens
from common.oracle.reference import reference
from common.oracle.tolerance import check
from common.spec import AttentionShape, Features, SpecError
from common.spec.kernel import Capacity
from dsl_helion import static_grid
from dsl_helion.static_grid import Config, Part

SHAPE = AttentionShape(4, 2, 16, 16, torch.float32)
TOKENS, SEQS, KEYS = 48, 5, 128
CONFIG = Config(Part(16, 16, 5), Part(32, 16, 3))


def run(batch, workspace):
    out = torch.full_like(batch.query, 7.0)
    lse = torch.full(batch.query.shape[:2], 7.0)
    static_grid.launch(batch, Features(), out, CONFIG, workspace, lse=lse)
    return out, lse


def test_one_workspace_serves_any_batch_and_what_exceeds_it_gets_nan_and_raises_the_flag():
    """One test, for one compilation serves it all."""
    generator, workspace = random.Random(5), None
    for seed in range(3):
        lens = random_lens(generator, TOKENS, SEQS, KEYS) if seed else []
        batch = at_capacity(lens, SHAPE, TOKENS, SEQS, KEYS, seed=seed)
        if workspace is None:
            workspace = static_grid.workspace(SHAPE, Capacity.of(batch), CONFIG)
        used = run(batch, workspace)
        fresh = static_grid.workspace(SHAPE, Capacity.of(batch), CONFIG)
        poisoned(fresh)
        for mine, theirs in zip(used, run(batch, fresh), strict=True):
            assert torch.equal(bits(mine), bits(theirs)), lens
        verdict = check(*used, batch, Features(), static_grid.CONTRACT, reference(batch, Features()))
        assert verdict.ok, (lens, verdict.reason)
        assert bool((used[0][int(batch.query_start_loc[-1]) :] == 7.0).all())
        static_grid.check(workspace)

    for lens, cut in ([(1, 50), (1, 60)], False), ([(1, 112)], True):
        batch = at_capacity(lens, SHAPE, TOKENS, SEQS, KEYS)
        verdict = check(*run(batch, workspace), batch, Features(), static_grid.CONTRACT, reference(batch, Features()))
        assert verdict.ok, (lens, verdict.reason)
        assert bool(workspace.records[:, 0].any()) == cut, "items stay whole where each has a program"

    batch = at_capacity([(1, 120), (20, 60), (4, 60)], SHAPE, TOKENS, SEQS, KEYS)
    right = run(batch, workspace)
    lengths, starts = batch.seq_lens.clone(), batch.query_start_loc.clone()
    lengths[1] = KEYS + 1
    starts[3:] += 100
    for good, bad in zip(right, run(batch.replace(seq_lens=lengths, query_start_loc=starts), workspace), strict=True):
        torch.testing.assert_close(good[:1], bad[:1])  # cut elsewhere: its parts are merged in another order
        assert bool(bad[1:].isnan().all())
    with pytest.raises(SpecError, match="rows of such a sequence are NaN"):
        static_grid.check(workspace)


@pytest.mark.parametrize(("name", "lens"), [("num_tokens", [(9, 9)]), ("num_seqs", [(1, 5), (1, 6), (1, 7)])])
def test_a_batch_of_larger_tensors_than_the_workspaces_capacity_is_refused_by_name(name, lens):
    batch = at_capacity(lens, SHAPE, sum(q for q, _ in lens), len(lens), KEYS)
    with pytest.raises(SpecError, match=rf"{name}: .*capacity of the workspace"):
        run(batch, static_grid.workspace(SHAPE, Capacity(8, 2, batch.device), CONFIG))
