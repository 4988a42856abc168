"""The launches of one call, kept so that the next call of the same signature skips the JIT's dispatch.

Triton's dispatch takes 20 to 29 us a launch on the host of an H200, most of it to find again which binary the
arguments belong to; the launch itself takes 6. `Tape.of` keeps what a first call launched: binary, grid and
arguments, with the slot that each pointer came from. `replay` puts the new pointers in. A tape belongs to one
signature (`common.call`), which holds everything that either the kernel's host code or Triton's specialisation reads:
shapes, strides, dtypes, devices, alignment, floats, the choice. Tensor descriptors are made anew around the new
pointers, and a second stream waits and is waited for as it was. What cannot be replayed has no tape and is dispatched
as ever: pointers of nobody, a second stream that nobody joins, an interpreter.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch

from common import handle
from common.handle import Launch, Wait, driver_call

_Source = tuple[str, int]  # a part of the pool, and the place in it
# A launch, its arguments out of the pool, and those it wants apart; or None, the stream that waits, and the one that is
# waited for, None where that is the current one.
_Step = tuple[Callable | None, Any, Any]
_PLAIN = (int, float, bool, str, type(None))


class _Address:
    """What a launcher asks of a descriptor's base."""

    __slots__ = ("_pointer",)

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer

    def data_ptr(self) -> int:
        return self._pointer


class Tape:
    """What `Tape.of` kept: the driver's calls, and for each where its arguments stand in one pool of values.

    The pool of a call: its pointers, the scratch pointer moved by each distance, the tuples that hold a pointer, the
    descriptors, the stream, and the constants. So a launch costs one look-up in C, whatever the number of arguments.
    """

    def __init__(self) -> None:
        self._steps: list[_Step] = []
        self._distances: list[int] = []  # of scratch pointers from the start of scratch
        self._holders: list[tuple[tuple, int, int]] = []  # (tuple, place in it, slot): the operands of features
        self._descriptors: list[tuple[Any, int, int]] = []  # (descriptor of nothing, slot, distance from its start)
        self._constants: list[Any] = []

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
        tape = cls()
        calls = [tape._call(entry, slots, stream, kept) for entry in launches] if _joined(launches, stream) else []
        if not any(isinstance(entry, Launch) for entry in launches) or None in calls or not calls:
            return None
        tape._steps = tape._placed(calls, len(slots))
        return tape

    def _call(
        self, entry: Launch | Wait, slots: Sequence[torch.Tensor | None], stream: int, kept: frozenset[int]
    ) -> tuple | None:
        """(what is called, places of its arguments, places of those it wants apart); None where it has no place."""
        if isinstance(entry, Wait):
            return None, *(None if end.cuda_stream == stream else end for end in (entry.stream, entry.other))
        if entry.compiled is None:
            return None
        call, head, apart = driver_call(entry.compiled)
        sources = [self._source(*pair, slots, kept) for pair in zip(entry.args, entry.constant, strict=True)]
        if None in sources:
            return None
        on = ("stream", 0) if entry.stream == stream else self._constant(entry.stream)
        front = [*map(self._constant, entry.grid), on, *map(self._constant, head)]
        return (call, front, sources) if apart else (call, front + sources, None)

    def _placed(self, calls: Sequence[tuple], slots: int) -> list[_Step]:
        """The calls with their places in the pool of a call."""
        begin, at = {}, 0
        sizes = (slots, len(self._distances), len(self._holders), len(self._descriptors), 1, 0)
        kinds = ("pointer", "scratch", "holder", "descriptor", "stream", "constant")
        for kind, size in zip(kinds, sizes, strict=True):
            begin[kind], at = at, at + size

        def picker(part: list[_Source] | None) -> Callable | None:
            return part and itemgetter(*(begin[kind] + place for kind, place in part))

        return [(call, *(parts if call is None else map(picker, parts))) for call, *parts in calls]

    def _constant(self, value: Any) -> _Source:
        self._constants.append(value)
        return "constant", len(self._constants) - 1

    def _source(
        self, value: Any, constant: bool, slots: Sequence[torch.Tensor | None], kept: frozenset[int]
    ) -> _Source | None:
        """Where a replay finds one argument of a kernel; None where it could not."""
        if not constant and isinstance(value, torch.Tensor) and value.data_ptr() in kept:
            return self._constant(value.data_ptr())
        if not constant and isinstance(value, torch.Tensor):
            place = _place(value, slots)
            if place is None or place[0] < len(slots) - 1:
                return place and ("pointer", place[0])
            self._distances.append(place[1])
            return "scratch", len(self._distances) - 1
        if not constant and isinstance(getattr(value, "base", None), torch.Tensor) and hasattr(value, "block_shape"):
            return self._descriptor(value, slots)
        leaves = [] if constant else list(value) if isinstance(value, tuple) else [value]
        held = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        if not all(isinstance(leaf, (*_PLAIN, torch.Tensor)) for leaf in leaves) or len(held) > 1:
            return None
        if not held:
            return self._constant(value)
        place = _place(leaves[held[0]], slots)
        if place is None or place[0] == len(slots) - 1:
            return None
        others = (*value[: held[0]], None, *value[held[0] + 1 :])  # keeps nobody's tensor alive
        self._holders.append((others, held[0], place[0]))
        return "holder", len(self._holders) - 1

    def _descriptor(self, value: Any, slots: Sequence[torch.Tensor | None]) -> _Source | None:
        """Triton's TensorDescriptor: shape, strides and block stay, its base is a slot or lies in scratch."""
        place = _place(value.base, slots)
        if place is None:
            return None
        template = copy.copy(value)
        template.base = None  # keeps nobody's tensor alive
        self._descriptors.append((template, *place))
        return "descriptor", len(self._descriptors) - 1

    def replay(self, pointers: Sequence[int], stream: int) -> None:
        """Launch all of it on `stream` of the current device, which is the current stream."""
        scratch = pointers[-1]
        moved = [scratch + distance for distance in self._distances]
        holders = [(*held[:at], pointers[slot], *held[at + 1 :]) for held, at, slot in self._holders]
        described = [_described(template, pointers[slot] + at) for template, slot, at in self._descriptors]
        pool = (*pointers, *moved, *holders, *described, stream, *self._constants)
        for call, pick, pick_apart in self._steps:
            if call is None:
                waiting, other = (handle.current() if end is None else end for end in (pick, pick_apart))
                waiting.wait_stream(other)
            elif pick_apart is None:
                call(*pick(pool))
            else:
                call(*pick(pool), pick_apart(pool))


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


def _place(tensor: torch.Tensor, slots: Sequence[torch.Tensor | None]) -> tuple[int, int] | None:
    """(slot, distance) of the one slot that a pointer belongs to."""
    pointer, last = tensor.data_ptr(), len(slots) - 1
    found = [(i, 0) for i, slot in enumerate(slots) if slot is not None and slot.data_ptr() == pointer]
    scratch = slots[last]
    if not found and scratch is not None:
        distance = pointer - scratch.data_ptr()
        if 0 <= distance < scratch.numel() * scratch.element_size():
            found = [(last, distance)]
    return found[0] if len(found) == 1 and pointer else None
