"""The host time of a kept call is measured without a GPU, in a process that interprets nothing."""

import re
import shutil
from pathlib import Path

import pytest

import children
from compare.studies import hostcpu


@pytest.mark.skipif(shutil.which("cc") is None, reason="Triton's launcher is compiled")
def test_calls_and_plans_are_kept_and_timed():
    command = ["-m", "compare.studies.hostcpu", "--kernels", "triton", "--workload", "q1s2k"]
    (told,) = children.said(command, children.compiling(Path(__file__).parents[3]), 300)
    times = [float(time) for time in re.fullmatch(r"triton +q1s2k +call +(\S+) plan +(\S+)", told).groups()]
    assert all(1 < time < 1000 for time in times)


def test_a_call_that_is_dispatched_again_is_no_kept_one():
    dispatched = []
    with pytest.raises(RuntimeError, match="dispatched again"):
        hostcpu.least_us(lambda: dispatched.append(None), dispatched)
