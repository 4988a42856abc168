"""What judges and times the kernels of this process is the same behind a kernel as before it.

A kernel shares the process of the clock. One that puts a function of its own in the place of the gate's, or of torch's
events, must not keep what those then say.
"""

import sys
import time
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any, NamedTuple

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


def _function(value: Any) -> FunctionType | None:
    """The function whose code a method, a property or a function runs; None of what is not written in Python."""
    value = getattr(value, "__func__", value.fget if isinstance(value, property) else value)
    return value if isinstance(value, FunctionType) else None


def _places() -> Iterator[Place]:
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith(PACKAGES):
            for name, value in list(vars(module).items()):
                if isinstance(value, FunctionType | type):
                    yield module, name
                if isinstance(value, type) and value.__module__.startswith(PACKAGES):
                    yield from ((value, inner) for inner, method in vars(value).items() if _function(method))
    yield from ((owner, name) for owner, names in OTHERS for name in names)


class Kept(NamedTuple):
    """What an owner has under a name: in its own namespace or, where that lacks it, from a base."""

    owner: Any
    name: str
    own: Mapping[str, Any]
    value: Any
    function: FunctionType | None
    code: Any

    @classmethod
    def of(cls, owner: Any, name: str) -> "Kept":
        own = vars(owner)
        value = own[name] if name in own else getattr(owner, name, None)
        function = _function(value)
        return cls(owner, name, own, value, function, function and function.__code__)


class Intact:
    """The functions that judge and time, as they are when it is made: before a kernel is imported."""

    def __init__(self) -> None:
        self._kept = [Kept.of(*place) for place in dict.fromkeys(_places())]

    def changed(self) -> list[str]:
        """The names of those that are others now, which are put back. It is asked behind every sample: 0.1 ms."""
        found = []
        for owner, name, own, value, function, code in self._kept:
            now = own[name] if name in own else getattr(owner, name, None)
            if now is value and (function is None or function.__code__ is code):
                continue
            found.append(f"{getattr(owner, '__qualname__', owner.__name__)}.{name}")
            if function is not None:
                function.__code__ = code
            setattr(owner, name, value)
        return found

    def ensure(self) -> None:
        """Raise Rejected where some are others."""
        if found := self.changed():
            raise Rejected(Status.INCORRECT, f"changed what judges or times it: {', '.join(found)}")
