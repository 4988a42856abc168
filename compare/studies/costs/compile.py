"""Compile time as a user meets it: in fresh processes with empty caches, then in fresh processes with those caches.

A process imports the kernel, makes one call, then one in another dtype: `import_s` (including the DSL's package),
`first_s` (including the compiler's start) and `next_s` (one more specialisation). The caches of Triton, Helion and
torch lie in a folder of their own, empty at first: `cold`; `warm` is the next process with that folder. With the GPU
here the calls are launches that complete; for an absent GPU they stop at the machine code, without reading its facts.
`..._cpu_s` is the time of a core that the process and its compilers used: steadier than wall time on a busy machine.
Both DSLs alike; `lanes` processes at a time.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from common import process
from common.gpus import Gpu
from common.process import Lost
from common.spec import AttentionShape
from compare.process import children
from compare.process.crew import environment
from compare.workloads import DTYPE_NAMES, parse_lens

LIMIT_S = 300.0  # of one process; the slowest seen took 40 s on two busy cores
STATES = ("cold", "warm")
DTYPES = ("float16", "bfloat16")  # of the first call and of the next
STEPS = ("import", "first", "next")
_CACHES = {"TRITON_CACHE_DIR": "triton", "HELION_CACHE_DIR": "helion", "TORCHINDUCTOR_CACHE_DIR": "inductor"}


def fresh_process(child: str, task: dict[str, Any], folder: str, limit_s: float) -> dict[str, Any]:
    """A child's answer to a task; a process that fails or hangs has a `reason`.

    folder: of its caches of compiled code.
    """
    env = environment("compile") | {name: os.path.join(folder, sub) for name, sub in _CACHES.items()}
    try:
        code, out, err = process.once(children.command(child), env, json.dumps(task).encode(), limit_s)
    except Lost:
        return {"reason": f"no answer for {limit_s:.0f} s"}
    answer = [line for line in out.decode().splitlines() if line.startswith("{")]
    if code or not answer:
        tail = (err.decode(errors="replace").strip().splitlines() or ["nothing said"])[-1]
        return {"reason": f"exit {code}: {tail[:300]}"}
    return json.loads(answer[-1])


def _one(kernel: str, workload: str, gpu: Gpu, here: bool, lanes: int) -> list[dict[str, Any]]:
    """The cold and the warm row of a kernel, whose caches are in one fresh folder."""
    task = {"kernel": kernel, "workload": workload, "gpu": dataclasses.asdict(gpu), "here": here}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for state in STATES:
            answer = fresh_process(children.COST_COMPILE, task, folder, LIMIT_S)
            row = {"cost": "compile", "kernel": kernel, "workload": workload, "target": gpu.arch, "here": here}
            row |= {"state": state, "lanes": lanes, "status": "failed" if "reason" in answer else "ok"}
            rows.append(row | {name: round(s, 3) if isinstance(s, float) else s for name, s in answer.items()})
    return rows


def measure(kernels: Sequence[str], workload: str, gpu: Gpu, *, here: bool, lanes: int = 1) -> Iterator[dict[str, Any]]:
    """Yield two rows per kernel; `lanes` kernels are measured in parallel."""
    with ThreadPoolExecutor(lanes) as pool:
        tasks = [pool.submit(_one, kernel, workload, gpu, here, lanes) for kernel in kernels]
        try:
            for task in tasks:
                yield from task.result()
        except BaseException:  # Ctrl-C, or the reader stopped: end what runs, start nothing
            process.end_all()
            pool.shutdown(cancel_futures=True)
            raise


class Watch:
    """Wall and CPU seconds since the last `lap`, including ended child processes."""

    def __init__(self) -> None:
        self._last = self._now()

    @staticmethod
    def _now() -> tuple[float, float]:
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.perf_counter(), time.process_time() + ended.ru_utime + ended.ru_stime

    def lap(self, step: str) -> dict[str, float]:
        now = self._now()
        wall, cpu = (new - old for new, old in zip(now, self._last, strict=True))
        self._last = now
        return {f"{step}_s": wall, f"{step}_cpu_s": cpu}


def _call(kernel: Any, kernel_id: str, lens: Any, dtype: str, gpu: Gpu, here: bool) -> Callable[[], int]:
    """A call in `dtype`, ready to run; it returns its number of kernel launches, 0 where they are not counted."""
    import torch

    from common.cases.batch import make_batch
    from common.spec import Features
    from common.spec.kernel import Capacity
    from compare.competitors import registry
    from compare.static import jit
    from compare.static.crosscompile import claim
    from compare.static.helion_target import helion_as

    batch = make_batch(lens, AttentionShape(dtype=DTYPE_NAMES[dtype]), device="cuda" if here else "cpu", fill=here)
    config, _ = registry.default_config(kernel_id, kernel, batch.shape, batch.stats, gpu)
    out = torch.empty_like(batch.query)
    workspace = kernel.workspace(batch.shape, Capacity.of(batch), config)

    def launched() -> int:
        kernel.launch(batch, Features(), out, config, workspace)
        torch.cuda.synchronize()
        return 0

    def compiled() -> int:
        claim(gpu.arch)
        with helion_as(gpu), jit.recorded() as launches:
            kernel.launch(batch, Features(), out, config, workspace)
        target = jit.gpu_target(gpu.arch)
        for launch in launches:
            jit.compile_for(jit.bind(launch, target), target)
        return len(launches)

    return launched if here else compiled


def main() -> None:
    """The child process: reads a task from stdin and prints the answer."""
    import torch

    from compare.competitors import registry

    task = json.loads(sys.stdin.read())
    gpu, here = Gpu(**task["gpu"]), task["here"]
    if here:
        torch.zeros(1, device="cuda")  # do not count the driver's start
    watch = Watch()
    kernel = registry.load(task["kernel"])
    answer: dict[str, Any] = watch.lap(STEPS[0])
    lens = parse_lens(task["workload"])
    for step, dtype in zip(STEPS[1:], DTYPES, strict=True):
        call = _call(kernel, task["kernel"], lens, dtype, gpu, here)
        watch.lap(step)  # do not count making tensors
        answer["launches"] = call()
        answer |= watch.lap(step)
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
