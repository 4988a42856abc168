"""How many rounds a precision takes on a GPU that was measured: the spread of paired log-ratios from round to round.

    python -m compare study precision RUN [--precision 0.5%]

Per cell of the run the standard deviation over rounds of log(kernel / unit), and the rounds, of all processes together,
after which the 99% interval of its mean would be within the precision to either side. Exit codes: 0; 2 for what holds
no such rows.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from compare.analysis.verdict import unit_of
from compare.bench.timing import quantile
from compare.exits import USAGE, say
from compare.record.contract import PRECISION
from compare.record.records import Record, latest
from compare.record.store import load
from compare.workloads.numbers import share

HELP = "how many rounds a precision takes on a GPU that was measured"

Z99 = 2.576
SHARES = (0.5, 0.75, 0.9, 1.0)


def spreads(records: Sequence[Record]) -> list[float]:
    """Standard deviations of paired log-ratios to the unit, one per cell and process that took turns with it."""
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
    """After how many rounds the interval of the mean is that narrow."""
    return math.ceil((Z99 * spread / precision) ** 2)


def options(new: argparse.ArgumentParser) -> None:
    new.add_argument("run", type=Path, metavar="RUN")
    new.add_argument("--precision", type=share, default=PRECISION, help=f"default {PRECISION:.1%}".replace("%", "%%"))


def main(asked: argparse.Namespace) -> int:
    try:
        found = spreads(latest(load(asked.run / "cells.jsonl").records))
    except (OSError, ValueError) as error:
        say(error)
        return USAGE
    if not found:
        print(
            f"run: found {asked.run} without rounds in turns, allowed one that timed several kernels", file=sys.stderr
        )
        return USAGE
    print(f"{len(found)} cells; rounds for {asked.precision:.2%}")
    for part in SHARES:
        spread = quantile(found, part)
        print(f"  {part:5.0%} of cells   spread at most {spread:6.2%}   {rounds(spread, asked.precision):6} rounds")
    return 0
