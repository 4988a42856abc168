"""What judges and times the kernels of this process is the same behind a kernel as before it.

A kernel shares the process of the clock. One that puts a function of its own in the place of the gate's, or of torch's
events, must not keep what those then say.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import torch

from compare.record.records import Status

PACKAGES = ("common.oracle.", "compare.bench.", "compare.stats")  # of this project
OTHERS: tuple[tuple[Any, tuple[str, ...]], ...] = (  # what they call
    (torch, ("equal", "isfinite", "stack", "where", "zeros")),
    (torch.cuda, ("synchronize", "Event", "CUDAGraph")),
    (torch.cuda.Event, ("record", "synchronize", "elapsed_time")),
    (torch.cuda.CUDAGraph, ("capture_begin", "capture_end", "replay")),
    (torch.Tensor, ("abs", "clone", "copy_", "fill_", "item", "max", "sum", "tolist", "view")),
    (time, ("perf_counter", "monotonic")),
)
Place = tuple[Any, str]  # an owner and a name


class Rejected(Exception):
    """The gate refuses: status and reason of the row."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


def _code(value: Any) -> Any:
    value = getattr(value, "__func__", value.fget if isinstance(value, property) else value)
    return value.__code__ if isinstance(value, FunctionType) else None


def _places() -> Iterator[Place]:
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith(PACKAGES):
            for name, value in list(vars(module).items()):
                if isinstance(value, FunctionType | type):
                    yield module, name
                if isinstance(value, type) and value.__module__.startswith(PACKAGES):
                    yield from ((value, inner) for inner, method in vars(value).items() if _code(method))
    yield from ((owner, name) for owner, names in OTHERS for name in names)


def _found(place: Place) -> Any:
    owner, name = place
    return vars(owner).get(name, getattr(owner, name, None))


class Intact:
    """The functions that judge and time, as they are when it is made: before a kernel is imported."""

    def __init__(self) -> None:
        self._kept = {place: (value := _found(place), _code(value)) for place in _places()}

    def changed(self) -> list[str]:
        """The names of those that are others now, which are put back."""
        found = []
        for (owner, name), (value, code) in self._kept.items():
            now = _found((owner, name))
            if now is value and _code(now) is code:
                continue
            found.append(f"{getattr(owner, '__qualname__', owner.__name__)}.{name}")
            if code is not None:
                getattr(value, "__func__", value.fget if isinstance(value, property) else value).__code__ = code
            setattr(owner, name, value)
        return found

    def ensure(self) -> None:
        """Raise Rejected where some are others."""
        if found := self.changed():
            raise Rejected(Status.INCORRECT, f"changed what judges or times it: {', '.join(found)}")
