"""The single checks that validators consist of: each raises SpecError naming the argument, found and allowed.

They run for every tensor of every launch, so they format messages only when needed.
"""

import os
from collections.abc import Mapping

import torch
from torch.autograd import forward_ad

from common.gpus import gpu_of
from common.spec.overlap import overlaps_itself, share_memory
from common.spec.paged_batch import DTYPES, FP8, PagedBatch, SpecError
from common.spec.plain import flag, integer, shown
from common.spec.ranges import Range

FLOATS = ", ".join(str(dtype) for dtype in DTYPES)
NO_GRADIENT = (
    "requires_grad=True where gradients are recorded",
    "torch.no_grad() or torch.inference_mode(), or detach(): there is no backward pass",
)


def expect(ok: bool, argument: str, found: object, allowed: str) -> None:
    if not ok:
        raise SpecError(argument, found, allowed)


def expect_integer(value: object, name: str, least: int) -> int:
    """The value as a Python integer. Raises SpecError."""
    value = integer(value)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**31:
        raise SpecError(name, shown(value), f"an integer from {least} to 2^31 - 1")
    return value


def expect_flag(value: object, name: str) -> bool:
    value = flag(value)
    if value is not True and value is not False:
        raise SpecError(name, shown(value), "True or False")
    return value


def expect_file(path: str | os.PathLike, name: str, allowed: str) -> None:
    """Refuse what is there and no regular file: a device or a pipe may have no end. Raises SpecError."""
    expect(os.path.isfile(path) or not os.path.exists(path), name, f"{path}, which is no regular file", allowed)


def expect_number(value: object, name: str, allowed: Range, or_else: str = "") -> None:
    if not isinstance(value, float) or not allowed.least <= value <= allowed.most:
        raise SpecError(name, shown(value), f"{or_else}a float {allowed}")


def expect_stored(value: object, name: str, allowed: str = "a torch.Tensor") -> None:
    """A tensor whose memory holds its numbers directly, and which needs no gradient. Raises SpecError."""
    if not isinstance(value, torch.Tensor):
        raise SpecError(name, type(value).__name__, allowed)
    if value.is_nested or value.layout is not torch.strided:
        kind = "a nested tensor" if value.is_nested else f"a tensor of {value.layout}"
        raise SpecError(name, kind, "a tensor of torch.strided")
    for bit, is_set, resolved in (("negative", value.is_neg(), "neg"), ("conjugate", value.is_conj(), "conj")):
        if is_set:
            raise SpecError(name, f"a view with the {bit} bit", f"numbers as memory holds them: resolve_{resolved}()")
    if value.requires_grad and torch.is_grad_enabled():
        raise SpecError(name, *NO_GRADIENT)
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(value).tangent is not None:
        raise SpecError(name, "a tensor with a tangent", "a tensor without: there is no forward-mode gradient")
    _expect_memory(value, name)


def _expect_memory(tensor: torch.Tensor, name: str) -> None:
    try:
        there = not tensor.is_meta and (tensor.data_ptr() != 0 or tensor.numel() == 0)
    except RuntimeError:  # a tensor class of its own
        there = False
    if not there:
        kind = "on meta" if tensor.is_meta else f"a {type(tensor).__name__} without memory"
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            kind = "a tensor of a torch.func transform, as vmap's"
        raise SpecError(name, kind, "a tensor with memory of its own")


def expect_tensor(value: object, name: str, rank: int, allowed: str = "a torch.Tensor") -> None:
    expect_stored(value, name, allowed)
    if value.dim() != rank:
        raise SpecError(name, f"shape {tuple(value.shape)}", f"{rank} dimensions")


def expect_writable(tensor: torch.Tensor, name: str, others: Mapping[str, torch.Tensor | None]) -> None:
    """Refuse a tensor that overlaps one of `others`, or itself: programs run in any order."""
    for other, there in others.items():
        if there is not None and share_memory(tensor, there):
            raise SpecError(name, f"the memory of {other}", "memory of its own")
    if overlaps_itself(tensor):
        raise SpecError(name, f"strides {tensor.stride()}", "every element in a place of its own")


def expect_contiguous_rows(tensor: torch.Tensor, name: str) -> None:
    """Refuse a last dimension with a stride: kernels address it without one."""
    if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        raise SpecError(name, f"stride {tensor.stride(-1)} in the last dimension", "1")


def expect_same_device(tensor: torch.Tensor, name: str, batch: PagedBatch) -> None:
    if tensor.device != batch.query.device:
        raise SpecError(name, f"on {tensor.device}", f"the device of query, {batch.device}")


def expect_operand(
    value: object, name: str, shapes: tuple[tuple[int, ...], ...], dtypes: tuple[torch.dtype, ...], batch: PagedBatch
) -> None:
    """A feature's tensor: one of `shapes`, one of `dtypes`, on the batch's device; contiguous beyond two dimensions.

    -1 stands for any size of at least 1.
    """
    expect_stored(value, name, "None or a torch.Tensor")
    found = tuple(value.shape)
    fits = any(
        len(shape) == len(found) and all(a == b or (a == -1 and b > 0) for a, b in zip(shape, found, strict=True))
        for shape in shapes
    )
    if not fits:
        raise SpecError(name, found, " or ".join(str(list(shape)).replace("-1", "1 or more") for shape in shapes))
    if value.dtype not in dtypes:
        raise SpecError(name, value.dtype, ", ".join(str(dtype) for dtype in dtypes))
    expect_same_device(value, name, batch)
    if len(found) == 1 and not value.is_contiguous():
        raise SpecError(name, f"stride {value.stride()}", "contiguous")


# The fp8 types that the compilers of a GPU have, and the refusal of others; nowhere else.
#
# Triton 3.6 and 3.7 for NVIDIA have e5m2 everywhere, e4m3fn from sm_89 on and e4m3fnuz nowhere; for AMD they convert
# in software what a GPU lacks.


def fp8_types(arch: str) -> tuple[torch.dtype, ...]:
    """The fp8 types that kernels for `arch` (`sm_90`, `gfx942`) may hold."""
    if arch.startswith("gfx"):
        return FP8
    return (torch.float8_e4m3fn, torch.float8_e5m2) if int(arch.removeprefix("sm_")) >= 89 else (torch.float8_e5m2,)


def target_of(device: torch.device) -> str | None:
    """The arch that kernels are compiled for; None on a CPU, where all types are interpreted."""
    gpu = gpu_of(device)
    return gpu.arch if gpu else None


def expect_fp8(tensor: torch.Tensor, name: str, arch: str | None = None) -> None:
    """Refuse fp8 that `arch` lacks, by default the tensor's device's; other dtypes pass. Raises SpecError."""
    if tensor.dtype in FP8 and (error := refusal({name: tensor.dtype}, arch or target_of(tensor.device))):
        raise error


def refusal(dtypes: Mapping[str, torch.dtype], arch: str | None) -> SpecError | None:
    """The error for the first of some arguments whose fp8 type `arch` lacks; None where it has all."""
    for name, dtype in dtypes.items():
        if arch is not None and dtype not in fp8_types(arch):
            return SpecError(name, f"{dtype} on {arch}", " or ".join(map(str, fp8_types(arch))) + f" on {arch}")
    return None
