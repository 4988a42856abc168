"""Which timer a cell gets: graphs, events, the host's clock, or the protocol of the paper.

`host` is the time to enqueue a call, on a device that is idle when a sample begins and whose queue holds the sample.
`paper` is 20 warm-ups and the mean of 100 launches, one kernel after another: no cold cache, no turns, no interval.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from compare.bench import timing
from compare.bench.subject import Subject, device_is_sick, failure
from compare.record.contract import Contract
from compare.record.records import Timing

QUEUED_CALLS = 64  # of one host sample; the queue of a GPU holds 1024 launches, and no kernel here makes 16 a call
QUEUED_US = 20_000.0  # of device time that one host sample leaves behind
WARM_UPS, LAUNCHES = 20, 100  # the paper, 7.1


class HostRunner:
    """Times the enqueueing of a part's calls; the device finishes them behind the sample."""

    timer, note = "host", ""

    def __init__(self, launch: Callable[[int], None], sets: int, call_us: float) -> None:
        self._launch = launch
        calls = min(max(int(QUEUED_US / max(call_us, 0.1)), 1), QUEUED_CALLS)
        self.parts = [tuple(range(at, min(at + calls, sets))) for at in range(0, sets, calls)]
        self.parts[0] *= max(calls // sets, 1)

    def run(self) -> None:
        for part in self.parts:
            for number in part:
                self._launch(number)
            torch.cuda.synchronize()

    def sample(self, part: int) -> float:
        numbers = self.parts[part]
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for number in numbers:
            self._launch(number)
        took = time.perf_counter() - begin
        torch.cuda.synchronize()
        return took * 1e6 / len(numbers)


class PaperRunner:
    """One launch on the first page set between two events, nothing before it."""

    timer = "paper"
    note = f"mean of {LAUNCHES} launches behind {WARM_UPS} warm-ups; the quantiles are those of single launches"

    def __init__(self, launch: Callable[[int], None]) -> None:
        self._launch, self.parts = launch, [(0,)]
        self._start, self._end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def run(self) -> None:
        self._launch(0)

    def sample(self, part: int) -> float:
        self._start.record()
        self._launch(0)
        self._end.record()
        self._end.synchronize()
        return self._start.elapsed_time(self._end) * 1e3

    def samples(self) -> list[float]:
        """The paper's protocol, whole."""
        for _ in range(WARM_UPS):
            self._launch(0)
        return [self.sample(0) for _ in range(LAUNCHES)]


def runner(subject: Subject, clock: Any, contract: Contract) -> Any:
    """The timer of a subject: what the contract says; events where a graph cannot be captured and none was promised."""
    sets = len(subject.arena.batches)
    call_us = timing.first_launch_us(subject.launch, sets)
    slow = call_us > timing.SLOW_US
    if contract.timer == "host":
        return HostRunner(subject.launch, 1 if slow else sets, call_us)
    if contract.timer == "paper" and not slow:
        return PaperRunner(subject.launch)
    parts = [(0,)] if slow else timing.partition(sets, call_us)
    if contract.timer == "graph":
        made = _captured(subject, parts, clock)
    else:
        made = timing.EventRunner(subject.launch, parts, clock, "")
    return timing.SlowRunner(made) if slow else made


def _captured(subject: Subject, parts: list[tuple[int, ...]], clock: Any) -> Any:
    try:
        return timing.GraphRunner(subject.launch, parts, clock)
    except Exception as error:
        if "full_graph" in subject.kernel.SUPPORTS or device_is_sick(subject.arena.device):
            raise
        torch.cuda.synchronize()
        return timing.EventRunner(subject.launch, parts, clock, f"not captured: {failure(error)['reason']}")


def of_the_paper(made: PaperRunner, cycle_bytes: int) -> Timing:
    """The paper's figure, its mean, where other contracts have a median; there is no interval to be wide or narrow."""
    samples = made.samples()
    mean = statistics.fmean(samples)
    taken = timing.summarise(made, samples, cycle_bytes, timing.Against("", None), cache="hot", order="sequential")
    return dataclasses.replace(
        taken, median_us=mean, samples_us=(round(mean, 4),), half_width=None, noisy=False, calls_per_sample=1
    )
