"""Which fp8 types the compilers of a GPU have, and the refusal of the others: the one place that says so.

Triton 3.6 and 3.7 for NVIDIA have e5m2 everywhere, e4m3fn from sm_89 on and e4m3fnuz nowhere; for AMD they convert in
software what a GPU lacks.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from common.device import gpu_of
from common.spec.paged_batch import FP8, SpecError


def fp8_types(arch: str) -> tuple[torch.dtype, ...]:
    """Of FP8 those that kernels for `arch`, as `sm_90` or `gfx942`, may hold."""
    if arch.startswith("gfx"):
        return FP8
    return (torch.float8_e4m3fn, torch.float8_e5m2) if int(arch.removeprefix("sm_")) >= 89 else (torch.float8_e5m2,)


def target_of(device: torch.device) -> str | None:
    """The arch that kernels are compiled for there; None on a CPU, which interprets all types."""
    gpu = gpu_of(device)
    return gpu.arch if gpu else None


def expect_fp8(tensor: torch.Tensor, name: str, arch: str | None = None) -> None:
    """Refuse fp8 that `arch` lacks, by default that of the tensor's device; other dtypes pass. Raises SpecError."""
    if tensor.dtype in FP8 and (error := refusal({name: tensor.dtype}, arch or target_of(tensor.device))):
        raise error


def refusal(dtypes: Mapping[str, torch.dtype], arch: str | None) -> SpecError | None:
    """Of arguments by name that hold fp8, the first that `arch` lacks, as an error; None where it has all."""
    for name, dtype in dtypes.items():
        if arch is not None and dtype not in fp8_types(arch):
            return SpecError(name, f"{dtype} on {arch}", " or ".join(map(str, fp8_types(arch))) + f" on {arch}")
    return None
