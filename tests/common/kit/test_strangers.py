"""diptych-check in a stranger's repository, whose own folder is called `common`; and what the entry point imports."""

import ast
import json
import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import diptych_check

ROOT = Path(__file__).parents[3]
COMMAND = ROOT / "diptych_check.py"
KERNEL = """
from common.scale import LAST_KEYS
from kit_callables import Attention

class Mine(Attention):
    def last_key(self, seq_len):
        return seq_len - LAST_KEYS

SUPPORTS = {"causal"}
attention = Mine()
"""


@pytest.fixture
def stranger(tmp_path):
    """A repository with a package `common`, and a kernel that drops LAST_KEYS keys."""
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "__init__.py").touch()
    (tmp_path / "common" / "scale.py").write_text("LAST_KEYS = 1")
    (tmp_path / "their_kernel.py").write_text(KERNEL)
    return tmp_path


def run(folder, *words):
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, str(COMMAND), *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def started(*words):
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(COMMAND), "kit_callables:right", *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("words", "code"), [(["--list", "--level", "full"], 0), (["--interpret", "off"], 130)])
def test_a_reader_that_goes_ends_a_run_in_silence(words, code):
    with started(*words) as command:
        assert command.stdout.readline()
        command.stdout.close()
        assert (command.wait(timeout=120), command.stderr.read()) == (code, "")


def test_ctrl_c_before_the_first_case_is_an_interrupted_run(monkeypatch):
    def interrupted(asked):
        raise KeyboardInterrupt

    monkeypatch.setattr(diptych_check, "judged", interrupted)
    assert diptych_check.main(["kit_callables:right"]) == 130


@pytest.mark.slow
def test_a_failure_prints_lines_that_fail_again(stranger):
    asked = ("their_kernel:attention", "--interpret", "off", "--case", "all-decode", "--report", "report.json")
    done = run(stranger, *asked, "--seed", "3")
    assert done.returncode == 1, done.stdout + done.stderr
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip().startswith("diptych-check ")]
    assert any("--case all-decode --seed 3" in line for line in lines)
    assert "smallest failing case: all-decode@lens=" in done.stdout
    report = json.loads((stranger / "report.json").read_text())
    assert report["seed"] == 3 and report["smallest"]["repro"] in lines
    again = run(stranger, *shlex.split(lines[-1])[1:])
    wrong, _, _ = report["smallest"]["reason"].partition("; equals ")  # alone, a case of one key fits many mistakes
    assert again.returncode == 1 and wrong in again.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("their_kernel:nothing",), 2, "has no attribute 'nothing'"),
        (("their_kernel:attention", "--case", "window-page"), 5, "1 declared unsupported"),
        (("their_kernel:attention", "--case", "window-page", "--supports", "causal,sliding_window"), 1, "incorrect"),
    ],
)
def test_exit_codes(words, code, says, stranger):
    done = run(stranger, *words, "--interpret", "off")
    assert (done.returncode, says in done.stdout + done.stderr) == (code, True), done.stdout + done.stderr


def test_the_command_imports_nothing_beside_the_standard_library():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["diptych-check"] == f"{COMMAND.stem}:main"
    assert not _imports(COMMAND) - set(sys.stdlib_module_names)


def test_the_child_imports_torch_alone():
    assert _imports(ROOT / "common" / "kit" / "isolated.py") - set(sys.stdlib_module_names) == {"torch"}


def _imports(path):
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [[alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module] for node in nodes]
    return {name.split(".")[0] for group in names for name in group}
