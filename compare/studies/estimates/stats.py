"""How well the model of compare.static.estimate did: points of floor, estimate and measurement, and what they say."""

from __future__ import annotations

import itertools
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

FEWEST = 3  # points below which a rank correlation says nothing
HALF = 0.5  # of a resource's peak; above it the resource is what the time was spent on


@dataclass(frozen=True)
class Point:
    """One measured cell beside what was said of it; microseconds.

    group: the workload. setup: kernel and config; setups of one workload are ranked against each other. bytes_us,
    matrix_us, launch_us: what bytes, useful FLOPs and launches take at the sustained and stated peaks; they name what a
    measured time was spent on.
    """

    group: str
    setup: str
    kind: str
    floor_us: float
    estimate_us: float
    limiter: str
    measured_us: float
    bytes_us: float
    matrix_us: float
    launch_us: float
    note: str = ""

    @property
    def ratio(self) -> float:
        """measured / estimate."""
        return self.measured_us / self.estimate_us

    @property
    def observed(self) -> str:
        """What the time was spent on, as far as it tells: launch, bytes or matrix above HALF of it, else `other`."""
        shares = {"launch": self.launch_us, "bytes": self.bytes_us, "matrix": self.matrix_us}
        name = max(shares, key=shares.__getitem__)
        return name if shares[name] >= HALF * self.measured_us else "other"

    @property
    def limiter_is_right(self) -> bool:
        """Issue and latency both show as `other`: neither the bytes nor the products account for the time."""
        said = "other" if self.limiter in ("issue", "latency") else self.limiter
        return said == self.observed


@dataclass(frozen=True)
class Summary:
    """n points; below_floor: measured faster than the floor; p10, p50, p90 of measured / estimate.

    pairs: share of pairs of setups of one workload, with different estimates, in the measured order; pairs_n of them.
    within: mean Spearman correlation over the setups of one workload, `within_n` workloads of FEWEST and more whose
    times differ. across: the same over the workloads of one setup. whole: over all points. right: share of limiters.
    factor: median ratio of a random half; fitted10, fitted90: of the other half's ratios / factor, half_n points.
    """

    n: int
    below_floor: int
    p10: float
    p50: float
    p90: float
    pairs: float | None
    pairs_n: int
    within: float | None
    within_n: int
    across: float | None
    across_n: int
    whole: float | None
    right: float
    factor: float
    fitted10: float
    fitted90: float
    half_n: int


def percentile(values: Sequence[float], share: float) -> float:
    """Linear between the two nearest."""
    return float(pd.Series(values).quantile(share))


def spearman(points: Sequence[Point]) -> float | None:
    """Rank correlation of estimate and measurement; None for fewer than FEWEST points or where one side is constant."""
    if len(points) < FEWEST:
        return None
    said, found = pd.Series([p.estimate_us for p in points]), pd.Series([p.measured_us for p in points])
    if said.nunique() < 2 or found.nunique() < 2:
        return None
    return float(said.rank().corr(found.rank()))


def grouped(points: Iterable[Point], key: Callable[[Point], str]) -> dict[str, list[Point]]:
    """Points by what `key` says, in order of first appearance."""
    found: dict[str, list[Point]] = defaultdict(list)
    for point in points:
        found[key(point)].append(point)
    return dict(found)


def _mean(values: Iterable[float | None]) -> tuple[float | None, int]:
    known = [value for value in values if value is not None]
    return (statistics.fmean(known) if known else None), len(known)


def in_order(points: Sequence[Point]) -> list[bool]:
    """Of each pair of setups of one workload with different estimates: whether the lower one was measured faster."""
    found = []
    for group in grouped(points, lambda point: point.group).values():
        for a, b in itertools.combinations(group, 2):
            if a.estimate_us != b.estimate_us and a.measured_us != b.measured_us:
                found.append((a.estimate_us < b.estimate_us) == (a.measured_us < b.measured_us))
    return found


def summarise(points: Sequence[Point], seed: int = 0) -> Summary:
    """Of at least two points. The half that the factor is fitted on is drawn by `seed`. Raises ValueError."""
    if len(points) < 2:
        raise ValueError(f"points: found {len(points)}, allowed 2 or more")
    ratios = [point.ratio for point in points]
    within, within_n = _mean(spearman(group) for group in grouped(points, lambda p: p.group).values())
    across, across_n = _mean(spearman(group) for group in grouped(points, lambda p: p.setup).values())
    pairs = in_order(points)
    order = random.Random(seed).sample(range(len(points)), len(points))
    half, rest = order[: len(points) // 2], order[len(points) // 2 :]
    factor = statistics.median(ratios[i] for i in half)
    fitted = [ratios[i] / factor for i in rest]
    return Summary(
        n=len(points),
        below_floor=sum(point.measured_us < point.floor_us for point in points),
        p10=percentile(ratios, 0.1),
        p50=percentile(ratios, 0.5),
        p90=percentile(ratios, 0.9),
        pairs=statistics.fmean(pairs) if pairs else None,
        pairs_n=len(pairs),
        within=within,
        within_n=within_n,
        across=across,
        across_n=across_n,
        whole=spearman(points),
        right=statistics.fmean(point.limiter_is_right for point in points),
        factor=factor,
        fitted10=percentile(fitted, 0.1),
        fitted90=percentile(fitted, 0.9),
        half_n=len(rest),
    )
