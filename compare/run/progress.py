"""What a person sees while a run goes on, and the table behind it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from compare.plan.job import Cell
from compare.record.records import Record, Status


class Show:
    """Progress on stderr: a bar on a terminal, a line per finished cell elsewhere, nothing when quiet."""

    def __init__(self, total: int, *, quiet: bool, verbose: bool) -> None:
        self._total, self._done, self._quiet, self._verbose = total, 0, quiet, verbose
        self._console = Console(stderr=True)
        self._process = ""  # "process 2 of 3: " where there are several
        self._bar: Progress | None = None
        if self._console.is_terminal and not quiet:
            columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task("starting", total=total)

    def __enter__(self) -> Show:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def say(self, words: str) -> None:
        """What goes on between cells."""
        if self._bar:
            self._bar.update(self._task, description=words)
        elif not self._quiet:
            print(words, file=sys.stderr, flush=True)

    def process(self, number: int, of: int) -> None:
        """Which of several processes the next cells are of, counted from 0."""
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
        if self._verbose and record.log_tail:
            print(record.log_tail, file=sys.stderr, flush=True)


class Bars(Show):
    """Of a fleet: a bar a seat below that of all; elsewhere than on a terminal a line a cell, which names its seat."""

    def __init__(self, total: int, *, quiet: bool, verbose: bool) -> None:
        super().__init__(total, quiet=quiet, verbose=verbose)
        self._seats: dict[str, TaskID] = {}

    def seat(self, name: str, total: int) -> None:
        """One more seat. total: records that it does, where all of its kind are as fast."""
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
    """A row a workload, a column a kernel: microseconds where a cell was timed, the status elsewhere."""
    title = "us per call" if any(r.timing for r in records) else "status"
    view = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    view.add_column("workload", no_wrap=True)
    for kernel in kernels:
        view.add_column(_heading(kernel), justify="right", no_wrap=True)
    by_label: dict[str, dict[str, Record]] = {}
    for record in records:
        by_label.setdefault(record.workload.label, {})[record.kernel] = record
    for label, row in by_label.items():
        timed = [r.timing.median_us for r in row.values() if r.timing]
        view.add_row(label, *(_entry(row.get(kernel), min(timed, default=0.0)) for kernel in kernels))
    return view


def show(records: Sequence[Record], kernels: Sequence[str], console: Console) -> None:
    """Print the table as wide as it is: in a pipe rich takes 80 columns, and would cut names and figures off."""
    found = table(records, kernels)
    console.width = max(console.width, console.measure(found, options=console.options.update(width=4096)).maximum)
    console.print(found)


def _heading(kernel: str) -> str:
    """The id in short lines: nine columns fit beside the labels into 112 characters."""
    return kernel.replace("/", "\n").replace("parallel_", "parallel\n").replace("flash_", "flash\n")


def _entry(record: Record | None, best: float) -> str:
    if record is None:
        return ""
    if record.timing is None:
        return f"[red]{record.status}[/red]" if record.status.is_failure else str(record.status)
    us = record.timing.median_us
    text = f"{us:.1f}" if us < 1000 else f"{us:.0f}"
    text += "~" if record.timing.noisy else ""
    return f"[bold]{text}[/bold]" if record.timing.median_us == best else text


def count(records: Sequence[Record], planned: int, missing: int = 0) -> str:
    """`48 cells: 46 ok, 2 unsupported`, and how many are missing.

    missing: records that were not made; where every cell has one, of processes that did not get to it.
    """
    counts = Counter(record.status for record in records)
    parts = [f"{counts[status]} {status}" for status in Status if counts[status]]
    if len(records) < planned:
        parts.append(f"{planned - len(records)} not run")
    elif missing:
        parts.append(f"{missing} repetitions not run")
    return f"{planned} cells: {', '.join(parts) or 'none'}"
