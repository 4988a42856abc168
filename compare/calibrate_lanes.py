"""Cases of a calibration over processes: which process takes which, and the lines that outlive a run.

Compilers take most of the time, and Helion keeps what it generated in the process alone: so a process takes the cases
of one class of shapes, or of few. A slice of cases is one line on the disk as soon as it is judged; the same command
goes on with the cases that no line has.
"""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

from compare.tune.records import Log

SLICE = 5  # cases that a process takes at once: as many are lost of each where the run is killed

Plain = dict[str, tuple]  # kernel id -> compare.tally.Tally.plain
Slice = tuple[int, ...]  # seeds
Found = tuple[Slice, Plain | Exception]  # the seeds that were judged and their tallies, or what ended the process


class CannotResume(ValueError):
    """The lines of another calibration stand where this one's would go; the message says what differs."""


class Progress:
    """The lines of one calibration, beside its result. The first says what was asked; each other is a slice.

    Raises CannotResume where the first line says something else.
    """

    def __init__(self, path: Path, asked: dict[str, Any]) -> None:
        self._log = Log(path)
        if not self._log.lines:
            self._log.add(asked=asked)
        before = self._log.lines[0]["asked"]
        differing = [name for name in asked if before.get(name) != asked[name]]
        if differing:
            found = ", ".join(f"{name} {before.get(name)}" for name in differing)
            raise CannotResume(f"out: found {path} with {found}; allowed the same calibration, or a new file")
        self.done = {seed for line in self._log.lines[1:] for seed in line["seeds"]}

    def tallies(self) -> Iterator[Plain]:
        for line in self._log.lines[1:]:
            yield {kernel: _numbers(*plain) for kernel, plain in line["kernels"].items()}

    def add(self, seeds: Slice, plain: Plain) -> None:
        self.done |= set(seeds)
        self._log.add(seeds=list(seeds), kernels={kernel: _words(*found) for kernel, found in plain.items()})

    def close(self) -> None:
        self._log.close()


def _words(statuses: dict[str, int], ratios: dict[str, dict[str, list[float]]], problems: list[str]) -> list[Any]:
    """Ratios as text, for JSON has no infinity."""
    short = {d: {rule: [repr(x) for x in of] for rule, of in rules.items()} for d, rules in ratios.items()}
    return [statuses, short, problems]


def _numbers(statuses: dict[str, int], ratios: dict[str, dict[str, list[str]]], problems: list[str]) -> tuple:
    long = {d: {rule: [float(x) for x in of] for rule, of in rules.items()} for d, rules in ratios.items()}
    return statuses, long, problems


def lanes(seeds: Sequence[int], classes: int, jobs: int) -> list[deque[Slice]]:
    """Slices by process: a class (seed % classes) has one process, or several where there are more than classes."""
    found: list[deque[Slice]] = [deque() for _ in range(jobs)]
    for number in range(classes):
        mine = [seed for seed in seeds if seed % classes == number]
        of_class = [lane for lane in range(jobs) if lane % classes == number] or [number % jobs]
        for index, at in enumerate(range(0, len(mine), SLICE)):
            found[of_class[index % len(of_class)]].append(tuple(mine[at : at + SLICE]))
    return [lane for lane in found if lane]


def alternating(lane: deque[Slice], classes: int) -> deque[Slice]:
    """Slices of several classes in turns, so that a run which is cut short has met them all."""
    place: dict[int, int] = {}
    ranked = []
    for part in lane:
        number = part[0] % classes
        place[number] = place.get(number, -1) + 1
        ranked.append((place[number], number, part))
    return deque(part for _, _, part in sorted(ranked))


def run(queues: Sequence[deque[Slice]], share: Callable[[Slice], tuple[Slice, Plain]]) -> Iterator[Found]:
    """Every slice through `share`, a process a queue. One that ends in an error has a new process for its next slice.

    share: picklable; it may judge fewer seeds than it was given.
    """
    new = partial(ProcessPoolExecutor, 1, mp_context=multiprocessing.get_context("spawn"))
    pools = [new() for _ in queues]
    running: dict[Future, tuple[int, Slice]] = {}

    def begin(lane: int) -> None:
        if queues[lane]:
            part = queues[lane].popleft()
            running[pools[lane].submit(share, part)] = (lane, part)

    try:
        for lane in range(len(queues)):
            begin(lane)
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                lane, part = running.pop(future)
                error = future.exception()
                if error is not None:  # the process died, or its device did
                    pools[lane].shutdown(wait=False)
                    pools[lane] = new()
                begin(lane)
                yield (part, error) if error is not None else future.result()
    finally:
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)
