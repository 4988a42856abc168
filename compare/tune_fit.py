"""From a tuning run's lines to the two heuristics files, and the figures that say what they are worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from common.gpus import Gpu
from compare import registry, tune_records, tune_render, tune_tree
from compare.tune_records import FORBIDDEN, LOST, Times
from compare.tune_render import AutoTree, KernelTree, share
from compare.tune_space import DEFAULT, Policy
from compare.workloads import Workload

MIN_ROWS = 4  # of a kernel; fewer rows make no tree


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
        self.arm, self.rows, self.gpu = arm, {row.label: row for row in rows}, gpu
        self.times: dict[str, Times] = {}
        self.kernels: dict[str, KernelTree] = {}
        self.lost: dict[str, int] = {}
        for kernel_id in (k for k in plan if k.split("/")[0] == arm):
            times = tune_records.times(lines, arm, kernel_id)
            if len(times.rows) >= MIN_ROWS and DEFAULT.name in times.policies:
                self.times[kernel_id] = times
                self.kernels[kernel_id] = self._kernel(kernel_id, times, {p.name: p for p in plan[kernel_id]})
        self.auto = self._auto()

    def _features(self, labels: Sequence[str]) -> list[dict[str, int]]:
        return [tune_tree.features(self.rows[label].shape, self.rows[label].stats) for label in labels]

    def _kernel(self, kernel_id: str, times: Times, plan: dict[str, Policy]) -> KernelTree:
        chosen = tuple(plan[name] for name in times.policies)
        row = self.rows[times.rows[0]]
        kernel = registry.load(kernel_id)
        default, _ = registry.default_config(kernel_id, kernel, row.shape, row.stats, self.gpu, "default")
        column = times.regret[:, times.policies.index(DEFAULT.name)]
        return KernelTree(
            name=kernel_id.split("/")[1],
            fit=tune_tree.fit(self._features(times.rows), times.regret),
            policies=chosen,
            samples=tuple(policy.config(default) for policy in chosen),
            default=(float(column.mean()), float(column.max())),
        )

    def _auto(self) -> AutoTree | None:
        """Over kernels, each with what its tree chose for a row that was held out of it; rows that all are done on.

        The best of a row is the best of all candidates of all kernels.
        """
        if len(self.times) < 2:
            return None
        common = sorted(set.intersection(*(set(times.rows) for times in self.times.values())))
        if len(common) < MIN_ROWS:
            return None
        cost = np.full((len(common), len(self.times)), np.nan)
        best = np.full(len(common), np.inf)
        for j, (kernel_id, times) in enumerate(self.times.items()):
            held_out = self.kernels[kernel_id].fit.held_out_choice
            for i, label in enumerate(common):
                at = times.rows.index(label)
                row_best = np.nanmin(times.us[at])
                best[i] = min(best[i], row_best)
                cost[i, j] = row_best * times.regret[at, held_out[at]]
        regret = np.minimum(cost / best[:, None], FORBIDDEN)
        names = tuple(kernel_id.split("/")[1] for kernel_id in self.times)
        return AutoTree(tune_tree.fit(self._features(common), regret), names)

    def source(self, provenance: dict[str, Any]) -> str:
        """The text of heuristics/<gpu>.py."""
        used = [self.rows[label] for times in self.times.values() for label in times.rows]
        classes = {(r.shape.head_size, r.shape.block_size, str(r.shape.dtype).removeprefix("torch.")) for r in used}
        facts = provenance | {"rows": f"{len({r.label for r in used})} of suite tuning"}
        package = registry.package(self.arm)
        trees = list(self.kernels.values())
        return tune_render.source(package, self.gpu, trees, self.auto, sorted(classes), facts)

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
        if self.auto:
            found.append(
                f"{self.arm + '/auto':26} held out {share(self.auto.fit.held_out)} of the best kernel and config"
            )
        return found
