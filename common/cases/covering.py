"""Covering arrays: few rows of one value per axis that together hold every value, pair or triple that may go together.

Greedy and deterministic in a seed: a row begins with what is missing, then takes, axis by axis, the value that adds the
most of what is still missing.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

Values = dict[str, Any]  # one value per axis, or of some axes
Rows = list[Values]
Axes = Mapping[str, tuple[Any, ...]]
Pair = tuple[str, int, str, int]  # axis and place of its value, twice, in the order of the axes
CHOICES = 10  # rows through one value, of which the one that holds most is taken
TRIES = 100  # orders of the axes in which a row is completed before what it begins with is refused


class Rule(NamedTuple):
    """Values of two axes that may not stand together: those for which `apart` holds."""

    one: str
    other: str
    apart: Callable[[Any, Any], bool]

    def broken(self, some: Values) -> bool:
        return self.one in some and self.other in some and self.apart(some[self.one], some[self.other])


def both(one: str, holds_one: Callable[[Any], bool], other: str, holds_other: Callable[[Any], bool]) -> Rule:
    """A value of one axis for which something holds, beside a value of another for which something else holds."""
    return Rule(one, other, lambda a, b: bool(holds_one(a) and holds_other(b)))


def legal_pairs(axes: Axes, rules: Iterable[Rule]) -> set[Pair]:
    """Every pair of places on two axes whose values may go together."""
    of: dict[frozenset[str], list[Rule]] = {}
    for rule in rules:
        of.setdefault(frozenset((rule.one, rule.other)), []).append(rule)
    pairs = set()
    for one, other in itertools.combinations(axes, 2):
        mine = of.get(frozenset((one, other)), ())
        for i, j in itertools.product(range(len(axes[one])), range(len(axes[other]))):
            some = {one: axes[one][i], other: axes[other][j]} if mine else {}
            if not any(rule.broken(some) for rule in mine):
                pairs.add((one, i, other, j))
    return pairs


class _Array:
    """What is missing, as a table of `strength` dimensions over the values of all axes, one behind the other."""

    def __init__(self, axes: Axes, rules: Iterable[Rule], strength: int, of: Collection[str] | None) -> None:
        self.axes, self.strength = axes, strength
        ends = np.cumsum([0, *map(len, axes.values())])
        self.first = dict(zip(axes, ends.tolist(), strict=False))
        self.legal = np.zeros((ends[-1], ends[-1]), bool)
        pairs = legal_pairs(axes, rules)
        one, other = np.array([self.places(pair) for pair in pairs], int).reshape(-1, 2).T
        self.legal[one, other] = self.legal[other, one] = True
        self.wanted = sorted(self._wanted(pairs, of))
        self.at = np.array([self.places(start) for start in self.wanted], int).reshape(-1, strength)
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

    def places(self, start: tuple[Any, ...]) -> list[int]:
        return [self.first[axis] + place for axis, place in zip(start[::2], start[1::2], strict=True)]

    def mark(self, at: np.ndarray, value: bool) -> None:
        for order in itertools.permutations(range(self.strength)):
            self.missing[tuple(at[:, place] for place in order)] = value

    def left(self) -> np.ndarray:
        """Numbers of what is still missing."""
        return np.flatnonzero(self.missing[tuple(self.at.T)]) if len(self.at) else np.empty(0, int)

    def complete(
        self, start: tuple[Any, ...], rng: random.Random, plain: bool, thrift: float = 0.0
    ) -> dict[str, int] | None:
        """A row through `start`; None where some axis has no value left for it. plain: of equals the first value.
        thrift: how often an axis takes its first free value, whatever another would add."""
        row: dict[str, int] = {}
        chosen: list[int] = []
        gain = self.missing.astype(int) if self.strength == 1 else np.zeros(len(self.legal), int)
        legal = np.ones(len(self.legal), bool)

        def take(axis: str, place: int) -> None:
            at = self.first[axis] + place
            if self.strength == 2:
                gain[:] += self.missing[at]
            elif self.strength == 3 and chosen:
                gain[:] += self.missing[at, chosen].sum(0)
            legal[:] &= self.legal[at]
            row[axis] = place
            chosen.append(at)

        for axis, place in zip(start[::2], start[1::2], strict=True):
            take(axis, place)
        for axis in rng.sample([axis for axis in self.axes if axis not in row], len(self.axes) - len(row)):
            order = rng.sample(range(len(self.axes[axis])), len(self.axes[axis]))
            order = sorted(order, key=bool) if plain else order
            first = self.first[axis]
            free = [place for place in order if legal[first + place]]
            if not free:
                return None
            frugal = thrift and rng.random() < thrift
            take(axis, min(free) if frugal else max(free, key=lambda place: gain[first + place]))
        return row

    def values(self, row: dict[str, int]) -> Values:
        return {axis: values[row[axis]] for axis, values in self.axes.items()}

    def _within(self, row: dict[str, int]) -> tuple[np.ndarray, ...]:
        places = np.array([self.first[axis] + place for axis, place in row.items()])
        return np.ix_(*[places] * self.strength)

    def gain(self, row: dict[str, int]) -> int:
        """How much of what is missing a row has."""
        return int(self.missing[self._within(row)].sum())

    def hold(self, row: dict[str, int]) -> None:
        """What a row has is no longer missing."""
        self.missing[self._within(row)] = False


def covering(
    axes: Axes,
    rules: Iterable[Rule],
    seed: int = 0,
    of: Collection[str] | None = None,
    strength: int = 2,
    plain: bool = False,
    drop: bool = False,
    cheap: Callable[[Values], bool] | None = None,
) -> Rows:
    """Rows of one value per axis that hold every value (strength 1), legal pair (2) or legal triple (3).

    A triple is legal where its pairs are. Raises ValueError for what no row can hold; drop: leaves it out.
    of: only values and pairs with a value of one of these axes need be held, and triples of three of them.
    cheap: a row for which it does not hold is made plainer, axis by axis, until it does.
    plain: where several values of an axis add as much, the first one is taken if it is among them, else any.
    """
    array, rng, rows = _Array(axes, rules, strength, of), random.Random(seed), []
    while (left := array.left()).size:
        start = array.wanted[left[rng.choice(range(left.size))]]
        thrifts = (number / TRIES if cheap else 0.0 for number in range(TRIES))
        made = filter(None, (array.complete(start, rng, plain, thrift) for thrift in thrifts))
        made = (row for row in made if cheap is None or cheap(array.values(row)))
        row = max(itertools.islice(made, CHOICES if strength == 1 else 1), key=array.gain, default=None)
        if row is None and drop:
            array.mark(np.array([array.places(start)]), False)
            continue
        if row is None:
            raise ValueError(f"axes: found {start}, which no row can hold, allowed what one can")
        array.hold(row)
        rows.append(array.values(row))
    return rows
