"""compare/isa/COVERAGE.md says what is."""

import json
import os
import subprocess
import sys

import coverage
import pytest

from compare.isa import machine


def test_the_page_is_fresh():
    page = coverage.PAGE.read_text()
    version = page.split("triton ", 1)[1].split(")", 1)[0]
    assert page == coverage.render(coverage.kernels_of(page), version), "python tests/isa/coverage.py"


def test_what_kernels_contain_is_tested():
    kernels, tested = coverage.kernels_of(coverage.PAGE.read_text()), coverage.tests()
    assert not [name for name in machine.known() if kernels.get(name) and not tested.get(name)]


@pytest.mark.slow
def test_no_kernel_contains_what_is_not_known():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(coverage.ROOT), "HELION_DISALLOW_AUTOTUNING": "1"}
    for gpu in coverage.GPUS:
        command = [sys.executable, coverage.__file__, "--of", gpu]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        found = set(json.loads(done.stdout.splitlines()[-1]))
        assert not found - set(machine.known())
