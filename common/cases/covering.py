"""Covering arrays: few rows of values that together hold every pair of values which may go together."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection, Mapping
from typing import Any

Rows = list[dict[str, Any]]
Pair = tuple[str, int, str, int]  # axis and place of its value, twice, in the order of the axes


def legal_pairs(axes: Mapping[str, tuple[Any, ...]], may_go_together: Callable[[dict[str, Any]], bool]) -> set[Pair]:
    """Every pair of places on two axes whose values may go together."""
    pairs = set()
    for one, other in itertools.combinations(axes, 2):
        for i, j in itertools.product(range(len(axes[one])), range(len(axes[other]))):
            if may_go_together({one: axes[one][i], other: axes[other][j]}):
                pairs.add((one, i, other, j))
    return pairs


def covering(
    axes: Mapping[str, tuple[Any, ...]],
    may_go_together: Callable[[dict[str, Any]], bool],
    seed: int = 0,
    of: Collection[str] | None = None,
) -> Rows:
    """Rows of one value per axis that hold every legal pair; greedy, deterministic in `seed`.

    `may_go_together` judges two axes at a time. Raises ValueError for a pair that no row can hold.
    of: only pairs with a value of one of these axes need be held.
    """
    legal, rng = legal_pairs(axes, may_go_together), random.Random(seed)
    order = {axis: number for number, axis in enumerate(axes)}
    missing, rows = {pair for pair in legal if of is None or pair[0] in of or pair[2] in of}, []

    def key(a: str, i: int, b: str, j: int) -> Pair:
        return (a, i, b, j) if order[a] < order[b] else (b, j, a, i)

    def complete(start: Pair) -> dict[str, int] | None:
        """A row through one pair: axis by axis, the value that adds the most missing pairs."""
        row = {start[0]: start[1], start[2]: start[3]}
        for axis in rng.sample([axis for axis in axes if axis not in row], len(axes) - 2):
            best, most = None, -1
            for i in rng.sample(range(len(axes[axis])), len(axes[axis])):
                with_row = [key(axis, i, other, j) for other, j in row.items()]
                if not legal.issuperset(with_row):
                    continue
                gain = sum(pair in missing for pair in with_row)
                if gain > most:
                    best, most = i, gain
            if best is None:
                return None
            row[axis] = best
        return row

    while missing:
        start = rng.choice(sorted(missing))
        row = complete(start)
        if row is None:
            raise ValueError(f"axes: found {start}, which no row can hold, allowed pairs that one can")
        missing -= {(a, row[a], b, row[b]) for a, b in itertools.combinations(axes, 2)}
        rows.append({axis: axes[axis][row[axis]] for axis in axes})
    return rows
