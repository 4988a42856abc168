"""Where a step's time goes: what the GPU and the host did in steps that read prompts, and in steps that only decode.

A profiler slows the host down, so a step's time is that of as many steps before it is on; its GPU time is the sum of
the kernels that it saw. Far less than the step's time: the host is what a step waits for.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from compare.studies.engine.measure import Engine, prompt_of
from compare.workloads.trace import Request

STEPS = 6  # of each kind, once without the profiler and once with it
BEFORE = 3  # steps of the kind, not counted
MOST = 12  # names kept of a side
NAME = -1  # the pass's number in requests' names


class Tracer(Protocol):
    """On from start to stop, which gives (GPU or host, name, microseconds) of each kernel and host function."""

    def start(self) -> None: ...
    def stop(self) -> Iterable[tuple[bool, str, float]]: ...


class Torch:
    """torch's profiler, of the host and of CUDA."""

    def start(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        self._profile = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
        self._profile.start()

    def stop(self) -> Iterator[tuple[bool, str, float]]:
        import torch

        torch.cuda.synchronize()
        self._profile.stop()
        for event in self._profile.events():
            if event.device_type == torch.autograd.DeviceType.CUDA:
                yield True, event.name, event.time_range.elapsed_us()
            else:
                yield False, event.name, event.self_cpu_time_total


def profile(
    engine: Engine, requests: Sequence[Request], beside: int, tracer: Tracer | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """A row of steps that read prompts, one of steps that only decode: the first `beside` requests at once.

    step_ms: without the profiler; gpu_ms, kernels and host: of a step, [name, calls, ms] by time. A kind that the
    requests give no 2 STEPS of has no row.
    """
    requests, tracer = requests[:beside], tracer or Torch()
    for i, one in enumerate(requests):
        engine.add(f"{NAME}-{i}", prompt_of(one.prompt, engine.vocabulary, i), one.generated, False)
    left, silent = {f"{NAME}-{i}": one.generated for i, one in enumerate(requests)}, set()
    silent.update(left)

    def step() -> None:
        for name, tokens, _ in engine.step():
            silent.discard(name)
            if len(tokens) >= left[name]:
                del left[name]

    kinds = [("prompts", lambda: bool(silent)), ("decodes", lambda: bool(left) and not silent)]
    for kind, lasts in kinds:
        for _ in range(BEFORE):
            if left:
                step()
        while left and kind == "decodes" and silent:
            step()
        began = clock()
        counted = _steps(step, lasts)
        step_ms = 1e3 * (clock() - began) / STEPS
        if counted < STEPS:
            continue
        tracer.start()
        counted = _steps(step, lasts)
        seen = tracer.stop()
        if counted == STEPS:
            yield {"part": "profile", "class": kind, "steps": STEPS, "step_ms": step_ms} | summed(seen)
    while left:
        step()


def _steps(step: Callable[[], None], lasts: Callable[[], bool]) -> int:
    """How many of STEPS were of the kind."""
    for done in range(STEPS):
        if not lasts():
            return done
        step()
    return STEPS


def summed(seen: Iterable[tuple[bool, str, float]]) -> dict[str, Any]:
    """Of a step: the GPU's milliseconds, and the MOST names of either side."""
    calls: dict[tuple[bool, str], int] = defaultdict(int)
    us: dict[tuple[bool, str], float] = defaultdict(float)
    for on_gpu, name, took in seen:
        calls[on_gpu, name] += 1
        us[on_gpu, name] += took

    def of(side: bool) -> list[list[Any]]:
        names = sorted((name for on_gpu, name in us if on_gpu == side), key=lambda name: -us[side, name])
        return [[name[:60], calls[side, name] / STEPS, us[side, name] / 1e3 / STEPS] for name in names[:MOST]]

    gpu_ms = sum(took for (on_gpu, _), took in us.items() if on_gpu) / 1e3 / STEPS
    return {"gpu_ms": gpu_ms, "kernels": of(True), "host": of(False)}
