"""A tile of one element is not known to have one: a reshape by its size fails, which a tile of two passes."""

import helion
import helion.language as hl
import torch


@helion.kernel(static_shapes=False, autotune_effort="none")
def flatten(x: torch.Tensor, out: torch.Tensor, group: hl.constexpr):
    block = hl.register_block_size(16, 64)
    for rows in hl.tile(x.size(0), block_size=block):
        for heads in hl.tile(x.size(1), block_size=group):
            out[rows, heads] = x[rows, heads].reshape(block * group).reshape(block, group)


for group in (2, 1):
    x = torch.ones(64, group)
    try:
        flatten.bind((x, x, group))
        print(f"a tile of {group}: traced")
    except Exception as error:
        print(f"a tile of {group}: {type(error).__name__}: {str(error).splitlines()[0]}")
