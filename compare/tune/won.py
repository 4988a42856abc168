"""From a tuning run's lines to measured winners (common/serving/winners.py), and what is lost without them.

A candidate wins a kernel's row where it is WORTH faster than the default config by the second time, and was faster in
the screening already, which is another sample: the best of many is partly luck. A kernel wins `auto`'s row where it is
so much faster than what `auto` takes unmeasured. What that does as well is no winner.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.gpus import Gpu, resolve
from common.serving import winners
from common.serving.pieces import few_segments
from common.serving.winners import Winner, built, key
from compare.competitors import registry
from compare.tune import records
from compare.tune.space import DEFAULT
from compare.workloads import Workload

WORTH = 1.03  # two timings of one code differ by 1%
AUTO = "auto"
# static_grid has one captured config for every batch, so that no batch has one of its own
WITH_WINNERS = frozenset(registry.RUNGS) - {AUTO, "static_grid"}
CHOSEN = ("q_block", "parallel_softmax", "adjustable_tile", "unpaged")  # that `auto` may take


@dataclass(frozen=True, order=True)
class Timed:
    """A candidate's second time on a row, and its screening."""

    us: float
    screen_us: float = field(compare=False)
    config: Any = field(compare=False)


class Fitted:
    """Winners of one DSL. lost: what is taken unmeasured over the best on the rows, by kernel and for `auto`.

    sources: the hash of each kernel's code that was timed, by id.
    """

    def __init__(
        self, arm: str, lines: Sequence[dict[str, Any]], rows: Sequence[Workload], sources: Mapping[str, str], gpu: Gpu
    ) -> None:
        self.arm, self.gpu, self.sources = arm, gpu, sources
        self.family = registry.load(f"{arm}/auto").FAMILY
        mine = (kernel.split("/") for kernel in sources)
        self.kernels = [name for dsl, name in mine if dsl == arm and name in WITH_WINNERS]
        self.winners: dict[tuple[str, str], Winner] = {}  # by who asks and key
        self.lost: dict[str, list[float]] = {}
        last = records.latest(lines, arm)
        found: dict[tuple[str, str], dict[str, Timed]] = {}  # (row, kernel) -> policy -> its second time
        for (kernel, row, policy), line in last.items():
            name = kernel.split("/")[1]
            if name not in self.kernels:
                continue
            if line["status"] == "ok" and "final_us" in line and (config := self._config(name, line["config"])):
                found.setdefault((row, name), {})[policy] = Timed(line["final_us"], line["screen_us"], config)
        for row in rows:
            if not row.asked:
                mine = {k: found[row.label, k] for k in self.kernels if DEFAULT.name in found.get((row.label, k), {})}
                if mine:
                    self._row(row, mine)

    def _row(self, row: Workload, timed: Mapping[str, Mapping[str, Timed]]) -> None:
        """timed: by kernel and policy."""
        takes: dict[str, Timed] = {}
        for kernel, by_policy in timed.items():
            default = by_policy[DEFAULT.name]
            best = min(one for one in by_policy.values() if one.screen_us <= default.screen_us)
            self.lost.setdefault(kernel, []).append(default.us / min(by_policy.values()).us)
            takes[kernel] = best if default.us >= WORTH * best.us else default
            if takes[kernel] is not default:
                self._keep(kernel, row, kernel, takes[kernel], default.us)
        first = self._unmeasured_us(row, timed)
        best = min((k for k in CHOSEN if k in takes), key=lambda k: takes[k].us, default="")
        if best and first:
            fastest = min(one.us for k in CHOSEN for one in timed.get(k, {}).values())
            self.lost.setdefault(AUTO, []).append(first / min(fastest, first))
            if first >= WORTH * takes[best].us:
                self._keep(AUTO, row, best, takes[best], first)

    def _keep(self, of: str, row: Workload, kernel: str, one: Timed, first_us: float) -> None:
        at, code = key(row.shape, row.stats), self.sources[f"{self.arm}/{kernel}"]
        config = registry.config_dict(one.config)
        self.winners.setdefault((of, at), Winner(at, of, kernel, config, one.us, first_us, code, row.label))

    def _unmeasured_us(self, row: Workload, timed: Mapping[str, Mapping[str, Timed]]) -> float:
        """What `auto` takes without winners; 0, which nothing beats, where that was not timed: rows that were not
        reached are those that take long."""
        first = self.family.choose(row.shape, row.stats, self.gpu, heuristics="learned")
        alike = [
            one.us
            for one in timed.get(first.kernel, {}).values()
            if few_segments(one.config, row.shape, row.stats) == first.config
        ]
        return min(alike, default=0.0)

    def _config(self, kernel: str, plain: dict[str, Any]) -> Any:
        """The Config that a line has; None where a field of it is gone since, or is of another kind."""
        try:
            return built(self.family.kernel(kernel).DEFAULT, plain, older=True)
        except (AttributeError, TypeError, ValueError, ImportError):
            return None

    def summary(self) -> list[str]:
        """A line a kernel: rows, and what is lost there without winners against the best that was timed."""
        lines = []
        for kernel, lost in self.lost.items():
            wins = sum(of == kernel for of, _ in self.winners)
            told = f"{statistics.fmean(lost):.3f} (worst {max(lost):.2f}) of the best"
            lines.append(f"{f'{self.arm}/{kernel}':26} {len(lost):3} rows: unmeasured {told}, {wins} winners")
        return lines


def of_run(folder: Path, dsls: Sequence[str] = registry.DSLS) -> list[Fitted]:
    """The winners of a run, one a DSL of which a kernel and its default were timed on a row. Raises NotThisRun."""
    manifest = records.manifest(folder)
    lines, rows = records.read(folder / "candidates.jsonl", fits=True), list(records.workloads(manifest))
    sources = dict.fromkeys(manifest["policies"], "") | manifest.get("sources", {})
    found = []
    for dsl in dsls:
        mine = {kernel: sources[kernel] for kernel in manifest["policies"] if kernel.startswith(f"{dsl}/")}
        if mine:
            found.append(Fitted(dsl, lines, rows, mine, resolve(manifest["gpu"])))
    return [one for one in found if one.lost]


def write(folder: Path, install: bool) -> bool:
    """The winners of a run as a file in its folder, and behind the user's own where `install` says so; whether there
    was anything to write. Raises NotThisRun, OSError."""
    fitted = of_run(folder)
    for one in fitted:
        print("\n".join(one.summary()))
        file, places = winners.path(one.arm, one.gpu), [folder / f"winners-{one.arm}-{one.gpu.name}.jsonl"]
        places[0].unlink(missing_ok=True)
        for place in (*places, *([file] if install and file else [])):
            winners.append(place, *one.winners.values())
            print(f"{len(one.winners)} winners: {place}")
    return bool(fitted)


def stamps(kernels: Sequence[str]) -> dict[str, str]:
    """The hash of each kernel's code, by id; what a run notes when it begins, for its times are of that code."""
    found = {}
    for kernel_id in kernels:
        dsl, _, name = kernel_id.partition("/")
        if stamped := registry.load(f"{dsl}/auto").FAMILY.stamp(name):
            found[kernel_id] = stamped
    return found
