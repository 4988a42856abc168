"""Ablations are kernels like any other; a case a kernel here, as Helion compiles for seconds, the rest on a GPU."""

import pytest
import torch

from common import interpreter
from common.cases.batch import make_batch
from common.cases.named import BY_NAME
from common.oracle.reference import reference
from common.oracle.tolerance import check
from common.spec import AttentionShape, Features
from common.spec.kernel import Capacity
from dsl_helion.ablations import barrier, cumulative, elementwise, fused, last_arriver
from kernel_cases import conform

KERNELS = {
    "last_arriver": last_arriver, "barrier": barrier, "fused": fused, "elementwise": elementwise,
    "cumulative": cumulative,
}  # fmt: skip
EVERY_DAY = ("last_arriver", "barrier")  # whose parts wait for each other
CASES = ("one-empty-sequence", pytest.param("everything-at-once", marks=pytest.mark.slow))
SHAPE = AttentionShape(4, 2, 32, 16, torch.float32)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "name", [name if name in EVERY_DAY else pytest.param(name, marks=pytest.mark.slow) for name in KERNELS]
)
def test_conformance(name: str, case: str) -> None:
    conform(KERNELS[name], BY_NAME[case], KERNELS[name].DEFAULT)


def test_the_last_arriver_leaves_its_counters_as_it_found_them() -> None:
    """The same workspace serves launch after launch, also of other lengths: what a captured graph does."""
    config = last_arriver.Config(16, 16, 3)
    batches = [make_batch(lens, SHAPE) for lens in ([(1, 90), (3, 40)], [(3, 33), (1, 20)])]
    workspace = last_arriver.workspace(SHAPE, Capacity.of(batches[0]), config)
    for batch in (*batches, batches[0]):
        out = torch.full_like(batch.query, float("nan"))
        last_arriver.launch(batch, Features(), out, config, workspace)
        verdict = check(out, None, batch, Features(), last_arriver.CONTRACT, reference(batch, Features()))
        assert verdict.ok, verdict.reason
    assert not workspace.arrived.any()


def test_a_barrier_asks_for_one_program_where_there_is_one_unit(monkeypatch) -> None:
    """Programs of an interpreter run one after another: a second would never be reached."""
    asked = []
    monkeypatch.setattr(barrier, "run", lambda *args, num_sm_multiplier, **options: asked.append(num_sm_multiplier))
    batch = make_batch([(1, 90)], SHAPE)
    workspace = barrier.workspace(SHAPE, Capacity.of(batch), barrier.DEFAULT)
    for units in (1, 132):
        with interpreter.units(units):
            barrier.launch(batch, Features(), torch.empty_like(batch.query), barrier.DEFAULT, workspace)
    assert asked == [1, barrier.PROGRAMS]
