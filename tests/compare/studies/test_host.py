"""The host time of a kept call is measured without a GPU, in a process that interprets nothing."""

import re
import shutil
from pathlib import Path

import pytest

import children
from compare.studies import host


@pytest.mark.skipif(shutil.which("cc") is None, reason="Triton's launcher is compiled")
def test_calls_and_plans_are_kept_and_timed():
    command = ["-m", "compare", "study", "host", "--cpu", "--dsl", "triton", "--workload", "q1s2k"]
    (told,) = children.said(command, children.compiling(Path(__file__).parents[3]), 300)
    found = re.fullmatch(r"triton +q1s2k +call +(\S+) plan +(\S+) key +(\S+)", told)
    assert all(0.1 < float(time) < 1000 for time in found.groups())


def test_a_call_that_is_dispatched_again_is_no_kept_one():
    dispatched = []
    with pytest.raises(RuntimeError, match="dispatched again"):
        host.least_us(lambda: dispatched.append(None), dispatched)
