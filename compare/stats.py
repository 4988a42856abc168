"""Medians, paired ratios and their intervals; geometric means; performance profiles. Plain floats in and out.

Samples come as `samples[p][r]`: process p, round r, microseconds. The intervals are percentiles of a hierarchical
bootstrap that resamples processes, then rounds within each (Kalibera and Jones, "Rigorous benchmarking in reasonable
time", ISMM 2013): differences between processes (addresses, clocks, what ran before) do not average out over rounds.
All is done in logarithms, so that a ratio and its inverse have inverse intervals. The statistic of a process is the
median of its rounds, because the machine disturbs single rounds; that of a cell is the mean over its processes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

LEVEL = 0.99
FEW = 8  # values: fewer have no distribution-free 99% interval of a median
_STUDENT = {1: 63.657, 2: 9.925, 3: 5.841, 4: 4.604, 5: 4.032, 6: 3.707}  # t at 99.5% by degrees of freedom
DRAWS = 4000  # at 99% 20 draws lie beyond each end: the ends vary by about 2% of the width


@dataclass(frozen=True)
class Ratio:
    """A ratio of times and its interval. processes: how many were resampled; 1 means that only rounds were."""

    ratio: float
    low: float
    high: float
    processes: int = 1

    def inverse(self) -> "Ratio":
        return Ratio(1 / self.ratio, 1 / self.high, 1 / self.low if self.low else math.inf, self.processes)


def median_interval(samples: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """(median, low, high) of samples[p][r], in their unit: the geometric mean over processes of their medians.

    Raises ValueError for nothing, an empty process, or a number that is no time.
    """
    logs = _logs(samples, "samples")
    low, high = _ends(_bootstrap(logs))
    return math.exp(_statistic(logs)), low, high


def paired_ratio(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], draws: int = DRAWS) -> Ratio:
    """Time of a over time of b, from ratios of samples taken in the same process p and round r.

    Raises ValueError where the two were not sampled alike, and as `median_interval` does.
    """
    shapes = [[len(rounds) for rounds in samples] for samples in (a, b)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"b: found rounds per process {shapes[1]}, allowed those of a, {shapes[0]}")
    logs = [x - y for x, y in zip(_logs(a, "a"), _logs(b, "b"), strict=True)]
    low, high = _ends(_bootstrap(logs, draws))
    return Ratio(math.exp(_statistic(logs)), low, high, len(logs))


def unpaired_ratio(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> Ratio:
    """Time of a over time of b for two runs, which never ran side by side. Each is resampled on its own."""
    first, second = _logs(a, "a"), _logs(b, "b")
    low, high = _ends(_bootstrap(first) - _bootstrap(second, seed=1))
    ratio = math.exp(_statistic(first) - _statistic(second))
    return Ratio(ratio, min(low, ratio), max(high, ratio), min(len(first), len(second)))


def few_ratio(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> Ratio:
    """Time of a over time of b from fewer than FEW samples of one: Student's 99% interval of the log ratio.

    Rounds are taken as normal and processes as alike; the degrees of freedom are those of the smaller side. One sample
    alone has no interval: 0 to infinity.
    """
    first, second = (np.concatenate(_logs(samples, name)) for samples, name in ((a, "a"), (b, "b")))
    middle, count = first.mean() - second.mean(), min(len(first), len(second))
    if count == 1:
        return Ratio(math.exp(middle), 0.0, math.inf)
    error = math.sqrt(first.var(ddof=1) / len(first) + second.var(ddof=1) / len(second))
    half = _STUDENT[min(count - 1, max(_STUDENT))] * error
    return Ratio(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def geomean_ratio(cells: Sequence[tuple[Sequence[Sequence[float]], Sequence[Sequence[float]]]]) -> Ratio:
    """The geometric mean over cells of paired ratios, for these cells, not for others that might have been chosen.

    Cells share their processes, so one draw takes the same processes for all; rounds are drawn for each cell.
    """
    total, ratios, processes = np.zeros(DRAWS), [], []
    for number, (a, b) in enumerate(cells):
        logs = [x - y for x, y in zip(_logs(a, "a"), _logs(b, "b"), strict=True)]
        total += _bootstrap(logs, cell=number)
        ratios.append(math.exp(_statistic(logs)))
        processes.append(len(logs))
    mean = geomean(ratios)
    low, high = _ends(total / len(ratios))
    return Ratio(mean, low, high, min(processes))


def half_width(a: Sequence[float], b: Sequence[float]) -> float:
    """Half of the interval of the paired log ratio a[r] / b[r] within one process: 0.01 is about 1%.

    The interval of a median from order statistics (binomial ranks, normal approximation), without draws, so that it can
    be asked after every round. Infinite where there are too few rounds (at 99% below FEW).
    """
    if len(a) != len(b):
        raise ValueError(f"b: found {len(b)} rounds, allowed those of a, {len(a)}")
    count = len(a)
    if count == 0 or 2 * 0.5**count > 1 - LEVEL:
        return math.inf
    ordered = np.sort(np.log(a) - np.log(b))
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    rank = max(math.floor((count - z * math.sqrt(count)) / 2), 0)
    return float(ordered[count - 1 - rank] - ordered[rank]) / 2


def geomean(values: Sequence[float]) -> float:
    """The geometric mean. Raises ValueError for nothing or for a number that is not above 0."""
    if not len(values) or not all(0 < value < math.inf for value in values):
        raise ValueError(f"values: found {list(values)[:5]}, allowed at least one, each finite and above 0")
    return math.exp(sum(map(math.log, values)) / len(values))


def _logs(samples: Sequence[Sequence[float]], name: str) -> list[np.ndarray]:
    logs = []
    for rounds in samples:
        values = np.asarray(rounds, dtype=np.float64)
        if values.ndim != 1 or not values.size or not np.all(np.isfinite(values) & (values > 0)):
            raise ValueError(f"{name}: found {values[:5]} in a process, allowed finite times above 0, at least one")
        logs.append(np.log(values))
    if not logs:
        raise ValueError(f"{name}: found no process, allowed at least one")
    return logs


def _statistic(logs: Sequence[np.ndarray]) -> float:
    return float(np.mean([np.median(rounds) for rounds in logs]))


def _ends(drawn: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(drawn, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return math.exp(low), math.exp(high)


def _bootstrap(logs: Sequence[np.ndarray], draws: int = DRAWS, seed: int = 0, cell: int = 0) -> np.ndarray:
    """`draws` values of the statistic over resampled processes and rounds. Cells of one seed draw the same processes.

    Deviations of processes are stretched by sqrt(P / (P - 1)): resampling P of P values underestimates their variance
    by that factor (Davison and Hinkley, "Bootstrap methods", 1997, 3.2). One process has nothing to stretch.
    """
    count = len(logs)
    medians = np.array([np.median(rounds) for rounds in logs])
    centre = medians.mean()
    moved = (medians - centre) * (math.sqrt(count / (count - 1)) - 1) if count > 1 else np.zeros(1)
    table = np.full((count, max(map(len, logs))), np.nan)
    for row, rounds in zip(table, logs, strict=True):
        row[: len(rounds)] = np.sort(rounds)
    source, low, high = _drawn(tuple(map(len, logs)), draws, seed, cell)
    return ((table[source, low] + table[source, high]) / 2 + moved[source]).mean(axis=1)


@lru_cache(maxsize=128)  # 0.3 MB each for 3 processes
def _drawn(rounds: tuple[int, ...], draws: int, seed: int, cell: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[draws, processes]: processes drawn, and the two of their sorted rounds whose mean is the drawn median.

    Both depend on the numbers of rounds only, which cells share.

    A draw with replacement takes element floor(n U) of the sorted rounds, and floor is monotone: the k-th smallest draw
    is the element at the k-th smallest of n uniforms, which is Beta(k, n - k + 1). So one or two variates replace n,
    exactly. For even n the next order statistic is the least of the n - k uniforms left above it.
    """
    source = np.random.default_rng(seed).integers(len(rounds), size=(draws, len(rounds)))
    generator, sizes = np.random.default_rng([seed, cell + 1]), np.array(rounds)[source]
    if np.all(sizes == sizes.flat[0]):
        sizes = sizes.flat[0]  # scalars take a third of the time
    middle = (sizes + 1) // 2
    below = generator.beta(middle, sizes - middle + 1, size=source.shape)
    above = below + (1 - below) * generator.beta(1, np.maximum(sizes - middle, 1), size=source.shape)
    above = np.where(sizes % 2, below, above)
    low, high = (np.minimum((u * sizes).astype(np.int64), sizes - 1) for u in (below, above))
    return source, low, high
