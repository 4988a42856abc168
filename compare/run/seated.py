"""The rows of a run on one seat of a fleet: the same processes, gate and clock as in a run on one machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from compare.plan.job import Cell
from compare.plan.plan import Plan
from compare.run.options import Options
from compare.run.rows import Rows


class Deaf:
    """In place of what a person sees: that is where the driver is."""

    def say(self, words: str) -> None: ...

    def process(self, number: int, of: int) -> None: ...

    def begin(self, cell: Cell) -> None: ...


@dataclass
class SeatedRows:
    """A work (compare.fleet.seat.Work): shares are numbers of rows, what is found of them lines of cells.jsonl.

    Processes live from the first share to `close`; they rest between two, as between the chunks of a run.
    """

    plan: Plan
    options: Options
    run_id: str
    _stack: Any = None
    _take: Any = None

    def open(self, seat: str) -> None:
        rows = Rows(self.plan, self.options, self.run_id)
        rows.seat = seat
        self._stack = contextlib.ExitStack()
        self._take = self._stack.enter_context(rows.at_work(Deaf(), lanes=1))

    def do(self, share: Sequence[int]) -> Iterator[str]:
        """Every cell and process of these rows. Others may follow: all processes rest behind them."""
        for record in self._take(share, range(len(self.plan.jobs))):
            yield record.to_json()

    def close(self) -> None:
        self._stack.close()
