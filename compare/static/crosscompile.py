"""Compile kernels of both DSLs for a GPU that is not here, exactly as Triton's JIT would specialise them there.

`module.launch(...)` runs on CPU tensors with the launches of Triton kernels intercepted; each is bound by the JIT's own
binder for the target's backend (compare.static.jit) and compiled without a driver. What comes out is a CompiledLaunch:
its facts are read, or an executor runs it on the very tensors.

A process compiles for one target: Helion caches what it generated. compare.static.compile gives each its own.
"""

import contextlib
import dataclasses
import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from common.absent import gpu_target, helion_as
from common.gpus import Gpu
from common.spec import Features, PagedBatch
from common.spec.kernel import Capacity
from common.spec.refusals import expect_fp8
from compare.static import jit
from compare.static.codeobject import CodeFacts, read
from compare.static.compiled import CompiledLaunch, Executor, from_triton
from compare.workloads.workload import empty_output

WITHIN, BEYOND = "within 2 GiB", "beyond 2 GiB"
COLLECT_AFTER = 200_000  # objects; Python's default of 700 would spend 12% of the time on collections
_target: list[str] = []  # the arch that this process compiles for, once it has one
_known: dict[str, Any] = {}  # what `executing` compiled here, by the JIT's key


class CannotCompile(RuntimeError):
    """This process cannot cross-compile: it interprets, or it has compiled for another target."""


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


def code_key(launch: jit.Launch, gpu: Gpu) -> str:
    """What decides the code of a launch on `gpu`: source, specialisation and options. Compiles nothing."""
    return jit.bind(launch, gpu_target(gpu.arch)).key


def compiled_launch(launch: jit.Launch, gpu: Gpu, known: dict[str, Any] | None = None) -> CompiledLaunch:
    """Compile one launch for `gpu`. `known`: what this process compiled before, by key; it is added to.

    Raises what Triton's compiler raises.
    """
    begin = time.perf_counter()
    target = gpu_target(gpu.arch)
    bound = jit.bind(launch, target)
    known = {} if known is None else known
    if bound.key not in known:
        known[bound.key] = jit.compile_for(bound, target)
    seconds = time.perf_counter() - begin
    return from_triton(known[bound.key], launch.function.__name__, launch.grid, bound.arguments, bound.dropped, seconds)


def facts_of(launch: CompiledLaunch, cache: str = WITHIN) -> KernelFacts:
    """Read the code object of a compiled launch. Raises UnreadableCode."""
    return KernelFacts(
        kernel=launch.kernel,
        arch=launch.arch,
        grid=_short(launch.grid),
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        runtime_args=len(launch.arguments),
        cache=cache,
        dropped=launch.dropped,
        seconds=launch.seconds,
        code=read(launch),
    )


def _short(grid: tuple[int, ...]) -> tuple[int, ...]:
    """The grid without trailing dimensions of size 1."""
    while len(grid) > 1 and grid[-1] == 1:
        grid = grid[:-1]
    return grid


def compile_launch(launch: jit.Launch, gpu: Gpu, cache: str = WITHIN) -> KernelFacts:
    """Compile one recorded launch for `gpu` and read the code object. Raises what Triton's compiler raises."""
    return facts_of(compiled_launch(launch, gpu), cache)


@contextlib.contextmanager
def executing(gpu: Gpu, execute: Executor) -> Iterator[list[CompiledLaunch]]:
    """In this context a launch of either DSL is compiled for `gpu` and passed to `execute` with its CPU tensors, in
    order.

    The launches are kept in the list; code that two of them share is compiled once. Raises CannotCompile, what the
    compiler raises and what `execute` raises.
    """
    claim(gpu.arch)
    launches: list[CompiledLaunch] = []

    def instead(launch: jit.Launch) -> None:
        launches.append(compiled_launch(launch, gpu, _known))
        execute(launches[-1])

    with helion_as(gpu), jit.intercepted(instead):
        yield launches


def claim(arch: str) -> None:
    """Dedicate this process to compiling for `arch`, with rare garbage collection. Raises CannotCompile."""
    import triton

    if triton.knobs.runtime.interpret:
        raise CannotCompile("TRITON_INTERPRET is set: a process that interprets cannot compile; use another")
    if _target and _target[0] != arch:
        raise CannotCompile(f"this process compiles for {_target[0]}, not {arch}: Helion caches code; use another")
    _target[:] = [arch]
    gc.set_threshold(COLLECT_AFTER, 50, 100)


def beyond_2gib(batch: PagedBatch, *, copy: bool = False) -> PagedBatch:
    """The same batch with K and V as views of storages above 2 GiB, which only `copy` touches, so that they never
    become resident otherwise."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        storage = torch.empty(2**31 // tensor.element_size() + 1, dtype=tensor.dtype)
        view = storage.as_strided(tensor.shape, tensor.stride())
        return view.copy_(tensor) if copy else view

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

    batch: on the CPU; no kernel reads its values. large_cache: take K and V to lie in tensors above 2 GiB, as in a
    serving engine. Raises CannotCompile, the module's typed errors, and what the compiler raises.
    """
    claim(gpu.arch)
    out = empty_output(batch, features)
    for name, tensor in {"query": batch.query, "key_cache": batch.key_cache, "out": out}.items():
        expect_fp8(tensor, name, gpu.arch)
    if large_cache:
        batch = beyond_2gib(batch)
    workspace = kernel_module.workspace(batch.shape, Capacity.of(batch), config)
    with helion_as(gpu), jit.recorded() as launches:
        kernel_module.launch(batch, features, out, config, workspace, lse=lse)
    return [compile_launch(launch, gpu, BEYOND if large_cache else WITHIN) for launch in launches]
