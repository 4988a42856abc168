"""Where torch.distributed runs, kernels are those of any other process: Helion had made every grid persistent there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from compare.process.crew import environment

CHILD = Path(__file__).with_name("distributed_child.py")


@pytest.mark.slow
def test_decodes_have_a_program_a_q_block_where_torch_distributed_runs():
    done = subprocess.run(
        [sys.executable, str(CHILD)], env=environment("compile"), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    grids = json.loads(done.stdout.splitlines()[-1])
    assert grids[0][0] >= 256 * 8, grids
