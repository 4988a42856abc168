"""Which tests run in one process, and in which part of a choice of tests each is."""

import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest

import parts
from conformance_cells import FULL, cells, form
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


SLOW = [cell for cell in cells() if cell.level == FULL]


def _cell(cell):
    params = {"kernel_id": cell.kernel, "case": cell.case}
    return SimpleNamespace(nodeid=f"{parts.CELLS}{cell.name}]", callspec=SimpleNamespace(params=params), cell=cell)


def _tests(files, each):
    return [SimpleNamespace(nodeid=f"tests/test_{n}.py::test_it[{k}]") for n in range(files) for k in range(each)]


@pytest.mark.parametrize("of", [1, 2, 7])
def test_each_test_is_in_one_part_in_its_order(of):
    items = [*_tests(20, 3), *(_cell(cell) for cell in SLOW[::9])]
    split = [parts.dealt(items, part, of) for part in range(1, of + 1)]
    assert sorted((items.index(item) for kept, _ in split for item in kept)) == list(range(len(items)))
    for kept, others in split:
        assert len(kept) + len(others) == len(items)
        assert [items.index(item) for item in kept] == sorted(items.index(item) for item in kept)


def test_a_file_stays_together():
    kept, _ = parts.dealt(_tests(20, 3), 1, 4)
    assert len(kept) == 15 and set(Counter(item.nodeid.partition("::")[0] for item in kept).values()) == {3}


def test_what_helion_generates_one_code_for_stays_together_ten_at_a_time():
    items = [_cell(cell) for cell in SLOW if cell.kernel == "helion/split"]
    parts_of = defaultdict(list)
    for part in range(1, 6):
        for item in parts.dealt(items, part, 5)[0]:
            parts_of[form(item.cell.case)].append(part)
    assert all(len(set(found)) <= -(-len(found) // parts.TOGETHER) for found in parts_of.values())


def test_a_part_of_the_cells_has_each_kernel_alike():
    share = Counter(item.cell.kernel for item in parts.dealt([_cell(cell) for cell in SLOW], 2, 10)[0])
    every = Counter(cell.kernel for cell in SLOW)
    assert all(0.05 < share[kernel] / every[kernel] < 0.2 for kernel in every)


@pytest.mark.parametrize("text", ["", "1", "0/3", "4/3", "1/0", "-1/3", "a/b", "1/3/5", "١/٢"])
def test_what_is_no_part_is_refused(text):
    with pytest.raises(pytest.UsageError, match="--part: found"):
        parts.read(text)


def test_a_part_is_read():
    assert parts.read("2/8") == (2, 8)
