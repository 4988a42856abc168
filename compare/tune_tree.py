"""From measured times to a short tree over host integers, by cost: a 3x mistake counts more than a 1% one.

The cost of choice c on row r is regret[r, c], its time over the row's best. A few choices with the least summed regret
are kept (greedily); scikit-learn's regression tree splits where the regrets of these choices differ most; every leaf
takes the choice with the least summed regret of its rows, and splits that gain nothing are undone. Held-out regret is
leave-one-row-out over all of that: the row is in no part of what chooses for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from common.choice import on_grid
from common.metadata import BatchStats
from common.spec import AttentionShape

MAX_CHOICES, MAX_DEPTH = 5, 4
MIN_ROWS = 2  # of a leaf
WORTH = 0.005  # of regret a row: what a further choice, level or split has to gain
CAP = 8.0  # regret as the splits see it: what is slower than that is only `wrong`

# Name, expression in the generated file, value. One that orders the rows as an earlier one does is left out. Token and
# key totals are none of them: who asks knows bounds of them only (`common.choice.on_grid`).
FEATURES: tuple[tuple[str, str, Callable[[AttentionShape, BatchStats], int]], ...] = (
    ("max_query_len", "stats.max_query_len", lambda shape, stats: stats.max_query_len),
    ("max_seq_len", "stats.max_seq_len", lambda shape, stats: stats.max_seq_len),
    ("programs", "stats.num_seqs * shape.num_kv_heads", lambda shape, stats: stats.num_seqs * shape.num_kv_heads),
    ("prompts", "stats.num_seqs - stats.num_decodes", lambda shape, stats: stats.num_seqs - stats.num_decodes),
    ("num_seqs", "stats.num_seqs", lambda shape, stats: stats.num_seqs),
    ("num_decodes", "stats.num_decodes", lambda shape, stats: stats.num_decodes),
    ("queries_per_kv", "shape.queries_per_kv", lambda shape, stats: shape.queries_per_kv),
    ("head_size", "shape.head_size", lambda shape, stats: shape.head_size),
    ("block_size", "shape.block_size", lambda shape, stats: shape.block_size),
)


class NoTreeLibrary(ImportError):
    """scikit-learn is missing; the message says how to get it."""


@dataclass(frozen=True)
class Tree:
    """A leaf (`choice`, an index of the choices) or a split: `left` where feature <= threshold."""

    choice: int
    feature: str = ""
    threshold: int = 0
    left: Tree | None = None
    right: Tree | None = None

    def __call__(self, values: dict[str, int]) -> int:
        if self.left is None or self.right is None:
            return self.choice
        return (self.left if values[self.feature] <= self.threshold else self.right)(values)

    @property
    def choices(self) -> tuple[int, ...]:
        """Indices of the choices that some leaf takes."""
        if self.left is None or self.right is None:
            return (self.choice,)
        return tuple(dict.fromkeys(self.left.choices + self.right.choices))


@dataclass(frozen=True)
class Fit:
    """A tree, what it chose for every row while the row was held out, and (mean, worst) regret held out and not."""

    tree: Tree
    held_out_choice: tuple[int, ...]
    held_out: tuple[float, float]
    training: tuple[float, float]


def features(shape: AttentionShape, stats: BatchStats) -> dict[str, int]:
    """What a tree is asked with, on the grid on which `auto` asks."""
    asked = on_grid(stats.num_seqs, stats.num_decodes, stats.max_query_len, stats.max_seq_len)
    return {name: value(shape, asked) for name, _, value in FEATURES}


def ensure_library() -> None:
    """Raise NoTreeLibrary now instead of after an hour's measurements."""
    try:
        import sklearn.tree  # noqa: F401
    except ImportError as error:
        raise NoTreeLibrary(f"scikit-learn fits the trees: pip install 'diptych[tune]' ({error})") from error


def few(regret: np.ndarray) -> list[int]:
    """At most MAX_CHOICES columns, each the one that lowers the summed regret of the best of them most."""
    chosen: list[int] = []
    best = np.full(len(regret), np.inf)
    while len(chosen) < min(MAX_CHOICES, regret.shape[1]):
        sums = np.minimum(best[:, None], regret).sum(axis=0)
        nearest = int(sums.argmin())
        if chosen and best.sum() - sums[nearest] < WORTH * len(regret):
            break
        chosen.append(nearest)
        best = np.minimum(best, regret[:, nearest])
    return chosen


def _round_between(low: int, high: int) -> int:
    """An integer in low .. high - 1 that is easy to read: a power of two, else one significant digit, else two; nearest
    to the geometric mean."""
    middle = math.sqrt(max(low, 0.5) * high)
    powers = [2**n for n in range(40)]
    digits = [[d * 10**n for n in range(10) for d in range(10**k, 10 ** (k + 1))] for k in (0, 1)]
    for candidates in (powers, *digits):
        inside = [value for value in candidates if low <= value < high]
        if inside:
            return min(inside, key=lambda value: abs(math.log(value / middle)))
    return low


def _names(rows: Sequence[dict[str, int]]) -> list[str]:
    """Features that tell rows apart, without those that order the rows as an earlier one does."""
    kept: dict[tuple[int, ...], str] = {}
    for name, _, _ in FEATURES:
        values = [row[name] for row in rows]
        ranks = tuple(sorted(set(values)).index(value) for value in values)
        if len(set(ranks)) > 1:
            kept.setdefault(ranks, name)
    return list(kept.values())


def grow(rows: Sequence[dict[str, int]], regret: np.ndarray, depth: int) -> Tree:
    """A tree over the columns of `regret`, at most `depth` deep. Raises NoTreeLibrary."""
    columns, names = few(regret), _names(rows)
    if depth == 0 or not names or len(columns) == 1:
        return Tree(int(regret.sum(axis=0).argmin()))
    ensure_library()
    from sklearn.tree import DecisionTreeRegressor

    x = np.array([[math.log2(1 + row[name]) for name in names] for row in rows])
    model = DecisionTreeRegressor(max_depth=depth, min_samples_leaf=MIN_ROWS, random_state=0)
    grown = model.fit(x, np.minimum(regret[:, columns], CAP)).tree_

    def build(node: int, inside: np.ndarray) -> Tree:
        alone = columns[int(regret[inside][:, columns].sum(axis=0).argmin())]
        if grown.children_left[node] < 0:
            return Tree(alone)
        column, name = grown.feature[node], names[grown.feature[node]]
        goes_left = inside & (x[:, column] <= grown.threshold[node])
        goes_right = inside & ~goes_left
        left, right = build(grown.children_left[node], goes_left), build(grown.children_right[node], goes_right)
        values = np.array([row[name] for row in rows])
        threshold = _round_between(int(values[goes_left].max()), int(values[goes_right].min()))
        split = Tree(alone, name, threshold, left, right)
        gained = regret[inside, alone].sum() - sum(regret[i, split(rows[i])] for i in inside.nonzero()[0])
        return split if gained >= WORTH * inside.sum() else Tree(alone)

    return build(0, np.ones(len(rows), dtype=bool))


def _mean_worst(values: Sequence[float]) -> tuple[float, float]:
    return (float(np.mean(values)), float(np.max(values))) if len(values) else (math.nan, math.nan)


def fit(rows: Sequence[dict[str, int]], regret: np.ndarray) -> Fit:
    """The tree of the depth that loses least on rows held out, and the shallowest of those that are as good."""
    everyone = np.arange(len(rows))
    found: tuple[float, int, list[int]] | None = None
    for depth in range(MAX_DEPTH + 1):
        chosen = []
        for i in everyone:
            others = everyone[everyone != i] if len(rows) > 1 else everyone
            chosen.append(grow([rows[j] for j in others], regret[others], depth)(rows[i]))
        mean = float(regret[everyone, chosen].mean())
        if found is None or mean < found[0] - WORTH:
            found = (mean, depth, chosen)
    _, depth, chosen = found
    tree = grow(rows, regret, depth)
    training = [regret[i, tree(rows[i])] for i in everyone]
    return Fit(tree, tuple(chosen), _mean_worst(regret[everyone, chosen]), _mean_worst(training))
