"""Who is faster, cell by cell: paired ratios, their intervals, and the verdicts that they allow.

All functions take the raw rows of one GPU, one per cell and process, and return plain data. Speeds are the other's time
over the kernel's own: above 1 is faster. The unit is FlashAttention 3 where it was timed.

A verdict is a claim about the whole interval. `faster` and `slower`: it lies beyond the margin. `same`: it lies within.
`ambiguous`: it does neither, and a longer run may tell. The margin is 2%: four times the half-width at which rounds
end, so that two copies of one kernel are `same` and 5% is found; and nobody exchanges a kernel for less. Where
compare.run.doctor found that identical code differs by more, that is the margin.
"""

import enum
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from compare import stats
from compare.competitors.registry import BOUNDS
from compare.record.contract import UNIT as FA3
from compare.record.noise import Noise
from compare.record.records import Record, WorkloadInfo
from compare.stats import Ratio

MARGIN = 0.02


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
    """A verdict on a kernel against another on one workload. speed: the other's time over the kernel's.

    basis: what the interval is computed from, "3 processes, 60 rounds, paired".
    """

    workload: WorkloadInfo
    kernel: str
    against: str
    outcome: Outcome
    speed: Ratio
    basis: str
    noisy: bool = False


def decide(speed: Ratio, margin: float = MARGIN) -> Outcome:
    """The outcome of a speed's interval, with the margin on both sides: 1 + margin and its inverse."""
    above, below = 1 + margin, 1 / (1 + margin)
    if speed.low > above:
        return Outcome.FASTER
    if speed.high < below:
        return Outcome.SLOWER
    return Outcome.SAME if below <= speed.low and speed.high <= above else Outcome.AMBIGUOUS


def margin_of(noise: Noise | None) -> float:
    """The margin of a run, no smaller than its noise floor: identical code is never called faster."""
    return max(MARGIN, noise.within) if noise else MARGIN


def series(records: Iterable[Record]) -> dict[tuple[str, str], Series]:
    """The timed cells by (workload id, kernel): those that are ok in every process. A row without samples counts with
    its median."""
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

    Rounds are pairs where both took turns in the same processes. Elsewhere (a slow call with three launches, a process
    in which one failed) only common processes count; without any, the two are resampled separately. Very few samples
    get Student's interval.
    """
    mine, theirs, pairs = shared(kernel, other)
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


def shared(kernel: Series, other: Series) -> tuple[_Samples, _Samples, bool]:
    """(samples of one, of the other, whether rounds are pairs), over common processes where there are any."""
    common = sorted(set(kernel.samples) & set(other.samples))
    if not common:
        return list(kernel.samples.values()), list(other.samples.values()), False
    mine, theirs = [kernel.samples[p] for p in common], [other.samples[p] for p in common]
    turns = kernel.order == other.order == "interleaved"
    return mine, theirs, turns and [*map(len, mine)] == [*map(len, theirs)]


def unit_of(records: Sequence[Record]) -> str | None:
    """FA3 where it was timed; else the kernel timed on most workloads, the first of several; None where nothing was
    timed."""
    timed = Counter(kernel for _, kernel in series(records) if kernel not in BOUNDS)
    return FA3 if FA3 in timed else max(timed, key=timed.__getitem__, default=None)


Pairs = Sequence[tuple[str, str]]  # (kernel, against)


def unit_pairs(records: Iterable[Record], unit: str) -> Pairs:
    """Every kernel of the rows, in their order, against the unit; bounds (no paging) included."""
    return [(kernel, unit) for kernel in dict.fromkeys(r.kernel for r in records) if kernel != unit]


def twin_pairs(records: Iterable[Record]) -> Pairs:
    """Every Helion kernel against the Triton kernel of its name, where the run has both."""
    kernels = dict.fromkeys(r.kernel for r in records)
    pairs = [(k, "triton/" + k.removeprefix("helion/")) for k in kernels if k.startswith("helion/")]
    return [(kernel, twin) for kernel, twin in pairs if twin in kernels]


def judge(records: Sequence[Record], pairs: Pairs, margin: float = MARGIN) -> list[Verdict]:
    """The verdict of every cell on which both of a pair were timed, in the order of the rows."""
    found, against = series(records), dict(pairs)
    cells = [(mine, found.get((load, against.get(kernel, "")))) for (load, kernel), mine in found.items()]
    return [compare(mine, other, margin) for mine, other in cells if other is not None]
