"""Host time of a call without a GPU: all that the CPU does for a kept call but what the driver does.

    python -m compare.studies.hostcpu [--kernels triton,helion] [--workload q1s2k,32q1s2k]

The tensors lie on the CPU, and nothing is launched: kernels are bound as for an H200, and Triton's own launcher, in C,
calls a libcuda.so.1 made here whose functions return. Columns, microseconds of one core a call, the least of 25 rounds:
`call` is `paged_attention` with `out` given, host validation and scratch from the allocator; `plan` the same through a
plan. Set against compare.studies.host it lacks the driver, twice 6 us for two launches, and has another CPU's times.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

import common.serving.plan
from common import gpus
from common.cases.batch import make_batch
from common.serving import prepared, tape
from common.serving.call import PagedAttention
from common.serving.plan import Plan
from common.spec import AttentionShape
from compare.competitors import registry
from compare.static import jit
from compare.static.helion_target import helion_as
from compare.workloads import parse_lens

ROUNDS, CALLS = 25, 2000
GPU = gpus.resolve("h200")
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


@contextlib.contextmanager
def driver_of_nothing() -> Iterator[type]:
    """Inside, Triton compiles its launchers for a driver that does nothing, into a cache of their own; their class."""
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
    """As much of Triton's CompiledKernel as a kept launch needs."""
    source = jit.bind(launch, jit.gpu_target(GPU.arch)).source
    metadata = SimpleNamespace(launch_cooperative_grid=False, launch_pdl=False, **_NO_SCRATCH)
    run = launcher(source, metadata)
    return SimpleNamespace(run=run, function=1, packed_metadata=(4, 1, 1024), src=source, metadata=metadata)


@contextlib.contextmanager
def nothing_launched() -> Iterator[list[jit.Launch]]:
    """Inside, calls on the CPU are kept as on a GPU; lists what the JIT was asked for."""
    dispatched: list[jit.Launch] = []

    def instead(launch: jit.Launch) -> Any:
        dispatched.append(launch)
        return compiled(launch, launcher)

    with contextlib.ExitStack() as stack:
        for module, name, value in (
            (tape, "has_jit", lambda device: True),
            (tape, "current_device", lambda: -1),
            (tape, "current_stream", lambda device: 7),
            (prepared, "gpu_of", lambda device: GPU),
            (common.serving.plan, "gpu_of", lambda device: GPU),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        stack.enter_context(helion_as(GPU))
        launcher = stack.enter_context(driver_of_nothing())
        stack.enter_context(jit.intercepted(instead))
        yield dispatched


def least_us(call: Callable[[], object], dispatched: list[jit.Launch]) -> float:
    """Of one core, as others use the cores; `call` has to be kept."""
    call()
    before = len(dispatched)
    call()
    if len(dispatched) > before:
        raise RuntimeError("the call was dispatched again: nothing of it is kept")
    return min(timeit.Timer(call, timer=time.process_time).repeat(ROUNDS, CALLS)) / CALLS * 1e6


def columns(dsl: str, workload: str, dispatched: list[jit.Launch]) -> tuple[float, float]:
    """(call, plan) of one batch."""
    family = registry.load(f"{dsl}/auto").FAMILY
    batch = make_batch(parse_lens(workload), AttentionShape(), fill=False)
    stats, out, tensors = batch.stats, torch.empty_like(batch.query), (
        batch.query, batch.key_cache, batch.value_cache, batch.block_table, batch.query_start_loc, batch.seq_lens,
    )  # fmt: skip
    hints = {"max_query_len": stats.max_query_len, "max_seq_len": stats.max_seq_len, "num_decodes": stats.num_decodes}
    plan = Plan(family, batch.shape, batch.num_tokens, batch.num_seqs, stats.max_seq_len, batch.device)
    calls = [lambda attend=attend: attend(*tensors, out=out, **hints) for attend in (PagedAttention(family), plan)]
    return tuple(least_us(call, dispatched) for call in calls)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m compare.studies.hostcpu", description=__doc__)
    parser.add_argument("--kernels", default="triton,helion")
    parser.add_argument("--workload", default="q1s2k,32q1s2k")
    arguments = parser.parse_args(argv)
    with nothing_launched() as dispatched:
        for dsl in arguments.kernels.split(","):
            for workload in arguments.workload.split(","):
                call, plan = columns(dsl, workload, dispatched)
                print(f"{dsl:7} {workload:12} call {call:6.2f} plan {plan:6.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
