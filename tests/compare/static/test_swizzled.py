"""K and V lie swizzled in shared memory: else the rows of a tile begin in one bank, and a decode takes 1.75 times as
long as it reads (Helion's static_grid on an H200, 365 us for 209: its tiles had an axis of one between keys and lanes).
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from compare.process.crew import environment

CHILD = Path(__file__).with_name("swizzled_child.py")


@pytest.mark.parametrize(
    ("kernel", "config"),
    [
        ("helion/parallel_softmax", {"gather": "2idx"}),
        pytest.param("helion/parallel_softmax", {"gather": "flat"}, marks=pytest.mark.slow),
        pytest.param("helion/static_grid", {}, marks=pytest.mark.slow),
        pytest.param("helion/q_block", {"gather": "2idx"}, marks=pytest.mark.slow),
        pytest.param("triton/static_grid", {}, marks=pytest.mark.slow),
        pytest.param("triton/parallel_softmax", {"gather": "run"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
@pytest.mark.slow
def test_tiles_of_decodes_are_swizzled(kernel, config):
    command = [sys.executable, str(CHILD), kernel, json.dumps(config)]
    done = subprocess.run(command, env=environment("compile"), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found and not any(found.values()), found
