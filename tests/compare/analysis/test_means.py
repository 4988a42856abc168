"""Means over the rows of several runs: each ratio within a run, the later run's where two have a row."""

import pytest

import synthetic_run
from compare.__main__ import main as diptych
from compare.exits import OK, USAGE
from synthetic_run import timed, workload

H200 = {"name": "h200", "present": True}
UNIT = "triton/auto"


def run(folder, rows, gpu=H200, **manifest):
    """rows: (label, class, kernel, microseconds); None for a crash."""
    loads = {label: workload(label, kind, 1, 1 if kind == "decode" else 64, 512) for label, kind, _, _ in rows}
    records = [
        timed(loads[label], kernel, us) if us else synthetic_run.failed(loads[label], kernel)
        for label, _, kernel, us in rows
    ]
    return synthetic_run.write(folder, records, gpu=gpu, **manifest)


def said(capsys, *arguments):
    """(exit code, the lines of the table as lists of their fields)"""
    code = diptych(["report", *map(str, arguments), "--print", "means"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    return code, [[field.strip() for field in line.strip("|").split("|")] for line in lines[2:]]


def test_a_class_has_its_mean_and_its_worst_row_over_two_runs(tmp_path, capsys):
    one = run(tmp_path / "one", [("a", "decode", UNIT, 8.0), ("a", "decode", "triton/static_grid", 10.0)])
    two = run(
        tmp_path / "two",
        [
            ("b", "decode", UNIT, 20.0), ("b", "decode", "triton/static_grid", 10.0),
            ("c", "prefill", UNIT, 9.0), ("c", "prefill", "triton/static_grid", 10.0),
        ],
    )  # fmt: skip
    code, lines = said(capsys, one, two, "--unit", UNIT)
    assert code == OK
    assert lines == [
        ["decode", "`triton/static_grid`", "1.265", "2 of 2", "0.800", "a"],  # the root of 0.8 * 2
        ["prefill", "`triton/static_grid`", "0.900", "1 of 1", "0.900", "c"],
    ]


def test_of_two_runs_with_a_row_the_later_has_it(tmp_path, capsys):
    for name, us in (("before", 16.0), ("after", 10.0)):
        run(tmp_path / name, [("a", "decode", UNIT, 8.0), ("a", "decode", "triton/q_block", us)])
    assert said(capsys, tmp_path / "before", tmp_path / "after", "--unit", UNIT)[1][0][2] == "0.800"
    assert said(capsys, tmp_path / "after", tmp_path / "before", "--unit", UNIT)[1][0][2] == "0.500"


def test_a_row_without_a_time_is_counted_and_not_averaged(tmp_path, capsys):
    rows = [("a", "decode", UNIT, 8.0), ("a", "decode", "triton/q_block", 10.0)]
    one = run(tmp_path / "one", [*rows, ("b", "decode", UNIT, 8.0), ("b", "decode", "triton/q_block", None)])
    assert said(capsys, one, "--unit", UNIT)[1] == [["decode", "`triton/q_block`", "0.800", "1 of 2", "0.800", "a"]]


@pytest.mark.parametrize(
    "other", [{"gpu": {"name": "h100", "present": True}}, {"timing_contract": "another"}], ids=["gpu", "contract"]
)
def test_runs_that_do_not_compare_are_refused(tmp_path, capsys, other):
    rows = [("a", "decode", UNIT, 8.0), ("a", "decode", "triton/q_block", 8.0)]
    one, two = (
        run(tmp_path / "one", rows, timing_contract="2"),
        run(tmp_path / "two", rows, **{"timing_contract": "2"} | other),
    )
    assert diptych(["report", "--print", "means", str(one), str(two), "--unit", UNIT]) == USAGE
    assert "allowed runs of one" in capsys.readouterr().err
