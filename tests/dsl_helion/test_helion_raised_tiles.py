"""Helion raises a tile of 16 keys to the 32 that a product of 8 bits takes: what counts in tiles beside it does too."""

from dataclasses import replace

import pytest
import torch

from common.cases.case import Case
from compare.competitors import registry
from kernel_cases import conform

CASE = Case(
    "raised", (), ((33, 162), (31, 31), (2, 50)), (6, 3), head_size=64, block_size=16, dtype=torch.float16,
    fp8_query=torch.float8_e4m3fn, tile_size=16,
)  # fmt: skip
MORE = {"parallel_softmax": {"num_segments": 2}}


@pytest.mark.parametrize("rung", ["unpaged", "parallel_softmax", "adjustable_tile"])
def test_tiles_of_16_keys_of_8_bits(rung):
    kernel = registry.load(f"helion/{rung}")
    assert conform(kernel, CASE, replace(kernel.DEFAULT, **MORE.get(rung, {}))) == {"outcome": "supported"}
