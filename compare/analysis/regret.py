"""Regret: what a choice loses to the best that was timed beside it, on one row and over many."""

import statistics
from collections.abc import Sequence

QUANTILE = 0.9


def of(us: float, best_us: float) -> float:
    """A choice's time over the row's best, minus 1; 0 where nothing was faster."""
    return us / min(us, best_us) - 1


def spread(regrets: Sequence[float]) -> str:
    """Mean, QUANTILE and worst in percent: three fields of a table's line."""
    ordered = sorted(regrets)
    high = ordered[min(int(QUANTILE * len(ordered)), len(ordered) - 1)]
    return f"{100 * statistics.fmean(ordered):.1f} | {100 * high:.1f} | {100 * ordered[-1]:.1f}"
