"""A model of times that ranks candidates: what each loses against the best, by a small net over a batch's columns.

The net is data, fitted to timed candidates by `python -m compare tune --fit` (compare/tune/learn.py): the mean of a few
perceptrons of two hidden layers, each from another start. Nothing in a file is executed. Its answer is
log(time / least time) of a row but for a number that is the same for all candidates of a batch: it ranks. Where its
members disagree, logs say little: such a candidate comes behind one that they agree on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

TOGETHER = 2048  # rows of a pass, which stay in the caches: twice as fast as 30,000
LIMIT = 4.0  # standard deviations, beyond which a column says no more: what lies outside of the logs is as their edge
DOUBT = 0.5  # standard deviations between members that a candidate loses: held out, 0 picks worse and 1 no better


@dataclass(frozen=True)
class Net:
    """mean, scale: [column]. members: of each pairs of weights [inputs, outputs] and biases [outputs], as many and
    as large in all; SiLU (Elfwing et al. 2017) stands between them, the last has one output."""

    mean: np.ndarray
    scale: np.ndarray
    members: tuple[tuple[tuple[np.ndarray, np.ndarray], ...], ...]

    def answers(self, table: np.ndarray) -> np.ndarray:
        """[member, row] of a table [row, column]."""
        parts = range(0, max(len(table), 1), TOGETHER)
        return np.concatenate([self._answers(table[start : start + TOGETHER]) for start in parts], axis=1)

    def _answers(self, table: np.ndarray) -> np.ndarray:
        x = np.clip((table - self.mean) / self.scale, -LIMIT, LIMIT).astype(np.float32)
        for weights, biases in self._layers[:-1]:
            x = x @ weights + biases
            with np.errstate(over="ignore"):  # far below 0 the exponential is infinite and SiLU 0
                x /= 1 + np.exp(-x)
        weights, biases = self._layers[-1]
        return (x @ weights + biases)[..., 0]

    @cached_property
    def _layers(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Weights [member, inputs, outputs] and biases [member, 1, outputs] of each layer: one product for all."""
        layers = zip(*self.members, strict=True)
        return [(np.stack([w for w, _ in of]), np.stack([biases for _, biases in of])[:, None]) for of in layers]

    def plain(self) -> dict[str, Any]:
        """As the JSON of a file, to five significant digits."""
        members = [[[_short(weights), _short(biases)] for weights, biases in layers] for layers in self.members]
        return {"mean": _short(self.mean), "scale": _short(self.scale), "members": members}

    @classmethod
    def of(cls, plain: Any, columns: int) -> Net:
        """Raises ValueError for what is no net over so many columns."""
        if not isinstance(plain, Mapping) or plain.keys() != {"mean", "scale", "members"}:
            raise ValueError("net: found none, allowed mean, scale and members")
        mean, scale = (array(plain[name], f"net: {name}", (columns,)) for name in ("mean", "scale"))
        if (scale <= 0).any():
            raise ValueError("net: found a scale of 0 or less")
        if not isinstance(plain["members"], list) or not plain["members"]:
            raise ValueError("net: found no member")
        members = tuple(_layers(member, columns) for member in plain["members"])
        if len({tuple(weights.shape for weights, _ in member) for member in members}) > 1:
            raise ValueError("net: found members of different sizes")
        return cls(mean, scale, members)


def doubted(answers: np.ndarray, level: np.ndarray, behind: np.ndarray | float) -> np.ndarray:
    """What candidates lose: the mean of the members [member, ...], more where they disagree, and more where the formula
    contradicts. level [member, ...]: what each says of all candidates of the batch on average, in which members differ
    without a meaning. behind: log2 of the formula's time over the least of the batch. It errs by 20% among the best, so
    that its square says little there; far from the logs a net may be sure of what takes many times as long."""
    return answers.mean(axis=0) + DOUBT * (answers - level).std(axis=0) + (np.log(2) * behind) ** 2 / 2


def _layers(plain: Any, columns: int) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    pairs = isinstance(plain, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in plain)
    if not pairs or not plain:
        raise ValueError("net: found a member without pairs of weights and biases")
    found, inputs = [], columns
    for number, (weights, biases) in enumerate(plain):
        outputs = 1 if number == len(plain) - 1 else len(biases) if isinstance(biases, list) else 0
        if not outputs:
            raise ValueError("net: found a layer without outputs")
        found.append((array(weights, "net: weights", (inputs, outputs)), array(biases, "net: biases", (outputs,))))
        inputs = outputs
    return tuple(found)


def array(values: Any, name: str, size: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """Numbers of a file. Raises ValueError for others than finite ones of this size."""
    try:
        found = np.array(values, dtype=dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{name}: found no numbers") from error
    if found.shape != size or not np.isfinite(found).all():
        raise ValueError(f"{name}: found {list(found.shape)}, allowed finite ones of {list(size)}")
    return found


def _short(values: np.ndarray) -> Any:
    if values.ndim > 1:
        return [_short(row) for row in values]
    return [float(f"{value:.5g}") for value in values]
