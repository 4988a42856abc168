"""`tune` with --fleet: the GPUs of one kind share the rows, and each node's cores compile for its GPUs.

A seat tunes its rows as a machine with one GPU would. The driver logs candidates as they arrive, so that a seat that
takes over a lost share does not repeat them.
"""

from __future__ import annotations

import argparse
import functools
import json
import queue
import shutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.gpus import resolve
from compare.exits import NO_GPU, NOTHING, OK, ending
from compare.fleet import muster
from compare.fleet.asked import Asked, Command
from compare.fleet.cluster import Cluster, NoFleet, RemoteSeat
from compare.fleet.drive import Drive
from compare.fleet.muster import Mixed
from compare.fleet.shares import Share
from compare.tune import tune, won
from compare.tune.arm import Arm, Machine
from compare.tune.records import Log, done
from compare.tune.space import Policy
from compare.workloads import GrammarError, Workload

SLACK_S = 900.0  # beyond the budget: a seat that is silent for longer is lost


class Told:
    """A log that puts new lines into a queue instead of a file. lines: the known ones."""

    def __init__(self, lines: Sequence[Mapping[str, Any]]) -> None:
        self.lines, self.told = [dict(line) for line in lines], queue.SimpleQueue()

    def add(self, **fields: Any) -> None:
        self.lines.append(fields)
        self.told.put(json.dumps(fields))


@dataclass
class SeatedArm:
    """A work (compare.fleet.seat.Work): a share is (arm, row numbers, known lines), a result a new line of the log."""

    rows: tuple[Workload, ...]
    plan: Mapping[str, Sequence[Policy]]
    machine: Machine
    seconds: float
    _out: str = ""

    def open(self, seat: str) -> None:
        self._out = tempfile.mkdtemp(prefix="diptych-arm-")

    def do(self, share: tuple[str, Sequence[int], Sequence[Mapping[str, Any]]]) -> Iterator[str]:
        name, numbers, lines = share
        log = Told(lines)
        rows = tuple(self.rows[number] for number in numbers)
        mine = {kernel: list(found) for kernel, found in self.plan.items() if kernel.split("/")[0] == name}
        arm = Arm(name, mine, rows, self.machine, log, Path(self._out))
        raised: list[BaseException] = []

        def work() -> None:
            try:
                arm.run(self.seconds)
            except BaseException as error:
                raised.append(error)
            log.told.put(None)

        threading.Thread(target=work, daemon=True).start()
        yield from iter(log.told.get, None)
        if raised:
            raise raised[0]

    def close(self) -> None:
        shutil.rmtree(self._out, ignore_errors=True)


@dataclass
class AtArm:
    """A seat that tunes rows of one arm (compare.fleet.drive.Stall), starting from what the log has of them."""

    seat: RemoteSeat
    arm: str
    rows: Sequence[Workload]
    log: Log
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.seat.name

    @property
    def starts(self) -> int:
        return self.seat.starts

    def do(self, numbers: Sequence[int]) -> Iterator[str]:
        labels = {self.rows[number].label for number in numbers}
        known = [line for line in self.log.lines if line["arm"] == self.arm and line["row"] in labels]
        return self.seat.do((self.arm, tuple(numbers), known))

    def again(self) -> bool:
        return self.seat.again()


def search(run: tune.Tuning, seats: Sequence[RemoteSeat]) -> None:
    """Run one arm after another over all seats. Rows are dealt in turn, so that each seat has every kind and size."""
    for name in tune.arms(list(run.plan)):
        log = Log(run.folder / "candidates.jsonl")
        try:
            dealt = [Share(tuple(range(first, len(run.rows), len(seats)))) for first in range(len(seats))]
            at = [AtArm(seat, name, run.rows, log) for seat in seats]
            drive = Drive(at, [share for share in dealt if share.rows], lambda line: print(line, file=sys.stderr))
            for found in drive.results():
                log.add(**json.loads(found.what), seat=found.seat)
            whole = Counter(kernel for _, kernel in done(log.lines, name))
        finally:
            log.close()
        told = ", ".join(f"{kernel} {whole[kernel]}" for kernel in sorted(run.plan) if kernel.split("/")[0] == name)
        print(f"{name}: rows done: {told}", flush=True)


def main(asked: Command) -> int:
    """Run `tune --fleet`; returns the exit code."""
    over = Asked.of(asked.words)
    arguments = asked.parser().parse_args(over.words)
    arguments.words = list(asked.words)
    return ending(lambda: tune.main(arguments, functools.partial(_search, over=over)), (NoFleet, Mixed))


def _search(arguments: argparse.Namespace, *, over: Asked) -> int:
    """Search on the cluster and write the tables. Raises GrammarError, UnknownGpu, NoFleet, Mixed."""
    if arguments.arm != "search" or arguments.gpus != "1":
        raise GrammarError("--fleet: found beside --arm or --gpus, allowed alone: every GPU of a kind is used")
    asked = None if arguments.gpu == "auto" else [resolve(arguments.gpu).name]
    with Cluster(over.address) as cluster:
        found = muster.gpus(cluster, asked, lambda line: print(line, file=sys.stderr))
        if not found.of:
            print(f"{asked[0] if asked else 'a GPU'} is not in the fleet; tuning needs the GPU itself", file=sys.stderr)
            return NO_GPU
        if len(found.of) > 1:
            raise GrammarError(f"--gpu: found {arguments.gpu}, allowed one of {', '.join(found.of)}")
        ((kind, seats),) = found.of.items()
        if not over.mixed:
            muster.ensure_alike(kind, seats)
        return _tuned(arguments, found.gpu(kind), seats)


def _tuned(arguments: argparse.Namespace, gpu: Any, seats: Sequence[RemoteSeat]) -> int:
    beside = Counter(seat.node.id for seat in seats)
    cores = {
        seat.name: max(arguments.cores // beside[seat.node.id], 1) if arguments.cores else seat.facts["cores"]
        for seat in seats
    }
    whole = Machine(gpu, tuple(seat.name for seat in seats), sum(cores.values()))
    run = tune.Tuning(arguments, whole)
    if not run.plan or not run.rows:
        print("nothing selected", file=sys.stderr)
        return NOTHING
    seconds = arguments.minutes * 60
    print(f"{gpu.name} x {len(seats)} in the fleet: {len(run.rows)} rows, {len(run.plan)} kernels", flush=True)
    for seat in seats:
        machine = Machine(gpu, ("0",), cores[seat.name])
        seat.open(SeatedArm(run.rows, run.plan, machine, seconds), seconds + SLACK_S)
    search(run, seats)
    return OK if won.write(run.folder, not arguments.no_install) else NOTHING
