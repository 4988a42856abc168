"""The command with `--resume`, its workers played: what runs again, what is kept, which exit code."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from common import gpus
from compare.__main__ import main as diptych
from compare.plan import fingerprint, plan, situation
from compare.plan.resume import SUPERSEDED
from compare.plan.situation import Situation
from compare.process.crew import Outcome
from compare.record import store
from compare.record.store import load
from compare.report import report
from compare.run import rows

HERE = Path(__file__).parents[2] / "support"
ROOT = HERE.parent.parent
SMALL = ["--workload", "prefill-33,window-17", "--suite", "smoke"]
KERNELS = ["fake_kernels:honest", "fake_kernels:lies", "fake_kernels:pads"]
H200 = gpus.resolve("h200")


class Played:
    """Stands in for a crew: every cell ends at once. stop_at: the cell at which Ctrl-C is pressed; slow: factors."""

    asked: ClassVar[list[tuple[str, str, int]]] = []
    stop_at: ClassVar[int | None] = None
    slow: ClassVar[dict[str, float]] = {}

    def __init__(self, mode, process, on_start, **_):
        self.mode, self.process = mode, process

    def close(self):
        pass

    def run(self, job):
        for cell in job.cells:
            if len(self.asked) == self.stop_at:
                raise KeyboardInterrupt
            self.asked.append((cell.workload.label, cell.kernel.split(":")[1], self.process))
            yield Outcome(cell, self.timed(cell) if self.mode == "measure" else checked(), {"torch": "2.13.0"})

    def timed(self, cell):
        generator = np.random.default_rng(len(self.asked))
        us = 100.0 * self.slow.get(cell.kernel, 1.0) * np.exp(generator.normal(0, 0.003, 20))
        timing = {"timer": "graph", "cache": "cold", "median_us": float(np.median(us)), "p05_us": 1.0, "p95_us": 1.0}
        timing |= {"rounds": 20, "calls_per_sample": 1, "page_sets": 4, "cycle_bytes": 1, "samples_us": us.tolist()}
        return checked() | {"evidence": ["measured", "checked-on-gpu"], "timing": timing}


def checked():
    return {"status": "ok", "evidence": ["interpreted"], "reason": "", "source_sha": "a"}


@pytest.fixture(autouse=True)
def played(monkeypatch, tmp_path):
    """No GPU, no workers, no figures, and runs land in a folder of the test."""
    Played.asked, Played.stop_at, Played.slow = [], None, {}
    monkeypatch.setattr(rows, "Crew", Played)
    monkeypatch.setattr(situation.gpus, "detect", lambda index=0: None)
    monkeypatch.setattr(report, "write", lambda folder: folder)
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.chdir(tmp_path)
    fingerprint.source.cache_clear()
    return Played


@pytest.fixture
def here(monkeypatch):
    """An H200 that is not there: cells are timed, by the played crew."""
    now = Situation(H200, True, "cuda:0", "h200 is here (played)")
    monkeypatch.setattr(plan, "situation", lambda gpu, device: now)
    monkeypatch.setattr(fingerprint.torch.cuda, "get_device_name", lambda device: "NVIDIA H200")


def command(*more, kernels=KERNELS):
    return diptych(["run", *SMALL, "--kernels", ",".join(kernels), "-q", *more])


def names(folder="run"):
    return [(r.workload.label, r.kernel.split(":")[1], r.process) for r in load(Path(folder) / "cells.jsonl").records]


def manifest(folder="run"):
    return json.loads((Path(folder) / "manifest.json").read_text())


def interrupted(at, *more, **how):
    Played.stop_at = at
    assert command("--out", "run", *more, **how) == 130
    Played.stop_at, done = None, list(Played.asked)
    Played.asked.clear()
    return done


def test_a_run_goes_on_behind_its_last_cell(capsys):
    done = interrupted(4)
    assert command("--resume", "run") == 0
    assert len(done) == 4 and len(Played.asked) == 2 and names() == done + Played.asked
    assert "run: 4 finished rows kept" in capsys.readouterr().out
    told = manifest()
    assert told["finished"] == told["planned"] == 6 and [r["kept"] for r in told["resumed"]] == [4]


def test_out_and_resume_begin_a_run_where_there_is_none_and_a_finished_one_has_nothing_left_to_do():
    assert command("--out", "run", "--resume") == 0 and len(names()) == 6
    Played.asked.clear()
    assert command("--resume", "run") == 0 and not Played.asked


def test_without_a_folder_the_last_run_of_the_plan_goes_on():
    Played.stop_at = 3
    assert command() == 130
    Played.stop_at = None
    Played.asked.clear()
    assert command("--resume") == 0 and len(Played.asked) == 3
    assert len(list(Path("results").iterdir())) == 1


@pytest.mark.parametrize("made", [False, True], ids=["absent", "empty"])
def test_a_folder_without_a_run_is_refused_and_left_as_it_was(made, capsys):
    if made:
        Path("rum").mkdir()
    assert command("--resume", "rum") == 2 and not Played.asked
    assert "--out rum --resume" in capsys.readouterr().err
    assert Path("rum").exists() == made and (not made or not list(Path("rum").iterdir()))


def test_a_kernel_that_changed_is_run_again_and_only_that(tmp_path, monkeypatch):
    other = tmp_path / "my_kernel.py"
    other.write_text("version = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    kernels = ["fake_kernels:honest", "my_kernel:mine"]
    assert command("--out", "run", kernels=kernels) == 0
    Played.asked.clear()
    other.write_text("version = 2\n")
    fingerprint.source.cache_clear()
    assert command("--resume", "run", kernels=kernels) == 0
    assert Played.asked == [("prefill-33", "mine", 0), ("window-17", "mine", 0)]
    assert len(names()) == 4 and len(load(Path("run") / SUPERSEDED).records) == 2


@pytest.mark.parametrize(
    ("name", "value"), [("spec_hash", lambda: "0dd"), ("versions", lambda: {"torch": "9.9"})], ids=["spec", "software"]
)
def test_another_spec_or_software_keeps_nothing(monkeypatch, name, value):
    assert command("--out", "run") == 0
    Played.asked.clear()
    monkeypatch.setattr(fingerprint.run_folder, name, value)
    assert command("--resume", "run") == 0 and len(Played.asked) == 6


def test_a_fingerprint_is_that_of_workload_source_choice_gpu_software_and_contract():
    assert command("--out", "run") == 0
    prints = {(r.workload.id, r.kernel): r.fingerprint for r in load(Path("run/cells.jsonl")).records}
    assert len(set(prints.values())) == 6 and all(len(found) == 16 for found in prints.values())
    assert fingerprint.choice("triton/q_block", "tree", "h200") != fingerprint.choice("triton/q_block", "paper", "h200")
    assert fingerprint.choice("triton/q_block", "tree", "h200") != fingerprint.choice("helion/q_block", "tree", "h200")


def test_the_source_of_a_kernel_is_known_without_importing_it():
    code = (
        "import sys\nfrom compare.competitors import registry, sources\nfrom compare.plan import fingerprint\n"
        "found = [fingerprint.source(kernel) for kernel in ('triton/naive', 'helion/auto', 'no.where:x')]\n"
        "assert 'triton' not in sys.modules\nassert found[0] == sources.sha(registry.load('triton/naive'))\n"
        "assert all(len(f) == 16 for f in found[:2]) and found[2] == ''\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_a_full_disk_ends_the_run_with_a_message_and_it_goes_on(monkeypatch, capsys):
    real, left = os.write, [3]

    def full(file, data):
        if b"cell_id" in bytes(data):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(file, data)

    monkeypatch.setattr(store.os, "write", full)
    assert command("--out", "run") == 2
    said = capsys.readouterr().err
    assert "No space left on device" in said and "--resume run" in said and len(names()) == 3
    monkeypatch.setattr(store.os, "write", real)
    Played.asked.clear()
    assert command("--resume", "run") == 0 and len(Played.asked) == 3 and len(names()) == 6


def test_timed_kernels_take_turns_again_where_one_is_missing(here):
    """Of three processes the first is whole, and the second ends within its second row."""
    interrupted(6 + 3 + 2)
    assert command("--resume", "run") == 0
    assert Played.asked[:3] == [("window-17", name, 1) for name in ("honest", "lies", "pads")]
    assert len(Played.asked) == 3 + 6 and len(set(names())) == len(names()) == 18


def test_a_run_of_another_plan_or_contract_is_refused_and_named(here, capsys):
    assert command("--out", "run") == 0
    assert command("--resume", "run", kernels=KERNELS[:1]) == 2
    assert "plan" in capsys.readouterr().err
    assert command("--resume", "run", "--set", "cache=hot") == 2
    said = capsys.readouterr().err
    assert "graph-cold-interleaved" in said and "graph-hot-interleaved" in said and len(names()) == 18


def test_a_run_of_the_same_code_is_no_regression_and_a_slowed_kernel_is(here, capsys):
    gate = ["diff", "before", "--fail-on", "regress"]
    assert command("--out", "before") == command("--out", "same") == 0
    assert diptych([*gate, "same"]) == 0
    Played.slow = {"fake_kernels:lies": 1.2}
    assert command("--out", "slowed") == 0 and diptych([*gate, "slowed"]) == 4
    out = capsys.readouterr().out
    assert "2 REGRESS" in out and "fake_kernels:lies" in out
