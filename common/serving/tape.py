"""The launches of one call, kept so that the next call of the same signature skips the JIT's dispatch.

Triton's dispatch takes four times as long on the host as the launch itself, mostly to find the binary again. `Tape.of`
keeps what a first call launched: binary, grid and arguments, with the slot that each pointer came from; `replay` puts
in the new pointers. A tape belongs to one signature (`common.serving.call`), which holds everything that the kernel's
host code or Triton's specialisation reads: shapes, strides, dtypes, devices, alignment, floats, the choice. Tensor
descriptors are made anew, and work on a second stream goes to the one beside the current stream, with the same waits.
What cannot be replayed has no tape and is dispatched as usual: pointers outside the arguments, a second stream that
nobody joins, an interpreter.
"""

import copy
import ctypes
import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, lru_cache
from types import CodeType, SimpleNamespace
from typing import Any

import torch

from common.spec.kernel import side_of

# What a launch hands to Triton's JIT, and the little of torch and Triton that repeating it needs.
#
# Private names of Triton's compiled kernels are touched here and nowhere else, by their attributes: `common` imports
# no triton. They are the same in 3.6 and 3.7 but for the launcher's order of arguments.


patching = threading.RLock()  # of what torch and Triton call
_unknown = itertools.count(1)
_launchers: dict[tuple[type, tuple[str, ...]], Any] = {}  # Triton's launchers, by the types of the run-time arguments


@dataclass(frozen=True)
class Launch:
    """A launch as the JIT made it.

    compiled: Triton's CompiledKernel, or None where nothing was compiled. args: all parameters of the kernel in order,
    compile-time ones included. constant: whether each is compile-time. stream: the raw stream.
    """

    compiled: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    constant: tuple[bool, ...]
    stream: int

    @classmethod
    def of(cls, function: Any, compiled: Any, grid: Any, args: tuple, kwargs: dict[str, Any], stream: int) -> "Launch":
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
    """`stream` waited for the work that `other` held: two torch.cuda.Stream."""

    stream: Any
    other: Any


@contextmanager
def recorded(device: torch.device) -> Iterator[list[Launch | Wait]]:
    """The launches of this thread through Triton's JIT, Helion's too, as they happen, and which streams it makes wait
    for each other. Empty where kernels are interpreted.

    `JITFunction.run` is a private hook; tests/common/serving/test_call_kept.py is its canary.
    """
    found: list[Launch | Wait] = []
    if not is_taped(device):
        yield found
        return
    from triton.runtime.jit import JITFunction

    me, run_jit, wait = threading.get_ident(), JITFunction.run, torch.cuda.Stream.wait_stream

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        compiled = run_jit(self, *args, grid=grid, warmup=warmup, **kwargs)
        if threading.get_ident() == me:
            stream = current_stream(device.index)
            found.append(Launch.of(self, None if warmup else compiled, grid, args, kwargs, stream))
        return compiled

    def wait_stream(self: torch.cuda.Stream, stream: torch.cuda.Stream) -> None:
        wait(self, stream)
        if threading.get_ident() == me:
            found.append(Wait(self, stream))

    with patching:
        JITFunction.run, torch.cuda.Stream.wait_stream = run, wait_stream
        try:
            yield found
        finally:
            JITFunction.run, torch.cuda.Stream.wait_stream = run_jit, wait


def driver_call(entry: Launch) -> tuple[Callable, tuple, list[tuple[Any, bool]], bool]:
    """The driver's launch function behind a compiled kernel; the arguments that it takes between the stream and the
    kernel's arguments; the latter, each with whether it is compile-time; and whether it takes them as one list.

    On NVIDIA the C function itself, 1 us faster than its wrapper, where a kernel needs none of Triton's scratch.
    """
    compiled, launcher = entry.compiled, entry.compiled.run
    arguments = list(zip(entry.args, entry.constant, strict=True))
    needs = [getattr(launcher, f"{kind}_scratch_size", 1) for kind in ("global", "profile")]
    hooks = (None, None, None)  # no launch metadata, no hooks: `observed` calls are not replayed
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
    """A Triton launcher for the run-time arguments only, with tuples opened, and these arguments.

    Triton's own launcher also takes compile-time arguments and unused features, and skips them in C: up to three times
    as slow. In 3.6 a launcher is a C file, compiled in 0.2 s and cached on disk.
    """
    types = getattr(getattr(compiled, "src", None), "signature", None)
    if types is None or len(types) != len(arguments):
        return launcher, arguments
    opened = [(leaf, kind) for (value, _), kinds in zip(arguments, types.values(), strict=True)
              for leaf, kind in _typed_leaves(value, kinds)]  # fmt: skip
    return _of_kinds(launcher, compiled, types), [(value, False) for value, _ in opened]


def _of_kinds(launcher: Any, compiled: Any, types: dict[Any, Any]) -> Any:
    """Triton's launcher for the run-time arguments of these types."""
    kinds = tuple(kind for each in types.values() for _, kind in _typed_leaves(each, each))
    key = (type(launcher), kinds)
    if key not in _launchers:
        source = SimpleNamespace(signature=dict(enumerate(kinds)), constants={})
        _launchers[key] = type(launcher)(source, compiled.metadata)
    return _launchers[key]


def _typed_leaves(value: Any, kind: Any) -> Iterator[tuple[Any, Any]]:
    """The run-time arguments inside one argument, each with its type."""
    if isinstance(kind, tuple):
        for pair in zip(value, kind, strict=True):
            yield from _typed_leaves(*pair)
    elif kind != "constexpr":
        yield value, kind


def loaded(compiled: Any) -> Any:
    """A compiled kernel, loaded onto the current device, with the launcher of its tapes."""
    launcher, types = compiled.run, getattr(getattr(compiled, "src", None), "signature", None)
    if type(launcher).__name__ == "CudaLauncher" and types:
        _of_kinds(launcher, compiled, types)
    return compiled


def begin_thread(device: torch.device) -> None:
    """Make `device` the current one of a new thread."""
    if device.index is not None:
        torch.cuda.set_device(device)


_untaped = threading.local()


@contextmanager
def untaped() -> Iterator[None]:
    """In this context this thread's calls leave no tape: what they launch does not run."""
    _untaped.on = True
    try:
        yield
    finally:
        _untaped.on = False


def is_taped(device: torch.device) -> bool:
    """Whether launches on `device` are to be kept: they go through the JIT, and they run."""
    return has_jit(device) and not getattr(_untaped, "on", False)


def observed() -> bool:
    """Whether a profiler hooks Triton's launches: then no launch may bypass Triton."""
    knobs = sys.modules.get("triton.knobs")
    if knobs is None:
        return False
    runtime = knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    return bool((enter is not None and getattr(enter, "calls", True)) or (leave and getattr(leave, "calls", True)))


def has_jit(device: torch.device) -> bool:
    """Whether launches on `device` go through the JIT; on a CPU kernels are interpreted."""
    return device.type == "cuda"


def current_device() -> int:
    return torch._C._cuda_getDevice()


def current_stream(device: int) -> int:
    """The raw stream, as the DSLs' launchers read it."""
    return torch._C._cuda_getCurrentRawStream(device)


def current() -> torch.cuda.Stream:
    return torch.cuda.current_stream()


def capture(device: int) -> int:
    """The number of the graph that the device's current stream is captured into; 0 outside a capture. Where the driver
    does not tell it is negative, and another one each time."""
    if device < 0:
        return 0
    if device != current_device():
        with torch.cuda.device(device):
            return capture(device)
    return _number(current_stream(device)) if torch.cuda.is_current_stream_capturing() else 0


def _number(stream: int) -> int:
    status, number = ctypes.c_int(), ctypes.c_ulonglong()
    ask = _capture_info()
    failed = ask is None or ask(ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number))
    return -next(_unknown) if failed else number.value


@cache
def _capture_info() -> Callable[..., int] | None:
    """The driver's function; None where it lacks one."""
    library, name = ("libamdhip64.so", "hip") if torch.version.hip else ("libcuda.so.1", "cu")
    try:
        return getattr(ctypes.CDLL(library), f"{name}StreamGetCaptureInfo")
    except (OSError, AttributeError):
        return None


def on(device: torch.device) -> AbstractContextManager:
    """Make `device` current: Triton launches there, wherever the tensors are."""
    if device.type != "cuda" or device.index == current_device():
        return nullcontext()
    return torch.cuda.device(device)


_PLAIN = (int, float, bool, str, type(None))


@dataclass(frozen=True, slots=True)
class Tape:
    """replay(pointers, stream): launch everything on `stream`, the current one of the current device."""

    replay: Callable[[Sequence[int], int], None]

    @classmethod
    def of(
        cls, launches: Sequence[Launch | Wait], slots: Sequence[torch.Tensor | None], stream: int, regions: int = 1
    ) -> "Tape | None":
        """A tape, or None where a launch cannot be repeated from pointers alone.

        slots: the tensors that a call brings; `replay` gets their addresses in this order, 0 for None. The last
        `regions` slots are memory of the call itself: pointers into them are kept as offsets.
        """
        script = _Script(slots, stream, regions)
        lines = [script.line(entry) for entry in launches] if _joined(launches, stream) else []
        if not any(isinstance(entry, Launch) for entry in launches) or None in lines or not lines:
            return None
        return cls(script.function(lines))


@dataclass
class _Script:
    """The source of a `replay`, and the values of its names.

    One line a launch: `c0(c1, c2, c3, stream, c4, p0, (c5, p1), p7 + c6)`, with a name for each constant and each
    slot's address: three times as fast as a list of values. A launch on a second stream goes to the one beside the
    current stream (common.spec.kernel.side_stream).
    """

    slots: Sequence[torch.Tensor | None]
    stream: int
    regions: int
    names: dict[str, Any] = field(
        default_factory=lambda: {"current": current, "side_of": side_of, "described": _described}
    )
    beside: bool = False

    def function(self, lines: Sequence[str]) -> Callable[[Sequence[int], int], None]:
        slots = "".join(f"p{i}, " for i in range(len(self.slots)))
        streams = ["here = current()", "side = side_of(here)"] if self.beside else []
        body = ["def replay(pointers, stream):", f"{slots}= pointers", *streams, *lines]
        exec(_code("\n    ".join(body)), self.names)
        return self.names.pop("replay")

    def line(self, entry: Launch | Wait) -> str | None:
        """The line of a launch, or of a stream that waits for another; None where it cannot be repeated."""
        if isinstance(entry, Wait):
            self.beside = True
            ends = ["here" if end.cuda_stream == self.stream else "side" for end in (entry.stream, entry.other)]
            return f"{ends[0]}.wait_stream({ends[1]})"
        if entry.compiled is None:
            return None
        call, head, arguments, apart = driver_call(entry)
        sources = [self._constant(value) if constant else self._source(value) for value, constant in arguments]
        if None in sources:
            return None
        stream = "stream" if entry.stream == self.stream else "side.cuda_stream"
        front = [*map(self._constant, entry.grid), stream, *map(self._constant, head)]
        passed = [*front, _tuple(sources)] if apart else front + sources
        return f"{self._constant(call)}({', '.join(passed)})"

    def _constant(self, value: Any) -> str:
        name = f"c{len(self.names)}"
        self.names[name] = value
        return name

    def _source(self, value: Any) -> str | None:
        """Where a replay finds a run-time argument of a kernel; None where it cannot."""
        if isinstance(value, torch.Tensor):
            return self._address(value)
        if isinstance(getattr(value, "base", None), torch.Tensor) and hasattr(value, "block_shape"):
            return self._descriptor(value)
        if isinstance(value, tuple) and any(isinstance(leaf, torch.Tensor) for leaf in _leaves(value)):
            sources = [self._source(leaf) for leaf in value]  # the operands of features
            return None if None in sources else _tuple(sources)
        return self._constant(value) if all(map(_is_plain, _leaves(value))) else None

    def _address(self, tensor: torch.Tensor) -> str | None:
        """The slot that a pointer belongs to, and its offset in a region."""
        pointer, slots = tensor.data_ptr(), [(f"p{i}", slot) for i, slot in enumerate(self.slots) if slot is not None]
        found = [name for name, slot in slots if slot.data_ptr() == pointer]
        if not found:
            found = [
                f"{name} + {self._constant(pointer - slot.data_ptr())}"
                for name, slot in slots
                if int(name[1:]) >= len(self.slots) - self.regions
                and 0 <= pointer - slot.data_ptr() < slot.numel() * slot.element_size()
            ]
        return found[0] if len(found) == 1 and pointer else None

    def _descriptor(self, value: Any) -> str | None:
        """Triton's TensorDescriptor: shape, strides and block stay; its base is a slot or lies in a region."""
        address = self._address(value.base)
        if address is None:
            return None
        template = copy.copy(value)
        template.base = None  # keeps no tensor alive
        return f"described({self._constant(template)}, {address})"


@lru_cache(maxsize=1024)
def _code(source: str) -> CodeType:
    """The signatures of one kernel have one source: compiling it takes 300 us."""
    return compile(source, "<common.serving.tape>", "exec")


def _tuple(sources: Sequence[str]) -> str:
    return "(" + "".join(f"{source}, " for source in sources) + ")"


def _is_plain(leaf: Any) -> bool:
    """Whether it is a number or a word, or one that Triton's compiler holds (`tl.constexpr`)."""
    return isinstance(leaf, _PLAIN) or type(leaf).__name__ == "constexpr"


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


class _Address:
    """The attributes of a descriptor's base that a launcher reads."""

    __slots__ = ("_pointer",)

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer

    def data_ptr(self) -> int:
        return self._pointer


def _described(template: Any, pointer: int) -> Any:
    made = object.__new__(type(template))  # copy.copy and __init__ are slower
    made.__dict__.update(template.__dict__, base=_Address(pointer))
    return made


def _joined(launches: Sequence[Launch | Wait], stream: int) -> bool:
    """Whether every other stream waited for `stream` before its first launch, and `stream` for it at the end."""
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
