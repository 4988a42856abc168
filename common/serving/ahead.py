"""Compile a warm-up's launches on all cores before the first of them runs.

In: calls that launch kernels through Triton's JIT. Out: the same kernels, compiled and loaded. Triton's own
asynchronous mode compiles in threads, which leave Python's lock in all passes but the first. Helion generates code
in the calling thread, beside the threads that compile what it generated before.

What an engine will warm up is known before its weights are there. `Children` are processes that compile it meanwhile
into Triton's cache, each a share; they hold no memory of the GPU, for which Triton compiles as for an absent one. What
they do not get done is compiled by the warm-up.
"""

import base64
import contextlib
import hashlib
import importlib
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from common import gpus
from common.gpus import Gpu
from common.process import Child, Lost, cores
from common.serving import reach, tape
from common.serving.points import Point
from common.spec import AttentionShape, Features

MOST_THREADS = 32  # each compilation holds about 100 MB
LONGEST_S = 60.0  # that a warm-up waits for its children


class _Threads(ThreadPoolExecutor):
    """Runs what compiles a kernel, then loads the kernel onto `device`."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(min(cores(), MOST_THREADS), initializer=tape.begin_thread, initargs=(device,))

    def submit(self, compiling: Callable[[], Any], *args: Any, **kwargs: Any) -> Future:
        return super().submit(lambda: tape.loaded(compiling(*args, **kwargs)))


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

    with tape.patching, _Threads(device) as threads, tape.untaped(), mode(threads, ignore_errors=True):
        jit.JITFunction.run = run
        try:
            yield met.keys()
        finally:
            jit.JITFunction.run = original


@dataclass(frozen=True)
class Work:
    """A warm-up to compile for an absent GPU. planner: the module with plan_paged_attention. limits: tokens, sequences,
    keys. columns: of block tables. stated: points of calls, and whether these bring K and V. slack: of the plan."""

    planner: str
    kernel: str | None
    shape: AttentionShape
    features: Features
    limits: tuple[int, int, int]
    columns: int
    stated: Sequence[tuple[list[Point], bool]]
    gpu: Gpu
    slack: float = 0.0

    def compile(self, mine: Callable[[str], bool]) -> None:
        """Compile the kernels whose key is `mine`, in this process, which launches nothing any more."""
        from triton import knobs
        from triton.backends.compiler import GPUTarget
        from triton.backends.nvidia.driver import CudaDriver
        from triton.runtime import driver
        from triton.runtime.jit import JITFunction

        absent, original = CudaDriver.__new__(CudaDriver), JITFunction.run
        absent.get_current_target = lambda: GPUTarget("cuda", int(self.gpu.arch.removeprefix("sm_")), 32)
        absent.get_current_device, absent.get_current_stream = lambda: 0, lambda device: 0
        driver.set_active(absent)
        knobs.runtime.jit_cache_hook = lambda *, key, **_: not mine(str(key))  # True: this kernel is left out
        JITFunction.run = lambda function, *args, warmup, **kwargs: original(function, *args, warmup=True, **kwargs)
        gpus.gpu_of = reach.gpu_of = lambda device: self.gpu
        shape, seqs = self.shape, self.limits[1]
        plan = importlib.import_module(self.planner).plan_paged_attention(
            shape, *self.limits, "cpu", features=self.features, kernel=self.kernel, one_config=False, slack=self.slack
        )
        cache = torch.zeros(4, 2, shape.block_size, shape.num_kv_heads, shape.head_size, dtype=shape.cache_dtype)
        tensors = {"key_cache": cache[:, 0], "value_cache": cache[:, 1]}
        table = torch.zeros(seqs, self.columns, dtype=torch.int32)
        for points, new_kv in self.stated:
            plan.warmup(points=points, new_kv=new_kv, block_table=table, **tensors)


class Children:
    """Processes that compile a share each of some work."""

    def __init__(self, work: Work, count: int) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TRITON_INTERPRET": "0"}
        self._children = []
        for share in range(count):
            child = Child([sys.executable, "-W", "ignore", "-m", __name__], environment, name=f"compiler {share}")
            self._children.append(child)
            with contextlib.suppress(Lost):  # a child that died is missed by nobody
                child.send(base64.b64encode(pickle.dumps((work, share, count))))

    def end(self, longest_s: float = LONGEST_S) -> bool:
        """Wait until all are done, at most so long, then end them; whether all did their share."""
        deadline, done = time.monotonic() + longest_s, True
        for child in self._children:
            try:
                child.line(max(deadline - time.monotonic(), 0.1))  # it says nothing
            except Lost as lost:
                done &= lost.code == 0
            finally:
                child.end()
        self._children = []
        return done


def main() -> None:
    work, share, count = pickle.loads(base64.b64decode(sys.stdin.buffer.readline()))
    os.nice(5)  # an engine that loads its weights goes first
    work.compile(lambda key: int(hashlib.sha256(key.encode()).hexdigest(), 16) % count == share)


if __name__ == "__main__":
    main()
