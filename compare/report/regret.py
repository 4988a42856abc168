"""What `auto` loses on rows that nobody fitted to, in a run of the suite `unseen` with other kernels beside it.

Regret is the time of `auto` over the best of its DSL on the row, minus 1, among the run's kernels as configured. `study
regret` tries more on each row.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from compare.analysis import regret
from compare.analysis.runs import RunData
from compare.analysis.tables import Table
from compare.competitors.registry import CALLED
from compare.record.records import Record
from compare.report.blocks import Fold, Section, Text

SUITE = "unseen"
WORDS = (
    "Time of `auto` over the best of its DSL on the row, less one: of the kernels beside it, as they are configured."
    " Its rows are drawn by a seed, and nobody fits to them."
)


@dataclass(frozen=True)
class Loss:
    """The loss of an `auto` on a row, in microseconds: medians over the run's processes."""

    row: str
    auto: str
    us: float
    best: str
    best_us: float

    @property
    def regret(self) -> float:
        return regret.of(self.us, self.best_us)


def _best(records: Sequence[Record]) -> float:
    return statistics.median(record.timing.median_us for record in records)


def losses(records: Sequence[Record]) -> list[Loss]:
    """The loss of each `auto` on each row with another kernel of its DSL, the worst first."""
    rows: dict[str, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        rows[record.workload.id][record.kernel].append(record)
    found = []
    for of in rows.values():
        for auto in (kernel for kernel in CALLED if kernel in of):
            dsl = auto.split("/")[0]
            others = {k: _best(mine) for k, mine in of.items() if k.split("/")[0] == dsl and k != auto}
            if others:
                best = min(others, key=others.get)
                us = statistics.median(record.timing.median_us for record in of[auto])
                found.append(Loss(of[auto][0].workload.label, auto, us, best, others[best]))
    return sorted(found, key=lambda loss: -loss.regret)


def section(run: RunData) -> Section | None:
    """The section; None for another suite, and where no kernel ran beside `auto`."""
    found = losses([record for record in run.ok if record.timing]) if run.suite == SUITE else []
    if not found:
        return None
    body = []
    for auto in dict.fromkeys(loss.auto for loss in found):
        mine = [100 * loss.regret for loss in found if loss.auto == auto]
        body.append([f"`{auto}`", len(mine), f"{statistics.fmean(mine):.1f}", f"{mine[0]:.1f}"])
    columns = [("auto", False), ("rows", True), ("regret: mean %", True), ("worst %", True)]
    rows = [
        [x.row, f"`{x.auto}`", f"{x.us:.1f}", f"`{x.best}`", f"{x.best_us:.1f}", f"{100 * x.regret:.1f}"] for x in found
    ]
    each = [("row", False), ("auto", False), ("us", True), ("best beside it", False), ("us", True), ("regret %", True)]
    blocks = (Text(WORDS), Table(columns, body), Fold("Row by row", (Table(each, rows),)))
    return Section("regret", "What auto loses on rows that nobody fitted to", blocks)
