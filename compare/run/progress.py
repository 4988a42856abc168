"""The progress of a run on the terminal, and the table at its end."""

import sys
from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from compare.analysis.committed import COLUMNS, Committed
from compare.competitors.registry import BOUNDS
from compare.plan.job import Cell
from compare.record.records import Record, Status


class Show:
    """Progress on stderr: a bar on a terminal, a line per finished cell elsewhere, nothing when quiet."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        self._total, self._done, self._quiet = total, 0, quiet
        self._console = Console(stderr=True)
        self._process = ""  # "process 2 of 3: " where there are several
        self._bar: Progress | None = None
        if self._console.is_terminal and not quiet:
            columns = (
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TimeRemainingColumn(compact=True, elapsed_when_finished=True),
                TextColumn("left"),
                TextColumn("{task.description}", markup=False),
            )
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task("starting", total=total)

    def __enter__(self) -> "Show":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def say(self, words: str) -> None:
        """Show what happens between cells, such as compiling."""
        if self._bar:
            self._bar.update(self._task, description=words)
        elif not self._quiet:
            print(words, file=sys.stderr, flush=True)

    def process(self, number: int, of: int) -> None:
        """Set the process that the next cells belong to, counted from 0."""
        self._process = f"process {number + 1} of {of}: " if of > 1 else ""

    def begin(self, cell: Cell) -> None:
        if self._bar:
            self._bar.update(self._task, description=f"{self._process}{cell.kernel} on {cell.workload.label}")

    def finished(self, record: Record) -> None:
        self._done += 1
        if self._bar:
            self._bar.advance(self._task)
        failed = record.status.is_failure
        if self._quiet or (self._bar and not failed):
            return
        what = f"{record.timing.median_us:.1f} us" if record.timing else str(record.status)
        what += f" under {record.gate.contract}" if record.gate and record.gate.contract else ""
        why = f": {record.reason}" if record.reason else ""
        at = f"{record.seat}: " if record.seat else self._process
        line = f"[{self._done}/{self._total}] {at}{record.kernel} on {record.workload.label}: {what}{why}"
        print(line + f" ({record.seconds:.1f} s)", file=sys.stderr, flush=True)


class Bars(Show):
    """Progress of a fleet: a bar for each seat below the total; without a terminal, lines name the seat."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        super().__init__(total, quiet=quiet)
        self._seats: dict[str, TaskID] = {}

    def seat(self, name: str, total: int) -> None:
        """Add a bar for a seat. total: its records if all seats of its kind are equally fast."""
        if self._bar:
            self._seats[name] = self._bar.add_task(name, total=total)

    def finished(self, record: Record) -> None:
        super().finished(record)
        if not self._bar:
            return
        self._bar.update(self._task, description="all seats")
        if record.seat in self._seats:
            at = f"{record.seat}: {record.kernel} on {record.workload.label}"
            self._bar.update(self._seats[record.seat], advance=1, description=at)


def table(records: Sequence[Record], kernels: Sequence[str]) -> Table:
    """The final table: a row per workload, a column per kernel, each cell the microseconds or the status."""
    view = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    view.add_column("workload", overflow="fold")
    for kernel in kernels:
        view.add_column(_heading(kernel), justify="right", no_wrap=True)
    by_label: dict[str, dict[str, Record]] = {}
    for record in records:
        by_label.setdefault(record.workload.label, {})[record.kernel] = record
    for label, row in by_label.items():
        timed = [r.timing.median_us for r in row.values() if r.timing and r.kernel not in BOUNDS]
        view.add_row(escape(label), *(_entry(row.get(kernel), min(timed, default=0.0)) for kernel in kernels))
    return view


def show(records: Sequence[Record], kernels: Sequence[str], console: Console) -> None:
    """Print the table, split into several if it is wider than the terminal (a pipe has 80 columns, or COLUMNS).
    A column is never cut."""
    timed = any(r.timing for r in records)
    console.print("us per call, * the fastest of a row, ~ noisy" if timed else "how each cell ended", markup=False)
    left = list(kernels)
    while left:
        fits = next((n for n in range(len(left), 1, -1) if _width(records, left[:n], console) <= console.width), 1)
        console.width = max(console.width, _width(records, left[:fits], console))
        console.print(table(records, left[:fits]), "")
        left = left[fits:]


def show_elsewhere(found: Committed, console: Console) -> None:
    """Print the committed speeds of another machine's GPU, marked as such."""
    view = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    for title, is_number in COLUMNS:
        view.add_column(title, justify="right" if is_number else "left")
    for line in found.body:
        view.add_row(*line)
    said = f"not of this machine: an {found.gpu} on {found.day}, FlashAttention 3 = 1, above 1 is faster (worst row)"
    console.print(said, view, "", markup=False, highlight=False)


def _width(records: Sequence[Record], kernels: Sequence[str], console: Console) -> int:
    return console.measure(table(records, kernels), options=console.options.update(width=4096)).maximum


def _heading(kernel: str) -> str:
    """The kernel id broken into short lines, so that many columns fit."""
    return escape(kernel.replace("/", "\n").replace("_", "_\n").replace(":", ":\n"))


def _entry(record: Record | None, best: float) -> str:
    """A cell's text: microseconds, then `*` for the fastest of the row and `~` for noise, each in its own column."""
    if record is None:
        return ""
    if record.timing is None:
        return f"[red]{record.status}[/red]" if record.status.is_failure else str(record.status)
    us = record.timing.median_us
    wins = us == best and record.kernel not in BOUNDS
    text = f"{us:,.1f}{'*' if wins else ' '}{'~' if record.timing.noisy else ' '}"
    return f"[bold]{text}[/bold]" if wins else text


def count(records: Sequence[Record], planned: int, missing: int = 0) -> str:
    """A summary like `48 cells: 46 ok, 2 unsupported`. missing: records that were not made."""
    counts = Counter(record.status for record in records)
    parts = [f"{counts[status]} {status}" for status in Status if counts[status]]
    if len(records) < planned:
        parts.append(f"{planned - len(records)} not run")
    elif missing:
        parts.append(f"{missing} repetitions not run")
    return f"{planned} cells: {', '.join(parts) or 'none'}"
