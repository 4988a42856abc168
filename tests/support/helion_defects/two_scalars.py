"""A lookup by two scalars that were loaded fails while code is generated; with a loop's number it does not."""

import helion
import helion.language as hl
import torch


@helion.kernel(static_shapes=False, autotune_effort="none")
def lookup(table: torch.Tensor, rows: torch.Tensor, out: torch.Tensor, both: hl.constexpr):
    for i in hl.grid(rows.size(0)):
        row = rows[i]
        if both:
            out[i] = table[row, row]
        else:
            out[i] = table[row, i]


for both in (False, True):
    bound = lookup.bind((torch.ones(8, 8), torch.arange(8), torch.empty(8), both))
    try:
        bound.to_triton_code(bound.config_spec.default_config())
        print(f"both={both}: generated")
    except Exception as error:
        said = str(error).partition(" (")[0]
        print(f"both={both}: {type(error).__name__}: {said}")
