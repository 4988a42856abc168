"""V of fewer lanes than K, which products of 16 bits take with zeros between its own; caches of 8 bits and of 16."""

from dataclasses import replace

import pytest

from common.cases.named import build, outputs
from common.oracle.integrity import Guards
from common.spec import UnsupportedFeature
from compare.competitors import registry
from kernel_cases import conform
from narrow_cases import CASE, CASES, WIDE


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("rung", WIDE)
def test_values_of_few_lanes(rung, case):
    kernel = registry.load(f"helion/{rung}")
    assert conform(kernel, case, replace(kernel.DEFAULT, **WIDE[rung])) == {"outcome": "supported"}


def test_24_lanes_beside_a_wider_key_are_refused_by_name():
    """Helion pads them to 32 by itself; see binding.require."""
    kernel = registry.load("helion/q_block")
    guards, case = Guards("cpu"), replace(CASE, value_size=24)
    batch, features = build(case, "cpu", guards)
    out, lse = outputs(case, batch, guards, 0.0)
    with pytest.raises(UnsupportedFeature) as refusal:
        kernel.launch(batch, features, out, kernel.DEFAULT, None, lse=lse)
    assert refusal.value.argument == "value_size"
