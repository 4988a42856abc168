"""Who is faster, cell by cell and over a suite: paired ratios, their intervals, and what may be said of them.

All functions take the raw rows of one GPU, one per cell and process, and return plain data. Speeds are the other's time
over the kernel's own: above 1 is faster. The unit is FlashAttention 3 where it was timed.

A verdict is a claim about the whole interval. `faster` and `slower`: it lies beyond the margin. `same`: it lies within.
`ambiguous`: it does neither, and a longer run may tell. The margin is 2%: four times the half-width at which rounds
end, so that two copies of one kernel are `same` and 5% is found; and nobody exchanges a kernel for less. Where
compare.doctor found that identical code differs by more, that is the margin.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from compare import stats
from compare.noise import Noise
from compare.records import Record, Status, WorkloadInfo
from compare.registry import BOUNDS
from compare.stats import Ratio

FA3 = "baseline/flash_attn3"
MARGIN = 0.02
KINDS = ("decode", "speculative", "prefill", "mixed")
SHARES = ("0%", "50%", "100%", "other")
TAUS = (1.0, 1.02, 1.05, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)


class Outcome(enum.StrEnum):
    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    AMBIGUOUS = "ambiguous"


@dataclass(frozen=True)
class Series:
    """All samples of one kernel on one workload: samples[process] in the order of rounds, microseconds."""

    workload: WorkloadInfo
    kernel: str
    samples: Mapping[int, tuple[float, ...]]
    order: str
    noisy: bool

    @property
    def median_us(self) -> float:
        return stats.geomean([statistics.median(rounds) for rounds in self.samples.values()])


@dataclass(frozen=True)
class Verdict:
    """What may be said of a kernel against another on one workload. speed: the other's time over the kernel's.

    basis: what the interval stands on, "3 processes, 60 rounds, paired".
    """

    workload: WorkloadInfo
    kernel: str
    against: str
    outcome: Outcome
    speed: Ratio
    basis: str
    noisy: bool = False


@dataclass(frozen=True)
class Standing:
    """A kernel against another over a group of workloads. speed: geometric mean over `compared` cells, None for none.

    cells: workloads of the group that were asked of the kernel. missing: how many ended in which status, of the kernel
    and, as "of the unit", of the other. shared: the mean over the cells that all kernels of the group have alike.
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


def decide(speed: Ratio, margin: float = MARGIN) -> Outcome:
    """What the interval of a speed says, the margin taken on both sides alike: 1 + margin and its inverse."""
    above, below = 1 + margin, 1 / (1 + margin)
    if speed.low > above:
        return Outcome.FASTER
    if speed.high < below:
        return Outcome.SLOWER
    return Outcome.SAME if below <= speed.low and speed.high <= above else Outcome.AMBIGUOUS


def margin_of(noise: Noise | None, margin: float = MARGIN) -> float:
    """The margin of a run: identical code that was timed side by side is never called faster."""
    return max(margin, noise.within) if noise else margin


def series(records: Iterable[Record]) -> dict[tuple[str, str], Series]:
    """The timed cells by (workload id, kernel): those that ended ok in every process. A row without its samples counts
    with its median alone."""
    found: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        found.setdefault((record.workload.id, record.kernel), []).append(record)
    return {key: _series(rows) for key, rows in found.items() if all(row.timing for row in rows)}


def _series(rows: Sequence[Record]) -> Series:
    samples = {r.process: r.timing.samples_us or (r.timing.median_us,) for r in rows}
    noisy = any(r.timing.noisy for r in rows)
    return Series(rows[0].workload, rows[0].kernel, samples, rows[0].timing.order, noisy)


def compare(kernel: Series, other: Series, margin: float = MARGIN) -> Verdict:
    """One kernel against another on the same workload.

    Rounds are pairs where both took turns in the same processes; elsewhere (a call so long that it had three launches
    of its own, a process in which one of them failed) the processes that both have must do, or none is shared and the
    two are resampled each on its own. Very few samples get Student's interval.
    """
    mine, theirs, pairs = _shared(kernel, other)
    rounds = min(sum(map(len, mine)), sum(map(len, theirs)))
    if rounds < stats.FEW:
        speed, basis = stats.few_ratio(theirs, mine), f"{rounds} samples: Student's t"
    else:
        speed = (stats.paired_ratio if pairs else stats.unpaired_ratio)(theirs, mine)
        processes = f"{speed.processes} processes" if speed.processes > 1 else "1 process: only rounds are resampled"
        basis = f"{processes}, {rounds} rounds, {'paired' if pairs else 'not paired'}"
    noisy = kernel.noisy or other.noisy
    return Verdict(kernel.workload, kernel.kernel, other.kernel, decide(speed, margin), speed, basis, noisy)


_Samples = list[tuple[float, ...]]


def _shared(kernel: Series, other: Series) -> tuple[_Samples, _Samples, bool]:
    """(samples of one, of the other, whether rounds are pairs), of the processes that both have where there are any."""
    common = sorted(set(kernel.samples) & set(other.samples))
    if not common:
        return list(kernel.samples.values()), list(other.samples.values()), False
    mine, theirs = [kernel.samples[p] for p in common], [other.samples[p] for p in common]
    turns = kernel.order == other.order == "interleaved"
    return mine, theirs, turns and [*map(len, mine)] == [*map(len, theirs)]


def unit_of(records: Sequence[Record]) -> str | None:
    """FA3 where it was timed; else the kernel timed on most workloads, the first of those; None where nothing was."""
    timed = Counter(kernel for _, kernel in series(records) if kernel not in BOUNDS)
    return FA3 if FA3 in timed else max(timed, key=timed.__getitem__, default=None)


def verdicts(records: Sequence[Record], unit: str | None = None, margin: float = MARGIN) -> list[Verdict]:
    """Every timed cell against the unit on the same workload, in the order of the rows; bounds (no paging) too."""
    unit = unit or unit_of(records)
    found = series(records)
    pairs = [(mine, found.get((load, unit))) for (load, kernel), mine in found.items() if kernel != unit]
    return [compare(mine, other, margin) for mine, other in pairs if other is not None]


def twins(records: Sequence[Record], margin: float = MARGIN) -> list[Verdict]:
    """Every Helion kernel against the Triton kernel of its name, where both were timed on a workload."""
    found = series(records)
    helion = [(key, mine) for key, mine in found.items() if key[1].startswith("helion/")]
    pairs = [(mine, found.get((load, "triton/" + kernel.removeprefix("helion/")))) for (load, kernel), mine in helion]
    return [compare(mine, other, margin) for mine, other in pairs if other is not None]


def decode_share(load: WorkloadInfo) -> str:
    """The share of sequences with one query token, as the paper's figure 6 has it: 0%, 50%, 100%, or other."""
    share = load.num_decodes / load.num_seqs if load.num_seqs else 0.0
    return {0.0: "0%", 0.5: "50%", 1.0: "100%"}.get(share, "other")


GROUPS: dict[str, Callable[[WorkloadInfo], bool]] = (
    {"all": lambda load: True}
    | {kind: (lambda load, kind=kind: load.kind == kind) for kind in KINDS}
    | {f"decode share {share}": (lambda load, share=share: decode_share(load) == share) for share in SHARES}
)


def standings(records: Sequence[Record], found: Sequence[Verdict]) -> list[Standing]:
    """Every kernel of the verdicts over all workloads, by class and by decode share; groups without a cell are left
    out. `found` holds verdicts of one kind: `verdicts(records)` or `twins(records)`."""
    standing = []
    times = series(records)
    for name, belongs in GROUPS.items():
        rows = [r for r in records if belongs(r.workload)]
        mine = [v for v in found if belongs(v.workload)]
        by_kernel: dict[tuple[str, str], list[Verdict]] = {}
        for verdict in mine:
            by_kernel.setdefault((verdict.kernel, verdict.against), []).append(verdict)
        alike = _alike(by_kernel)
        standing += [_standing(name, rows, own, alike, times) for own in by_kernel.values()]
    return standing


def _alike(by_kernel: Mapping[tuple[str, str], Sequence[Verdict]]) -> set[str]:
    """Workloads on which every kernel of a group has a verdict; bounds do not take part."""
    sets = [{v.workload.id for v in own} for (kernel, _), own in by_kernel.items() if kernel not in BOUNDS]
    return set.intersection(*sets) if sets else set()


def _standing(
    group: str,
    rows: Sequence[Record],
    own: Sequence[Verdict],
    alike: set[str],
    times: Mapping[tuple[str, str], Series],
) -> Standing:
    kernel, against = own[0].kernel, own[0].against
    asked, other = _statuses(rows, kernel), _statuses(rows, against)
    missing = Counter(str(status) for status in asked.values() if status is not Status.OK)
    lost = Counter(f"{other.get(load, 'not run')} of the unit" for load, s in asked.items() if s is Status.OK)
    missing.update({why: count for why, count in lost.items() if why != "ok of the unit"})
    shared = [v.speed.ratio for v in own if v.workload.id in alike]
    pairs = [_shared(times[v.workload.id, kernel], times[v.workload.id, against]) for v in own]
    paired = [(theirs, mine) for mine, theirs, pairs_up in pairs if pairs_up and sum(map(len, mine)) >= stats.FEW]
    speed = stats.geomean_ratio(paired) if len(paired) == len(own) else _mean([v.speed for v in own])
    return Standing(
        group,
        kernel,
        against,
        len(asked),
        len(own),
        speed,
        Counter(v.outcome for v in own),
        missing,
        stats.geomean(shared) if shared else None,
        len(shared),
    )


def _statuses(rows: Sequence[Record], kernel: str) -> dict[str, Status]:
    """Per workload how the kernel ended: ok where it did in every process."""
    found: dict[str, Status] = {}
    for row in rows:
        if row.kernel == kernel and found.get(row.workload.id, Status.OK) is Status.OK:
            found[row.workload.id] = row.status
    return found


def _mean(speeds: Sequence[Ratio]) -> Ratio:
    """Over cells of which some are not paired: the means of both ends, wider than an interval has to be. A cell of one
    sample has no interval, and then the mean has none."""
    ratio = stats.geomean([s.ratio for s in speeds])
    known = all(s.low > 0 for s in speeds)
    low, high = (stats.geomean([getattr(s, end) for s in speeds]) if known else None for end in ("low", "high"))
    return Ratio(ratio, low or 0.0, high or math.inf, min(s.processes for s in speeds))


def profile(
    records: Sequence[Record], group: str = "all", taus: Sequence[float] = TAUS
) -> dict[str, tuple[float, ...]]:
    """Dolan and More's performance profile over a group (GROUPS): per kernel, in the order of the rows, the share of
    workloads on which its time is within tau of the best kernel's. A cell that did not end ok is within no tau. Bounds
    are left out, and workloads that nobody was timed on."""
    rows = [r for r in records if GROUPS[group](r.workload) and r.kernel not in BOUNDS]
    times = series(rows)
    loads = list(dict.fromkeys(load for load, _ in times))
    kernels = list(dict.fromkeys(r.kernel for r in rows)) if loads else []
    table = {k: [times[load, k].median_us if (load, k) in times else None for load in loads] for k in kernels}
    return stats.performance_profile(table, taus)
