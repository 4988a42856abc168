"""Ablations are kernels like any other: right on the cases where their one change could be wrong."""

import itertools

import pytest
import torch

from calls import assert_right, unwritten
from common import interpreter
from common.cases.batch import make_batch
from common.cases.named import BY_NAME
from common.spec import AttentionShape, Features
from common.spec.kernel import Capacity
from dsl_helion.ablations import barrier, idiomatic
from dsls import in_helion, in_triton, slow_in_helion
from kernel_cases import conform

SHAPE = AttentionShape(8, 2, 32, 16, torch.float32)
NAMES = ["last_arriver", *map(slow_in_helion, ("fused", "elementwise", "cumulative"))]
CASES = ["one-empty-sequence", *map(slow_in_helion, ("everything-at-once", "ratio-5"))]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow_in_helion
def test_conformance(dsl, name: str, case: str) -> None:
    kernel = dsl.module(f"ablations.{name}")
    conform(kernel, BY_NAME[case], kernel.DEFAULT)


@in_helion
@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow
def test_the_barrier_that_helion_alone_has_conforms(dsl, case: str) -> None:
    conform(barrier, BY_NAME[case], barrier.DEFAULT)


IDIOMATIC = ["everything-at-once", *map(slow_in_helion, ("one-empty-sequence", "query-128", "non-causal-with-window"))]


@in_helion
@pytest.mark.parametrize("case", [*IDIOMATIC, *map(slow_in_helion, ("values-unseen-nan", "unaligned-and-odd-strides"))])
def test_tiles_of_helion_alone_conform(dsl, case: str) -> None:
    """A ratio of 5, one of 1, keys that no row sees, strides that only two indices reach."""
    conform(idiomatic, BY_NAME[case], idiomatic.DEFAULT)


def attend(kernel, batch, config, workspace) -> torch.Tensor:
    out, lse = unwritten(batch)
    kernel.launch(batch, Features(), out, config, workspace, lse=lse)
    assert_right(out, lse, batch, Features(), kernel.CONTRACT)
    return out


@pytest.mark.parametrize("segments", [*map(slow_in_helion, (1, 3, 8))])
def test_the_last_arriver_leaves_its_counters_as_it_found_them(dsl, segments: int) -> None:
    """The same workspace serves launch after launch, also of other lengths: what a captured graph does."""
    last_arriver = dsl.module("ablations.last_arriver")
    config = last_arriver.Config(16, 16, segments)
    first, second = make_batch([(1, 90), (3, 40)], SHAPE), make_batch([(3, 17), (1, 60)], SHAPE)
    workspace = last_arriver.workspace(SHAPE, Capacity.of(first), config)
    outs = [attend(last_arriver, batch, config, workspace) for batch in (first, second, first)]
    assert torch.equal(outs[0], outs[2])
    assert (workspace is None) == (segments == 1) and (workspace is None or not workspace.arrived.any())


@in_triton
def test_a_counter_that_was_not_zero_is_seen(dsl) -> None:
    """Nobody is last: the output stays unwritten, and the checker says so."""
    last_arriver = dsl.module("ablations.last_arriver")
    batch, config = make_batch([(1, 90)], SHAPE), last_arriver.Config(16, 16, 4)
    workspace = last_arriver.workspace(SHAPE, Capacity.of(batch), config)
    workspace.arrived.fill_(1000)
    with pytest.raises(AssertionError):
        attend(last_arriver, batch, config, workspace)


@in_triton
def test_fused_serves_both_branches_of_a_mixed_batch(dsl) -> None:
    fused = dsl.module("ablations.fused")
    batch = make_batch([(4, 40), (5, 33)], SHAPE)  # 4 query tokens of ratio 4 are 16 rows, 5 are not
    attend(fused, batch, fused.Config(32, 16, 16, 32), None)


@in_triton
def test_the_cumulative_tensor_is_exact_and_refilled_in_place(dsl) -> None:
    cumulative = dsl.module("ablations.cumulative")
    config = cumulative.DEFAULT
    batch = make_batch([(5, 9), (0, 3), (1, 4), (17, 20)], SHAPE)
    buffer = cumulative.workspace(SHAPE, Capacity(64, 7, batch.device), config)
    for lens in ([(5, 9), (0, 3), (1, 4), (17, 20)], [(2, 2), (0, 0)]):
        batch = make_batch(lens, SHAPE)
        assert cumulative.prepare(batch, Features(), config, buffer) is buffer
        assert cumulative.prepare(batch, Features(), config, buffer) is buffer
        block_q = config.block_m // SHAPE.queries_per_kv
        starts = itertools.accumulate((-(-query_len // block_q) for query_len, _ in lens), initial=0)
        assert buffer[: len(lens) + 1].tolist() == list(starts)
        attend(cumulative, batch, config, buffer)


@in_helion
def test_a_barrier_asks_for_one_program_where_there_is_one_unit(dsl, monkeypatch) -> None:
    """Programs of an interpreter run one after another: a second would never be reached."""
    asked = []
    monkeypatch.setattr(barrier, "run", lambda *args, num_sm_multiplier, **options: asked.append(num_sm_multiplier))
    batch = make_batch([(1, 90)], SHAPE)
    workspace = barrier.workspace(SHAPE, Capacity.of(batch), barrier.DEFAULT)
    for units in (1, 132):
        with interpreter.units(units):
            barrier.launch(batch, Features(), torch.empty_like(batch.query), barrier.DEFAULT, workspace)
    assert asked == [1, barrier.PROGRAMS]
