"""Combine the rows of several processes into one record a cell, for counts, tables and figures.

compare.analysis.verdict and compare.analysis.diff need the samples of each process and take the rows themselves.
"""

import dataclasses
from collections.abc import Sequence

from compare import stats
from compare.record.records import Derived, Record, Status, Timing

_WORST_FIRST = (*(s for s in Status if s.is_failure), *(s for s in Status if not s.is_failure and s is not Status.OK))


def by_cell(records: Sequence[Record]) -> list[list[Record]]:
    """The rows of each cell, in the order of their processes; cells in the order of their first row."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.cell_id, []).append(record)
    return [sorted(rows, key=lambda record: record.process) for rows in found.values()]


def combined(records: Sequence[Record]) -> list[Record]:
    """One record a cell: the worst status of its processes; where all are ok, their times combined.

    A record alone in its cell stays as it is.
    """
    return [_combined(rows) for rows in by_cell(records)]


def _combined(rows: Sequence[Record]) -> Record:
    first = rows[0]
    if len(rows) == 1:
        return first
    for status in _WORST_FIRST:
        worst = next((row for row in rows if row.status is status), None)
        if worst is not None:
            others = sum(row.status is not status for row in rows)
            where = f" (in process {worst.process}; {others} of {len(rows)} ended otherwise)" if others else ""
            return worst.replace(reason=worst.reason + where, facts=first.facts)
    timings = [row.timing for row in rows if row.timing]
    if not timings:
        return first
    taken = _together(timings)
    seconds = round(sum(row.seconds for row in rows), 3)
    return first.replace(timing=taken, derived=_derived(first, taken), seconds=seconds)


def _together(timings: Sequence[Timing]) -> Timing:
    """The geometric mean of the processes' medians, its 99% interval, and the widest quantiles, without samples."""
    samples = [timing.samples_us or (timing.median_us,) for timing in timings]
    middle, low, high = stats.median_interval(samples)
    widths = [timing.half_width for timing in timings]
    return dataclasses.replace(
        timings[0],
        median_us=middle,
        low_us=low,
        high_us=high,
        p05_us=min(timing.p05_us for timing in timings),
        p95_us=max(timing.p95_us for timing in timings),
        rounds=sum(timing.rounds for timing in timings),
        samples_us=(),
        noisy=any(timing.noisy for timing in timings),
        note="; ".join(dict.fromkeys(filter(None, (timing.note for timing in timings)))),
        half_width=None if None in widths else max(widths),
        processes=len(timings),
    )


def _derived(first: Record, taken: Timing) -> Derived | None:
    """The first process's figures, rescaled to the combined time."""
    if first.derived is None:
        return None
    change = first.timing.median_us / taken.median_us
    known = first.derived
    return dataclasses.replace(
        known, gbps=known.gbps * change, tflops=known.tflops * change, floor_share=known.floor_share * change
    )
