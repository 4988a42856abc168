"""The sanitizer's verdict: what its log says, and that a tool which did not run is no clean bill."""

import subprocess

import pytest

from common.cases import BY_NAME
from compare import sanitize


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
    ended = subprocess.CompletedProcess([], status, log, "")
    monkeypatch.setattr(sanitize.subprocess, "run", lambda *a, **k: ended)
    assert sanitize.watch("memcheck", "triton/*")[1] is clean


def test_a_missing_tool_is_logged_as_not_run(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sanitize.main(["--out", str(tmp_path)]) == 1
    assert "not run: FileNotFoundError" in (tmp_path / "memcheck.log").read_text()


def test_the_cases_exist_and_run_everywhere() -> None:
    assert len(sanitize.CASES) == max(sanitize.TOOLS.values())
    assert not any(BY_NAME[name].large or BY_NAME[name].refused for name in sanitize.CASES)
