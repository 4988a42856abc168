"""A branch that is decided while tracing still has to leave a name as it was: its types are merged, not replaced."""

import helion
import helion.language as hl
import torch


@helion.kernel(static_shapes=False, autotune_effort="none")
def choose(x: torch.Tensor, out: torch.Tensor, per_row: hl.constexpr):
    for rows, columns in hl.tile([x.size(0), x.size(1)]):
        bias = columns.index[None, :]
        if per_row:
            bias = columns.index[None, :] + rows.index[:, None]
        out[rows, columns] = x[rows, columns] + bias


x = torch.ones(64, 64)
for per_row in (False, True):
    try:
        choose.bind((x, x, per_row))
        print(f"per_row={per_row}: traced")
    except Exception as error:
        print(f"per_row={per_row}: {type(error).__name__}: {str(error).splitlines()[0]}")
