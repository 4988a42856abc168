"""What a launch hands to Triton's JIT, and the little of torch and Triton that repeating it needs
(`common.serving.tape`).

Private names of Triton's compiled kernels are touched here and nowhere else, by their attributes: `common` imports no
triton. They are the same in 3.6 and 3.7 but for the launcher's order of arguments.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

_patching = threading.Lock()
_launchers: dict[tuple[type, tuple[str, ...]], Any] = {}  # Triton's, by the types of the run-time arguments


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


@dataclass(frozen=True)
class Wait:
    """`stream` went on when `other` had ended what it held: two torch.cuda.Stream."""

    stream: Any
    other: Any


@contextmanager
def waits(launches: list[Launch | Wait], device: torch.device) -> Iterator[None]:
    """Adds to `launches` which streams this thread makes wait for each other, in the order of both."""
    if not has_jit(device):
        yield
        return
    me, original = threading.get_ident(), torch.cuda.Stream.wait_stream

    def wait_stream(self: torch.cuda.Stream, stream: torch.cuda.Stream) -> None:
        original(self, stream)
        if threading.get_ident() == me:
            launches.append(Wait(self, stream))

    with _patching:
        torch.cuda.Stream.wait_stream = wait_stream
        try:
            yield
        finally:
            torch.cuda.Stream.wait_stream = original


def driver_call(entry: Launch) -> tuple[Callable, tuple, list[tuple[Any, bool]], bool]:
    """The driver's launch behind a compiled kernel, what it wants between the stream and the kernel's arguments, these,
    each with whether it is compile-time, and whether it wants them as one list.

    On NVIDIA the C function itself, 1 us less than the object around it, where a kernel needs no scratch of Triton's.
    """
    compiled, launcher = entry.compiled, entry.compiled.run
    arguments = list(zip(entry.args, entry.constant, strict=True))
    needs = [getattr(launcher, f"{kind}_scratch_size", 1) for kind in ("global", "profile")]
    hooks = (None, None, None)  # launch metadata, and the two hooks: `observed` calls are not replayed
    if type(launcher).__name__ != "CudaLauncher" or any(needs) or type(launcher.launch).__name__ == "function":
        return launcher, (compiled.function, compiled.packed_metadata, *hooks), arguments, False
    head = (compiled.function, launcher.launch_cooperative_grid, launcher.launch_pdl)
    launcher, arguments = _opened(launcher, compiled, arguments)
    scratch = (None, None)
    if hasattr(launcher, "kernel_signature"):  # triton 3.7
        signature = (launcher.arg_annotations, launcher.kernel_signature)
        return launcher.launch, (*head, compiled.packed_metadata, *hooks, *scratch, *signature), arguments, True
    return launcher.launch, (*head, *scratch, compiled.packed_metadata, *hooks), arguments, False


def _opened(launcher: Any, compiled: Any, arguments: list[tuple[Any, bool]]) -> tuple[Any, list[tuple[Any, bool]]]:
    """A launcher of Triton's for the run-time arguments alone, tuples opened, and these.

    Triton's own is handed compile-time arguments and features that are off as well, 25 of them, to look past them in C:
    two launches of parallel_softmax then take 4.6 us in triton 3.6 in place of 1.4, and 1.9 in place of 1.0 in 3.7. In
    3.6 a launcher is a C file, which Triton compiles in 0.2 s and keeps on the disk.
    """
    types = getattr(getattr(compiled, "src", None), "signature", None)
    if types is None or len(types) != len(arguments):
        return launcher, arguments
    leaves = [leaf for (value, _), kind in zip(arguments, types.values(), strict=True) for leaf in _leaves(value, kind)]
    kinds = tuple(kind for _, kind in leaves)
    key = (type(launcher), kinds)
    if key not in _launchers:
        source = SimpleNamespace(signature=dict(enumerate(kinds)), constants={})
        _launchers[key] = type(launcher)(source, compiled.metadata)
    return _launchers[key], [(value, False) for value, _ in leaves]


def _leaves(value: Any, kind: Any) -> Iterator[tuple[Any, str]]:
    """The run-time arguments inside one, each with its type."""
    if isinstance(kind, tuple):
        for pair in zip(value, kind, strict=True):
            yield from _leaves(*pair)
    elif kind != "constexpr":
        yield value, kind


def observed() -> bool:
    """Whether somebody hooked Triton's launches (a profiler): then none may pass it by."""
    knobs = sys.modules.get("triton.knobs")
    if knobs is None:
        return False
    runtime = knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    return bool((enter is not None and getattr(enter, "calls", True)) or (leave and getattr(leave, "calls", True)))


def has_jit(device: torch.device) -> bool:
    """Whether launches on `device` go through the JIT's dispatch: on a CPU kernels are interpreted."""
    return device.type == "cuda"


def current_device() -> int:
    return torch._C._cuda_getDevice()


def current_stream(device: int) -> int:
    """The raw stream, as the DSLs' launchers read it."""
    return torch._C._cuda_getCurrentRawStream(device)


def current() -> torch.cuda.Stream:
    return torch.cuda.current_stream()


def on(device: torch.device) -> AbstractContextManager:
    """Makes `device` the current one: Triton launches there, wherever the tensors are."""
    if device.type != "cuda" or device.index == current_device():
        return nullcontext()
    return torch.cuda.device(device)
