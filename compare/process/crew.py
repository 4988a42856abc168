"""The parent's side of a worker process: jobs in, one outcome per cell out, whatever the process does.

A worker that dies, says nothing for a cell's time limit, floods its log or reports a sick device is replaced; the cell
that it was at becomes the row, and a new worker goes on behind it.
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from common.process import Child, Lost
from compare.identity import IMPORTED_FROM, INSTALLED
from compare.plan.job import Cell, Job
from compare.process import children
from compare.record.contract import Contract
from compare.record.records import Status

COMMAND = children.command(children.WORKER)
START_LIMIT_S = 120.0  # importing torch and triton on a busy 2-core machine took up to 20 s
AHEAD_LIMIT_S = 120.0  # of one kernel that is compiled ahead
FLOOD_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Outcome:
    """The outcome of a cell: the Record's fields that the worker decides, and the worker's versions."""

    cell: Cell
    fields: dict[str, Any]
    versions: dict[str, str]


@dataclass
class Crew:
    """Runs jobs in worker processes of one mode. `close` ends the process.

    mode: check or measure. gpu: whose configs are meant (a name of the GPU table) or None. limit_s: what a cell may
    take between two signs of life. process: the number within the run, which decides the order of a job's cells.
    on_start hears the cell that begins.
    """

    mode: str
    gpu: str | None
    device: str
    limit_s: float = 300.0
    contract: Contract = field(default_factory=Contract)
    process: int = 0
    heuristics: str = "tree"
    on_start: Callable[[Cell], None] = lambda cell: None
    command: list[str] = field(default_factory=lambda: list(COMMAND))
    _worker: "Worker | None" = None

    def close(self) -> None:
        """End the process."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def start(self) -> None:
        """Start the process if none is alive. It imports for seconds before it reads."""
        if self._worker is not None and self._worker.ended:  # it died while idle, so no cell is to blame
            self.close()
        if self._worker is None:
            self._worker = Worker([*self.command, self.mode], environment(self.mode))

    def compile_ahead(self, jobs: Sequence[Job]) -> None:
        """Let the started process compile what it will measure; `ready` waits for it."""
        wanted = [{"workload": job.workload.to_dict(), "kernels": [cell.kernel for cell in job.cells]} for job in jobs]
        plain = {"compile": wanted, "process": self.process, "processes": self.contract.processes}
        plain |= {"gpu": self.gpu, "device": self.device, "heuristics": self.heuristics}
        with contextlib.suppress(Lost):  # it died at once; `ready` reports that
            self._worker.tell(plain)

    def ready(self) -> bool:
        """Wait until the process has compiled ahead. Returns False if it was lost."""
        worker = self._worker
        try:
            while worker is not None and worker.event(min(self.limit_s, AHEAD_LIMIT_S))["event"] != "compiled":
                pass
        except Lost:
            self.close()
        return self._worker is not None

    def rest(self) -> int:
        """Have the process give back the device's memory, and wait for that: the next to be timed is another one.

        Returns the bytes that it could not give back.
        """
        worker = self._worker
        if worker is None:
            return 0
        try:
            worker.tell({"rest": True})
            while (event := worker.event(self.limit_s))["event"] != "resting":
                pass
        except Lost:
            self.close()
            return 0
        return event["held"]

    def run(self, job: Job) -> Iterator[Outcome]:
        """Yield one outcome per cell, as they come; a lost worker is replaced."""
        left = {cell.id: cell for cell in job.cells}
        while left:
            for outcome in self._one_worker(job.only(left)):
                if left.pop(outcome.cell.id, None) is not None:
                    yield outcome

    def _one_worker(self, job: Job) -> Iterator[Outcome]:
        """Yield outcomes until the job is done or the worker must be replaced; at least one."""
        self.start()
        worker = self._worker
        cells = {cell.id: cell for cell in job.cells}
        try:
            worker.tell(self._task(job))
            yield from self._listen(worker, cells)
        except Lost as lost:
            self.close()
            # nothing begun and nothing finished: no cell alone is to blame, and trying again would not end
            blamed = [] if len(cells) < len(job.cells) else list(cells.values())
            for cell in [cells[worker.current]] if worker.current in cells else blamed:
                fields = {"status": status_of(lost), "reason": lost.reason, "log_tail": lost.log_tail}
                yield Outcome(cell, fields, worker.versions)
        except BaseException:  # Ctrl-C, or the reader stopped: end the process
            self.close()
            raise

    def _task(self, job: Job) -> dict[str, Any]:
        return {
            "workload": job.workload.to_dict(),
            "cells": [[cell.id, cell.kernel] for cell in job.cells],
            "gpu": self.gpu,
            "device": self.device,
            "contract": dataclasses.asdict(self.contract),
            "process": self.process,
            "heuristics": self.heuristics,
        }

    def _listen(self, worker: "Worker", cells: dict[str, Cell]) -> Iterator[Outcome]:
        while True:
            event = worker.event(self.limit_s)
            match event["event"]:
                case "start":
                    if event["cell"] in cells:
                        self.on_start(cells[event["cell"]])
                case "row":
                    yield Outcome(cells.pop(event["cell"]), event["outcome"], worker.versions)
                case "sick":
                    raise worker.lost("crash", "the device answered no more, though no cell was running")
                case "done":
                    if cells:
                        raise worker.lost("crash", "the worker finished without a row for this cell")
                    return


class Worker(Child):
    """A child that answers with events (compare.process.channel), after one that says what versions it runs."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        super().__init__(command, environment, flood=FLOOD_BYTES, name="the worker")
        self.versions: dict[str, str] = {}
        self.current: str | None = None  # the cell in progress, None before the first

    def tell(self, plain: dict[str, Any]) -> None:
        """Send a task. Raises Lost."""
        self.current = None
        self.send(json.dumps(plain).encode())

    def event(self, limit_s: float) -> dict[str, Any]:
        """The next event. Raises Lost after `limit_s` without one, at the process's end or when it floods its log."""
        limit_s = limit_s if self.versions else max(limit_s, START_LIMIT_S)
        event = json.loads(self.line(limit_s))
        if event["event"] == "ready":
            self.versions = event["versions"]
            return self.event(limit_s)
        if event["event"] == "start" and event["cell"] != self.current:
            self.current = event["cell"]
            self.mark(event.get("logged"))
        return event


def status_of(lost: Lost) -> Status:
    """The status of the cell at which a worker was lost."""
    return Status.TIMEOUT if lost.status == "timeout" else Status.CRASH


def environment(mode: str) -> dict[str, str]:
    """The child's environment, which decides between interpreting and compiling before triton is imported."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if mode == "check":
        environment["TRITON_INTERPRET"] = "1"
    environment["HELION_DISALLOW_AUTOTUNING"] = "1"
    environment["TRITON_DEFAULT_FP_FUSION"] = "1"  # today's default, said by all: it is in the key of Triton's cache
    environment["PYTHONUNBUFFERED"] = "1"
    # Where an installed one stands, other people's packages stand too: not in front of what was asked for.
    given = [*filter(None, [environment.get("PYTHONPATH")])]
    path = [*given, str(IMPORTED_FROM)] if INSTALLED else [str(IMPORTED_FROM), *given]
    environment["PYTHONPATH"] = os.pathsep.join(path)
    return environment
