"""Cells of an absent GPU through the worker's `model` mode: what becomes of right, wrong and foreign kernels."""

import os
from pathlib import Path

import pytest

from compare.plan.job import jobs
from compare.process.crew import Crew, Outcome
from compare.process.pool import side_by_side
from compare.record.contract import Contract
from compare.record.records import Status
from compare.workloads import suites

PLANTED, NO_LAUNCH = "diptych_probe.planted_mask", "diptych_probe.no_launch"
UNKNOWN, PLANNED = "diptych_probe.unknown_mnemonic", "triton/static_grid"


@pytest.fixture(scope="module")
def outcomes():
    """One worker: a prompt on six kernels, for gfx942."""
    rows = suites.pick(suites.smoke(), "prefill-33")
    (job,) = jobs(rows, ("triton/q_block", PLANTED, NO_LAUNCH, UNKNOWN, "triton/naive", PLANNED), "mi300")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "support" / "probes"), prepend=os.pathsep)
        crew = Crew("model", "mi300", "cpu", contract=Contract())
        found = {outcome.cell.kernel: outcome.fields for outcome in crew.run(job)}
        crew.close()
    return found


def test_machine_code_that_is_right_is_executed_and_says_what_it_did(outcomes):
    for kernel in ("triton/q_block", "triton/naive", PLANNED):  # the last plans a step before its launches
        fields = outcomes[kernel]
        assert fields["status"] == Status.OK, fields["reason"]
        assert fields["evidence"] == ["executed-in-model", "compiled"]
        assert fields["facts"][0]["executed"]["instructions"] > 1000
        assert fields["facts"][0]["registers"] > 0 and "timing" not in fields


def test_a_planted_wrong_mask_is_incorrect(outcomes):
    fields = outcomes[PLANTED]
    assert fields["status"] == Status.INCORRECT
    assert "page set 0" in fields["reason"] and fields["facts"], "its code was compiled all the same"


def test_a_kernel_that_launches_nothing_is_not_called_executed(outcomes):
    fields = outcomes[NO_LAUNCH]
    assert fields["status"] == Status.NOT_EXECUTABLE and "launched no Triton kernel" in fields["reason"]


def test_an_instruction_that_the_model_does_not_know_is_named_and_no_failure(outcomes):
    fields = outcomes[UNKNOWN]
    assert fields["status"] == Status.NOT_EXECUTABLE and "v_msad_u8" in fields["reason"]
    assert not Status(fields["status"]).is_failure and fields["facts"], "its code was compiled all the same"


def test_every_rung_meets_a_third_of_the_rows_and_every_row_both_dsls():
    rows = suites.smoke() + suites.static()
    kernels = tuple(f"{dsl}/rung{number}" for dsl in ("triton", "helion") for number in range(8))
    planned = jobs(rows, kernels, "mi300", every=3)
    for job in planned:
        dsls = [cell.kernel.split("/")[0] for cell in job.cells]
        assert dsls.count("triton") == dsls.count("helion") >= 2
    for kernel in kernels:
        mine = [job.workload.label for job in planned for cell in job.cells if cell.kernel == kernel]
        assert len(mine) == 4


class _FakeCrew:
    def __init__(self, name, error=None):
        self.name, self.error = name, error

    def run(self, job):
        if self.error:
            raise self.error
        yield from (Outcome(cell, {"by": self.name}, {}) for cell in job.cells)


def test_lanes_share_the_cells_and_each_comes_once():
    cells = jobs(suites.smoke(), ("a/x", "b/y"), None)
    found = [outcome.cell.id for outcome in side_by_side([_FakeCrew("one"), _FakeCrew("two")], cells)]
    assert sorted(found) == sorted(cell.id for job in cells for cell in job.cells)


def test_what_a_lane_raises_is_raised():
    cells = jobs(suites.smoke(), ("a/x",), None)
    with pytest.raises(OSError, match="no more processes"):
        list(side_by_side([_FakeCrew("one", OSError("no more processes"))], cells))
