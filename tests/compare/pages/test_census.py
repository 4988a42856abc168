"""The page about kernels of others: verdicts by sample, speeds over the strongest of the row, joules."""

import dataclasses
import json

import pytest

from compare.pages import census
from synthetic_run import timed, workload

LOAD = workload("32q1s2k~", "decode", 32, 32, 49000)
OTHER = workload("q8k", "prefill", 1, 8192, 8192)


def case(name, status, declared=False):
    return {"case": name, "status": status, "reason": "why", "declared": declared}


def test_a_report_becomes_a_line_of_counts(tmp_path):
    cases = [case("a", "ok"), case("b", "incorrect"), case("c", "unsupported", True), case("d", "crash")]
    cases += [case("e", "unsupported"), case("f", "timeout")]
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"kernel": "compare.competitors.baselines.sglang", "seed": 3, "cases": cases}))
    line = census.taken(path, "NVIDIA H200", "2026-11-28")
    assert (line["kernel"], [name for name, _, _ in line["wrong"]]) == ("sglang", ["b", "d", "e"])
    assert census.tally(line) == {"asked": 4, "right": 1, "wrong": 1, "refused": 1, "crashed": 1}
    assert "| `sglang` | NVIDIA H200 | 2026-11-28 | 4 | 1 | 1 | 1 | 1 | 1 |" in census.judged([line])


def test_speeds_are_over_the_strongest_of_others_on_each_row():
    rows = [timed(LOAD, "baseline/flash_attn3", 10.0), timed(LOAD, "baseline/sglang", 8.0)]
    rows += [timed(LOAD, "baseline/sdpa_dense", 1.0), timed(LOAD, "triton/auto", 4.0)]  # a bound does not count
    rows += [timed(OTHER, "baseline/flash_attn3", 6.0), timed(OTHER, "triton/auto", 12.0)]
    found = census.speeds(rows, ["triton/auto", "baseline/flash_attn3"])
    auto, fa3 = found["triton/auto"], found["baseline/flash_attn3"]
    assert (auto["decode"], auto["prefill"], fa3["decode"]) == tuple(map(pytest.approx, ([2.0], [0.5], [0.8])))
    assert auto["mixed"] == auto["speculative"] == []
    lone = census.speeds(rows[-1:], ["triton/auto"])  # nobody else is on the row
    assert not any(lone["triton/auto"].values())


def test_a_kernel_without_times_stands_last_and_is_not_drawn():
    rows = [timed(LOAD, "baseline/flash_attn3", 10.0), timed(LOAD, "triton/auto", 4.0)]
    page = census.field(rows, [])
    assert page.index("`flash_attn3`") < page.index("`conch`") and "1.00 (1)" in page
    picture = census.drawn(rows)
    assert "triton/auto" in picture and "conch" not in picture


def test_joules_are_shown_where_they_were_read():
    row = timed(LOAD, "triton/auto", 100.0)
    read = row.replace(derived=dataclasses.replace(row.derived, joules=0.05))
    assert "| `triton/auto` | 32q1s2k~ | 50 | 640 |" in census.energy([read])
    assert census.energy([row]) == "Not measured yet."
