"""From measured times to a short tree over host integers, by cost: a 3x mistake counts more than a 1% one.

The cost of choice c on row r is regret[r, c], its time over the row's best. One choice is the default. It and a few
others with the least summed regret are kept (greedily); scikit-learn's classifier separates the rows by which of these
is best, each row weighted by what a mistake on it costs. A leaf leaves the default only for a choice that is slower on
none of its rows and gains enough, and only within the lengths that the rows span which gain: nobody measured what lies
beyond. Held-out regret is leave-one-shape-out over all of that (`folds`): the row is in no part of what chooses for it.
A fit that loses more than the default on rows held out is not taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from common.serving.grid import decided_by, power_of_two
from common.spec import AttentionShape
from common.spec.metadata import BatchStats

MAX_CHOICES, MAX_DEPTH = 5, 4
WORTH = 0.005  # of regret a row: what a further choice or level has to gain, and what a fit may lose held out
MIN_ROWS = 2  # that gain by a departure
LEAF_WORTH = 0.08  # of regret, summed over its rows: what a leaf has to gain over the default, and a split in all
SLOWER = 1.01  # times the default on a row of the leaf: as much is noise, for two timings of one code differ by 1%
CAP = 2.0  # regret as the weight of a mistake sees it: what is slower than that is only `wrong`
OF_SHAPE = ("queries_per_kv", "head_size", "block_size")  # features that follow from the model alone
SPANNED = ("max_query_len", "max_seq_len")  # what a departure from the default is confined in

# Name, expression in the generated file, value. One that orders the rows as an earlier one does is left out. Token and
# key totals are none of them: who asks knows bounds of them only.
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


Bounds = dict[str, tuple[int | None, int | None]]  # feature -> (above, at most); None: no bound


@dataclass(frozen=True)
class Tree:
    """A leaf (`choice`, an index of the choices) or a split: `left` where feature <= threshold.

    within: a leaf's bounds (feature, above, at most), outside of which its choice is `otherwise`.
    """

    choice: int
    feature: str = ""
    threshold: int = 0
    left: Tree | None = None
    right: Tree | None = None
    within: tuple[tuple[str, int | None, int | None], ...] = ()
    otherwise: int = 0

    def __call__(self, values: dict[str, int]) -> int:
        if self.left is None or self.right is None:
            inside = all(
                (above is None or values[name] > above) and (most is None or values[name] <= most)
                for name, above, most in self.within
            )
            return self.choice if inside else self.otherwise
        return (self.left if values[self.feature] <= self.threshold else self.right)(values)

    @property
    def choices(self) -> tuple[int, ...]:
        """Indices of the choices that some leaf takes."""
        if self.left is None or self.right is None:
            return tuple(dict.fromkeys((self.choice, self.otherwise) if self.within else (self.choice,)))
        return tuple(dict.fromkeys(self.left.choices + self.right.choices))


def rules(tree: Tree, default: int) -> list[tuple[Bounds, int]]:
    """The tree as its departures from the default: bounds and choice of each such leaf."""
    if tree.left is None or tree.right is None:
        return [] if tree.choice == default else [({name: (low, high) for name, low, high in tree.within}, tree.choice)]
    found = []
    for side, bound in ((tree.left, (None, tree.threshold)), (tree.right, (tree.threshold, None))):
        for bounds, choice in rules(side, default):
            found.append(({tree.feature: bound} | bounds | _both({tree.feature: bound}, bounds), choice))
    return found


def _both(one: Bounds, other: Bounds) -> Bounds:
    """Bounds of the features that are in both."""
    found: Bounds = {}
    for name in one.keys() & other.keys():
        lows = [bound for bound in (one[name][0], other[name][0]) if bound is not None]
        highs = [bound for bound in (one[name][1], other[name][1]) if bound is not None]
        found[name] = (max(lows, default=None), min(highs, default=None))
    return found


@dataclass(frozen=True)
class Fit:
    """A tree, what it chose for every row while the row was held out, and (mean, worst) regret held out and not."""

    tree: Tree
    held_out_choice: tuple[int, ...]
    held_out: tuple[float, float]
    training: tuple[float, float]


def features(shape: AttentionShape, stats: BatchStats) -> dict[str, int]:
    """What a tree is asked with, as `auto` asks."""
    asked = decided_by(stats)
    return {name: value(shape, asked) for name, _, value in FEATURES}


def ensure_library() -> None:
    """Raise NoTreeLibrary now instead of after an hour's measurements."""
    try:
        import sklearn.tree  # noqa: F401
    except ImportError as error:
        raise NoTreeLibrary(f"scikit-learn fits the trees: pip install 'diptych[tune]' ({error})") from error


def few(regret: np.ndarray, default: int) -> list[int]:
    """The default and at most MAX_CHOICES other columns, each the one that lowers the summed regret of the best of
    them most."""
    chosen, best = [default], regret[:, default]
    while len(chosen) < min(MAX_CHOICES + 1, regret.shape[1]):
        sums = np.minimum(best[:, None], regret).sum(axis=0)
        nearest = int(sums.argmin())
        if best.sum() - sums[nearest] < WORTH * len(regret):
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
    for name in (name for name, _, _ in FEATURES if name in rows[0]):
        values = [row[name] for row in rows]
        ranks = tuple(sorted(set(values)).index(value) for value in values)
        if len(set(ranks)) > 1:
            kept.setdefault(ranks, name)
    return list(kept.values())


def leaf(regret: np.ndarray, columns: Sequence[int], default: int) -> int:
    """The choice of rows that nothing tells apart: the default, or what gains enough and is slower on none of them."""
    allowed = [c for c in columns if (regret[:, c] <= SLOWER * regret[:, default]).all()]
    best = min(allowed, key=lambda c: regret[:, c].sum(), default=default)
    gained = (regret[:, default] - regret[:, best]).sum()
    return best if gained >= LEAF_WORTH and gaining(regret, best, default).sum() >= MIN_ROWS else default


def gaining(regret: np.ndarray, choice: int, default: int) -> np.ndarray:
    """Which rows are faster by `choice` than noise explains."""
    return SLOWER * regret[:, choice] < regret[:, default]


def spanned(inside: Sequence[dict[str, int]], rows: Sequence[dict[str, int]]) -> tuple:
    """`Tree.within` of a departure: the lengths that the rows which gain by it span, from the power of two below; open
    to the side where no row of all lies beyond."""
    found = []
    for name in (name for name in SPANNED if name in rows[0]):
        mine, everyone = [row[name] for row in inside], [row[name] for row in rows]
        above = None if min(mine) == min(everyone) else power_of_two(min(mine)) // 2
        most = None if max(mine) == max(everyone) else max(mine)
        if (above, most) != (None, None):
            found.append((name, above, most))
    return tuple(found)


def grow(rows: Sequence[dict[str, int]], regret: np.ndarray, depth: int, default: int = 0) -> Tree:
    """A tree over the columns of `regret`, at most `depth` deep. Raises NoTreeLibrary."""
    columns, names = few(regret, default), _names(rows)

    def alone(inside: np.ndarray, among: Sequence[int]) -> Tree:
        choice = leaf(regret[inside], among, default)
        if choice == default:
            return Tree(default)
        faster = inside & gaining(regret, choice, default)
        return Tree(choice, within=spanned([rows[i] for i in faster.nonzero()[0]], rows), otherwise=default)

    everyone = np.ones(len(rows), dtype=bool)
    if depth == 0 or not names or len(columns) == 1:
        return alone(everyone, range(regret.shape[1]))
    x = np.array([[math.log2(1 + row[name]) for name in names] for row in rows])
    grown = _classifier(x, regret[:, columns], depth)

    def build(node: int, inside: np.ndarray) -> Tree:
        whole = alone(inside, columns)
        if grown.children_left[node] < 0:
            return whole
        column, name = grown.feature[node], names[grown.feature[node]]
        goes_left = inside & (x[:, column] <= grown.threshold[node])
        goes_right = inside & ~goes_left
        left, right = build(grown.children_left[node], goes_left), build(grown.children_right[node], goes_right)
        values = np.array([row[name] for row in rows])
        threshold = _round_between(int(values[goes_left].max()), int(values[goes_right].min()))
        split = Tree(whole.choice, name, threshold, left, right)
        at = inside.nonzero()[0]
        gained = regret[at, whole.choice].sum() - sum(regret[i, split(rows[i])] for i in at)
        return split if gained >= LEAF_WORTH else whole

    return build(0, everyone)


def _classifier(x: np.ndarray, regret: np.ndarray, depth: int) -> Any:
    """scikit-learn's tree that tells apart which column is best; the default, the first, where it is as good."""
    ensure_library()
    from sklearn.tree import DecisionTreeClassifier

    capped = np.minimum(regret, CAP)
    best = np.where(capped.min(axis=1) * SLOWER < capped[:, 0], capped.argmin(axis=1), 0)
    right = capped[np.arange(len(x)), best]
    mistake = (capped.sum(axis=1) - right) / (capped.shape[1] - 1) - right
    model = DecisionTreeClassifier(max_depth=depth, random_state=0)
    return model.fit(x, best, sample_weight=np.maximum(mistake, WORTH)).tree_


def mean_worst(values: Sequence[float]) -> tuple[float, float]:
    return (float(np.mean(values)), float(np.max(values))) if len(values) else (math.nan, math.nan)


def folds(shapes: Sequence[Any]) -> np.ndarray:
    """Which fold a row is held out with: all rows of its shape, for a tree is asked about shapes that it never saw.

    A row of a shape that more than half of the rows have is a fold of its own: without that shape nothing were left.
    """
    known = {shape: number for number, shape in enumerate(dict.fromkeys(shapes))}
    many = {shape for shape in known if 2 * list(shapes).count(shape) > len(shapes)}
    return np.array([len(known) + i if shape in many else known[shape] for i, shape in enumerate(shapes)])


def fit(rows: Sequence[dict[str, int]], regret: np.ndarray, default: int = 0, fold: np.ndarray | None = None) -> Fit:
    """fold: of each row, what is held out together (`folds`); None: every row alone.

    Of the trees of all depths that lose no more than the default on rows held out, the one that gains most, and of
    those that gain as much the shallowest. Held out a row says little of a departure: it and its neighbours are often
    all that the departure is confined to, and without it the row gets the default. But it says where one does harm.
    """
    everyone = np.arange(len(rows))
    mean = float(regret[:, default].mean())
    found, tree, chosen = mean, Tree(default), [default] * len(rows)
    fold = everyone if fold is None else fold
    for depth in range(MAX_DEPTH + 1):
        grown = grow(rows, regret, depth, default)
        held_out = []
        for i in everyone:
            others = everyone[fold != fold[i]] if len(set(fold)) > 1 else everyone
            held_out.append(grow([rows[j] for j in others], regret[others], depth, default)(rows[i]))
        gained = float(np.mean([regret[i, grown(rows[i])] for i in everyone]))
        if gained < found - WORTH and regret[everyone, held_out].mean() <= mean + WORTH:
            found, tree, chosen = gained, grown, held_out
    training = [regret[i, tree(rows[i])] for i in everyone]
    return Fit(tree, tuple(chosen), mean_worst(regret[everyone, chosen]), mean_worst(training))
