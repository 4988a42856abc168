"""Estimate how long a plan takes on this machine, and say it in words."""

from collections.abc import Collection, Iterable

from common.process import cores
from compare.plan.job import Cell
from compare.plan.plan import Plan

# Seconds of a cell beside its launches: import, trace, compile, reference.
INTERPRETED_S = {"triton": 0.5, "helion": 2.5}  # smoke, 128 cells on two cores
MODELLED_S = 4.0  # smoke for an MI300: 64 cells in 155 s, by two processes
MEASURED_S = 0.5  # of one process: peers on an H200, 506 cells in 544 s, by two processes
MODEL_LANES = 8
_UNITS = (("second", 1), ("minute", 60), ("hour", 3600), ("day", 86400), ("year", 365.25 * 86400))


Done = Collection[tuple[str, int]]  # (cell, process) of rows that an earlier part of the run left


def _left(cells: Iterable[Cell], process: int, done: Done) -> list[Cell]:
    return [cell for cell in cells if (cell.id, process) not in done]


def seconds(plan: Plan, done: Done = ()) -> float:
    """Estimated seconds of the cells that are left to run, without those above the CPU budget."""
    if plan.situation.measure:
        each = [_left(job.cells, p, done) for p in range(plan.contract.processes) for job in plan.jobs]
        return sum(plan.contract.max_time_s + MEASURED_S * len(cells) for cells in each if cells)
    runnable = [cell for cell in _left(plan.cells, 0, done) if plan.fits(cell, plan.where.cpu_budget_s)]
    beside = MODELLED_S if plan.modelled else None
    work = sum(
        plan.seconds(cell) + (INTERPRETED_S.get(cell.kernel.split("/")[0], 0.5) if beside is None else beside)
        for cell in runnable
    )
    return work / min(cores(), MODEL_LANES) if plan.modelled else work


def in_words(s: float) -> str:
    """Seconds as text, such as `about 40 seconds` or `about 3 minutes`."""
    name, unit = next(((n, u) for n, u in reversed(_UNITS) if s >= 1.5 * u), _UNITS[0])
    count = max(round(s / unit), 1)
    if name == "second" and count > 10:
        count = round(count, -1)
    return f"about {count:,} {name}{'s' * (count != 1)}"


def line(plan: Plan, done: Done = ()) -> str:
    """`128 cells to run, about 4 minutes on this machine`, `35 of 64 cells to run` where rows are done; and how many
    are too large for this machine's CPU, with how long they would take."""
    budget = plan.where.cpu_budget_s
    large = [cell for cell in plan.cells if not plan.fits(cell, budget)]
    small = [cell for cell in plan.cells if plan.fits(cell, budget)]
    runs = sum(any((cell.id, p) not in done for p in range(plan.contract.processes)) for cell in small)
    count = f"{runs:,}" if runs == len(small) else f"{runs:,} of {len(small):,}"
    cells = f"{count} cell{'s' * (len(small) != 1)} to run"
    said = f"{cells}, {in_words(seconds(plan, done))} on this machine" if runs else ""
    if not large:
        return said or "no cell to run"
    took = in_words(sum(plan.seconds(cell) for cell in large))
    left = f"{len(large):,} left out: each is above --set cpu-budget={budget:g}, and together they would take {took}"
    return "; ".join(filter(None, [said or "no cell to run", f"{left}; a GPU runs them"]))
