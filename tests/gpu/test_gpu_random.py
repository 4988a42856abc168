"""Random cases on every own kernel of this GPU, twice each onto different poisons, with equal bits.

The first 1,614 seeds hold every pair of axis values and every triple of page, context, query and ratio.
"""

import os

import pytest
import torch

from common.random_cases import num_pairs, random_case
from compare import registry
from kernel_cases import conform

if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)

os.environ.setdefault("HELION_DISALLOW_AUTOTUNING", "1")  # a missing config is an error and never a search
SEEDS, PARTS = 2200, 20  # past those that hold every pair with a feature


def _parts():
    for part in range(PARTS):
        seeds = range(part * SEEDS // PARTS, (part + 1) * SEEDS // PARTS)
        yield pytest.param(
            seeds, marks=[] if seeds.stop <= num_pairs() else [pytest.mark.slow], id=f"from-{seeds.start}"
        )


@pytest.mark.parametrize("seeds", list(_parts()))
@pytest.mark.parametrize("kernel_id", registry.OWN)
def test_gpu_random_cases(kernel_id, seeds):
    try:
        kernel = registry.load(kernel_id)
    except registry.Unavailable as reason:
        pytest.skip(str(reason))
    for seed in seeds:
        try:
            conform(kernel, random_case(seed), kernel.DEFAULT, "cuda", twice=True)
        except Exception as error:
            raise AssertionError(f"{kernel_id} on random-{seed}: {error}") from error
