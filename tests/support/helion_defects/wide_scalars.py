"""An int32 scalar beside a block size becomes int64, where torch keeps int32 beside a number."""

import helion
import helion.language as hl
import torch


@helion.kernel(static_shapes=False, autotune_effort="none")
def begins(starts: torch.Tensor, out: torch.Tensor):
    block = hl.register_block_size(16, 64)
    for row in hl.grid(starts.size(0)):
        first = starts[row] * block
        for tile in hl.tile(first, first + block, block_size=block):
            out[tile] = tile.index


starts = torch.arange(4, dtype=torch.int32)
print("in torch:", (starts[1] * 16).dtype)
bound = begins.bind((starts, torch.empty(256, dtype=torch.int32)))
code = bound.to_triton_code(bound.config_spec.default_config())
print("in Helion:", "torch.int64" if "tl.int64" in code else "torch.int32")
