"""Tables over several runs: what features cost, each ratio within a run, and all times with their class's rate."""

from dataclasses import replace

import synthetic_run
from compare.__main__ import main as diptych
from compare.exits import NOTHING, OK
from compare.record.records import Status
from synthetic_run import timed, workload

H200 = {"name": "h200", "present": True}
TRITON, HELION, FA3 = "triton/auto", "helion/auto", "baseline/flash_attn3"


def run(folder, *rows, gpu=H200):
    """rows: (label, kernel, microseconds) of decodes"""
    records = [timed(workload(label, "decode", 32, 1, 4096), kernel, us) for label, kernel, us in rows]
    return synthetic_run.write(folder, records, gpu=gpu)


def printed(capsys, what, *folders):
    code = diptych(["report", *map(str, folders), "--print", what])
    return code, capsys.readouterr().out.splitlines()


def cells(lines):
    return [[field.strip() for field in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def said(capsys, *folders):
    code, lines = printed(capsys, "features", *folders)
    return code, cells(lines)


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


def test_lines_that_could_not_be_read_are_said(tmp_path, capsys):
    one = run(tmp_path / "one", ("32q1s4k~", TRITON, 10.0))
    with open(one / "cells.jsonl", "a") as file:
        file.write('{"schema": 2}\n')
    assert diptych(["report", str(one), "--print", "times"]) == OK
    assert "1 line left out" in capsys.readouterr().err


def without_time(record, reason):
    gone = dict(status=Status.UNSUPPORTED, reason=reason, timing=None, derived=None, gate=None, evidence=())
    return replace(record, **gone)


def test_times_have_the_rate_of_their_class_and_refusals_a_note(tmp_path, capsys):
    decode = timed(workload("32q1s4k~", "decode", 32, 1, 4096), "triton/auto", 100.0)
    prompt = timed(workload("4q2k", "prefill", 4, 2048, 2048), "triton/auto", 2500.0)
    refused = [
        without_time(replace(one, kernel=FA3, cell_id=one.cell_id + "b"), "at most 256") for one in (decode, prompt)
    ]
    folder = synthetic_run.write(tmp_path / "one", [decode, prompt, *refused], gpu=H200)
    code, lines = printed(capsys, "times", folder)
    assert code == OK
    table = cells(lines)
    columns = table[0]
    at, peer = columns.index("`triton/auto`"), columns.index(f"`{FA3}`")
    assert table[2][0] == "32q1s4k~" and table[2][at].startswith("100.0, ") and table[2][at].endswith(" GB/s")
    assert table[3][0] == "4q2k" and table[3][at].startswith("2,500, ") and table[3][at].endswith(" TFLOP/s")
    assert table[2][peer] == table[3][peer] == "[1]", "one note for one reason"
    assert lines[-1] == f"- [1] `{FA3}`, unsupported: at most 256"


def test_a_run_without_times_prints_none(tmp_path, capsys):
    decode = timed(workload("32q1s4k~", "decode", 32, 1, 4096), FA3, 100.0)
    folder = synthetic_run.write(tmp_path / "one", [without_time(decode, "no")], gpu=H200)
    assert printed(capsys, "times", folder) == (NOTHING, [])
