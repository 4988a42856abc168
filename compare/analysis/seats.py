"""How much equal GPUs of a fleet differ, by rows that each of them timed."""

import math
from collections import defaultdict
from collections.abc import Sequence

from compare.record.records import Record
from compare.stats import geomean


def noise(records: Sequence[Record], repeats: Sequence[Record]) -> dict[str, dict[str, float | int]]:
    """Per seat that timed a repeated row: its mean time over the mean of all seats, and its largest deviation in one
    cell, both minus 1 (0.01 is 1% slower). Empty where no row was repeated."""
    repeated = {record.cell_id for record in repeats}
    times: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in [*records, *repeats]:
        if record.timing and record.cell_id in repeated:
            times[record.cell_id][record.seat].append(record.timing.median_us)
    ratios: dict[str, list[float]] = defaultdict(list)
    for of in times.values():
        medians = {seat: geomean(found) for seat, found in of.items()}
        if len(medians) > 1:
            middle = geomean(list(medians.values()))
            for seat, us in medians.items():
                ratios[seat].append(us / middle)
    return {
        seat: {"mean": geomean(found) - 1.0, "most": max((r - 1.0 for r in found), key=math.fabs), "cells": len(found)}
        for seat, found in ratios.items()
    }
