"""Who is faster over a suite: means beside failures, tallies of verdicts.

All functions take the raw rows of one GPU, one per cell and process, and return plain data, as compare.analysis.verdict
does.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compare import stats
from compare.analysis.verdict import Outcome, Pairs, Series, Verdict, series, shared
from compare.competitors.registry import BOUNDS
from compare.record.records import Record, Status
from compare.stats import Ratio

KINDS = ("decode", "speculative", "prefill", "mixed")
GROUPS = ("all", *KINDS)


@dataclass(frozen=True)
class Standing:
    """A kernel against another over a group of workloads. speed: geometric mean over `compared` cells, None for none.

    cells: the group's workloads that the kernel was asked. missing: counts by status of the kernel's failures and, as
    "of the other", of the other's. shared: the mean over the cells that all kernels of the group have.
    """

    group: str
    kernel: str
    against: str
    cells: int
    compared: int
    speed: Ratio | None
    outcomes: Mapping[Outcome, int]
    missing: Mapping[str, int]
    shared: float | None
    shared_cells: int


def standings(records: Sequence[Record], found: Sequence[Verdict], pairs: Pairs) -> list[Standing]:
    """Every kernel of the pairs over all workloads and by class, without groups that it was not asked.
    found: `judge(records, pairs)`."""
    made, times = [], series(records)
    for name in GROUPS:
        rows = [r for r in records if name in ("all", r.workload.kind)]
        own: dict[str, list[Verdict]] = {kernel: [] for kernel, _ in pairs}
        for verdict in found:
            if name in ("all", verdict.workload.kind):
                own[verdict.kernel].append(verdict)
        alike = _alike(own)
        asked = {r.kernel for r in rows}
        made += [_standing(name, rows, pair, own[pair[0]], alike, times) for pair in pairs if pair[0] in asked]
    return made


def _alike(own: Mapping[str, Sequence[Verdict]]) -> set[str]:
    """Workloads on which every kernel of a group has a verdict, ignoring bounds and kernels without any."""
    sets = [{v.workload.id for v in mine} for kernel, mine in own.items() if mine and kernel not in BOUNDS]
    return set.intersection(*sets) if sets else set()


def _standing(
    group: str,
    rows: Sequence[Record],
    pair: tuple[str, str],
    own: Sequence[Verdict],
    alike: set[str],
    times: Mapping[tuple[str, str], Series],
) -> Standing:
    kernel, against = pair
    asked, other = _statuses(rows, kernel), _statuses(rows, against)
    missing = Counter(str(status) for status in asked.values() if status is not Status.OK)
    lost = Counter(f"{other.get(load, 'not run')} of the other" for load, s in asked.items() if s is Status.OK)
    missing.update({why: count for why, count in lost.items() if why != "ok of the other"})
    alike_speeds = [v.speed.ratio for v in own if v.workload.id in alike]
    return Standing(
        group,
        kernel,
        against,
        cells=len(asked),
        compared=len(own),
        speed=_speed(own, times) if own else None,
        outcomes=Counter(v.outcome for v in own),
        missing=missing,
        shared=stats.geomean(alike_speeds) if alike_speeds else None,
        shared_cells=len(alike_speeds),
    )


def _speed(own: Sequence[Verdict], times: Mapping[tuple[str, str], Series]) -> Ratio:
    """The geometric mean, with the interval of paired cells where all are paired."""
    cells = [shared(times[v.workload.id, v.against], times[v.workload.id, v.kernel]) for v in own]
    paired = [(theirs, mine) for theirs, mine, pairs_up in cells if pairs_up and sum(map(len, mine)) >= stats.FEW]
    return stats.geomean_ratio(paired) if len(paired) == len(own) else _mean([v.speed for v in own])


def _statuses(rows: Sequence[Record], kernel: str) -> dict[str, Status]:
    """Workload -> the kernel's status: ok where it was ok in every process."""
    found: dict[str, Status] = {}
    for row in rows:
        if row.kernel == kernel and found.get(row.workload.id, Status.OK) is Status.OK:
            found[row.workload.id] = row.status
    return found


def _mean(speeds: Sequence[Ratio]) -> Ratio:
    """The mean over cells of which some are not paired: its interval has the means of both ends, which is wider than
    needed. If a cell has no interval, neither has the mean."""
    ratio = stats.geomean([s.ratio for s in speeds])
    known = all(s.low > 0 for s in speeds)
    low, high = (stats.geomean([getattr(s, end) for s in speeds]) if known else None for end in ("low", "high"))
    return Ratio(ratio, low or 0.0, high or math.inf, min(s.processes for s in speeds))
