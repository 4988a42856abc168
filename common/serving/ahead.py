"""Compile a warm-up's launches on all cores before the first of them runs.

In: calls that launch kernels through Triton's JIT. Out: the same kernels, compiled and loaded. Triton's own
asynchronous mode compiles in threads, which leave Python's lock in all passes but the first. Helion generates code
in the calling thread, beside the threads that compile what it generated before.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

from common.serving import tape

MOST_THREADS = 32  # each compilation holds about 100 MB
_patching = threading.Lock()


class _Threads(ThreadPoolExecutor):
    """Runs what compiles a kernel, then loads the kernel onto `device`."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(min(cores(), MOST_THREADS), initializer=tape.begin_thread, initargs=(device,))

    def submit(self, compiling: Callable[[], Any], *args: Any, **kwargs: Any) -> Future:
        return super().submit(lambda: tape.loaded(compiling(*args, **kwargs)))


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def compiled_only(device: torch.device) -> Iterator[set[int] | None]:
    """In this context this thread's launches compile and do not run; at its end all kernels are compiled and loaded.

    Yields the kernels that were met so far, by identity; None where launches run as always: kernels are interpreted, or
    this Triton cannot compile asynchronously. A kernel that cannot be compiled raises at its first real launch.
    """
    jit = sys.modules.get("triton.runtime.jit")
    mode = getattr(sys.modules.get("triton.runtime._async_compile"), "AsyncCompileMode", None)
    if jit is None or mode is None or not tape.has_jit(device):
        yield None
        return
    me, original, met = threading.get_ident(), jit.JITFunction.run, {}

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if threading.get_ident() != me:
            return original(self, *args, grid=grid, warmup=warmup, **kwargs)
        kernel = original(self, *args, grid=grid, warmup=True, **kwargs)
        met[id(kernel)] = kernel
        return kernel

    with _patching, _Threads(device) as threads, tape.untaped(), mode(threads, ignore_errors=True):
        jit.JITFunction.run = run
        try:
            yield met.keys()
        finally:
            jit.JITFunction.run = original
