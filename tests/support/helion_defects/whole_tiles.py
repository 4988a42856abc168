"""Tiles that are whole are masked: an end from the device is never known to be a multiple of the block."""

import re

import helion
import helion.language as hl
import torch


@helion.kernel(static_shapes=False, autotune_effort="none")
def sums(x: torch.Tensor, lens: torch.Tensor, out: torch.Tensor):
    block = hl.register_block_size(16, 64)
    for row in hl.grid(x.size(0)):
        total = hl.zeros([], dtype=torch.float32)
        for tile in hl.tile(0, lens[row] // block * block, block_size=block):
            total = total + x[row, tile].sum(-1)
        out[row] = total


x = torch.ones(4, 256)
bound = sums.bind((x, torch.arange(4, dtype=torch.int32), torch.empty(4)))
code = bound.to_triton_code(bound.config_spec.default_config())
print("masked loads:", len(re.findall(r"tl\.load\(x .*mask_", code)))
