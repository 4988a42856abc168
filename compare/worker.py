"""The process that runs kernels: takes a job a line on stdin and streams an event a line, whatever a kernel prints.

Two modes: `check` interprets kernels on the CPU (TRITON_INTERPRET=1 in its environment before triton is imported),
`measure` runs them on a GPU. Events: `ready` with the versions, `start` naming the cell that whatever happens next is
blamed on, `row` with a finished cell, `sick` when the device answers no more (the process then ends), `done` behind a
job.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from typing import Any

import torch

from common import gpus
from compare import gate, rundir, timing
from compare.arena import Arena, page_sets
from compare.cost import derived
from compare.gate import Rejected
from compare.records import Evidence, GateResult, Status
from compare.search import search
from compare.subject import Subject, device_is_sick, failure
from compare.workloads import Workload

CPU_SETS = 2  # page sets in the interpreter: enough to catch a kernel that ignores the block table
CPU_PADDING = 3  # rows of query and out past the last sequence, as an engine leaves them: nobody may write them
IMPOSSIBLE = 1.05  # times below the floor of the GPU's stated peaks by more than this are not times


class Sick(Exception):
    """The device is lost to this process."""


class Channel:
    """Events on a descriptor of their own. Descriptor 1 now leads to stderr: prints of kernels cannot mix in."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.dup(1), "w", encoding="utf-8")
        sys.stdout.flush()
        os.dup2(2, 1)

    def send(self, event: str, **fields: Any) -> None:
        self._file.write(json.dumps({"event": event} | fields, allow_nan=False) + "\n")
        self._file.flush()


def versions() -> dict[str, str]:
    """What ran: interpreter, packages, GPU and driver-side versions."""
    found = rundir.versions()
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name(0)
        found["cuda" if torch.version.cuda else "rocm"] = str(torch.version.cuda or torch.version.hip)
    return found


def _plain(outcome: dict[str, Any]) -> dict[str, Any]:
    """Dataclasses opened, for JSON."""
    return {k: dataclasses.asdict(v) if dataclasses.is_dataclass(v) else v for k, v in outcome.items()}


class Task:
    """One job: the cells of one workload, on one device."""

    def __init__(self, plain: dict[str, Any], channel: Channel) -> None:
        self.workload = Workload.from_dict(plain["workload"])
        self.cells: list[tuple[str, str]] = [tuple(cell) for cell in plain["cells"]]
        self.max_time: float = plain["max_time"]
        self.configs: int = plain["configs"]
        self.seed: int = plain["seed"]
        self.heuristics: str = plain.get("heuristics", "tree")
        self.device = torch.device(plain["device"])
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self.gpu = gpus.resolve(plain["gpu"]) if plain["gpu"] in gpus.TABLE else gpus.detect(self.device.index or 0)
        self.channel = channel
        self._begun: dict[str, float] = {}

    def start(self, cell: str | None) -> None:
        self.channel.send("start", cell=cell)
        if cell is not None:
            self._begun.setdefault(cell, time.perf_counter())

    def row(self, cell: str, outcome: dict[str, Any]) -> None:
        seconds = time.perf_counter() - self._begun[cell]
        self.channel.send("row", cell=cell, outcome=_plain(outcome) | {"seconds": round(seconds, 3)})

    def failed(self, cell: str, error: Exception, identity: dict[str, Any]) -> None:
        """The row of a cell that raised. Raises Sick where the device did not survive it."""
        self.row(cell, identity | failure(error))
        if device_is_sick(self.device):
            raise Sick

    def arena(self, sets: int, pad_tokens: int = 0) -> Arena | None:
        """The tensors of the job; None where making them failed, which is then the row of every cell."""
        self.start(None)
        try:
            return Arena(self.workload, sets, self.device, pad_tokens)
        except Exception as error:
            for cell, _ in self.cells:
                self.start(cell)
                self.failed(cell, error, {})
            return None


def check(task: Task) -> None:
    """Every cell in the interpreter: two poisoned runs, other values and the LSE, and no time anywhere."""
    arena = task.arena(CPU_SETS, CPU_PADDING)
    for cell, kernel_id in task.cells if arena else ():
        task.start(cell)
        identity: dict[str, Any] = {}
        try:
            verdict = _check_cell(task, arena, kernel_id, identity)
            task.row(cell, identity | _ok(verdict, Evidence.INTERPRETED))
        except Exception as error:
            task.failed(cell, error, identity)


def _check_cell(task: Task, arena: Arena, kernel_id: str, identity: dict[str, Any]) -> GateResult:
    """Judge one kernel; `identity` is filled as soon as it is known. Raises what a kernel may raise, and Rejected."""
    arena.set_values(0)
    subject = Subject(kernel_id, arena, task.gpu, heuristics=task.heuristics)
    identity.update(subject.identity())
    contract = subject.kernel.CONTRACT
    verdict = gate.before(arena, lambda: subject.launch(0), [0], contract)
    arena.set_values(1)
    subject.plan()
    last = CPU_SETS - 1
    if "lse" in subject.kernel.SUPPORTS:
        return gate.with_lse(arena, lambda: subject.launch(last, arena.lse), last, contract, verdict)
    return gate.again(arena, lambda: subject.launch(last), [last], contract, verdict)


def _ok(verdict: GateResult, *evidence: Evidence) -> dict[str, Any]:
    return {"status": Status.OK, "reason": "", "evidence": list(evidence), "gate": verdict}


@dataclasses.dataclass
class Entrant:
    """A cell that passed the gate and is about to be timed."""

    cell: str
    subject: Subject
    runner: Any
    gate: GateResult
    samples: list[float]

    @property
    def sets(self) -> list[int]:
        return sorted({number for part in self.runner.parts for number in part})


def _runner(subject: Subject, clock: Any) -> Any:
    """The timer of a subject: graphs; events where it cannot be captured and never said that it could."""
    sets = len(subject.arena.batches)
    call_us = timing.first_launch_us(subject.launch, sets)
    slow = call_us > timing.SLOW_US
    parts = [(0,)] if slow else timing.partition(sets, call_us)
    try:
        runner: Any = timing.GraphRunner(subject.launch, parts, clock)
    except Exception as error:
        if "full_graph" in subject.kernel.SUPPORTS or device_is_sick(subject.arena.device):
            raise
        torch.cuda.synchronize()
        note = f"not captured: {type(error).__name__}"
        runner = timing.EventRunner(subject.launch, parts, clock, note)
    return timing.SlowRunner(runner) if slow else runner


def _enter(task: Task, arena: Arena, clock: Any) -> list[Entrant]:
    """Set up and gate every cell; the rows of those that fail are sent."""
    entrants = []
    for cell, kernel_id in task.cells:
        task.start(cell)
        identity: dict[str, Any] = {}
        try:
            subject = Subject(kernel_id, arena, task.gpu, heuristics=task.heuristics)
            identity = subject.identity()
            runner = _runner(subject, clock)
            entrant = Entrant(cell, subject, runner, None, [])
            entrant.gate = gate.before(arena, runner.run, entrant.sets, subject.kernel.CONTRACT)
            entrants.append(entrant)
        except Exception as error:
            task.failed(cell, error, identity)
    return entrants


def measure(task: Task) -> None:
    """Gate every cell, time those that passed against each other, judge them again on new values, send the rows."""
    arena = task.arena(page_sets(task.workload, task.gpu.llc_bytes))
    if arena is None:
        return
    clock = timing.make_clock(task.device)
    entrants = _enter(task, arena, clock)
    quick = [e for e in entrants if not isinstance(e.runner, timing.SlowRunner)]
    turn = [""]

    def before(cell: str) -> None:
        turn[0] = cell
        task.start(cell)

    try:
        timing.interleave([timing.Track(e.cell, e.runner, e.samples) for e in quick], task.max_time, before=before)
    except Exception as error:  # the others start afresh in another process: their interleaving is broken
        task.row(turn[0], failure(error))
        raise Sick from error
    arena.set_values(1)
    for entrant in entrants:
        _finish(task, arena, entrant, clock)


def _finish(task: Task, arena: Arena, entrant: Entrant, clock: Any) -> None:
    """The last judgement of a timed cell, and its row."""
    subject, runner = entrant.subject, entrant.runner
    task.start(entrant.cell)
    try:
        subject.plan()
        verdict = gate.again(arena, runner.run, entrant.sets, subject.kernel.CONTRACT, entrant.gate)
        slow = isinstance(runner, timing.SlowRunner)
        samples = runner.samples if slow else entrant.samples
        bytes_read = arena.cycle_bytes // len(arena.batches) * len(entrant.sets)
        taken = timing.summarise(runner, samples, bytes_read, "alone" if slow else "interleaved")
        figures = derived(task.workload, task.gpu, taken.median_us)
        if figures.floor_share > IMPOSSIBLE:
            floor = f"{figures.floor_us:.2f} us at the stated peaks of {task.gpu.title}"
            raise Rejected(Status.INVALID_TIMING, f"{taken.median_us:.2f} us is below the floor of {floor}")
        outcome = _ok(verdict, Evidence.MEASURED, Evidence.CHECKED_ON_GPU) | {"timing": taken, "derived": figures}
        if task.configs and hasattr(subject.kernel, "space") and not slow:
            middle = taken.median_us
            outcome["search"] = search(subject, runner, arena, task.gpu, clock, middle, task.configs, task.seed)
        task.row(entrant.cell, subject.identity() | outcome)
    except Exception as error:
        task.failed(entrant.cell, error, subject.identity())


def main() -> None:
    mode = sys.argv[1]
    channel = Channel()
    channel.send("ready", versions=versions())
    for line in sys.stdin:
        try:
            {"check": check, "measure": measure}[mode](Task(json.loads(line), channel))
        except Sick:
            channel.send("sick")
            return
        channel.send("done")


if __name__ == "__main__":
    main()
