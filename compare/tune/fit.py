"""From a tuning run's lines to tables of measured winners (common/serving/measured.py), and what the rules lose there.

A candidate wins a kernel's row where it is WORTH faster than the rules' config by the second time, and was faster in
the screening already, which is another sample: the best of many is partly luck. A kernel wins `auto`'s row where it is
so much faster than what the rules take. What the rules do as well is no winner: the rules answer there, and on all
batches that nobody timed. Winners of the table that is there stay where their code is still the same and nobody timed
their key again.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common.gpus import Gpu
from common.serving.choice import few_segments
from common.serving.measured import LABEL, Table, Winner, key, stamp
from compare.competitors import registry
from compare.identity import plain as plain_name
from compare.record import folder as run_folder
from compare.record.whole import put
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
    """A candidate's final time on a row, and its screening time."""

    us: float
    screen_us: float = field(compare=False)
    config: Any = field(compare=False)


class Fitted:
    """The winners of one DSL. rules: regrets of the rules' config on the rows, by kernel and for `auto`."""

    def __init__(
        self,
        arm: str,
        lines: Sequence[dict[str, Any]],
        rows: Sequence[Workload],
        kernels: Sequence[str],
        gpu: Gpu,
    ) -> None:
        self.arm, self.gpu = arm, gpu
        self.family = registry.load(f"{arm}/auto").FAMILY
        self.kernels = [name for k in kernels if (name := k.split("/")[1]) in WITH_WINNERS]
        self.winners: dict[str, Winner] = {}
        self.rules: dict[str, list[float]] = {}
        self.timed: set[str] = set()  # keys
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
            rules = by_policy[DEFAULT.name]
            best = min(one for one in by_policy.values() if one.screen_us <= rules.screen_us)
            self.rules.setdefault(kernel, []).append(rules.us / min(by_policy.values()).us)
            takes[kernel] = best if rules.us >= WORTH * best.us else rules
        configs = {kernel: one for kernel, one in takes.items() if one is not timed[kernel][DEFAULT.name]}
        theirs = self._rules_us(row, timed)
        best = min((k for k in CHOSEN if k in takes), key=lambda k: takes[k].us, default="")
        kernel = best if best and theirs >= WORTH * takes[best].us else None
        if best and theirs:
            fastest = min(one.us for k in CHOSEN for one in timed.get(k, {}).values())
            self.rules.setdefault(AUTO, []).append(theirs / min(fastest, theirs))
        if kernel is not None:
            configs[kernel] = takes[kernel]
        at = key(row.shape, row.stats)
        self.timed.add(at)
        if configs and at not in self.winners:
            plain = {name: registry.config_dict(one.config) for name, one in configs.items()}
            us = (takes[kernel].us, theirs) if kernel else (0.0, 0.0)
            self.winners[at] = Winner(row.label, kernel, plain, *us)

    def _rules_us(self, row: Workload, timed: Mapping[str, Mapping[str, Timed]]) -> float:
        """What the rules' kernel takes with the rules' config; 0, which nothing beats, where that was not timed: rows
        that were not reached are those that take long."""
        rules = self.family.choose(row.shape, row.stats, self.gpu, heuristics="default")
        alike = [
            one.us
            for one in timed.get(rules.kernel, {}).values()
            if few_segments(one.config, row.shape, row.stats) == rules.config
        ]
        return min(alike, default=0.0)

    def _config(self, kernel: str, plain: dict[str, Any]) -> Any:
        """The Config that a line has; None where a field of it is gone since, or is of another kind."""
        try:
            like = self.family.kernel(kernel).DEFAULT
            found = registry.config_from(like, plain)
        except (AttributeError, TypeError, ValueError, ImportError):
            return None
        return found if _is_like(registry.config_dict(found), registry.config_dict(like)) else None

    def table(self, provenance: Mapping[str, Any], sources: Mapping[str, str], before: Table | None) -> dict[str, Any]:
        """The content of the new table. before: the installed table, or None."""
        kept = {}
        if before is not None:
            fresh = {at: one for at, one in before.winners.items() if at not in self.timed}
            kept = {at: one for at, one in fresh.items() if not set(one.configs) & set(before.stale)}
        stamped = {name: stamp for k, stamp in sources.items() if (name := k.split("/")[1]) in self.kernels}
        return {
            "label": LABEL,
            "dsl": self.arm,
            "gpu": self.gpu.title,
            "provenance": {**provenance, "rows": f"{len(self.timed)} timed, {len(kept)} kept"},
            "sources": ({k: v for k, v in before.sources.items() if kept} if before else {}) | stamped,
            "winners": {at: asdict(one) for at, one in sorted((kept | self.winners).items())},
        }

    def summary(self) -> list[str]:
        """A line per kernel: its rows, and what the rules lose against the best timed candidate."""
        lines = []
        for kernel, regrets in self.rules.items():
            wins = [
                one.kernel is not None if kernel == AUTO else kernel in one.configs for one in self.winners.values()
            ]
            loss = f"{statistics.fmean(regrets):.3f} (worst {max(regrets):.2f}) of the best"
            lines.append(f"{f'{self.arm}/{kernel}':26} {len(regrets):3} rows: rules {loss}, {sum(wins)} winners")
        return lines


def _is_like(found: Mapping[str, Any], like: Mapping[str, Any]) -> bool:
    """Whether each value is of the kind that the default has there: a part, a number of at least 0, a text; or None."""
    for name, value in found.items():
        other = like[name]
        if isinstance(other, dict) or isinstance(value, dict):
            fits = isinstance(other, dict) and isinstance(value, dict) and _is_like(value, other)
        elif isinstance(other, int | float) or (other is None and isinstance(value, int | float)):
            fits = value is None or (isinstance(value, int | float) and value >= 0)
        else:
            fits = value is None or other is None or isinstance(value, type(other))
        if not fits:
            return False
    return True


def text(plain: Mapping[str, Any]) -> str:
    """The table as JSON with one winner per line."""
    winners = ",\n".join(f"  {json.dumps(at)}: {json.dumps(one)}" for at, one in plain["winners"].items())
    head = json.dumps({name: value for name, value in plain.items() if name != "winners"}, indent=1)
    return head.removesuffix("\n}") + ',\n "winners": {\n' + winners + "\n }\n}\n"


def write(path: Path, content: str) -> None:
    """Write the file atomically. Raises CannotWrite."""
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path, content)


def stamps(kernels: Sequence[str]) -> dict[str, str]:
    """The hash of each kernel's code, by id. A run notes them at its start, since its times belong to that code."""
    found = {}
    for kernel_id in kernels:
        dsl, _, name = kernel_id.partition("/")
        if stamped := stamp(folder_of(dsl), name):
            found[kernel_id] = stamped
    return found


def folder_of(dsl: str) -> Path:
    """The folder of a DSL's kernels."""
    return Path(next(iter(registry.load(f"{dsl}/auto").FAMILY.load("heuristics").__path__))).parent


def installed(arm: str, gpu: Gpu) -> Table | None:
    """The installed table of a DSL and GPU; None if it is missing or invalid."""
    try:
        return Table(run_folder.ROOT / name_of(arm, gpu), arm, gpu, folder_of(arm))
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None


def name_of(arm: str, gpu: Gpu) -> Path:
    """The path of a table, relative to the project or a run's folder."""
    return Path(plain_name(registry.package(arm))) / "heuristics" / "fitted" / f"{gpu.name}.json"
