"""The launches of one call, kept so that the next call of the same signature skips the JIT's dispatch.

Triton's dispatch takes 20 to 29 us a launch on the host of an H200, most of it to find again which binary the
arguments belong to; the launch itself takes 6. `Tape.of` keeps what a first call launched: binary, grid and
arguments, with the slot that each pointer came from. `replay` puts the new pointers in. A tape belongs to one
signature (`common.serving.call`), which holds everything that either the kernel's host code or Triton's specialisation
reads: shapes, strides, dtypes, devices, alignment, floats, the choice. Tensor descriptors are made anew around the new
pointers, and a second stream waits and is waited for as it was. What cannot be replayed has no tape and is dispatched
as ever: pointers of nobody, a second stream that nobody joins, an interpreter.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType
from typing import Any

import torch

from common.serving import handle
from common.serving.handle import Launch, Wait, driver_call

_PLAIN = (int, float, bool, str, type(None))


@dataclass(frozen=True, slots=True)
class Tape:
    """replay(pointers, stream): launch all of it on `stream`, the current one of the current device."""

    replay: Callable[[Sequence[int], int], None]

    @classmethod
    def of(
        cls,
        launches: Sequence[Launch | Wait],
        slots: Sequence[torch.Tensor | None],
        stream: int,
        kept: frozenset[int] = frozenset(),
    ) -> Tape | None:
        """A tape, or None where one of the launches cannot be repeated from pointers alone.

        slots: the tensors that a call brings; `replay` gets their addresses in this order, 0 for None. The last one is
        scratch: pointers into it are kept as distances from its start. kept: addresses that stay the same.
        """
        script = _Script(slots, stream, kept)
        lines = [script.line(entry) for entry in launches] if _joined(launches, stream) else []
        if not any(isinstance(entry, Launch) for entry in launches) or None in lines or not lines:
            return None
        return cls(script.function(lines))


@dataclass
class _Script:
    """The source of a `replay` and the values of its names.

    One line a launch: `c0(c1, c2, c3, stream, c4, p0, (c5, p1), p7 + c6)`, with a name for each constant and each
    slot's address. An argument costs 5 ns so; picked out of a list of values it cost 15, and a call has 100.
    """

    slots: Sequence[torch.Tensor | None]
    stream: int
    kept: frozenset[int]
    names: dict[str, Any] = field(default_factory=lambda: {"handle": handle, "described": _described})

    def function(self, lines: Sequence[str]) -> Callable[[Sequence[int], int], None]:
        slots = "".join(f"p{i}, " for i in range(len(self.slots)))
        exec(_code("\n    ".join(["def replay(pointers, stream):", f"{slots}= pointers", *lines])), self.names)
        return self.names.pop("replay")

    def line(self, entry: Launch | Wait) -> str | None:
        """One launch, or one stream that waits for another; None where it cannot be repeated."""
        if isinstance(entry, Wait):
            ends = [
                "handle.current()" if end.cuda_stream == self.stream else self._constant(end)
                for end in (entry.stream, entry.other)
            ]
            return f"{ends[0]}.wait_stream({ends[1]})"
        if entry.compiled is None:
            return None
        call, head, arguments, apart = driver_call(entry)
        sources = [self._constant(value) if constant else self._source(value) for value, constant in arguments]
        if None in sources:
            return None
        stream = "stream" if entry.stream == self.stream else self._constant(entry.stream)
        front = [*map(self._constant, entry.grid), stream, *map(self._constant, head)]
        passed = [*front, _tuple(sources)] if apart else front + sources
        return f"{self._constant(call)}({', '.join(passed)})"

    def _constant(self, value: Any) -> str:
        name = f"c{len(self.names)}"
        self.names[name] = value
        return name

    def _source(self, value: Any) -> str | None:
        """Where a replay finds a run-time argument of a kernel; None where it could not."""
        if isinstance(value, torch.Tensor):
            return self._constant(value.data_ptr()) if value.data_ptr() in self.kept else self._address(value)
        if isinstance(getattr(value, "base", None), torch.Tensor) and hasattr(value, "block_shape"):
            return self._descriptor(value)
        if isinstance(value, tuple) and any(isinstance(leaf, torch.Tensor) for leaf in _leaves(value)):
            sources = [self._source(leaf) for leaf in value]  # the operands of features
            return None if None in sources else _tuple(sources)
        return self._constant(value) if all(isinstance(leaf, _PLAIN) for leaf in _leaves(value)) else None

    def _address(self, tensor: torch.Tensor) -> str | None:
        """The one slot that a pointer belongs to, and how far into scratch it is."""
        pointer, scratch = tensor.data_ptr(), self.slots[-1]
        found = [f"p{i}" for i, slot in enumerate(self.slots) if slot is not None and slot.data_ptr() == pointer]
        if not found and scratch is not None:
            distance = pointer - scratch.data_ptr()
            if 0 <= distance < scratch.numel() * scratch.element_size():
                found = [f"p{len(self.slots) - 1} + {self._constant(distance)}"]
        return found[0] if len(found) == 1 and pointer else None

    def _descriptor(self, value: Any) -> str | None:
        """Triton's TensorDescriptor: shape, strides and block stay, its base is a slot or lies in scratch."""
        address = self._address(value.base)
        if address is None:
            return None
        template = copy.copy(value)
        template.base = None  # keeps nobody's tensor alive
        return f"described({self._constant(template)}, {address})"


@lru_cache(maxsize=1024)
def _code(source: str) -> CodeType:
    """The signatures of one kernel have one source: compiling it takes 300 us."""
    return compile(source, "<common.serving.tape>", "exec")


def _tuple(sources: Sequence[str]) -> str:
    return "(" + "".join(f"{source}, " for source in sources) + ")"


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


class _Address:
    """What a launcher asks of a descriptor's base."""

    __slots__ = ("_pointer",)

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer

    def data_ptr(self) -> int:
        return self._pointer


def _described(template: Any, pointer: int) -> Any:
    made = object.__new__(type(template))  # copy.copy takes 4 us, and its __init__ asks torch what the template passed
    made.__dict__.update(template.__dict__, base=_Address(pointer))
    return made


def _joined(launches: Sequence[Launch | Wait], stream: int) -> bool:
    """Whether every other stream than `stream` waited for it before its first launch, and it for them at the end."""
    begun: set[int] = set()
    open_: set[int] = set()
    for entry in launches:
        if isinstance(entry, Launch):
            if entry.stream != stream:
                if entry.stream not in begun:
                    return False
                open_.add(entry.stream)
        elif entry.other.cuda_stream == stream:
            begun.add(entry.stream.cuda_stream)
        elif entry.stream.cuda_stream == stream:
            open_.discard(entry.other.cuda_stream)
        else:
            return False
    return not open_
