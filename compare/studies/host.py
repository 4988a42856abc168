"""Host time of a call: how long the CPU takes to enqueue one, on a GPU that never lets it wait.

    python -m compare study host [--gpu h200] [--dsl triton] [--workload q1s2k,32q1s2k] [--out DIR]
    python -m compare study host --cpu       all that the CPU does for a kept call but what the driver does

Columns, microseconds a call, the median of seven rounds: `call` is `paged_attention` with `out` given, host validation
and scratch from the allocator; `plan` the same through a plan; `key` what of it finds the kept launches (addresses,
hints, a comparison of the tensors: what was checked once is not checked again), the rest being these launches;
`launch` the chosen kernel's own `launch`, which checks and dispatches anew; `graph` the replay of one captured call.
`kept`: whether calls are repeated from what was kept.
With --out the rows are kept in DIR/host.jsonl.

With --cpu, and where no GPU is, the tensors lie on the CPU, and nothing is launched: kernels are bound as for an H200,
and Triton's own launcher, in C, calls a libcuda.so.1 made here whose functions return. `call`, `plan` and `key`, of one
core, the least of 25 rounds. Against those with a GPU they lack the driver, twice 6 us for two launches, and have
another CPU's times. Exit codes: 0; 2 usage; 3 the GPU that is named is not here; 4 `call` exceeds the goal.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import statistics
import subprocess
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

import common.serving.reach
from common import gpus
from common.cases.batch import make_batch
from common.gpus import Gpu
from common.serving import prepared, tape
from common.serving.arguments import HINTS
from common.serving.call import PagedAttention
from common.serving.plan import Plan
from common.spec import AttentionShape, Features, PagedBatch
from common.spec.kernel import Capacity
from compare.competitors import registry
from compare.exits import GATE, NO_GPU, OK, USAGE, say
from compare.record import folder as run_folder
from compare.static import jit
from compare.static.helion_target import helion_as
from compare.workloads import parse_lens

HELP = "how long the CPU takes to enqueue a call; --cpu: without a GPU"
ROUNDS = 7
CALLS = 200  # a round; a GPU queues 1024 launches
GOALS = {"triton": 25.0, "helion": 37.0}  # us a call, eager
CPU_ROUNDS, CPU_CALLS = 25, 2000
AS_FOR = gpus.resolve("h200")
_DRIVER = """
#define NOTHING(name) int name() { return 0; }
int cuCtxGetCurrent(void **context) { *context = context; return 0; }
NOTHING(cuCtxGetLimit) NOTHING(cuCtxSetCurrent) NOTHING(cuCtxSetLimit) NOTHING(cuDeviceGet)
NOTHING(cuDeviceGetAttribute) NOTHING(cuDevicePrimaryCtxRetain) NOTHING(cuDriverGetVersion) NOTHING(cuFuncGetAttribute)
NOTHING(cuFuncSetAttribute) NOTHING(cuFuncSetCacheConfig) NOTHING(cuGetErrorString) NOTHING(cuLaunchKernelEx)
NOTHING(cuModuleGetFunction) NOTHING(cuModuleLoadData) NOTHING(cuOccupancyMaxActiveClusters)
NOTHING(cuPointerGetAttribute) NOTHING(cuTensorMapEncodeIm2col) NOTHING(cuTensorMapEncodeTiled)
"""
_NO_SCRATCH = dict.fromkeys(
    [f"{kind}_scratch_{what}" for kind in ("global", "profile") for what in ("size", "align")], 0
)


def enqueue_us(call: Callable[[], object], calls: int) -> float:
    """Median host time of `call`; the device is idle when a round begins, and its queue holds a round."""
    call()
    rounds = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        rounds.append((time.perf_counter() - begin) / calls * 1e6)
    torch.cuda.synchronize()
    return statistics.median(rounds)


def columns(dsl: str, batch: PagedBatch, calls: int) -> dict[str, float | str]:
    """Measure one row: host microseconds of each way to make the call."""
    auto = registry.load(f"{dsl}/auto")
    tensors = (
        batch.query,
        batch.key_cache,
        batch.value_cache,
        batch.block_table,
        batch.query_start_loc,
        batch.seq_lens,
    )
    stats, out = batch.stats, torch.empty_like(batch.query)
    hints = {name: getattr(stats, name) for name in HINTS}
    plan = auto.plan_paged_attention(batch.shape, batch.num_tokens, batch.num_seqs, stats.max_seq_len, batch.device)
    choice = plan.choice_of(stats, Features().names())
    kernel = registry.load(f"{dsl}/{choice.kernel}")
    workspace = kernel.workspace(batch.shape, Capacity.of(batch), choice.config)

    def call() -> None:
        auto.paged_attention(*tensors, out=out, **hints)

    def planned() -> None:
        plan(*tensors, out=out, **hints)

    def launch() -> None:
        kernel.launch(batch, Features(), out, choice.config, workspace)

    times = {name: enqueue_us(f, calls) for name, f in (("call", call), ("plan", planned), ("launch", launch))}
    with launched_by_nobody():
        times["key"] = enqueue_us(planned, calls)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    kept, known = auto.paged_attention.kept
    return times | {"graph": enqueue_us(graph.replay, calls), "kept": f"{kept}/{known}", "kernel": choice.kernel}


def launched_by_nobody() -> contextlib.AbstractContextManager:
    """In this context a kept call finds its launches but does not make them."""
    return mock.patch.object(PagedAttention, "_again", lambda *given: True)


@contextlib.contextmanager
def driver_of_nothing() -> Iterator[type]:
    """In this context Triton compiles its launchers for a driver that does nothing, with a cache of their own; yields
    their class."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "driver.c"), Path(folder, "libcuda.so.1")
        source.write_text(_DRIVER)
        command = ["cc", "-O2", "-w", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", str(source), "-o", str(library)]
        subprocess.run(command, check=True)
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
        here = {"TRITON_LIBCUDA_PATH": folder, "TRITON_CACHE_DIR": folder}
        with mock.patch.dict(os.environ, here), jit.nvidia_launchers() as launcher:
            yield launcher


def compiled(launch: jit.Launch, launcher: type) -> Any:
    """A stand-in with the attributes of Triton's CompiledKernel that a kept launch needs."""
    source = jit.bind(launch, jit.gpu_target(AS_FOR.arch)).source
    metadata = SimpleNamespace(launch_cooperative_grid=False, launch_pdl=False, **_NO_SCRATCH)
    run = launcher(source, metadata)
    return SimpleNamespace(run=run, function=1, packed_metadata=(4, 1, 1024), src=source, metadata=metadata)


@contextlib.contextmanager
def nothing_launched() -> Iterator[list[jit.Launch]]:
    """In this context calls on the CPU are kept as on a GPU; yields the list of launches that the JIT was asked for."""
    dispatched: list[jit.Launch] = []

    def instead(launch: jit.Launch) -> Any:
        dispatched.append(launch)
        return compiled(launch, launcher)

    with contextlib.ExitStack() as stack:
        for module, name, value in (
            (tape, "has_jit", lambda device: True),
            (tape, "current_device", lambda: -1),
            (tape, "current_stream", lambda device: 7),
            (prepared, "gpu_of", lambda device: AS_FOR),
            (common.serving.reach, "gpu_of", lambda device: AS_FOR),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        stack.enter_context(helion_as(AS_FOR))
        launcher = stack.enter_context(driver_of_nothing())
        stack.enter_context(jit.intercepted(instead))
        yield dispatched


def least_us(call: Callable[[], object], dispatched: list[jit.Launch]) -> float:
    """The least time of a call, in time of one core, because others use the cores; `call` must be kept."""
    call()
    before = len(dispatched)
    call()
    if len(dispatched) > before:
        raise RuntimeError("the call was dispatched again: nothing of it is kept")
    return min(timeit.Timer(call, timer=time.process_time).repeat(CPU_ROUNDS, CPU_CALLS)) / CPU_CALLS * 1e6


def kept_columns(dsl: str, workload: str, dispatched: list[jit.Launch]) -> tuple[float, float, float]:
    """(call, plan, key) of one batch."""
    family = registry.load(f"{dsl}/auto").FAMILY
    batch = make_batch(parse_lens(workload), AttentionShape(), fill=False)
    stats, out, tensors = batch.stats, torch.empty_like(batch.query), (
        batch.query, batch.key_cache, batch.value_cache, batch.block_table, batch.query_start_loc, batch.seq_lens,
    )  # fmt: skip
    hints = {name: getattr(stats, name) for name in HINTS}
    plan = Plan(family, batch.shape, batch.num_tokens, batch.num_seqs, stats.max_seq_len, batch.device)
    calls = [lambda attend=attend: attend(*tensors, out=out, **hints) for attend in (PagedAttention(family), plan)]
    times = [least_us(call, dispatched) for call in calls]
    with launched_by_nobody():
        return *times, least_us(calls[-1], dispatched)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dsl", choices=registry.DSLS, help="one of them (default both)")
    parser.add_argument("--workload", default="q1s2k,32q1s2k", help="batches (default q1s2k,32q1s2k)")
    parser.add_argument("--gpu", default="auto", help="assert that this GPU is here (default: the one that is)")
    parser.add_argument("--cpu", action="store_true", help="without a GPU, though one is here; nothing is launched")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of host.jsonl")


def main(asked: argparse.Namespace) -> int:
    here = gpus.detect()
    try:
        meant = here if asked.gpu == "auto" else gpus.resolve(asked.gpu)
    except gpus.UnknownGpu as error:
        say(error)
        return USAGE
    if meant != here and not asked.cpu:
        print(f"{asked.gpu} is not here: host time is that of launches which happen; --cpu is without them")
        return NO_GPU
    dsls, workloads = (asked.dsl,) if asked.dsl else registry.DSLS, asked.workload.split(",")
    if here is None or asked.cpu:
        return _without_gpu(dsls, workloads, asked.out)
    return _with_gpu(here, dsls, workloads, asked.out)


def _with_gpu(gpu: Gpu, dsls: Sequence[str], workloads: Sequence[str], out: Path | None) -> int:
    missed = False
    for dsl in dsls:
        for name in workloads:
            batch = make_batch(parse_lens(name), AttentionShape(), device="cuda")
            row = columns(dsl, batch, CALLS)
            missed |= row["call"] > GOALS[dsl]
            figures = " ".join(f"{k} {v:6.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
            print(f"{dsl:7} {name:12} {figures}  (goal {GOALS[dsl]:.0f})", flush=True)
            if out is not None:
                _keep(out, {"dsl": dsl, "workload": name, "gpu": gpu.name, "commit": run_folder.commit()} | row)
    return GATE if missed else OK


def _without_gpu(dsls: Sequence[str], workloads: Sequence[str], out: Path | None) -> int:
    """Print the rows measured without a GPU. They are not written to a file, to keep them apart from GPU rows."""
    if out is not None:
        print("--out: found without a GPU, allowed where calls are launched")
        return USAGE
    with nothing_launched() as dispatched:
        for dsl in dsls:
            for workload in workloads:
                call, plan, key = kept_columns(dsl, workload, dispatched)
                print(f"{dsl:7} {workload:12} call {call:6.2f} plan {plan:6.2f} key {key:6.2f}", flush=True)
    return OK


def _keep(folder: Path, row: dict[str, float | str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "host.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
