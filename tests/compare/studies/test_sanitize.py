"""The sanitizer's verdict: what its log says, and that a tool which did not run is no clean bill."""

from pathlib import Path

import pytest
import torch

from compare.__main__ import main as diptych
from compare.competitors import registry
from compare.studies import sanitize


@pytest.mark.parametrize(
    ("status", "log", "clean"),
    [
        (0, "triton/naive ran\n========= ERROR SUMMARY: 0 errors\n", True),
        (0, "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n", True),
        (9, "========= ERROR SUMMARY: 2 errors\n", False),
        (9, "========= ERROR SUMMARY: 0 errors\n", False),
        (0, "Device not supported\n", False),
    ],
    ids=["memcheck", "racecheck", "errors", "child-failed", "tool-refused"],
)
def test_clean_is_what_the_tool_said(monkeypatch, status: int, log: str, clean: bool) -> None:
    monkeypatch.setattr(sanitize, "_run", lambda *_: (status, log))
    assert sanitize.watch("memcheck", "triton/*")[1] is clean


@pytest.mark.parametrize("kernel_id", registry.NATIVE)
def test_a_kernel_of_one_gpu_gets_cases_that_it_has(kernel_id: str) -> None:
    for case in (sanitize.fitting(kernel_id, name) for name in sanitize.CASES):
        assert (case.head_size, case.dtype) == (128, torch.bfloat16)
        assert not case.refused and case.asked <= registry.load(kernel_id).SUPPORTS


def test_a_kernel_that_plans_is_watched_at_work(monkeypatch, capsys) -> None:
    """Without its plan this one finds no item, and would be clean for having done nothing."""
    kernel, left = registry.load("triton/static_grid"), []
    launch = kernel.launch

    def launched(batch, features, out, *rest, **more) -> None:
        launch(batch, features, out, *rest, **more)
        left.append(int(out[: batch.query_start_loc[-1]].isnan().sum()))

    monkeypatch.setattr(kernel, "launch", launched)
    sanitize.inside(1, "triton/static_grid", "cuda" if torch.cuda.is_available() else "cpu")
    assert left == [0] and capsys.readouterr().out.endswith(f"{sanitize.CASES[0]} ran\n")


def test_a_missing_tool_is_logged_as_not_run(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert diptych(["study", "sanitize", "--out", str(tmp_path)]) == 1
    assert "not run: FileNotFoundError" in (tmp_path / "memcheck.log").read_text()


def test_what_was_said_before_the_time_was_up_is_kept_and_nothing_lives_on(tmp_path, monkeypatch) -> None:
    """The tool starts a child of its own, which holds the pipe; both end."""
    tool = tmp_path / "compute-sanitizer"
    tool.write_text("#!/bin/sh\necho first case ran\nsleep 60 &\necho $! > child\nwait\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sanitize, "LIMIT_S", 1.0)
    log, clean = sanitize.watch("memcheck", "triton/naive")
    assert log == "not finished: stopped after 1 s\nfirst case ran\n" and not clean
    child = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}")
    assert not child.exists() or "Z" in (child / "stat").read_text().split()[2]


def test_every_kernel_is_watched_and_its_log_kept(monkeypatch, tmp_path) -> None:
    watched = []

    def watch(tool, kernel_id, changes):
        watched.append((tool, kernel_id, changes))
        return f"exit status 0\nsaid of {kernel_id}\n", kernel_id != "helion/q_block"

    monkeypatch.setattr(sanitize, "watch", watch)
    run = ["--kernels", "helion/q_block,helion/naive", "--out", str(tmp_path), "--set", "num_stages=3", "--jobs", "2"]
    assert diptych(["study", "sanitize", *run]) == 1
    asked = [(tool, f"helion/{k}", "num_stages=3") for tool in ("memcheck", "racecheck") for k in ("naive", "q_block")]
    assert sorted(watched) == asked
    assert (tmp_path / "memcheck.log").read_text().count("said of") == 2


def test_the_config_that_was_asked_for_is_what_launches(monkeypatch) -> None:
    kernel, configs = registry.load("triton/q_block"), []
    monkeypatch.setattr(kernel, "launch", lambda batch, features, out, config, *_, **__: configs.append(config))
    sanitize.inside(1, "triton/q_block", "cpu", "num_stages=5")
    assert [config.num_stages for config in configs] == [5]
