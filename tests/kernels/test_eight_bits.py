"""What is chosen for decodes over a cache of 8 bits is right on every named case of 8 bits."""

from dataclasses import replace

import pytest

from common import gpus
from compare.competitors import registry
from eight_bit_cases import DECODES, SHAPE, STORED
from kernel_cases import conform

H200 = gpus.resolve("h200")
DAILY = STORED[::3]  # tests/conformance has every case of 8 bits every day, by another config
CASES = [pytest.param(case, id=case.name, marks=() if case in DAILY else pytest.mark.slow) for case in STORED]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow_in_helion
def test_every_stored_case_is_right(dsl, case) -> None:
    family = registry.load(f"{dsl.name}/auto").FAMILY
    chosen = family.named("parallel_softmax", SHAPE, DECODES, H200, "learned").config
    plain = {"overlap": False} if dsl.name == "triton" else {}
    conform(dsl.module("parallel_softmax"), case, replace(chosen, num_segments=3, **plain))
