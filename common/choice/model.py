"""A model of times that ranks candidates: what each loses against the best, by boosted trees over a batch's columns.

The trees are data, fitted to timed candidates by `python -m compare tune --fit` (compare/tune/learn.py): each answers
with a part of log(time / least time of the row). Nothing in a file is executed. The first trees carry most of it: a
choice among many asks them of all, and the rest of the best FINALISTS alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

FIRST_TREES, FINALISTS = 60, 12


@dataclass(frozen=True)
class Trees:
    """Node i asks whether column `feature[i]` is at most `threshold[i]` and goes to node `left[i]`, else to the next
    one; a leaf has feature -1 and adds its `value`. roots: the first node of each tree."""

    roots: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    left: np.ndarray
    right: np.ndarray
    value: np.ndarray

    def predict(self, table: np.ndarray, trees: slice = slice(None)) -> np.ndarray:
        """The sum of these trees for each row of a table [row, column]."""
        at = np.tile(self.roots[trees], (len(table), 1))
        rows = np.arange(len(table))[:, None]
        while (asks := self.feature[at]).max(initial=-1) >= 0:
            right = table[rows, asks] > self.threshold[at]
            at = np.where(asks < 0, at, np.where(right, self.right[at], self.left[at]))
        return self.value[at].sum(axis=1)

    def plain(self) -> dict[str, list[float]]:
        return {one.name: getattr(self, one.name).tolist() for one in fields(self)}

    @classmethod
    def of(cls, plain: Mapping[str, Sequence[float]], columns: int) -> Trees:
        """Raises ValueError for arrays that are no trees over so many columns: nothing else is looked up later."""
        if not isinstance(plain, Mapping) or plain.keys() != {one.name for one in fields(cls)}:
            raise ValueError(f"model: found no trees, allowed {', '.join(one.name for one in fields(cls))}")
        kinds = {"threshold": float, "value": float}
        made = cls(**{name: _array(name, values, kinds.get(name, int)) for name, values in plain.items()})
        nodes, inner = len(made.feature), np.flatnonzero(made.feature >= 0)
        if any(len(getattr(made, name)) != nodes for name in ("threshold", "left", "right", "value")):
            raise ValueError("model: found arrays of different lengths, allowed one entry a node")
        if len(made.roots) == 0 or nodes == 0 or made.roots.min() < 0 or made.roots.max() >= nodes:
            raise ValueError(f"model: found roots outside of {nodes} nodes")
        if made.feature.max() >= columns or made.feature.min() < -1:
            raise ValueError(f"model: found a node of column {made.feature.max()}, allowed -1 to {columns - 1}")
        for side in (made.left[inner], made.right[inner]):  # each below its parent, so that every walk ends
            if len(inner) and ((side <= inner) | (side >= nodes)).any():
                raise ValueError("model: found a node that leads back or nowhere, allowed one behind it")
        return made


def _array(name: str, values: Any, kind: type) -> np.ndarray:
    found = np.array(values)
    if found.ndim != 1 or found.dtype.kind not in "if" or not np.isfinite(found).all():
        raise ValueError(f"model: found {name} with other than finite numbers in a list")
    return found.astype(kind)


def losses(trees: Trees, table: np.ndarray, candidates: int) -> np.ndarray:
    """[batch, candidate] log(time / least), for a table of as many batches as rows / candidates. Exact for the
    FINALISTS of each batch; all others are above these."""
    first = trees.predict(table, slice(FIRST_TREES)).reshape(-1, candidates)
    if len(trees.roots) <= FIRST_TREES:
        return first
    if candidates <= FINALISTS:
        return first + trees.predict(table, slice(FIRST_TREES, None)).reshape(-1, candidates)
    best = np.argpartition(first, FINALISTS - 1, axis=1)[:, :FINALISTS]
    rows = (np.arange(len(first))[:, None] * candidates + best).ravel()
    exact = np.take_along_axis(first, best, 1) + trees.predict(table[rows], slice(FIRST_TREES, None)).reshape(
        best.shape
    )
    found = first - first.min(axis=1, keepdims=True) + exact.max(axis=1, keepdims=True) + 1e-6
    np.put_along_axis(found, best, exact, 1)
    return found


def order(trees: Trees, table: np.ndarray, candidates: int) -> np.ndarray:
    """[batch, candidate]: candidates by what they lose, the best first; as given where they are alike."""
    return np.argsort(losses(trees, table, candidates), axis=1, kind="stable")
