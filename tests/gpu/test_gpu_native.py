"""native.sm90_prefill on every named case with features it has, its head made 128; the others are refused by name."""

from dataclasses import replace

import pytest
import torch

from common import case_layouts as layouts
from common.cases import CASES
from common.gpus import detect
from common.metadata import BatchStats
from common.spec import UnsupportedFeature
from compare import registry
from kernel_cases import conform

if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("no sm_90 here", allow_module_level=True)

KERNEL_ID = "triton/native.sm90_prefill"
HALVES = torch.bfloat16, torch.float16


def served(case):
    native = registry.load(KERNEL_ID)
    by_boxes = case.block_size % 8 == 0 and case.arrange is not layouts.unaligned  # TMA: rows at multiples of 16 bytes
    return by_boxes and not case.refused and not case.asked - native.SUPPORTS


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("case", filter(served, CASES), ids=lambda case: case.name)
def test_gpu_native_conforms(case, dtype):
    native = registry.load(KERNEL_ID)
    stats = BatchStats.of(case.lens)
    chosen, _ = registry.default_config(KERNEL_ID, native, case.shape, stats, detect())
    split = replace(native.DEFAULT, prefill=replace(native.DEFAULT.prefill, num_segments=3))
    for config in {chosen, native.DEFAULT, split}:
        outcome = conform(native, replace(case, dtype=dtype, head_size=128), config, "cuda", twice=True)
        assert outcome["outcome"] == "supported"


@pytest.mark.parametrize("case", [c for c in CASES if not served(c) and not c.refused], ids=lambda case: case.name)
def test_gpu_native_refuses_by_name(case):
    native = registry.load(KERNEL_ID)
    try:
        conform(native, case, native.DEFAULT, "cuda")
    except UnsupportedFeature as refusal:
        assert refusal.kernel == KERNEL_ID
