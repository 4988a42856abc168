"""The table of times: each row's time with its class's rate, and in place of one what the kernel said."""

from dataclasses import replace

import synthetic_run
from compare.__main__ import main as diptych
from compare.exits import NOTHING, OK
from compare.record.records import Status
from synthetic_run import timed, workload

H200 = {"name": "h200", "present": True}
FA3 = "baseline/flash_attn3"


def said(capsys, folder):
    code = diptych(["report", str(folder), "--print", "times"])
    return code, capsys.readouterr().out.splitlines()


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
    code, lines = said(capsys, folder)
    assert code == OK
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    columns = table[0]
    at, peer = columns.index("`triton/auto`"), columns.index(f"`{FA3}`")
    assert table[2][0] == "32q1s4k~" and table[2][at].startswith("100.0, ") and table[2][at].endswith(" GB/s")
    assert table[3][0] == "4q2k" and table[3][at].startswith("2,500, ") and table[3][at].endswith(" TFLOP/s")
    assert table[2][peer] == table[3][peer] == "[1]", "one note for one reason"
    assert lines[-1] == f"- [1] `{FA3}`, unsupported: at most 256"


def test_a_run_without_times_prints_none(tmp_path, capsys):
    decode = timed(workload("32q1s4k~", "decode", 32, 1, 4096), FA3, 100.0)
    folder = synthetic_run.write(tmp_path / "one", [without_time(decode, "no")], gpu=H200)
    assert said(capsys, folder) == (NOTHING, [])
