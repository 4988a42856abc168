"""Lay out a kernel's workspace in two byte buffers, which the caller gives or a call allocates.

`workspace(shape, capacity, config)` is called once with `torch.empty` and `torch.zeros` patched to give tensors without
memory. Tensors of `torch.empty` lie in scratch, which any calls may share, because it means nothing between launches.
Tensors of `torch.zeros` hold a step's plan until the next step, and overlap nothing. They are zero only in a plan that
the caller keeps (common.serving.plan), once: a kernel must initialise what it relies on, as another launch may have
been interrupted there.
"""

import dataclasses
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from common.spec import AttentionShape, SpecError
from common.spec.kernel import Capacity
from common.spec.paged_batch import ALIGNMENT
from common.spec.refusals import expect_stored

SPACING = 256  # bytes between two tensors: a multiple of ALIGNMENT and of a cache line


class _Deferred(TorchFunctionMode):
    """Makes torch.empty and torch.zeros return meta tensors, without memory. lasting: those of torch.zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.lasting: list[torch.Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.empty, torch.zeros):
            kwargs["device"] = "meta"
        made = func(*args, **kwargs)
        if func is torch.zeros:
            self.lasting.append(made)
        return made


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """Where the meta tensors of `template` (dataclasses, tuples, anything else) lie: in scratch or in a step's memory,
    and at which offset. num_bytes: of scratch; step_bytes: of a step's memory."""

    template: Any
    places: tuple[tuple[bool, int], ...]
    num_bytes: int
    step_bytes: int

    @classmethod
    def of(cls, kernel: Any, shape: AttentionShape, capacity: Capacity, config: Any) -> "Layout":
        deferred = _Deferred()
        with deferred:
            template = kernel.workspace(shape, capacity, config)
        lasting = set(map(id, deferred.lasting))
        places: dict[int, tuple[bool, int]] = {}  # a tensor may occur twice in the template
        ends = {False: 0, True: 0}
        for tensor in tensors(template):
            lasts = id(tensor) in lasting
            if id(tensor) not in places:
                places[id(tensor)] = lasts, ends[lasts]
                spaces = -(-tensor.numel() * tensor.element_size() // SPACING)
                ends[lasts] += max(spaces, lasts) * SPACING
        return cls(template, tuple(places[id(tensor)] for tensor in tensors(template)), ends[False], ends[True])

    @property
    def plans(self) -> bool:
        """Whether the kernel makes a plan of each step, which the step's other launches may reuse."""
        return hasattr(self.template, "planned")

    def place(self, buffer: torch.Tensor | None, memory: torch.Tensor | None = None) -> Any:
        """The workspace in `buffer`, uint8 [at least num_bytes], and `memory`, uint8 [at least step_bytes]. Raises
        SpecError."""
        if not self.places:
            return self.template
        if self.num_bytes:
            check_buffer(buffer, self.num_bytes)
        views = iter(
            (memory if lasts else buffer)[at : at + tensor.numel() * tensor.element_size()]
            .view(tensor.dtype)
            .view(tensor.shape)
            for (lasts, at), tensor in zip(self.places, tensors(self.template), strict=True)
        )
        return _rebuilt(self.template, views)


def check_buffer(buffer: object, num_bytes: int, device: torch.device | None = None) -> None:
    allowed = "None or a torch.uint8 tensor of one dimension"
    expect_stored(buffer, "workspace", allowed)
    if buffer.dtype != torch.uint8 or buffer.dim() != 1:
        raise SpecError("workspace", f"{buffer.dtype} {tuple(buffer.shape)}", allowed)
    if device is not None and buffer.device != device:
        raise SpecError("workspace", f"on {buffer.device}", f"the device of query, {device}")
    if buffer.numel() < num_bytes:
        raise SpecError("workspace", f"{buffer.numel()} bytes", f"at least {num_bytes}")
    if buffer.data_ptr() % ALIGNMENT or not buffer.is_contiguous():
        found = f"stride {buffer.stride(0)}, address {buffer.data_ptr():#x}"
        raise SpecError("workspace", found, f"contiguous, at a multiple of {ALIGNMENT}")


def tensors(value: Any) -> list[torch.Tensor]:
    """The meta tensors of a workspace in a fixed order."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_meta else []
    if dataclasses.is_dataclass(value):
        return [t for f in dataclasses.fields(value) for t in tensors(getattr(value, f.name))]
    if isinstance(value, tuple | list):
        return [t for item in value for t in tensors(item)]
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
