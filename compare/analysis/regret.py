"""Regret: what a choice loses to the best that was timed beside it, of one row and of many."""

import statistics
from collections.abc import Sequence

QUANTILE = 0.9


def of(us: float, best_us: float) -> float:
    """A choice's time over the row's best, less one: 0 where nothing beside it was faster."""
    return us / min(us, best_us) - 1


def spread(regrets: Sequence[float]) -> str:
    """Mean, QUANTILE and worst in percent: three fields of a table's line."""
    ordered = sorted(regrets)
    high = ordered[min(int(QUANTILE * len(ordered)), len(ordered) - 1)]
    return f"{100 * statistics.fmean(ordered):.1f} | {100 * high:.1f} | {100 * ordered[-1]:.1f}"
