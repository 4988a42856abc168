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
from typing import Any

import torch

# (driver's launch, what stands between stream and arguments, whether these are one list, grid, arguments, pointers)
_Step = tuple[Callable, tuple, bool, tuple[int, ...], tuple, tuple]
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
    """What `Tape.of` kept: for each launch a call of the driver, and where the pointers go."""

    def __init__(self, steps: tuple[_Step, ...]) -> None:
        self._steps = steps

    @classmethod
    def of(cls, launches: Sequence[Launch], slots: Sequence[torch.Tensor | None], stream: int) -> Tape | None:
        """A tape, or None where one of the launches cannot be repeated from pointers alone.

        slots: the tensors that a call brings; `replay` gets their addresses in this order, 0 for None. The last one is
        scratch: pointers into it are kept as distances from its start.
        """
        steps = []
        for launch in launches:
            if launch.compiled is None or launch.stream != stream:
                return None
            patches = _patches(launch, slots)
            if patches is None:
                return None
            steps.append((*_driver_call(launch.compiled), launch.grid, launch.args, patches))
        return cls(tuple(steps)) if steps else None

    def replay(self, pointers: Sequence[int], stream: int) -> None:
        """Launch all of it on `stream` of the current device."""
        for call, head, apart, grid, args, patches in self._steps:
            args = list(args)
            for at, inner, slot, distance in patches:
                if inner is None:
                    args[at] = pointers[slot] + distance
                else:
                    args[at] = (*args[at][:inner], pointers[slot] + distance, *args[at][inner + 1 :])
            if apart:
                call(*grid, stream, *head, args)
            else:
                call(*grid, stream, *head, *args)


def _patches(launch: Launch, slots: Sequence[torch.Tensor | None]) -> tuple | None:
    """(argument, place in its tuple or None, slot, distance) of every pointer; None where something is opaque."""
    found = []
    for at, (value, constant) in enumerate(zip(launch.args, launch.constant, strict=True)):
        if constant:
            continue
        for inner, leaf in enumerate(value) if isinstance(value, tuple) else ((None, value),):
            if isinstance(leaf, torch.Tensor):
                place = _place(leaf, slots)
                if place is None:
                    return None
                found.append((at, inner, *place))
            elif not isinstance(leaf, _PLAIN):
                return None
    return tuple(found)


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
    hooks = (knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook)
    return any(hook is not None and getattr(hook, "calls", True) for hook in hooks)


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
