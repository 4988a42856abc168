"""Compile kernels of both DSLs for a GPU that is not here, exactly as Triton's JIT would specialise them there.

`module.launch(...)` runs on CPU tensors with JITFunction.run replaced by a recorder; Helion's generated host function
ends in the same call, so one recorder serves both. Each recorded launch is then bound by the JIT's own binder for the
target's backend, which decides what a hand-made signature gets wrong: integers equal to 1 become constants, pointers
and strides divisible by 16 and tensors below 2 GiB become attributes. Without them the gfx942 loop of a 64 x 64 tile
had 63 two-byte loads instead of 8 sixteen-byte ones.

A process compiles for one target: Helion caches what it generated. compare.compile_child gives each its own.
Private hooks are touched in `_patched_run`, `_specialise` and compare.helion_target alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from common.gpus import Gpu
from common.kernel import Capacity
from common.spec import Features, PagedBatch
from compare.codeobject import CodeFacts, read
from compare.helion_target import helion_as

_target: list[str] = []  # the arch that this process compiles for, once it has one


class CannotCompile(RuntimeError):
    """This process cannot cross-compile: it interprets, or it has compiled for another target."""


@dataclass(frozen=True)
class Launch:
    """One recorded launch: the JIT function, its grid, its arguments as passed, and the compiler's options."""

    function: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class KernelFacts:
    """One compiled kernel of a launch. `dropped`: launch options that the target's compiler does not know.

    `runtime_args` counts what a launch passes: tuples opened, None and constants dropped. `cache` says whether K and V
    were taken to lie within 2 GiB, where AMD's compiler uses buffer instructions, or not.
    """

    kernel: str
    arch: str
    grid: tuple[int, ...]
    num_warps: int
    num_stages: int
    runtime_args: int
    cache: str
    dropped: tuple[str, ...]
    seconds: float
    code: CodeFacts

    def as_dict(self) -> dict[str, Any]:
        """Flat and JSON-able: the fields of `code` lie beside the others."""
        flat = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "code"}
        flat |= {"grid": list(self.grid), "dropped": list(self.dropped), "seconds": round(self.seconds, 2)}
        return flat | dataclasses.asdict(self.code)


def gpu_target(arch: str) -> Any:
    """Triton's GPUTarget for `sm_90` or `gfx942`."""
    from triton.backends.compiler import GPUTarget

    if arch.startswith("sm_"):
        return GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
    return GPUTarget("hip", arch, 64)


@contextlib.contextmanager
def _patched_run(make: Callable[[Callable], Callable]) -> Iterator[None]:
    """JITFunction.run, where every launch of both DSLs ends, replaced by make(the original)."""
    from triton.runtime.jit import JITFunction

    original = JITFunction.run
    JITFunction.run = make(original)
    try:
        yield
    finally:
        JITFunction.run = original


def _plain_grid(function: Any, grid: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[int, ...]:
    if callable(grid):
        grid = grid(dict(zip((p.name for p in function.params), args, strict=False)) | kwargs)
    return tuple(int(size) for size in grid)


@contextlib.contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Record every launch of a Triton kernel instead of running it."""
    launches: list[Launch] = []

    def make(original: Callable) -> Callable:
        def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
            launches.append(Launch(self, _plain_grid(self, grid, args, kwargs), args, kwargs))

        return run

    with _patched_run(make):
        yield launches


def launched_facts(call: Callable[[], object]) -> list[KernelFacts]:
    """Run `call` on the GPU that is here and read the code objects of what it launched: the very code that is timed."""
    seen: list[KernelFacts] = []

    def make(original: Callable) -> Callable:
        def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            compiled = original(self, *args, grid=grid, warmup=warmup, **kwargs)
            took = time.perf_counter() - begin
            launch = Launch(self, _plain_grid(self, grid, args, kwargs), args, kwargs)
            _, _, runtime, dropped = _specialise(launch, compiled.metadata.target)
            seen.append(_facts(launch, compiled, runtime, dropped, "as allocated", took))
            return compiled

        return run

    with _patched_run(make):
        call()
    return seen


@contextlib.contextmanager
def compiled_only() -> Iterator[None]:
    """Inside, a launch compiles for the GPU that is here, exactly as it would be launched, and runs nothing."""

    def make(original: Callable) -> Callable:
        def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            return original(self, *args, grid=grid, warmup=True, **kwargs)

        return run

    with _patched_run(make):
        yield


def flatten(value: Any) -> list[Any]:
    """The run-time arguments inside one argument: tuples and NamedTuples opened, None dropped."""
    if value is None:
        return []
    if isinstance(value, tuple | list):
        return [leaf for item in value for leaf in flatten(item)]
    return [value]


def _runtime_leaves(value: Any, kind: Any) -> list[Any]:
    """`flatten`, without what the binder made a constant; `kind` is the binder's type of the argument."""
    if kind == "constexpr":
        return []
    if isinstance(value, tuple | list):
        return [leaf for item, k in zip(value, kind, strict=True) for leaf in _runtime_leaves(item, k)]
    return flatten(value)


def _specialise(launch: Launch, target: Any) -> tuple[Any, dict[str, Any], list[Any], tuple[str, ...]]:
    """Triton's own binding of a launch for `target`: source, options, run-time arguments, options it does not know."""
    from triton.compiler import ASTSource, make_backend
    from triton.runtime.jit import create_function_from_signature

    function = launch.function
    backend = make_backend(target)
    known = set(backend.parse_options({}).__dict__) | {p.name for p in function.params}
    kwargs = {name: value for name, value in launch.kwargs.items() if name in known}
    binder = create_function_from_signature(function.signature, function.params, backend)
    bound, specialization, options = binder(*launch.args, **kwargs, debug=False)
    options, signature, constants, attributes = function._pack_args(backend, kwargs, bound, specialization, options)
    source = ASTSource(function, signature, constants, attributes)
    runtime = [
        leaf
        for value, spec in zip(bound.values(), specialization, strict=True)
        for leaf in _runtime_leaves(value, spec[0])
    ]
    return source, options.__dict__, runtime, tuple(sorted(set(launch.kwargs) - known))


def code_key(launch: Launch, gpu: Gpu) -> str:
    """What decides the code of a launch on `gpu`: source, specialisation and options. Compiles nothing."""
    source, options, _, _ = _specialise(launch, gpu_target(gpu.arch))
    return f"{source.hash()} {sorted(options.items(), key=lambda pair: pair[0])}"


def compile_launch(launch: Launch, gpu: Gpu, cache: str = "within 2 GiB") -> KernelFacts:
    """Compile one recorded launch for `gpu` and read the code object. Raises what Triton's compiler raises."""
    import triton

    begin = time.perf_counter()
    target = gpu_target(gpu.arch)
    source, options, runtime, dropped = _specialise(launch, target)
    compiled = triton.compile(source, target=target, options=options)
    return _facts(launch, compiled, runtime, dropped, cache, time.perf_counter() - begin)


def _facts(
    launch: Launch, compiled: Any, runtime: list[Any], dropped: tuple[str, ...], cache: str, took: float
) -> KernelFacts:
    arch = compiled.metadata.target.arch
    return KernelFacts(
        kernel=launch.function.__name__,
        arch=f"sm_{arch}" if isinstance(arch, int) else arch.split(":")[0],
        grid=launch.grid,
        num_warps=compiled.metadata.num_warps,
        num_stages=compiled.metadata.num_stages,
        runtime_args=len(runtime),
        cache=cache,
        dropped=dropped,
        seconds=took,
        code=read(compiled),
    )


def _claim(arch: str) -> None:
    import triton

    if triton.knobs.runtime.interpret:
        raise CannotCompile("TRITON_INTERPRET is set: a process that interprets cannot compile; use another")
    if _target and _target[0] != arch:
        raise CannotCompile(f"this process compiles for {_target[0]}, not {arch}: Helion caches code; use another")
    _target[:] = [arch]


def beyond_2gib(batch: PagedBatch) -> PagedBatch:
    """The same batch with K and V as views of storages above 2 GiB, never touched (so never resident)."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        storage = torch.empty(2**31 // tensor.element_size() + 1, dtype=tensor.dtype)
        return storage.as_strided(tensor.shape, tensor.stride())

    return batch.replace(key_cache=moved(batch.key_cache), value_cache=moved(batch.value_cache))


def static_facts(
    kernel_module: ModuleType,
    batch: PagedBatch,
    features: Features,
    config: Any,
    gpu: Gpu,
    *,
    lse: torch.Tensor | None = None,
    large_cache: bool = False,
) -> list[KernelFacts]:
    """Facts of every kernel that `kernel_module.launch` would launch for this batch on `gpu`, in launch order.

    batch: on the CPU; no kernel reads its values. large_cache: take K and V to lie in tensors above 2 GiB, as a serving
    engine's do. Raises CannotCompile, the module's own typed errors, and what the compiler raises.
    """
    _claim(gpu.arch)
    if large_cache:
        batch = beyond_2gib(batch)
    workspace = kernel_module.workspace(batch.shape, Capacity.of(batch), config)
    with helion_as(gpu), recorded() as launches:
        kernel_module.launch(batch, features, torch.empty_like(batch.query), config, workspace, lse=lse)
    return [compile_launch(launch, gpu, "beyond 2 GiB" if large_cache else "within 2 GiB") for launch in launches]
