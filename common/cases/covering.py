"""Covering arrays: few rows of one value per axis that together hold every value, pair or triple that may go together.

Greedy and deterministic in a seed: a row begins with what is missing, then takes, axis by axis, the value that adds the
most of what is still missing.
"""

import itertools
import random
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

Values = dict[str, Any]  # one value per axis, or of some axes
Rows = list[Values]
Axes = Mapping[str, tuple[Any, ...]]
Pair = tuple[str, int, str, int]  # axis and place of its value, twice, in the order of the axes
CHOICES = 5  # rows through one value, of which the one that holds most is taken
TRIES = 40  # orders of the axes in which a row is completed before what it begins with is refused


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


def _firsts(axes: Axes) -> dict[str, int]:
    """Where the values of each axis begin, when the values of all stand one behind the other."""
    return dict(zip(axes, itertools.accumulate(map(len, axes.values()), initial=0), strict=False))


def _legal(axes: Axes, rules: Iterable[Rule]) -> np.ndarray:
    """[values of all axes] x 2, bool: whether two values of two axes may go together."""
    first = _firsts(axes)
    parts = {axis: slice(at, at + len(axes[axis])) for axis, at in first.items()}
    legal = np.ones((sum(map(len, axes.values())),) * 2, bool)
    for part in parts.values():
        legal[part, part] = False
    for rule in rules:
        if rule.one in axes and rule.other in axes:
            apart = [[bool(rule.apart(one, other)) for other in axes[rule.other]] for one in axes[rule.one]]
            legal[parts[rule.one], parts[rule.other]] &= ~np.array(apart)
            legal[parts[rule.other], parts[rule.one]] &= ~np.array(apart).T
    return legal


def legal_pairs(axes: Axes, rules: Iterable[Rule]) -> set[Pair]:
    """Every pair of places on two axes whose values may go together."""
    named = [(axis, place) for axis, values in axes.items() for place in range(len(values))]
    return {(*named[one], *named[other]) for one, other in np.argwhere(np.triu(_legal(axes, rules)))}


def _shuffled(items: Iterable[Any], rng: random.Random) -> list[Any]:
    """What rng.sample(items, len(items)) returns, in a third of its time: a million of these choose the cases."""
    pool, shuffled, draw = list(items), [], rng.getrandbits
    for left in range(len(pool), 0, -1):
        bits = left.bit_length()
        while (at := draw(bits)) >= left:
            pass
        shuffled.append(pool[at])
        pool[at] = pool[left - 1]
    return shuffled


class _Array:
    """What is missing, as a table of `strength` dimensions over the values of all axes, one behind the other."""

    def __init__(self, axes: Axes, rules: Iterable[Rule], strength: int, of: Collection[str] | None) -> None:
        self.axes, self.strength = axes, strength
        self.first = _firsts(axes)
        self.named = [(axis, place) for axis, values in axes.items() for place in range(len(values))]
        self.legal = _legal(axes, rules)
        at = np.concatenate([self._wanted(chosen) for chosen in self._chosen(of)])
        by_name = np.argsort(sorted(range(len(self.named)), key=self.named.__getitem__))
        self.at = at[np.lexsort(by_name[at].T[::-1])]
        self.missing = np.zeros((len(self.legal),) * strength, bool)
        self.mark(self.at, True)

    def _chosen(self, of: Collection[str] | None) -> list[tuple[str, ...]]:
        """The axes whose values, pairs or triples are wanted."""
        enough = all if self.strength == 3 else any
        chosen = itertools.combinations(self.axes, self.strength)
        return [some for some in chosen if of is None or enough(axis in of for axis in some)]

    def _wanted(self, chosen: tuple[str, ...]) -> np.ndarray:
        """[legal combinations, strength]: where the values of some axes stand, in the order of the axes."""
        sizes = [len(self.axes[axis]) for axis in chosen]
        firsts = [self.first[axis] for axis in chosen]
        legal = np.ones(sizes, bool)
        for one, other in itertools.combinations(range(self.strength), 2):
            shape = [size if axis in (one, other) else 1 for axis, size in enumerate(sizes)]
            rows, columns = (slice(firsts[axis], firsts[axis] + sizes[axis]) for axis in (one, other))
            legal &= self.legal[rows, columns].reshape(shape)
        return np.argwhere(legal) + firsts

    def mark(self, at: np.ndarray, value: bool) -> None:
        for order in itertools.permutations(range(self.strength)):
            self.missing[tuple(at[:, place] for place in order)] = value

    def left(self) -> np.ndarray:
        """Numbers of what is still missing."""
        return np.flatnonzero(self.missing[tuple(self.at.T)])

    def complete(
        self, start: Iterable[int], rng: random.Random, plain: bool, thrift: float = 0.0
    ) -> dict[str, int] | None:
        """A row through `start`; None where some axis has no value left for it. plain: of equals the first value.
        thrift: how often an axis takes its first free value, whatever another would add."""
        row: dict[str, int] = {}
        chosen: list[int] = []
        gain = self.missing.astype(int) if self.strength == 1 else np.zeros(len(self.legal), int)
        legal = np.ones(len(self.legal), bool)

        def take(at: int) -> None:
            if self.strength == 2:
                gain[:] += self.missing[at]
            elif self.strength == 3 and chosen:
                gain[:] += self.missing[at, chosen].sum(0)
            legal[:] &= self.legal[at]
            axis, place = self.named[at]
            row[axis] = place
            chosen.append(at)

        for at in start:
            take(at)
        for axis in _shuffled((axis for axis in self.axes if axis not in row), rng):
            first, size = self.first[axis], len(self.axes[axis])
            order = _shuffled(range(size), rng)
            order = sorted(order, key=bool) if plain else order
            may, adds = (some[first : first + size].tolist() for some in (legal, gain))
            free = [place for place in order if may[place]]
            if not free:
                return None
            frugal = thrift and rng.random() < thrift
            take(first + (min(free) if frugal else max(free, key=adds.__getitem__)))
        return row

    def values(self, row: dict[str, int]) -> Values:
        return {axis: values[row[axis]] for axis, values in self.axes.items()}

    def _within(self, row: dict[str, int]) -> tuple[np.ndarray, ...]:
        places = np.array([self.first[axis] + place for axis, place in row.items()])
        return np.ix_(*[places] * self.strength)

    def gain(self, row: dict[str, int]) -> int:
        """How much of what is missing a row has."""
        return int(self.missing[self._within(row)].sum())

    def best(
        self, rows: Iterable[dict[str, int]], choices: int, tells: Callable[[Values], bool]
    ) -> dict[str, int] | None:
        """Of the first `choices` that tell the one with most of what is missing; the first of all where none does."""
        first, telling = None, []
        for row in rows:
            first = first or row
            if tells(self.values(row)):
                telling.append(row)
            if len(telling) == choices:
                break
        return max(telling, key=self.gain, default=first)

    def hold(self, row: dict[str, int]) -> None:
        """What a row has is no longer missing."""
        self.missing[self._within(row)] = False


def _any(_: Values) -> bool:
    return True


def covering(
    axes: Axes,
    rules: Iterable[Rule],
    seed: int = 0,
    of: Collection[str] | None = None,
    strength: int = 2,
    plain: bool = False,
    drop: bool = False,
    cheap: Callable[[Values], bool] | None = None,
    tells: Callable[[Values], bool] | None = None,
    behind: Iterable[Values] = (),
) -> Rows:
    """Rows of one value per axis that hold every value (strength 1), legal pair (2) or legal triple (3).

    A triple is legal where its pairs are. Raises ValueError for what no row can hold; drop: leaves it out.
    of: only values and pairs with a value of one of these axes need be held, and triples of three of them.
    cheap: a row for which it does not hold is made plainer, axis by axis, until it does.
    tells: a row for which it does not hold is taken only where what it begins with allows no other, and holds no more.
    behind: rows that there are already; what they hold is not asked for again.
    plain: where several values of an axis add as much, the first one is taken if it is among them, else any.
    """
    array, rng, rows = _Array(axes, rules, strength, of), random.Random(seed), []
    for row in behind:
        array.hold({axis: values.index(row[axis]) for axis, values in axes.items() if row.get(axis, ()) in values})
    while (left := array.left()).size:
        start = array.at[left[rng.choice(range(left.size))]].tolist()
        thrifts = (number / TRIES if cheap or tells else 0.0 for number in range(TRIES))
        made = filter(None, (array.complete(start, rng, plain, thrift) for thrift in thrifts))
        made = (row for row in made if cheap is None or cheap(array.values(row)))
        row = array.best(made, CHOICES if strength == 1 else 1, tells or _any)
        if row is None and drop:
            array.mark(np.array([start]), False)
            continue
        if row is None:
            found = [array.named[at] for at in start]
            raise ValueError(f"axes: found {found}, which no row can hold, allowed what one can")
        told = tells is None or tells(array.values(row))
        array.hold(row if told else dict(array.named[at] for at in start))
        rows.append(array.values(row))
    return rows
