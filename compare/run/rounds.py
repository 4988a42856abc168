"""Estimate how many rounds a precision needs, from the spread of log-ratios between the rounds of a run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from compare.analysis.verdict import unit_of
from compare.bench.timing import quantile
from compare.record.records import Record, latest
from compare.record.store import load

Z99 = 2.576
SHARES = (0.5, 0.75, 0.9, 1.0)


def spreads(records: Sequence[Record]) -> list[float]:
    """The standard deviation of the paired log-ratios to the unit kernel, for each cell and process."""
    unit = unit_of(records)
    timed = {(r.workload.id, r.process, r.kernel): r.timing for r in records if r.timing}
    found = []
    for (load_id, process, kernel), timing in timed.items():
        base = timed.get((load_id, process, unit))
        turns = base is not None and timing.order == base.order == "interleaved"
        if turns and kernel != unit and len(base.samples_us) == len(timing.samples_us) >= 3:
            pairs = zip(timing.samples_us, base.samples_us, strict=True)
            found.append(statistics.stdev(math.log(mine / theirs) for mine, theirs in pairs))
    return found


def rounds(spread: float, precision: float) -> int:
    """Rounds over all processes until the 99% interval of the mean is within the precision."""
    return math.ceil((Z99 * spread / precision) ** 2)


def told(run: Path, precision: float) -> list[str]:
    """Lines for shares of the run's cells: the largest spread and the rounds. Raises OSError; ValueError for a run
    without kernels that took turns."""
    found = spreads(latest(load(run / "cells.jsonl").records))
    if not found:
        raise ValueError(f"--rounds: found {run} without rounds in turns, allowed a run that timed several kernels")
    lines = [f"{len(found)} cells; rounds for {precision:.2%}"]
    for part in SHARES:
        spread = quantile(found, part)
        lines.append(f"  {part:5.0%} of cells   spread at most {spread:6.2%}   {rounds(spread, precision):6} rounds")
    return lines
