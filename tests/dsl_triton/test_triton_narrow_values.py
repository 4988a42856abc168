"""V of fewer lanes than K, which products of 16 bits take with zeros between its own; caches of 8 bits and of 16."""

from dataclasses import replace

import pytest

from compare.competitors import registry
from kernel_cases import conform
from narrow_cases import CASES, WIDE


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("rung", WIDE)
def test_values_of_few_lanes(rung, case):
    kernel = registry.load(f"triton/{rung}")
    assert conform(kernel, case, replace(kernel.DEFAULT, **WIDE[rung])) == {"outcome": "supported"}
