"""The study of estimates: what a line of its page says, which pairs are in order, and what a time was spent on."""

import argparse
import json

import pandas as pd
import pytest

import synthetic_run
from common.gpus import resolve
from compare.exits import USAGE
from compare.static.estimate import SPREAD, Estimate, LaunchEstimate
from compare.studies import estimates
from compare.workloads import Workload, parse_lens

CELLS = (  # kernel, estimate, measured
    ("triton/q_block", 10.0, 12.0), ("helion/q_block", 14.0, 11.0), ("triton/split", 20.0, 24.0),
)  # fmt: skip


def made(cells=CELLS):
    return pd.DataFrame([
        {"gpu": "h200", "run": "one", "row": "a", "kind": "decode", "kernel": kernel, "features": "without features",
         "floor": 11.5, "estimate": said, "measured": measured, "right": measured > 11}
        for kernel, said, measured in cells
    ])  # fmt: skip


def said(limiter, launch_us=0.0):
    launch = LaunchEstimate("_kernel", 10.0, limiter, launch_us, 1.0, 1.0, 1, 1.0)
    return Estimate(1.0, 10.0, limiter, (launch,))


def test_a_line_of_the_page():
    titles = [title for title, _ in estimates.COLUMNS]
    cells = dict(zip(titles, estimates.line("all", made()), strict=True))
    assert (cells["points"], cells["below the floor"], cells["50%"]) == (3, 1, "1.20")
    assert cells["pairs in order"] == "67% (3)" and cells["1.25 apart"] == "67% (3)"
    assert cells["rank in a row"] == "0.50" and cells["limiter"] == "67%" and cells["first / best"] == "1.09"


def test_one_rung_in_both_dsls_is_a_pair_of_its_own():
    both = estimates.pairs(made())
    assert both.dsls.sum() == 1 and not both[both.dsls].agree.any()
    assert "| Triton beside Helion |" in estimates.page(made())


def test_estimates_that_are_alike_are_no_pair():
    assert not len(estimates.pairs(made([("triton/q_block", 5.0, 7.0), ("triton/split", 5.0, 8.0)])))


def test_what_a_time_was_spent_on():
    decode, gpu = Workload("", parse_lens("64q1s4k")), resolve("h200")
    needed = estimates.cost(decode).bytes / (0.9 * gpu.hbm_gbps * 1e3)
    assert estimates.spent(decode, said("bytes"), 1.5 * needed, gpu) == "bytes"
    assert estimates.spent(decode, said("bytes"), 3 * needed, gpu) == "other"
    assert estimates.spent(decode, said("launch", 2 * needed), 3 * needed, gpu) == "launch"
    assert estimates.limiter(said("latency")) == estimates.limiter(said("issue")) == "other"


def test_a_folder_without_cells_is_refused(tmp_path, capsys):
    (tmp_path / "mi300" / "empty").mkdir(parents=True)
    asked = argparse.Namespace(gpu="mi300", results=tmp_path, out=None, published=False)
    assert estimates.main(asked) == USAGE and "no measured cell" in capsys.readouterr().err


def test_runs_are_found_at_any_depth(tmp_path):
    row = synthetic_run.workload("8q1s2k", "decode", 8, 8, 1 << 20)
    for run in ("peers", "history/2026-11-25/peers"):
        timed = synthetic_run.timed(row, "triton/q_block", 9.0).replace(gpu="h200")
        synthetic_run.write(tmp_path / "h200" / run, [timed])
    assert [run for run, _ in estimates.records("h200", tmp_path)] == ["history/2026-11-25/peers", "peers"]


def test_the_page_of_published_times_is_that_of_their_rows():
    found = estimates.published()
    assert (estimates.RESULTS / "mi300" / "estimates.md").read_text() == estimates.page_of_published(found)
    assert json.loads(SPREAD.read_text())["amd"] == estimates.spread(found, "mi300")


@pytest.mark.slow
def test_the_committed_page_and_spread_are_those_of_the_committed_cells():
    found = estimates.measured()
    assert (estimates.RESULTS / "h200" / "estimates.md").read_text() == estimates.page(found)
    assert json.loads(SPREAD.read_text())["nvidia"] == estimates.spread(found, "h200")
