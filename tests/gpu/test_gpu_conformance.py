"""Every own kernel on every named case, the large ones too, compiled for the GPU that is here.

A kernel runs with its DEFAULT and, where the family's heuristics choose another config, with that; twice each, onto
different poisons, with equal bits.
"""

import os

import pytest
import torch

from common.cases import CASES
from common.gpus import detect
from common.metadata import BatchStats
from compare import registry
from kernel_cases import conform

os.environ.setdefault("HELION_DISALLOW_AUTOTUNING", "1")  # a missing config is an error and never a search


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("kernel_id", registry.OWN)
def test_gpu_conformance(kernel_id, case):
    try:
        kernel = registry.load(kernel_id)
    except registry.Unavailable as reason:
        pytest.skip(str(reason))
    configs = [kernel.DEFAULT]
    if not case.refused:
        stats = BatchStats.of(case.lens)
        chosen, _ = registry.default_config(kernel_id, kernel, case.shape, stats, detect())
        configs += [chosen] if chosen != kernel.DEFAULT else []
    for config in configs:
        conform(kernel, case, config, "cuda", twice=True)
    if case.large:
        torch.cuda.empty_cache()  # the next case's pool of gigabytes has other sizes
