"""The tuner from end to end on a CPU: real processes, real configs and gate, a formula for a clock."""

import json
import sys
import time
from pathlib import Path

import pytest
import simulated_tuning

from common.gpus import resolve
from compare import tune, tune_records
from compare.tune_arm import Machine

SIMULATOR = str(Path(simulated_tuning.__file__))
GPU = resolve("h200")


def machine(cores=4, devices=("",)):
    command = (sys.executable, SIMULATOR)
    return Machine(GPU, devices, cores, "cpu", (*command, "compile"), (*command, "time"))


def run(out, *extra, minutes=2.0, rows=16, kernels="triton/q_block,triton/parallel_softmax", where=None):
    words = ["--kernels", kernels, "--minutes", str(minutes), "--out", str(out), "--no-install", *extra]
    words += ["--candidates", "20", "--rows", str(rows)]
    return tune.tune(tune.parser().parse_args(words), words, where or machine())


@pytest.fixture(autouse=True)
def small_rows(monkeypatch):
    monkeypatch.setattr(tune, "pick_rows", lambda count: simulated_tuning.rows()[: count or None])
    monkeypatch.setenv("PYTHONPATH", str(Path(SIMULATOR).parent))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One whole run, shared by the tests that only read it."""
    out = tmp_path_factory.mktemp("tuned")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tune, "pick_rows", lambda count: simulated_tuning.rows()[: count or None])
        patch.setenv("PYTHONPATH", str(Path(SIMULATOR).parent))
        assert run(out) == tune.OK
    return out, tune_records.read(out / "candidates.jsonl")


def test_every_drop_out_is_a_line_with_its_reason(finished):
    _, lines = finished
    last = tune_records.latest(lines, "triton")
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
    last = tune_records.latest(lines, "triton")
    for row in simulated_tuning.rows():
        mine = [x for (k, r, _), x in last.items() if (k, r) == ("triton/q_block", row.label) and "screen_us" in x]
        finals = [x for x in mine if "final_us" in x]
        assert len(finals) in (5, 6) and all(x["rounds"] >= 3 for x in finals)
        assert any(x["policy"] == "default" for x in finals)
        screened = sorted(mine, key=lambda x: x["screen_us"])
        assert min(finals, key=lambda x: x["final_us"])["policy"] == screened[0]["policy"]


def test_time_to_best_can_be_drawn_from_the_lines(finished):
    _, lines = finished
    moments = [line["t"] for line in lines]
    assert moments == sorted(moments) and moments[-1] < 120


def test_a_finished_run_is_not_measured_again_and_its_trees_can_be_written_again(finished):
    out, lines = finished
    text = (out / "dsl_triton/heuristics/h200.py").read_text()
    assert run(out, "--resume") == tune.OK
    assert len(tune_records.read(out / "candidates.jsonl")) == len(lines)
    assert tune.main(["--fit", str(out), "--no-install"]) == tune.OK
    assert (out / "dsl_triton/heuristics/h200.py").read_text() == text


def test_a_folder_that_holds_another_run_is_refused(finished):
    out, _ = finished
    with pytest.raises(tune.NotThisRun, match="a run already"):
        run(out)
    with pytest.raises(tune.NotThisRun, match="another plan"):
        run(out, "--resume", "--seed", "7")


def test_the_budget_holds_and_a_killed_run_goes_on(tmp_path, monkeypatch):
    """0.35 minutes are too few for 16 rows of slow samples; the next run takes up where that one ended."""
    monkeypatch.setenv("SAMPLE_S", "0.02")
    begin = time.time()
    run(tmp_path, minutes=0.35, kernels="triton/q_block")
    assert time.time() - begin < 21 + 20  # the grace of a lane, and the fit
    first = tune_records.read(tmp_path / "candidates.jsonl")
    before = tune_records.done(first, "triton")
    assert 0 < len(before) < 16
    with open(tmp_path / "candidates.jsonl", "a") as file:
        file.write('{"torn')
    monkeypatch.setenv("SAMPLE_S", "0")
    assert run(tmp_path, "--resume", minutes=3.0, kernels="triton/q_block") == tune.OK
    lines = tune_records.read(tmp_path / "candidates.jsonl")
    assert lines[: len(first)] == first and len(tune_records.done(lines, "triton")) == 16
    again = {(x["row"], x["kernel"]) for x in lines[len(first) :] if "final_us" in x}
    assert not again & before


def test_two_gpus_share_the_rows(tmp_path):
    assert run(tmp_path, kernels="triton/q_block", rows=8, where=machine(4, ("0", "1"))) == tune.OK
    lines = tune_records.read(tmp_path / "candidates.jsonl")
    assert len(tune_records.done(lines, "triton")) == 8
    assert json.loads((tmp_path / "manifest.json").read_text())["gpus"] == 2


def test_without_the_gpu_nothing_is_tuned(capsys):
    assert tune.main(["--gpu", "mi300"]) == tune.NO_GPU
    assert "mi300 is not here" in capsys.readouterr().err
