"""The launches of one call, kept so that the next call of the same signature skips the JIT's dispatch.

Triton's dispatch takes 20 to 29 us a launch on the host of an H200, most of it to find again which binary the
arguments belong to; the launch itself takes 6. `Tape.of` keeps what a first call launched: binary, grid and
arguments, with the slot that each pointer came from. `replay` puts the new pointers in. A tape belongs to one
signature (`common.call`), which holds everything that either the kernel's host code or Triton's specialisation reads:
shapes, strides, dtypes, devices, alignment, floats, the choice. What cannot be replayed has no tape and is
dispatched as ever: descriptors, a second stream, pointers of nobody, an interpreter.

Private names of Triton's compiled kernels are touched here and nowhere else, by their attributes: `common` imports no
triton. They are the same in 3.6 and 3.7 but for the launcher's order of arguments.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch

_Source = tuple[str, int]  # a part of the pool, and the place in it
_Step = tuple[Callable, Callable, Callable | None]  # launch, its arguments out of the pool, and those it wants apart
_PLAIN = (int, float, bool, str, type(None))


@dataclass(frozen=True)
class Launch:
    """One launch as the JIT made it.

    compiled: Triton's CompiledKernel, or None where nothing was compiled. args: all parameters of the kernel in order,
    compile-time ones included. constant: whether each is compile-time. stream: the raw stream it went to.
    """

    compiled: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    constant: tuple[bool, ...]
    stream: int

    @classmethod
    def of(cls, function: Any, compiled: Any, grid: Any, args: tuple, kwargs: dict[str, Any], stream: int) -> Launch:
        """From what was passed to `JITFunction.run`."""
        names = function.arg_names
        bound = function.signature.bind(*args, **{name: kwargs[name] for name in names if name in kwargs})
        bound.apply_defaults()
        if callable(grid):
            grid = grid(bound.arguments)
        grid = (*grid, 1, 1)[:3]
        constant = tuple(bool(param.is_constexpr) for param in function.params)
        return cls(compiled, grid, tuple(bound.arguments[name] for name in names), constant, stream)


class Tape:
    """What `Tape.of` kept: the driver's calls, and for each where its arguments stand in one pool of values.

    The pool of a call: its pointers, the scratch pointer moved by each distance, the tuples that hold a pointer, the
    stream, and the constants. So a launch costs one look-up in C, whatever the number of arguments.
    """

    def __init__(self) -> None:
        self._steps: list[_Step] = []
        self._distances: list[int] = []  # of scratch pointers from the start of scratch
        self._holders: list[tuple[tuple, int, int]] = []  # (tuple, place in it, slot): the operands of features
        self._constants: list[Any] = []

    @classmethod
    def of(
        cls,
        launches: Sequence[Launch],
        slots: Sequence[torch.Tensor | None],
        stream: int,
        kept: frozenset[int] = frozenset(),
    ) -> Tape | None:
        """A tape, or None where one of the launches cannot be repeated from pointers alone.

        slots: the tensors that a call brings; `replay` gets their addresses in this order, 0 for None. The last one is
        scratch: pointers into it are kept as distances from its start. kept: addresses that stay the same.
        """
        tape, calls = cls(), []
        for launch in launches:
            if launch.compiled is None or launch.stream != stream:
                return None
            call, head, apart = _driver_call(launch.compiled)
            sources = [tape._source(*pair, slots, kept) for pair in zip(launch.args, launch.constant, strict=True)]
            if None in sources:
                return None
            front = [*map(tape._constant, launch.grid), ("stream", 0), *map(tape._constant, head)]
            calls.append((call, front, sources) if apart else (call, front + sources, None))
        if not calls:
            return None
        begin, at = {}, 0
        sizes = (len(slots), len(tape._distances), len(tape._holders), 1)
        for kind, size in zip(("pointer", "scratch", "holder", "stream", "constant"), (*sizes, 0), strict=True):
            begin[kind], at = at, at + size
        for call, *parts in calls:
            picks = [part and itemgetter(*(begin[kind] + place for kind, place in part)) for part in parts]
            tape._steps.append((call, *picks))
        return tape

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

    def replay(self, pointers: Sequence[int], stream: int) -> None:
        """Launch all of it on `stream` of the current device."""
        scratch = pointers[-1]
        moved = [scratch + distance for distance in self._distances]
        holders = [(*held[:at], pointers[slot], *held[at + 1 :]) for held, at, slot in self._holders]
        pool = (*pointers, *moved, *holders, stream, *self._constants)
        for call, pick, pick_apart in self._steps:
            if pick_apart is None:
                call(*pick(pool))
            else:
                call(*pick(pool), pick_apart(pool))


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


def _driver_call(compiled: Any) -> tuple[Callable, tuple, bool]:
    """The driver's launch behind a compiled kernel, what it wants between the stream and the kernel's arguments, and
    whether it wants these as one list.

    On NVIDIA the C function itself, 1 us less than the object around it, where a kernel needs no scratch of Triton's.
    """
    launcher = compiled.run
    needs = [getattr(launcher, f"{kind}_scratch_size", 1) for kind in ("global", "profile")]
    hooks = (None, None, None)  # launch metadata, and the two hooks: `observed` calls are not replayed
    if type(launcher).__name__ != "CudaLauncher" or any(needs) or type(launcher.launch).__name__ == "function":
        return launcher, (compiled.function, compiled.packed_metadata, *hooks), False
    head = (compiled.function, launcher.launch_cooperative_grid, launcher.launch_pdl)
    scratch = (None, None)
    if hasattr(launcher, "kernel_signature"):  # triton 3.7
        signature = (launcher.arg_annotations, launcher.kernel_signature)
        return launcher.launch, (*head, compiled.packed_metadata, *hooks, *scratch, *signature), True
    return launcher.launch, (*head, *scratch, compiled.packed_metadata, *hooks), False


def observed() -> bool:
    """Whether somebody hooked Triton's launches (a profiler): then none may pass it by."""
    knobs = sys.modules.get("triton.knobs")
    if knobs is None:
        return False
    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return bool((enter is not None and getattr(enter, "calls", True)) or (leave and getattr(leave, "calls", True)))


def has_jit(device: torch.device) -> bool:
    """Whether launches on `device` go through the JIT's dispatch: on a CPU kernels are interpreted."""
    return device.type == "cuda"


def current_device() -> int:
    return torch._C._cuda_getDevice()


def current_stream(device: int) -> int:
    """The raw stream, as the DSLs' launchers read it."""
    return torch._C._cuda_getCurrentRawStream(device)


def on(device: torch.device) -> AbstractContextManager:
    """Makes `device` the current one: Triton launches there, wherever the tensors are."""
    if device.type != "cuda" or device.index == current_device():
        return nullcontext()
    return torch.cuda.device(device)
