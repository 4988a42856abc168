"""Measure how long a call takes: graph replay over rotating page sets, kernels interleaved in changing order.

A sample is one replay divided by its calls. Consecutive calls in a replay read different pages, and one cycle over the
page sets reads more than the last-level cache holds (`arena.page_sets`), so every call finds its K and V in HBM. A read
of `FLUSH_BYTES` is queued before the start event: it covers the host's launch of the graph, which would otherwise be
inside the interval, and leaves only clean cache lines. With a hot cache the work itself is queued there instead.
"""

import contextlib
import dataclasses
import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from compare import stats
from compare.bench.subject import Subject, device_is_sick, failure
from compare.record.contract import PRECISION, Contract
from compare.record.records import MAX_SAMPLES, Timing

REPLAY_US = 5_000.0  # the least length of a sample of short calls: events resolve 0.5 us
WHOLE_CYCLE_US = 20_000.0  # the longest cycle that is one graph; a longer one is cut into graphs of REPLAY_US
MAX_CALLS = 512  # in one graph; a captured call costs host time and memory
LONG_US, LONG_SETS = 20_000.0, 4
SLOW_US = 200_000.0  # a longer call gets three launches and no rounds
MIN_ROUNDS, MAX_ROUNDS = 10, MAX_SAMPLES
PATIENCE = 10 / 3  # budgets that MIN_ROUNDS may take; beyond, FEW_ROUNDS must do
FEW_ROUNDS = 3
FLUSH_BYTES = 256 * 2**20


def partition(sets: int, call_us: float) -> list[tuple[int, ...]]:
    """The page sets of each graph, so that the graphs together visit every set, each for about REPLAY_US or longer.

    A short cycle is repeated whole inside one graph. A long one is cut, and the rounds rotate over its parts. A call
    above LONG_US visits LONG_SETS sets, one at a time: each reads more than any cache holds.
    """
    if call_us > LONG_US:
        return [(number,) for number in range(min(sets, LONG_SETS))]
    cycle_us = sets * max(call_us, 0.1)
    if cycle_us <= WHOLE_CYCLE_US and sets <= MAX_CALLS:
        cycles = max(min(round(REPLAY_US / cycle_us), MAX_CALLS // sets), 1)
        return [tuple(range(sets)) * cycles]
    calls = min(max(round(REPLAY_US / call_us), 1), MAX_CALLS)
    return [tuple(range(at, min(at + calls, sets))) for at in range(0, sets, calls)]


class Runner(Protocol):
    """What is timed. `run` visits every page set once; `sample(i)` times part i and returns microseconds a call."""

    timer: str
    parts: list[tuple[int, ...]]
    note: str

    def run(self) -> None: ...
    def sample(self, part: int) -> float: ...


class _Clock:
    """Two events around some work, after a read of a large buffer; hot: after the same work."""

    def __init__(self, device: torch.device, hot: bool = False) -> None:
        self._start = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)
        self._flush = None if hot else torch.ones(FLUSH_BYTES // 4, dtype=torch.float32, device=device)

    def measure(self, work: Callable[[], None]) -> float:
        """Microseconds of `work` on the device."""
        if self._flush is None:
            work()
        else:
            self._flush.amax()
        self._start.record()
        work()
        self._end.record()
        self._end.synchronize()
        return self._start.elapsed_time(self._end) * 1e3


def _capture(
    launch: Callable[[int], None], part: tuple[int, ...], pool: tuple[int, int], stream: torch.cuda.Stream
) -> torch.cuda.CUDAGraph:
    """The launches of one part as a graph, without the garbage collection and cache flush of `torch.cuda.graph`."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    gc.disable()  # a collection could free another graph, which breaks the capture
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=pool)
            try:
                for number in part:
                    launch(number)
            except BaseException:
                with contextlib.suppress(RuntimeError):  # only repeats that the capture is broken
                    graph.capture_end()
                raise
            graph.capture_end()
    finally:
        gc.enable()
    torch.cuda.synchronize()
    return graph


class GraphRunner:
    """Replays captured graphs, one per part. Raises what the capture raises."""

    timer = "graph"

    def __init__(self, launch: Callable[[int], None], parts: list[tuple[int, ...]], clock: _Clock) -> None:
        self.parts, self.note, self._clock = parts, "", clock
        # One pool for all parts: they never run at once, so they share scratch. One stream: the allocator shares within
        # a
        # stream only, and torch has 32 streams: one a part would collide with a kernel's own second stream.
        pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        self._graphs = [_capture(launch, part, pool, stream) for part in parts]

    def run(self) -> None:
        for graph in self._graphs:
            graph.replay()

    def sample(self, part: int) -> float:
        return self._clock.measure(self._graphs[part].replay) / len(self.parts[part])


class EventRunner:
    """Launches eagerly between events, for what cannot be captured; includes the host's time where it is longer."""

    timer = "events"

    def __init__(self, launch: Callable[[int], None], parts: list[tuple[int, ...]], clock: _Clock, note: str) -> None:
        self._launch, self.parts, self._clock, self.note = launch, parts, clock, note

    def _launch_all(self, part: tuple[int, ...]) -> None:
        for number in part:
            self._launch(number)

    def run(self) -> None:
        for part in self.parts:
            self._launch_all(part)

    def sample(self, part: int) -> float:
        return self._clock.measure(lambda: self._launch_all(self.parts[part])) / len(self.parts[part])


class SlowRunner:
    """Times every `run`, for a call so long that it only gets the gate's three runs."""

    def __init__(self, inner: GraphRunner | EventRunner) -> None:
        self.inner, self.timer, self.parts = inner, inner.timer, inner.parts
        self.note = "; ".join(filter(None, [inner.note, "three launches, not interleaved"]))
        self.samples: list[float] = []

    def run(self) -> None:
        self.samples.append(self.inner.sample(0))

    def sample(self, part: int) -> float:
        return self.inner.sample(part)


def make_clock(device: torch.device, hot: bool = False) -> _Clock:
    return _Clock(device, hot)


def first_launch_us(launch: Callable[[int], None], sets: int) -> float:
    """Warm up and estimate one call. The first launch compiles, so what remains after the host returns is its time.

    Below SLOW_US three more launches, on the first and the last page set, are timed, and the shortest counts: after one
    stop of the host, a graph would hold one call, and each sample the launch of its graph.
    """
    launch(0)
    returned = time.perf_counter()
    torch.cuda.synchronize()
    waited = (time.perf_counter() - returned) * 1e6
    if waited > SLOW_US:
        return waited
    took = []
    for number in (sets - 1, 0, sets - 1):
        start = time.perf_counter()
        launch(number)
        torch.cuda.synchronize()
        took.append(time.perf_counter() - start)
    return min(took) * 1e6


@dataclass
class Track:
    """A runner and its samples over the rounds."""

    name: str
    runner: Runner
    samples: list[float]


def round_order(count: int, number: int) -> list[int]:
    """The order of a round, rotated every other round and reversed between: nobody always runs first or behind the same
    kernel."""
    order = [(number // 2 + i) % count for i in range(count)]
    return order[::-1] if number % 2 else order


def width(samples: Sequence[float], unit: Sequence[float] | None) -> float:
    """Half of the 99% interval of the log-ratio to the unit, paired by rounds; without a unit, of the times."""
    if unit is not None and len(unit) != len(samples):
        return math.inf
    return stats.half_width(samples, [1.0] * len(samples) if unit is None else unit)


def interleave(
    tracks: Sequence[Track],
    budget_s: float,
    *,
    unit: int = 0,
    precision: float = PRECISION,
    patience: float = PATIENCE,
    now: Callable[[], float] = time.perf_counter,
    before: Callable[[str], None] = lambda name: None,
    between: Callable[[], None] = lambda: None,
) -> int:
    """Sample every track once a round until each is known to `precision` against tracks[unit], or the budget is spent.

    The first round warms up and is dropped. At least MIN_ROUNDS follow; FEW_ROUNDS where those would take more than
    `patience` budgets. `before(name)` is told whose turn it is, to explain a crash; `between()` is called around the
    rounds, when nothing runs. Returns the number of rounds, equal for all.
    """
    if not tracks:
        return 0
    start = now()
    for track in tracks:
        before(track.name)
        track.runner.sample(0)
    least = FEW_ROUNDS if (now() - start) * MIN_ROUNDS > patience * budget_s else MIN_ROUNDS
    rounds = 0
    while rounds < MAX_ROUNDS:
        if rounds >= least and (now() - start > budget_s or _precise(tracks, unit, precision)):
            break
        between()
        for i in round_order(len(tracks), rounds):
            track = tracks[i]
            before(track.name)
            track.samples.append(track.runner.sample(rounds % len(track.runner.parts)))
        rounds += 1
    between()
    return rounds


def _precise(tracks: Sequence[Track], unit: int, precision: float) -> bool:
    """Whether every other track is precise enough against the unit; a single track, by its own times."""
    others = [track for number, track in enumerate(tracks) if number != unit]
    if not others:
        return width(tracks[unit].samples, None) <= precision
    return all(width(track.samples, tracks[unit].samples) <= precision for track in others)


def quantile(samples: Sequence[float], q: float) -> float:
    """The quantile, with linear interpolation between order statistics."""
    return float(np.quantile(samples, q))


@dataclass(frozen=True)
class Against:
    """What a track is judged noisy against: the unit's id and samples (None: the unit's own track, or no unit)."""

    unit: str
    samples: Sequence[float] | None
    precision: float = PRECISION


def summarise(
    runner: Runner,
    samples: Sequence[float],
    cycle_bytes: int,
    against: Against,
    *,
    cache: str = "cold",
    order: str = "interleaved",
) -> Timing:
    """The samples as a record holds them; noisy where the half-width exceeds the precision, or is unknown."""
    low, middle, high = (quantile(samples, q) for q in (0.05, 0.5, 0.95))
    half = width(samples, against.samples)
    return Timing(
        timer=runner.timer,
        cache=cache,
        median_us=middle,
        p05_us=low,
        p95_us=high,
        rounds=len(samples),
        calls_per_sample=len(runner.parts[0]),
        page_sets=len({number for part in runner.parts for number in part}),
        cycle_bytes=cycle_bytes,
        samples_us=tuple(round(sample, 4) for sample in samples[:MAX_SAMPLES]),
        noisy=half > against.precision,
        order=order,
        note=runner.note,
        unit=against.unit,
        half_width=round(half, 6) if math.isfinite(half) else None,
    )


def joules(
    runner: Runner, read: Callable[[], float], seconds: float, now: Callable[[], float] = time.perf_counter
) -> float:
    """The joules of a call: those between two readings, over the calls of replays that go on for `seconds`, idle power
    included. read: the GPU's counter, in joules."""
    runner.run()
    torch.cuda.synchronize()
    calls, start, before = 0, now(), read()
    while now() - start < seconds:
        runner.run()
        torch.cuda.synchronize()  # else the host would queue more than `seconds`
        calls += sum(map(len, runner.parts))
    return (read() - before) / calls


# The timer that a cell gets: graphs, events, or the paper's protocol: 20 warm-ups and the mean of 100 launches, one
# kernel after another, with a hot cache and without an interval.


WARM_UPS, LAUNCHES = 20, 100  # the paper, 7.1


class PaperRunner:
    """Times one launch on the first page set between two events."""

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
        """The samples of the paper's protocol."""
        for _ in range(WARM_UPS):
            self._launch(0)
        return [self.sample(0) for _ in range(LAUNCHES)]


def runner(subject: Subject, clock: Any, contract: Contract) -> Any:
    """The timer of a subject, by the contract; events where a graph cannot be captured and none was promised."""
    sets = len(subject.arena.batches)
    call_us = first_launch_us(subject.launch, sets)
    slow = call_us > SLOW_US
    if contract.timer == "paper" and not slow:
        return PaperRunner(subject.launch)
    parts = [(0,)] if slow else partition(sets, call_us)
    if contract.timer == "graph":
        made = captured(subject, parts, clock)
    else:
        made = EventRunner(subject.launch, parts, clock, "")
    return SlowRunner(made) if slow else made


def captured(subject: Subject, parts: list[tuple[int, ...]], clock: Any) -> Runner:
    """A graph runner; an event runner where the capture is refused, with the reason in its note.

    A kernel that promises `full_graph` and breaks it raises, except on ROCm, where some releases refuse captures that
    CUDA allows: there events are used, and the note says so.
    """
    try:
        return GraphRunner(subject.launch, parts, clock)
    except Exception as error:
        promised = "full_graph" in subject.kernel.SUPPORTS
        kept = torch.version.hip is None or isinstance(error, torch.OutOfMemoryError)
        if (promised and kept) or device_is_sick(subject.arena.device):
            raise
        torch.cuda.synchronize()
        return EventRunner(subject.launch, parts, clock, f"not captured: {failure(error)['reason']}")


def of_the_paper(made: PaperRunner, cycle_bytes: int) -> Timing:
    """A timing with the paper's figure, its mean, in place of the median, and without an interval."""
    samples = made.samples()
    mean = statistics.fmean(samples)
    taken = summarise(made, samples, cycle_bytes, Against("", None), cache="hot", order="sequential")
    return dataclasses.replace(
        taken, median_us=mean, samples_us=(round(mean, 4),), half_width=None, noisy=False, calls_per_sample=1
    )
