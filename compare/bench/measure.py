"""Time the cells of one job on a GPU: gate, rounds, gate again, one row each."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import torch

from compare.bench import gate, nvidia, timing
from compare.bench.arena import Arena, page_sets
from compare.bench.clocks import Clocks
from compare.bench.gate import Rejected
from compare.bench.subject import Subject, failure
from compare.bench.task import Sick, Task, ok
from compare.record.contract import UNIT
from compare.record.records import Derived, Evidence, GateResult, Status, Timing
from compare.workloads.cost import derived

PATIENCE = 10.0  # times the budget that a row's ten rounds may take: fewer rounds have no interval
IMPOSSIBLE = 1.05  # a time this much below the floor of the stated peaks is not a time


@dataclasses.dataclass
class Entrant:
    """A cell that has passed the gate and is to be timed."""

    cell: str
    subject: Subject
    runner: Any
    gate: GateResult
    samples: list[float]
    watched: gate.Watched | None = None
    taken: Timing | None = None  # set where the timer does not work in rounds

    @property
    def sets(self) -> list[int]:
        return sorted({number for part in self.runner.parts for number in part})


def _enter(task: Task, arena: Arena, clock: Any) -> list[Entrant]:
    """Set up and gate every cell; send the rows of those that fail."""
    entrants = []
    for cell, kernel_id in task.turns:
        task.start(cell)
        identity: dict[str, Any] = {}
        try:
            subject = Subject(kernel_id, arena, task.gpu, heuristics=task.heuristics)
            identity = subject.identity()
            runner = timing.runner(subject, clock, task.contract)
            entrant = Entrant(cell, subject, runner, None, [])
            entrant.gate = gate.before(arena, runner.run, entrant.sets, subject.kernel.CONTRACT)
            task.intact.ensure()
            entrant.watched = gate.Watched(runner, arena, entrant.sets, subject.kernel.CONTRACT, task.intact)
            entrants.append(entrant)
        except Exception as error:
            task.failed(cell, error, identity)
    return entrants


@functools.cache
def _clocks(device: torch.device) -> Clocks:
    return Clocks(device)


def measure(task: Task) -> None:
    """Gate every cell, time the survivors against each other, judge them again on new values, send the rows."""
    hot = task.contract.cache == "hot"
    arena = task.arena(1 if hot else page_sets(task.workload, task.gpu.llc_bytes))
    if arena is None:
        return
    clock = timing.make_clock(task.device, hot)
    entrants = _enter(task, arena, clock)
    quick = [e for e in entrants if not isinstance(e.runner, timing.SlowRunner)]
    unit = _unit(task, quick)
    clocks = _clocks(task.device)
    clocks.begin()
    _rounds(task, quick, unit, clocks)
    state = clocks.end()
    arena.set_values(1)
    for entrant in entrants:
        _finish(task, arena, entrant, unit, clock, state)


def _unit(task: Task, quick: Sequence[Entrant]) -> Entrant | None:
    """The cell that the others are paired with: FA3's where it runs, else the first of the plan."""
    by_cell = {entrant.cell: entrant for entrant in quick}
    in_plan = [by_cell[cell] for cell, _ in task.cells if cell in by_cell]
    return next((e for e in in_plan if e.subject.kernel_id == UNIT), in_plan[0] if in_plan else None)


def _rounds(task: Task, quick: Sequence[Entrant], unit: Entrant | None, clocks: Clocks) -> None:
    """Time the entrants in turns, or by the paper's protocol. Raises Sick; the other cells then start afresh
    elsewhere."""
    turn, contract = [""], task.contract

    def before(cell: str) -> None:
        turn[0] = cell
        task.start(cell)

    try:
        if contract.timer == "paper":
            for entrant in quick:
                before(entrant.cell)
                entrant.taken = timing.of_the_paper(entrant.runner, entrant.subject.arena.cycle_bytes)
        elif unit is not None:
            timing.interleave(
                [timing.Track(e.cell, e.watched, e.samples) for e in quick],
                contract.max_time_s,
                unit=quick.index(unit),
                precision=contract.precision_each,
                patience=PATIENCE,
                before=before,
                between=clocks.sample,
            )
    except Exception as error:
        task.row(turn[0], failure(error))
        raise Sick from error


def _taken(task: Task, entrant: Entrant, unit: Entrant | None) -> Timing:
    """The samples of a cell, as a record holds them."""
    if entrant.taken is not None:
        return entrant.taken
    arena, runner, contract = entrant.subject.arena, entrant.runner, task.contract
    bytes_read = arena.cycle_bytes // len(arena.batches) * len(entrant.sets)
    if isinstance(runner, timing.SlowRunner):
        alone = timing.Against("", None, contract.precision_each)
        return timing.summarise(runner, runner.samples, bytes_read, alone, cache=contract.cache, order="alone")
    paired = None if entrant is unit else unit.samples
    against = timing.Against(unit.subject.kernel_id, paired, contract.precision_each)
    return timing.summarise(runner, entrant.samples, bytes_read, against, cache=contract.cache)


def _figures(task: Task, taken: Timing) -> Derived:
    """GB/s, TFLOP/s and the floor. Raises Rejected for a time that no GPU could have taken."""
    figures = derived(task.workload, task.gpu, taken.median_us, cold=taken.cache == "cold")
    if figures.floor_share > IMPOSSIBLE:
        floor = f"{figures.floor_us:.2f} us at the stated peaks of {task.gpu.title}"
        raise Rejected(Status.INVALID_TIMING, f"{taken.median_us:.2f} us is below the floor of {floor}")
    return figures


def _with_energy(task: Task, runner: Any, figures: Derived) -> Derived:
    """The figures with the joules of a call, where the run asks for them and an NVIDIA GPU can replay a graph."""
    if not task.contract.energy_s or runner.timer != "graph" or torch.version.hip:
        return figures
    read = nvidia.energy(task.device)
    return dataclasses.replace(figures, joules=timing.joules(runner, read, task.contract.energy_s))


def _finish(
    task: Task, arena: Arena, entrant: Entrant, unit: Entrant | None, clock: Any, state: dict[str, Any]
) -> None:
    """Judge a timed cell for the last time, and send its row."""
    subject, runner = entrant.subject, entrant.runner
    task.start(entrant.cell)
    try:
        subject.plan()
        if entrant.watched.why_not:
            raise Rejected(Status.INVALID_TIMING, entrant.watched.why_not)
        verdict = gate.again(arena, runner.run, entrant.sets, subject.kernel.CONTRACT, entrant.gate)
        task.intact.ensure()
        taken = dataclasses.replace(_taken(task, entrant, unit), clocks=state)
        outcome = ok(verdict, Evidence.MEASURED, Evidence.CHECKED_ON_GPU)
        outcome |= {"timing": taken, "derived": _with_energy(task, runner, _figures(task, taken))}
        task.row(entrant.cell, subject.identity() | outcome)
    except Exception as error:
        task.failed(entrant.cell, error, subject.identity())
