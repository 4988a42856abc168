"""What both DSLs choose for many long decodes over a cache of 8 bits, on every named case of 8 bits (short ones): every
day on those of `gpu_daily`, which have each kind of cache."""

from dataclasses import replace

import pytest
import torch

from common import gpus
from compare.competitors import registry
from conformance_cells import gpu_daily
from eight_bit_cases import DECODES, SHAPE, STORED
from kernel_cases import cell, conform, here

if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)


def _marked(case):
    return pytest.mark.conformance if case.name in gpu_daily() else pytest.mark.slow


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name, marks=_marked(case)) for case in STORED])
@pytest.mark.parametrize("kernel_id", ["triton/parallel_softmax", "helion/parallel_softmax"])
def test_gpu_eight_bits(kernel_id, case, record_property):
    kernel = here(kernel_id)
    config, _ = registry.default_config(kernel_id, kernel, SHAPE, DECODES, gpus.detect())
    outcome = conform(kernel, case, replace(config, num_segments=3), "cuda", twice=True)
    record_property("conformance", cell(kernel_id, case, outcome))
