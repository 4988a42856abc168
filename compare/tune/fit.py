"""From a tuning run's lines to the two heuristics files, and the figures that say what they are worth."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from common.gpus import Gpu
from compare.competitors import registry
from compare.tune import records, render
from compare.tune import tree as tune_tree
from compare.tune.records import FORBIDDEN, LOST, Times
from compare.tune.render import AutoTree, KernelTree, share
from compare.tune.space import DEFAULT, TREE, Policy
from compare.workloads import Workload

MIN_ROWS = 4  # of a kernel, and of a class of shapes; fewer rows make no tree
# A kernel's tree learns from rows on which it comes within this of the best of all: q_block's 7% on one sequence,
# where it is 14 times slower than parallel_softmax, became a rule that lost up to 9% on batches that it is best for.
NEAR = 1.5
OF_SHAPES = frozenset({"static_grid"})  # one captured config serves every batch
NOT_IN_AUTO = frozenset({"naive", "static_grid"})  # a textbook, and the one graph for all batches


def _class(row: Workload) -> tuple[int, int, str, str]:
    """What a tree must have seen to answer: head size, page, dtype of the query and of the cache."""
    dtypes = (str(dtype).removeprefix("torch.") for dtype in (row.shape.dtype, row.shape.cache_dtype))
    return row.shape.head_size, row.shape.block_size, *dtypes


def _apart(times: Times) -> tuple[Times, np.ndarray | None]:
    """The times without those of the table that is there, which no new tree may choose; and that one's regrets."""
    if TREE.name not in times.policies:
        return times, None
    at = times.policies.index(TREE.name)
    us, regret = np.delete(times.us, at, axis=1), np.delete(times.regret, at, axis=1)
    policies = (*times.policies[:at], *times.policies[at + 1 :])
    return Times(times.kernel, times.rows, policies, us, regret), times.regret[:, at]


class Fitted:
    """Trees of one DSL. `kernels` by short name; `auto` where several kernels have trees on common rows."""

    def __init__(
        self,
        arm: str,
        lines: Sequence[dict[str, Any]],
        rows: Sequence[Workload],
        plan: dict[str, list[Policy]],
        gpu: Gpu,
    ) -> None:
        self.arm, self.gpu = arm, gpu
        classes = Counter(map(_class, rows))
        self.rows = {row.label: row for row in rows if classes[_class(row)] >= MIN_ROWS}
        self.times: dict[str, Times] = {}
        self._replaced: dict[str, np.ndarray | None] = {}  # regrets of the table that is there, where it was timed
        self.kernels: dict[str, KernelTree] = {}
        self.unknown: list[str] = []
        self.worse: list[str] = []  # trees that lose on rows held out, against the table that they would replace
        for kernel_id in (k for k in plan if k.split("/")[0] == arm):
            times = records.times(lines, arm, kernel_id, self.rows)
            if len(times.rows) >= MIN_ROWS and DEFAULT.name in times.policies:
                self.times[kernel_id], self._replaced[kernel_id] = _apart(times)
        for kernel_id in self.times:
            self.kernels[kernel_id] = self._kernel(kernel_id, {p.name: p for p in plan[kernel_id]})
        self.auto = self._auto()

    def _features(self, labels: Sequence[str]) -> list[dict[str, int]]:
        return [tune_tree.features(self.rows[label].shape, self.rows[label].stats) for label in labels]

    def _near(self, kernel_id: str) -> np.ndarray:
        """bool of its rows: those on which its best config is one to take; all of them where too few are."""
        mine = self.times[kernel_id]
        best = [min(np.nanmin(t.us[t.rows.index(r)]) for t in self.times.values() if r in t.rows) for r in mine.rows]
        near = np.nanmin(mine.us, axis=1) <= NEAR * np.array(best)
        return near if near.sum() >= MIN_ROWS and kernel_id.split("/")[1] not in OF_SHAPES else np.ones_like(near)

    def _kernel(self, kernel_id: str, plan: dict[str, Policy]) -> KernelTree:
        times = self.times[kernel_id]
        chosen = tuple(plan[name] for name in times.policies)
        row = self.rows[times.rows[0]]
        kernel = registry.load(kernel_id)
        default, _ = registry.default_config(kernel_id, kernel, row.shape, row.stats, self.gpu, "default")
        near = self._near(kernel_id)
        features, regret = self._features([r for r, ok in zip(times.rows, near, strict=True) if ok]), times.regret[near]
        if kernel_id.split("/")[1] in OF_SHAPES:
            features = [{name: row[name] for name in tune_tree.OF_SHAPE} for row in features]
        column = regret[:, times.policies.index(DEFAULT.name)]
        fold = tune_tree.folds([self.rows[label].shape for label, ok in zip(times.rows, near, strict=True) if ok])
        fit = tune_tree.fit(features, regret, times.policies.index(DEFAULT.name), fold)
        if (before := self._replaced[kernel_id]) is not None:
            mean = float(before[near].mean())
            if fit.held_out[0] > mean + tune_tree.WORTH:
                self.worse.append(f"{kernel_id}: {fit.held_out[0]:.3f} held out, the table that is there {mean:.3f}")
        return KernelTree(
            name=kernel_id.split("/")[1],
            fit=fit,
            policies=chosen,
            samples=tuple(policy.config(default) for policy in chosen),
            default=(float(column.mean()), float(column.max())),
        )

    def _auto(self) -> AutoTree | None:
        """Over kernels, each with what its tree chooses; the first choice is the kernel that the untuned default takes.

        A kernel without a time on a row is no choice there. Without the default's there is no fit: rows that were not
        reached are those that take long, and a tree of the others would answer for them. The best of a row is the best
        of all candidates of all kernels.
        """
        kernels = [k for k in self.times if k.split("/")[1] not in NOT_IN_AUTO]
        rows = sorted({label for k in kernels for label in self.times[k].rows})
        default = {label: self._default_kernel(self.rows[label]) for label in rows}
        self.unknown = [r for r in rows if default[r] not in kernels or r not in self.times[default[r]].rows]
        if len(kernels) < 2 or len(rows) < MIN_ROWS or self.unknown:
            return None
        us = {(k, label): self._us(k, label) for k in kernels for label in self.times[k].rows}
        best = [min(np.nanmin(t.us[t.rows.index(r)]) for t in self.times.values() if r in t.rows) for r in rows]
        cost = [[us[default[r], r], *(us.get((k, r), math.inf) for k in kernels)] for r in rows]
        regret = np.minimum(np.array(cost) / np.array(best)[:, None], FORBIDDEN)
        names = ("", *(kernel_id.split("/")[1] for kernel_id in kernels))
        fold = tune_tree.folds([self.rows[label].shape for label in rows])
        return AutoTree(
            tune_tree.fit(self._features(rows), regret, fold=fold), names, tune_tree.mean_worst(regret[:, 0])
        )

    def _default_kernel(self, row: Workload) -> str:
        auto = registry.load(f"{self.arm}/auto")
        return f"{self.arm}/{auto.choose(row.shape, row.stats, self.gpu, heuristics='default').kernel}"

    def _us(self, kernel_id: str, label: str) -> float:
        """Of a kernel on a row by its own tree."""
        times = self.times[kernel_id]
        at = times.rows.index(label)
        chosen = self.kernels[kernel_id].fit.tree(self._features([label])[0])
        return np.nanmin(times.us[at]) * times.regret[at, chosen]

    def source(self, provenance: dict[str, Any]) -> str:
        """The text of heuristics/fitted/<gpu>.py."""
        used = [self.rows[label] for times in self.times.values() for label in times.rows]
        classes = set(map(_class, used))
        facts = provenance | {"rows": f"{len({r.label for r in used})} of suite tuning"}
        package = registry.package(self.arm)
        trees = list(self.kernels.values())
        return render.source(package, self.gpu, trees, self.auto, sorted(classes), facts)

    def summary(self) -> list[str]:
        """A line a kernel: rows, candidates with a time, regret of the default and of the tree held out."""
        found = []
        for kernel_id, tree in self.kernels.items():
            times = self.times[kernel_id]
            slow = int((times.regret >= LOST).sum())
            found.append(
                f"{kernel_id:26} {len(times.rows):3} rows x {len(times.policies):3} policies ({slow} not timed): "
                f"default {share(tree.default)}, tree held out {share(tree.fit.held_out)}, "
                f"training {share(tree.fit.training)}"
            )
        if self.unknown:
            found.append(
                f"{self.arm + '/auto':26} no tree: no time of the default's kernel on {', '.join(self.unknown)}"
            )
        if self.auto:
            found.append(
                f"{self.arm + '/auto':26} of the best kernel and config: default {share(self.auto.default)}, "
                f"tree held out {share(self.auto.fit.held_out)}, training {share(self.auto.fit.training)}"
            )
        return found
