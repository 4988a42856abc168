"""The host time of a kept call is measured without a GPU, in a process that interprets nothing."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from compare import hostcpu


@pytest.mark.skipif(shutil.which("cc") is None, reason="Triton's launcher is compiled")
def test_calls_and_plans_are_kept_and_timed():
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "compare.hostcpu", "--kernels", "triton", "--workload", "q1s2k"]
    told = subprocess.run(
        command, env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300
    )
    assert told.returncode == 0, told.stderr[-2000:]
    times = [float(time) for time in re.fullmatch(r"triton +q1s2k +call +(\S+) plan +(\S+)\n", told.stdout).groups()]
    assert all(1 < time < 1000 for time in times)


def test_a_call_that_is_dispatched_again_is_no_kept_one():
    dispatched = []
    with pytest.raises(RuntimeError, match="dispatched again"):
        hostcpu.least_us(lambda: dispatched.append(None), dispatched)
