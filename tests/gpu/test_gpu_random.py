"""Random cases on the families of this GPU, twice each onto different poisons, with equal bits.

The first 1,614 seeds hold every pair of axis values and every triple of page, context, query and ratio. A family meets
each case by a kernel that supports it, in turn: 48 every day, and 2,200 with the slow ones.
"""

import os

import pytest
import torch

from common.cases.random_cases import random_case
from compare.competitors import registry
from kernel_cases import cell, here, lacking, meet

if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)

os.environ.setdefault("HELION_DISALLOW_AUTOTUNING", "1")  # a missing config is an error and never a search
SEEDS, PART = 2200, 4  # past those that hold every pair with a feature; four take a Helion family half a minute
DAILY = 48
PARTS = [
    pytest.param(range(first, first + PART), id=f"from-{first}", marks=[pytest.mark.slow] * (first >= DAILY))
    for first in range(0, SEEDS, PART)
]


def _meet(kernel_id, case, record_property):
    try:
        outcome = meet(kernel_id, case)
    except Exception as error:
        record_property("conformance", cell(kernel_id, case))
        raise AssertionError(f"{kernel_id} on {case.name}: {error}") from error
    record_property("conformance", cell(kernel_id, case, outcome))


@pytest.mark.parametrize("seeds", PARTS)
@pytest.mark.parametrize("dsl", ["triton", "helion"])
def test_gpu_random_cases_of_a_family(dsl, seeds, record_property):
    family = [kernel_id for kernel_id in registry.OWN if kernel_id.startswith(f"{dsl}/")]
    for seed in seeds:
        case = random_case(seed)
        if able := [kernel for kernel in family if not lacking(here(kernel), case)]:
            _meet(able[seed % len(able)], case, record_property)
