"""Covering arrays: few rows of one value per axis that together hold every value, pair or triple that may go together.

Greedy and deterministic in a seed: a row begins with what is missing, then takes, axis by axis, the value that adds the
most of what is still missing.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

Rows = list[dict[str, Any]]
Axes = Mapping[str, tuple[Any, ...]]
Legal = Callable[[dict[str, Any]], bool]
Pair = tuple[str, int, str, int]  # axis and place of its value, twice, in the order of the axes
TRIES = 20  # orders of the axes in which a row is completed before what it begins with is refused


def legal_pairs(axes: Axes, may_go_together: Legal) -> set[Pair]:
    """Every pair of places on two axes whose values may go together."""
    pairs = set()
    for one, other in itertools.combinations(axes, 2):
        for i, j in itertools.product(range(len(axes[one])), range(len(axes[other]))):
            if may_go_together({one: axes[one][i], other: axes[other][j]}):
                pairs.add((one, i, other, j))
    return pairs


class _Array:
    """What is missing, as a table of `strength` dimensions over the values of all axes, one behind the other."""

    def __init__(self, axes: Axes, may_go_together: Legal, strength: int, of: Collection[str] | None) -> None:
        self.axes, self.strength = axes, strength
        ends = np.cumsum([0, *map(len, axes.values())])
        self.first = dict(zip(axes, ends.tolist(), strict=False))
        self.legal = np.zeros((ends[-1], ends[-1]), bool)
        pairs = legal_pairs(axes, may_go_together)
        for a, i, b, j in pairs:
            one, other = self.first[a] + i, self.first[b] + j
            self.legal[one, other] = self.legal[other, one] = True
        self.wanted = sorted(self._wanted(pairs, of))
        self.at = np.array([self._places(start) for start in self.wanted], int).reshape(-1, strength)
        self.missing = np.zeros((ends[-1],) * strength, bool)
        self.mark(self.at, True)

    def _wanted(self, pairs: set[Pair], of: Collection[str] | None) -> list[tuple[Any, ...]]:
        """(axis, place, axis, place, ...), in the order of the axes."""
        if self.strength == 1:
            return [(axis, i) for axis in self.axes for i in range(len(self.axes[axis])) if of is None or axis in of]
        if self.strength == 2:
            return [pair for pair in pairs if of is None or pair[0] in of or pair[2] in of]
        found = []
        for a, b, c in itertools.combinations(self.axes, 3):
            if of is not None and not {a, b, c} <= set(of):
                continue
            for i, j, k in itertools.product(*(range(len(self.axes[axis])) for axis in (a, b, c))):
                if {(a, i, b, j), (a, i, c, k), (b, j, c, k)} <= pairs:
                    found.append((a, i, b, j, c, k))
        return found

    def _places(self, start: tuple[Any, ...]) -> list[int]:
        return [self.first[axis] + place for axis, place in zip(start[::2], start[1::2], strict=True)]

    def mark(self, at: np.ndarray, value: bool) -> None:
        for order in itertools.permutations(range(self.strength)):
            self.missing[tuple(at[:, place] for place in order)] = value

    def left(self) -> np.ndarray:
        """Numbers of what is still missing."""
        return np.flatnonzero(self.missing[tuple(self.at.T)]) if len(self.at) else np.empty(0, int)

    def complete(self, start: tuple[Any, ...], rng: random.Random) -> dict[str, int] | None:
        """A row through `start`; None where some axis has no value left for it."""
        row = dict(zip(start[::2], start[1::2], strict=True))
        chosen = self._places(start)
        for axis in rng.sample([axis for axis in self.axes if axis not in row], len(self.axes) - len(row)):
            order = rng.sample(range(len(self.axes[axis])), len(self.axes[axis]))
            values = np.array(order) + self.first[axis]
            gain = self.missing[np.ix_(values, *[chosen] * (self.strength - 1))]
            gain = gain.reshape(len(values), -1).sum(1)
            gain[~self.legal[np.ix_(values, chosen)].all(1)] = -1
            best = int(gain.argmax())
            if gain[best] < 0:
                return None
            row[axis] = order[best]
            chosen.append(int(values[best]))
        return row

    def hold(self, row: dict[str, int]) -> None:
        """What a row has is no longer missing."""
        places = [self.first[axis] + place for axis, place in row.items()]
        self.mark(np.array(list(itertools.combinations(places, self.strength))), False)


def covering(
    axes: Axes, may_go_together: Legal, seed: int = 0, of: Collection[str] | None = None, strength: int = 2
) -> Rows:
    """Rows of one value per axis that hold every value (strength 1), legal pair (2) or legal triple (3).

    `may_go_together` judges two axes at a time; a triple is legal where its pairs are. Raises ValueError for what no
    row can hold.
    of: only values and pairs with a value of one of these axes need be held, and triples of three of them.
    """
    array, rng, rows = _Array(axes, may_go_together, strength, of), random.Random(seed), []
    while (left := array.left()).size:
        start = array.wanted[left[rng.choice(range(left.size))]]
        row = next(filter(None, (array.complete(start, rng) for _ in range(TRIES))), None)
        if row is None:
            raise ValueError(f"axes: found {start}, which no row can hold, allowed what one can")
        array.hold(row)
        rows.append({axis: axes[axis][row[axis]] for axis in axes})
    return rows
