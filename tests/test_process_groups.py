"""Tests that share what is expensive run in one process: by their ids, and as xdist then runs them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from process_groups import group

GPU, CELLS = "tests/gpu/test_gpu_call.py", "tests/conformance/test_conformance.py"


@pytest.mark.parametrize(
    ("nodeid", "expected"),
    [
        ("tests/common/test_gpus.py::test_aliases[MI300X-mi300]", "tests/common/test_gpus.py"),
        ("tests/compare/test_x.py::test_it[triton/q_block]", "tests/compare/test_x.py"),
        (f"{CELLS}::test_conformance[helion/q_block-query-0-float16]", f"{CELLS} helion/q_block float16"),
        (f"{CELLS}::test_conformance[helion/q_block-page-8-bfloat16]", f"{CELLS} helion/q_block bfloat16"),
        (f"{CELLS}::test_every_day_and_slow_are_all_pairs_each_once", CELLS),
        ("tests/conformance/test_relations_of_kernels.py::test_a_relation_holds[triton/q_block-twice]",
         "tests/conformance/test_relations_of_kernels.py triton/q_block"),
        (f"{GPU}::test_it[triton-x]", f"{GPU} triton"),
        ("tests/compare/run/test_smoke.py::test_it[helion/naive]", "tests/compare/run/test_smoke.py helion/naive"),
        ("tests/kernels/test_split.py::test_it[pages-helion]", "tests/kernels/test_split.py helion"),
        ("tests/gpu/test_gpu_conformance.py::test_it[helion/ablations.idiomatic-query-1-float32]",
         "tests/gpu helion/ablations.idiomatic float32"),
        ("tests/gpu/test_gpu_random.py::test_it[helion-from-8]", "tests/gpu/test_gpu_random.py helion from-8"),
    ],
)  # fmt: skip
def test_the_group_of_a_test(nodeid, expected):
    assert group(nodeid) == expected


@pytest.mark.slow
def test_xdist_runs_a_file_in_one_process(tmp_path):
    """Two files of eight tests for two processes: xdist alone deals out single tests."""
    for name in ("test_one.py", "test_two.py"):
        (tmp_path / name).write_text("import time, pytest\n@pytest.mark.parametrize('n', range(8))\n"
                                     "def test_it(n):\n    time.sleep(0.02)\n")  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = str(Path(__file__).parent / "support")
    command = [sys.executable, "-m", "pytest", "-v", "-n", "2", "--dist", "loadgroup", "-p", "process_groups"]
    told = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert told.returncode == 0, told.stdout + told.stderr
    ran = re.findall(r"\[(gw\d)\].*PASSED (test_\w+)\.py", told.stdout)
    assert len(ran) == 16 and len({process for process, _ in ran}) == len(set(ran)) == 2
