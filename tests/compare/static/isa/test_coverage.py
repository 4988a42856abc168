"""compare/static/isa/COVERAGE.md says what is."""

import coverage
import pytest

import children
from compare.static.isa import machine

LIMIT_S = 1800


def test_the_page_is_fresh():
    page = coverage.PAGE.read_text()
    version = page.split("triton ", 1)[1].split(")", 1)[0]
    assert page == coverage.render(coverage.kernels_of(page), version), "python tests/compare/static/isa/coverage.py"


def test_what_kernels_contain_is_tested():
    kernels, tested = coverage.kernels_of(coverage.PAGE.read_text()), coverage.tests()
    assert not [name for name in machine.known() if kernels.get(name) and not tested.get(name)]


@pytest.mark.slow
def test_no_kernel_contains_what_is_not_known():
    environment = children.compiling(coverage.ROOT, HELION_DISALLOW_AUTOTUNING="1")
    for gpu in coverage.GPUS:
        found = set(children.answer([coverage.__file__, "--of", gpu], environment, LIMIT_S))
        assert not found - set(machine.known())
