"""Ablations are kernels like any other: right on the cases where their one change could be wrong."""

import pytest
import torch

from common.cases.batch import make_batch
from common.cases.named import BY_NAME
from common.oracle.reference import reference
from common.oracle.tolerance import check
from common.spec import AttentionShape, Features
from common.spec.kernel import Capacity
from common.spec.metadata import cumulative_q_blocks
from dsl_triton.ablations import cumulative, elementwise, fused, last_arriver
from kernel_cases import conform

KERNELS = {"last_arriver": last_arriver, "fused": fused, "elementwise": elementwise, "cumulative": cumulative}
CASES = ("everything-at-once", "one-empty-sequence", "ratio-5")
SHAPE = AttentionShape(8, 2, 32, 16, torch.float32)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", KERNELS)
def test_conformance(name: str, case: str) -> None:
    conform(KERNELS[name], BY_NAME[case], KERNELS[name].DEFAULT)


def attend(kernel, batch, config, workspace) -> torch.Tensor:
    out, lse = torch.full_like(batch.query, float("nan")), torch.full(batch.query.shape[:2], float("nan"))
    kernel.launch(batch, Features(), out, config, workspace, lse=lse)
    verdict = check(out, lse, batch, Features(), kernel.CONTRACT, reference(batch, Features()))
    assert verdict.ok, verdict.reason
    return out


@pytest.mark.parametrize("segments", [1, 3, 8])
def test_the_last_arriver_leaves_its_counters_as_it_found_them(segments: int) -> None:
    """The same workspace serves launch after launch, also of other lengths: what a captured graph does."""
    config = last_arriver.Config(16, 16, segments)
    first, second = make_batch([(1, 90), (3, 40)], SHAPE), make_batch([(3, 17), (1, 60)], SHAPE)
    workspace = last_arriver.workspace(SHAPE, Capacity.of(first), config)
    outs = [attend(last_arriver, batch, config, workspace) for batch in (first, second, first)]
    assert torch.equal(outs[0], outs[2])
    assert workspace is None or not workspace.arrived.any()


def test_a_counter_that_was_not_zero_is_seen() -> None:
    """Nobody is last: the output stays unwritten, and the checker says so."""
    batch, config = make_batch([(1, 90)], SHAPE), last_arriver.Config(16, 16, 4)
    workspace = last_arriver.workspace(SHAPE, Capacity.of(batch), config)
    workspace.arrived.fill_(1000)
    with pytest.raises(AssertionError):
        attend(last_arriver, batch, config, workspace)


def test_fused_serves_both_branches_of_a_mixed_batch() -> None:
    batch = make_batch([(4, 40), (5, 33)], SHAPE)  # 4 query tokens of ratio 4 are 16 rows, 5 are not
    attend(fused, batch, fused.Config(32, 16, 16, 32), None)


def test_the_cumulative_tensor_is_exact_and_refilled_in_place() -> None:
    config = cumulative.DEFAULT
    batch = make_batch([(5, 9), (0, 3), (1, 4), (17, 20)], SHAPE)
    buffer = cumulative.workspace(SHAPE, Capacity(64, 7, batch.device), config)
    for lens in ([(5, 9), (0, 3), (1, 4), (17, 20)], [(2, 2), (0, 0)]):
        batch = make_batch(lens, SHAPE)
        assert cumulative.prepare(batch, Features(), config, buffer) is buffer
        assert buffer[: len(lens) + 1].tolist() == cumulative_q_blocks(lens, config.block_m // SHAPE.queries_per_kv)
        attend(cumulative, batch, config, buffer)
