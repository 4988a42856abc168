"""The tuner from end to end on a CPU: real processes, real configs and gate, a formula for a clock."""

import json
import os
import subprocess
import sys
import time

import pytest
import simulated_tuning
from simulated_tuning import machine, run

from compare import exits
from compare.__main__ import main as diptych
from compare.process import pool
from compare.record import folder as run_folder
from compare.tune import records, tune

BOTH = "triton/q_block,triton/parallel_softmax"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One whole run on two GPUs, shared by the tests that only read it."""
    out = tmp_path_factory.mktemp("tuned")
    assert run(out, kernels=BOTH, where=machine(4, ("0", "1"))) == exits.OK
    return out, records.read(out / "candidates.jsonl")


def test_every_drop_out_is_a_line_with_its_reason(finished):
    _, lines = finished
    last = records.latest(lines, "triton")
    reasons = {}
    for line in last.values():
        reasons.setdefault(line["status"], line["reason"])
    assert reasons["spills"] == "spills 128 B, allowed 64"
    assert reasons["duplicate"].startswith("the same code as ")
    assert "exited with 11" in reasons["crash"]
    assert reasons["incorrect"].startswith("page set 0")
    assert set(reasons) <= {"ok", "spills", "duplicate", "crash", "incorrect", "hopeless", "raced"}


def test_only_the_second_time_of_five_and_the_default_is_stored_as_final(finished):
    _, lines = finished
    last = records.latest(lines, "triton")
    for row in simulated_tuning.rows():
        mine = [x for (k, r, _), x in last.items() if (k, r) == ("triton/q_block", row.label) and "screen_us" in x]
        finals = [x for x in mine if "final_us" in x]
        assert 4 <= len(finals) <= 6 and all(x["rounds"] >= 3 for x in finals)
        assert any(x["policy"] == "default" for x in finals)
        screened = sorted(mine, key=lambda x: x["screen_us"])
        assert min(finals, key=lambda x: x["final_us"])["policy"] == screened[0]["policy"]


def test_time_to_best_can_be_drawn_from_the_lines(finished):
    _, lines = finished
    moments = [line["t"] for line in lines]
    assert moments == sorted(moments) and moments[-1] < 120


def test_a_finished_run_is_not_measured_again_and_its_winners_can_be_written_again(finished):
    out, lines = finished
    text = (out / "winners-triton-h200.jsonl").read_text()
    assert run(out, "--resume", kernels=BOTH) == exits.OK
    assert len(records.read(out / "candidates.jsonl")) == len(lines)
    assert (out / "winners-triton-h200.jsonl").read_text() == text
    assert diptych(["tune", "--fit", str(out / "nothing")]) == exits.USAGE


def test_a_folder_that_holds_another_run_is_refused(finished):
    out, _ = finished
    with pytest.raises(tune.NotThisRun, match="a run already"):
        run(out, kernels=BOTH)
    with pytest.raises(tune.NotThisRun, match="another plan"):
        run(out, "--resume", "--seed", "7", kernels=BOTH)


@pytest.mark.slow
def test_the_budget_holds(tmp_path, monkeypatch):
    """Samples of a second each: six seconds are over long before eight rows are, and nothing is called done."""
    monkeypatch.setenv("SAMPLE_S", "1.0")
    monkeypatch.setattr(pool, "GRACE_S", 3.0)
    assert run(tmp_path, minutes=0.1) == exits.NOTHING
    assert not records.done(records.read(tmp_path / "candidates.jsonl"), "triton")


@pytest.mark.slow
def test_a_killed_run_goes_on_where_it_ended(tmp_path):
    log = tmp_path / "candidates.jsonl"
    command = [sys.executable, simulated_tuning.__file__, "run", str(tmp_path)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": str(run_folder.ROOT)})
    try:
        while not (log.exists() and '"done"' in log.read_text()):
            assert child.poll() is None
            time.sleep(0.1)
    finally:
        child.kill()
        child.wait()
    with open(log, "a") as file:
        file.write('{"torn')
    first = records.read(log)
    before = records.done(first, "triton")
    assert 0 < len(before) < 8
    assert run(tmp_path, "--resume") == exits.OK
    lines = records.read(log)
    assert lines[: len(first)] == first and len(records.done(lines, "triton")) == 8
    assert not before & {(x["row"], x["kernel"]) for x in lines[len(first) :] if "final_us" in x}
    assert lines[len(first)]["t"] >= first[-1]["t"]  # the budget counts on


def test_two_gpus_share_the_rows(finished):
    out, lines = finished
    assert len(records.done(lines, "triton")) == 2 * 8  # each kernel once on each row
    assert len([line for line in lines if line.get("done")]) == 2 * 8
    assert json.loads((out / "manifest.json").read_text())["gpus"] == 2
    assert {path.name for path in out.glob("*.lock")} == {"gpu0.lock", "gpu1.lock"}


def test_without_the_gpu_nothing_is_tuned(capsys):
    assert diptych(["tune", "--gpu", "mi300"]) == exits.NO_GPU
    assert "mi300 is not here" in capsys.readouterr().err
