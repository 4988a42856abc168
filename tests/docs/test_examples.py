"""Each program of docs/examples runs on a CPU, in a process of its own, and says what its page promises.

One whose package is absent ends in the adapter's own error, which names the package and how to get it.
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
SAID = {  # program -> what it prints
    "call": r"torch\.Size\(\[5, 8, 64\]\)",
    "plan": r"torch\.Size\(\[5, 8, 64\]\) calls that compiled something after the warm-up: 0",
    "own_kernel": r"right in all 1 cases",
    "trace": r"4 cells: 4 ok",
    "exchange": r"right +reference 2q1s20: .*\n.*\n1 of 1 right",
    "tune": r"of the default's estimated time: \w+",
}
ARGUMENTS = {"own_kernel": ["--case", "all-decode"]}
PACKAGES = {"serve_vllm": "vllm", "generate_transformers": "transformers"}


def run(name, folder):
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *ARGUMENTS.get(name, ())]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, cwd=folder)


def test_there_is_a_test_of_each_program():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SAID, *PACKAGES}


def test_each_program_is_the_text_of_a_page():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    named = set(re.findall(r"<!-- include: docs/examples/(\w+)\.py -->", "".join(p.read_text() for p in pages)))
    assert named == {*SAID, *PACKAGES}


@pytest.mark.parametrize("name", SAID)
def test_a_program_runs_and_says_what_its_page_promises(name, tmp_path):
    done = run(name, tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(SAID[name], done.stdout)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_program_without_its_package_names_it(name, tmp_path):
    package = PACKAGES[name]
    if importlib.util.find_spec(package):
        pytest.skip(f"{package} is here: tests/common/engines runs its adapter")
    done = run(name, tmp_path)
    assert done.returncode == 1
    assert re.search(rf"SpecError: {package}: found no module .*pip install {package}", done.stderr)


def test_the_kernel_of_the_conformance_page_is_right_where_rows_see_no_key(tmp_path):
    page = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    (tmp_path / "my_package.py").write_text(page.split("```python\n")[1].split("```")[0])
    command = [sys.executable, str(ROOT / "diptych_check.py"), "my_package:my_kernel", "--case", "fewer-keys-causal"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
