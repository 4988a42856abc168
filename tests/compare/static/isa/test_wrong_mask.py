"""From the command line: a kernel with a planted wrong mask, compiled for gfx942, is incorrect by what it computes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import children

pytestmark = pytest.mark.slow  # test_faults meets the same mask every day, without the command line
ROOT = Path(__file__).parents[4]
RIGHT, WRONG = "(key_pos < end)", "(key_pos <= end)"  # of dsl_triton/naive.py: a key behind the last visible one


def plant(folder):
    """A package `planted` in `folder`: the baseline as it is, and with the wrong mask."""
    source = (ROOT / "dsl_triton" / "naive.py").read_text()
    assert source.count(RIGHT) == 1
    package = folder / "planted"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "as_it_is.py").write_text(source)
    (package / "wrong_mask.py").write_text(source.replace(RIGHT, WRONG))


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    plant(folder)
    environment = children.compiling(folder)
    command = [sys.executable, "-m", "compare.run", "--gpu", "mi300", "--suite", "smoke", "--workload", "prefill-33",
               "--kernels", "planted.as_it_is,planted.wrong_mask", "--out", str(folder / "run")]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    rows = [json.loads(line) for line in (folder / "run" / "cells.jsonl").read_text().splitlines()]
    return done, {row["kernel"]: row for row in rows}


def test_as_it_is_it_is_ok(cells):
    row = cells[1]["planted.as_it_is"]
    assert row["status"] == "ok" and {"executed-in-model", "compiled"} <= set(row["evidence"])


def test_the_wrong_mask_is_incorrect(cells):
    done, rows = cells
    assert rows["planted.wrong_mask"]["status"] == "incorrect", rows["planted.wrong_mask"]
    assert done.returncode == 1


def test_no_row_has_a_time(cells):
    assert all(row["timing"] is None and row["gpu"] is None for row in cells[1].values())
