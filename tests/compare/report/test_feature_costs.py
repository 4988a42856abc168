"""What features cost: each ratio within a run, the later run's where two have it, and no line without one."""

from dataclasses import replace

import synthetic_run
from compare.__main__ import main as diptych
from compare.exits import NOTHING, OK, USAGE
from synthetic_run import timed, workload

H200 = {"name": "h200", "present": True}
TRITON, HELION = "triton/auto", "helion/auto"


def run(folder, *rows, gpu=H200):
    """rows: (label, kernel, microseconds) of decodes"""
    records = [timed(workload(label, "decode", 32, 1, 4096), kernel, us) for label, kernel, us in rows]
    return synthetic_run.write(folder, records, gpu=gpu)


def said(capsys, *folders):
    code = diptych(["report", *map(str, folders), "--print", "features"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    return code, [[field.strip() for field in line.strip("|").split("|")] for line in lines]


def test_each_kernel_is_measured_against_itself_without_the_feature(tmp_path, capsys):
    one = run(
        tmp_path / "one", ("32q1s4k~", HELION, 8.0), ("32q1s4k~", TRITON, 10.0), ("32q1s4k~+sinks", TRITON, 11.0),
        ("32q1s4k~+softcap", TRITON, 12.0), ("32q1s4k~+softcap", HELION, 6.0),
    )  # fmt: skip
    code, lines = said(capsys, one)
    assert code == OK
    assert lines[0] == ["feature", "32q1s4k~ `triton/auto`", "32q1s4k~ `helion/auto`"]
    assert lines[2:] == [["softcap", "1.20", "0.75"], ["sinks", "1.10", ""]], "in the suite's order"


def test_processes_of_a_cell_are_taken_together(tmp_path, capsys):
    rows = ("32q1s4k~", 10.0, 0), ("32q1s4k~", 40.0, 1), ("32q1s4k~+sinks", 30.0, 0), ("32q1s4k~+sinks", 30.0, 1)
    records = [replace(timed(workload(label, "decode", 32, 1, 4096), TRITON, us), process=n) for label, us, n in rows]
    one = synthetic_run.write(tmp_path / "one", records, gpu=H200)
    assert said(capsys, one)[1][-1] == ["sinks", "1.50"], "30 over the geometric mean of 10 and 40"


def test_of_two_runs_the_later_counts_with_its_own_plain_row(tmp_path, capsys):
    one = run(tmp_path / "one", ("32q1s4k~", TRITON, 10.0), ("32q1s4k~+sinks", TRITON, 11.0))
    two = run(tmp_path / "two", ("32q1s4k~", TRITON, 20.0), ("32q1s4k~+sinks", TRITON, 30.0))
    assert said(capsys, one, two)[1][-1] == ["sinks", "1.50"]
    assert said(capsys, two, one)[1][-1] == ["sinks", "1.10"]


def test_a_feature_whose_plain_row_is_in_another_run_has_no_line(tmp_path, capsys):
    one = run(tmp_path / "one", ("32q1s4k~", TRITON, 10.0))
    two = run(tmp_path / "two", ("32q1s4k~+sinks", TRITON, 30.0))
    assert said(capsys, one, two) == (NOTHING, [])


def test_runs_of_two_gpus_are_refused(tmp_path, capsys):
    rows = ("32q1s4k~", TRITON, 10.0), ("32q1s4k~+sinks", TRITON, 11.0)
    one, two = run(tmp_path / "one", *rows), run(tmp_path / "two", *rows, gpu={"name": "h100", "present": True})
    assert said(capsys, one, two) == (USAGE, [])
