"""The report's column of regret: auto against what stands beside it, on rows of the suite unseen alone."""

from dataclasses import replace

import pytest

import synthetic_run
from compare.report import regret, report

LOAD, OTHER = (synthetic_run.workload(*load[:5]) for load in synthetic_run.LOADS[:2])


def rows():
    """auto is a fifth behind q_block on the first row, and a hundredth behind it on the second."""
    return [
        synthetic_run.timed(LOAD, "triton/auto", 60.0),
        synthetic_run.timed(LOAD, "triton/q_block", 50.0),
        synthetic_run.timed(LOAD, "helion/q_block", 10.0),
        synthetic_run.timed(LOAD, "helion/auto", 10.0),
        synthetic_run.timed(LOAD, "baseline/flash_attn3", 5.0),
        synthetic_run.timed(OTHER, "triton/auto", 100.0),
        synthetic_run.timed(OTHER, "triton/parallel_softmax", 120.0),
        synthetic_run.timed(OTHER, "triton/q_block", 99.0),
        synthetic_run.timed(OTHER, "helion/auto", 100.0),
    ]


def test_regret_is_over_the_best_of_the_same_dsl():
    found = {(one.row, one.auto): (one.best, round(one.regret, 4)) for one in regret.losses(rows())}
    assert found == {
        (LOAD.label, "triton/auto"): ("triton/q_block", 0.2),
        (LOAD.label, "helion/auto"): ("helion/q_block", 0.0),
        (OTHER.label, "triton/auto"): ("triton/q_block", 0.0101),
    }


def test_of_several_processes_the_median_counts():
    more = [replace(synthetic_run.timed(LOAD, "triton/auto", us), process=n + 1) for n, us in enumerate((50.0, 90.0))]
    (first, *_) = [one for one in regret.losses(rows() + more) if (one.row, one.auto) == (LOAD.label, "triton/auto")]
    assert first.us == 60.0


@pytest.mark.parametrize("suite", ["unseen", "peers"])
def test_the_section_is_of_the_suite_unseen(tmp_path, suite):
    text = report.write(synthetic_run.write(tmp_path, rows(), suite=suite)).read_text()
    assert ("What auto loses on rows that nobody fitted to" in text) == (suite == "unseen")
    assert ("| `triton/auto` | 2 | 10.5 | 20.0 |" in text) == (suite == "unseen")
    assert (f"| {LOAD.label} | `triton/auto` | 60.0 | `triton/q_block` | 50.0 | 20.0 |" in text) == (suite == "unseen")
