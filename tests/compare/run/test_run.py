"""The command: exit codes, first lines, bad input, and what is on the disk afterwards."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from common import gpus
from compare.__main__ import main as diptych
from compare.plan.situation import situation
from compare.record.store import read_records
from compare.run import options

HERE = Path(__file__).parents[2] / "support"
ROOT = HERE.parent.parent
SMALL = ["--workload", "q1s40_q3", "--shape", "2:1:64"]


@pytest.fixture(autouse=True)
def fakes(monkeypatch, tmp_path):
    """Fake kernels are importable in the workers, no GPU is here, and runs land in a folder of the test."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setattr(gpus, "detect", lambda index=0: None)
    monkeypatch.chdir(tmp_path)


def kernels(*names):
    return ["--kernels", ",".join(f"fake_kernels:{name}" for name in names)]


def test_settings_and_assumptions_are_read_and_written_back():
    asked = options.parse(
        ["--trace", "a:b.csv:batches=4,step-ms=2", "--set", "dtype=fp16,block-size=32", "--set", "window=9"]
    )
    assert (asked.rows.trace, asked.rows.batches, asked.rows.step_ms) == ("a:b.csv", 4, 2.0)
    assert (asked.rows.dtype, asked.rows.block_size, asked.rows.window) == ("fp16", 32, 9)
    cell = SimpleNamespace(workload=SimpleNamespace(label="step-00"), kernel="triton/naive")
    again = options.parse(asked.words(cell, "trace"))
    assert again.rows == replace(asked.rows, workload="step-00", kernels="triton/naive")


def test_a_folder_that_holds_a_run_is_refused(tmp_path, capsys):
    (tmp_path / "cells.jsonl").write_text("")
    assert diptych(["run", *SMALL, *kernels("honest"), "--out", str(tmp_path)]) == 2
    assert "holds a run already" in capsys.readouterr().err


def test_a_strangers_common_is_exit_2(monkeypatch, capsys):
    import common

    monkeypatch.setattr(common, "__project__", "somebody")
    assert diptych(["run", "--list"]) == 2
    assert "common" in capsys.readouterr().err


def test_the_first_line_says_that_the_gpu_is_not_here(capsys):
    assert diptych(["run", "--gpu", "MI300X", "--require-gpu"]) == 3
    said = capsys.readouterr()
    assert said.out.splitlines() == ["mi300 is not here: compiled and checked, not timed"]
    assert "nothing was run" in said.err


@pytest.mark.parametrize(("words", "code"), [(("--gpu", "auto", "--require-gpu"), 3), (("--kernels", ","), 5)])
def test_a_gpu_required_and_none_named_is_exit_3_and_nothing_selected_5(words, code):
    assert diptych(["run", *words]) == code


def test_list_runs_nothing(capsys):
    assert diptych(["run", "--list", "--suite", "peers"]) == 0
    assert diptych(["run", "--list"]) == 0
    out = capsys.readouterr().out
    assert "128q1s8k~" in out and "triton/naive" in out and "ragged-decode" in out
    assert not Path("results").exists()


def test_a_called_run_gives_sigterm_back():
    before = signal.getsignal(signal.SIGTERM)
    diptych(["run", "--list"])
    assert signal.getsignal(signal.SIGTERM) is before


def test_version_names_spec_contract_and_packages(capsys):
    assert diptych(["run", "--version"]) == 0
    out = capsys.readouterr().out
    assert "spec " in out and "timing contract graph-cold-interleaved/" in out and "torch " in out


def test_a_gpu_that_is_here_is_measured(monkeypatch):
    monkeypatch.setattr(gpus, "detect", lambda index=0: gpus.resolve("h200"))
    assert situation(None, None).measure and situation("auto", None).measure and situation("h200", "cuda:1").measure
    assert situation(None, "cuda").device == "cuda:0", "torch.cuda.set_device wants an index"
    assert not situation("h200", "cpu").measure and situation("h200", "cpu").absent
    other = situation("mi300", None)
    assert other.absent and "found h200" in other.line and other.device == "cpu"


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A run of one right, one wrong, one refusing and one absent kernel, and one that is too large for a CPU."""
    folder = tmp_path_factory.mktemp("mixed") / "run"
    names = ["fake_kernels:honest", "fake_kernels:lies", "fake_kernels:refuses", "nowhere:kernel", "helion/naive"]
    argv = [*SMALL, "--kernels", ",".join(names), "--set", "cpu-budget=0.3", "--out", str(folder)]
    env = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "compare.run", *argv]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    return folder, done


def test_a_wrong_cell_makes_exit_1_and_the_last_line_counts_all(mixed):
    _, done = mixed
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "no GPU here: checked in the interpreter on the CPU, nothing is timed"
    assert lines[-1].startswith("5 cells: 1 ok, 1 incorrect, 1 unsupported, 1 unavailable, 1 too_large")


def test_every_cell_is_one_line_on_the_disk_and_none_has_a_time(mixed):
    folder, _ = mixed
    records = read_records(folder / "cells.jsonl")
    assert len(records) == 5 == len({record.cell_id for record in records})
    assert all(record.timing is None and record.gpu is None and not record.facts for record in records)
    assert "above --set cpu-budget" in next(r.reason for r in records if r.status == "too_large")


def test_each_row_carries_the_command_that_repeats_it(mixed):
    folder, _ = mixed
    (lies,) = (r for r in read_records(folder / "cells.jsonl") if r.kernel.endswith("lies"))
    expected = "python -m compare.run --shape 2:1:64 --workload q1s40_q3 --kernels fake_kernels:lies"
    assert lies.command == expected


def test_the_manifest_says_what_ran_and_how_it_ended(mixed):
    folder, _ = mixed
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["exit_code"] == 1 and manifest["planned"] == manifest["finished"] == 5
    assert manifest["command"].startswith("python -m compare.run --workload q1s40_q3")
    assert (folder / "report.md").exists()


def test_when_nothing_could_run_the_exit_is_5(capsys):
    assert diptych(["run", *SMALL, "--kernels", "nowhere:kernel", "-q", "--out", "run"]) == 5
    assert capsys.readouterr().out.splitlines()[-1].startswith("1 cells: 1 unavailable")


def test_ctrl_c_keeps_finished_cells_and_is_exit_130(tmp_path):
    folder = tmp_path / "run"
    argv = [*SMALL, *kernels("honest", "hangs"), "--out", str(folder)]
    env = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "compare.run", *argv]
    # a background job's children ignore SIGINT unless somebody restores it
    restore = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **restore) as process:
        deadline = time.monotonic() + 300  # a busy machine takes minutes over what takes 6 s alone
        while time.monotonic() < deadline:
            cells = folder / "cells.jsonl"
            if cells.exists() and cells.read_text().endswith("\n"):
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        try:
            out, _ = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130
    assert [r.kernel for r in read_records(folder / "cells.jsonl")] == ["fake_kernels:honest"]
    assert b"1 not run" in out.splitlines()[-1]
