"""`hl.specialize` alone in a branch of the host: the generated file has a branch without a body."""

import helion
import helion.language as hl
import torch


@helion.kernel(static_shapes=False, autotune_effort="none")
def scaled(x: torch.Tensor, scales: torch.Tensor | None, out: torch.Tensor):
    if scales is not None:
        hl.specialize(scales.size(0))
    for rows in hl.tile(x.size(0)):
        out[rows] = x[rows]


x = torch.ones(64)
bound = scaled.bind((x, torch.ones(4), x))
code = bound.to_triton_code(bound.config_spec.default_config())
try:
    compile(code, "generated", "exec")
    print("generated")
except SyntaxError as error:
    print(f"{type(error).__name__}: {error.msg}")
