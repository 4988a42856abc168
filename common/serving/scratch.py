"""A kernel's workspace inside one buffer of bytes: one allocation, or none where the caller brings the buffer.

`workspace(shape, capacity, config)` is asked once with `torch.empty` giving tensors without memory, which are then laid
one behind another. What it makes by other means (zeros, a stream) stays as it is and belongs to the layout: only memory
whose content means nothing between launches is shared with other calls.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from common.spec import AttentionShape, SpecError
from common.spec.kernel import Capacity
from common.spec.paged_batch import ALIGNMENT

SPACING = 256  # bytes between the starts of two tensors: a multiple of ALIGNMENT and of a cache line


class _Deferred(TorchFunctionMode):
    """torch.empty on the meta device, which has no memory."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.empty:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the meta tensors of `template` (dataclasses, tuples, anything else) lie; offsets and size in bytes."""

    template: Any
    offsets: tuple[int, ...]
    num_bytes: int

    @classmethod
    def of(cls, kernel: Any, shape: AttentionShape, capacity: Capacity, config: Any) -> Layout:
        with _Deferred():
            template = kernel.workspace(shape, capacity, config)
        offsets, at = [], 0
        for tensor in tensors(template):
            offsets.append(at)
            at += -(-tensor.numel() * tensor.element_size() // SPACING) * SPACING
        return cls(template, tuple(offsets), at)

    @property
    def kept(self) -> frozenset[int]:
        """Addresses of the tensors that are the layout's own."""
        return frozenset(tensor.data_ptr() for tensor in tensors(self.template, placed=False))

    def place(self, buffer: torch.Tensor | None) -> Any:
        """The workspace on `buffer`, uint8 [at least num_bytes]. Raises SpecError."""
        if not self.offsets:
            return self.template
        check_buffer(buffer, self.num_bytes)
        views = iter(
            buffer[at : at + tensor.numel() * tensor.element_size()].view(tensor.dtype).view(tensor.shape)
            for at, tensor in zip(self.offsets, tensors(self.template), strict=True)
        )
        return _rebuilt(self.template, views)


def check_buffer(buffer: object, num_bytes: int, device: torch.device | None = None) -> None:
    if not isinstance(buffer, torch.Tensor) or buffer.dtype != torch.uint8 or buffer.dim() != 1:
        found = f"{buffer.dtype} {tuple(buffer.shape)}" if isinstance(buffer, torch.Tensor) else type(buffer).__name__
        raise SpecError("workspace", found, "None or a torch.uint8 tensor of one dimension")
    if device is not None and buffer.device != device:
        raise SpecError("workspace", f"on {buffer.device}", f"the device of query, {device}")
    if buffer.numel() < num_bytes:
        raise SpecError("workspace", f"{buffer.numel()} bytes", f"at least {num_bytes}")
    if buffer.data_ptr() % ALIGNMENT or not buffer.is_contiguous():
        raise SpecError("workspace", f"address {buffer.data_ptr():#x}", f"contiguous, at a multiple of {ALIGNMENT}")


def tensors(value: Any, placed: bool = True) -> list[torch.Tensor]:
    """The meta tensors of a workspace in a fixed order; not placed: the others."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_meta == placed else []
    if dataclasses.is_dataclass(value):
        return [t for f in dataclasses.fields(value) for t in tensors(getattr(value, f.name), placed)]
    if isinstance(value, tuple | list):
        return [t for item in value for t in tensors(item, placed)]
    return []


def _rebuilt(value: Any, views: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return next(views) if value.is_meta else value
    if dataclasses.is_dataclass(value):
        return dataclasses.replace(
            value, **{f.name: _rebuilt(getattr(value, f.name), views) for f in dataclasses.fields(value)}
        )
    if isinstance(value, tuple | list):
        return type(value)(_rebuilt(item, views) for item in value)
    return value
