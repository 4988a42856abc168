"""Who should choose: the rules on the grid, the rules from exact integers, a cost model, or the model over the rules.

    python -m compare study deciders [--out FILE] [--runs DIR ...]
    python -m compare study deciders --write      fit the tuner's model (compare/tune/constants.json) to all of them

Judged on committed times, without a GPU: every row on which several kernels that `auto` may take were timed with
several configs each. A decider is asked; its regret is the time of what it takes over the best that was timed there, so
a lower bound, and only rows count on which both kinds of rules take something that was timed. The model
(compare/tune/cost.py) is fitted without the row, or without the row's shape. `first of 3`, `of 5`: the best of the
model's first candidates, which is what a tuner that measures them gets. Exit codes: 0; 5 no row counts.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from common.gpus import Gpu, resolve
from common.serving.grid import decided_by, on_grid
from common.spec.metadata import BatchStats
from compare.analysis import regret
from compare.competitors import registry
from compare.exits import NOTHING, OK
from compare.record import packed
from compare.record.folder import ROOT
from compare.tune import cost, records
from compare.workloads import Workload, suites

HELP = "rules, rules from exact integers, a cost model: who chooses best, on committed times"
TUNED = ("docs/results/h200/tuning/tuneT",)
RUNS = {name: "peers" for name in ("peers-before", "peers", "static-grid", "decodes")}
RUNS |= {name: "serving" for name in ("serving-left", "serving-rest", "serving")}
LEAST = 5  # candidates of a row
FOLDS, SEED = 10, 0
PROMISED = (1.1, 1.2)  # the model overrules the rules where it promises to be so many times faster
ALIKE = 1.1  # segments of what a rule takes and of what was timed: rounded to a short list, or not


@dataclass(frozen=True)
class Point:
    """A candidate that was timed."""

    row: Workload
    kernel: str
    config: dict[str, Any]
    us: float


def committed(folders: Iterable[str]) -> list[Point]:
    """Final times of tuning runs, and of runs of the suites; of a config that was timed twice the last."""
    found: dict[tuple[str, str, str], Point] = {}

    def add(row: Workload, kernel: str, config: dict[str, Any], us: float) -> None:
        if kernel in cost.KERNELS and not row.asked and not row.shape.quantised and row.shape.value_size is None:
            found[row.id.split("-")[0] + str(row.lens), kernel, json.dumps(config, sort_keys=True)] = Point(
                replace(row, seed=0), kernel, config, us
            )

    for folder in map(Path, folders):
        path = ROOT / folder
        rows = {
            plain["label"]: Workload.from_dict(plain)
            for plain in json.loads((path / "manifest.json").read_text())["rows"]
        }
        for (kernel, label, _), line in records.latest(records.read(path / "candidates.jsonl"), "triton").items():
            if line["status"] == "ok" and "final_us" in line:
                add(rows[label], kernel.split("/")[1], line["config"], line["final_us"])
    for name, suite in RUNS.items():
        rows = {row.label: row for row in suites.suite(suite)}
        for line in map(json.loads, packed.read_bytes(ROOT / "docs/results/h200" / name / "cells.jsonl").splitlines()):
            row, kernel = rows.get(line["workload"]["label"]), line["kernel"]
            if row is None or line["status"] != "ok" or not kernel.startswith("triton/") or not line.get("timing"):
                continue
            config = line["config"]
            named, config = (config["kernel"], config["config"]) if kernel == "triton/auto" else (kernel[7:], config)
            add(row, named, config, line["timing"]["median_us"])
    return list(found.values())


def groups(points: Sequence[Point]) -> list[list[Point]]:
    """Points of a row with at least LEAST of them, of two kernels or more."""
    rows: dict[tuple[Any, ...], list[Point]] = defaultdict(list)
    for point in points:
        rows[point.row.lens, point.row.shape].append(point)
    return [found for found in rows.values() if len(found) >= LEAST and len({p.kernel for p in found}) > 1]


def _same(asked: dict[str, Any], timed: dict[str, Any]) -> bool:
    """Whether a recorded config, which may lack younger fields, is the one asked for."""
    for name, value in timed.items():
        if isinstance(value, dict):
            if not _same(asked[name], value):
                return False
        elif name == "num_segments":
            if max(asked[name], value) > ALIKE * min(asked[name], value):
                return False
        elif asked.get(name) != value:
            return False
    return True


def taken(group: Sequence[Point], stats: BatchStats, gpu: Gpu) -> int | None:
    """Which of the group the rules take for these stats; None where it was not timed."""
    default, row = registry.load("triton/auto").FAMILY.load("heuristics.generic.default"), group[0].row
    name, config = default.auto(row.shape, stats, gpu)
    plain = registry.config_dict(config)
    return next((i for i, p in enumerate(group) if p.kernel == name and _same(plain, p.config)), None)


class Fitted:
    """The model without the rows of a fold: predictions for these, of the formula and with the residual."""

    def __init__(self, points: Sequence[Point], gpu: Gpu) -> None:
        self.points = points
        calls = [cost.launches(p.kernel, p.config, p.row, gpu) for p in points]
        self._calls = calls
        self._features = np.array([cost.features(p.config, p.row, c) for p, c in zip(points, calls, strict=True)])
        self._us = np.array([p.us for p in points])
        best: dict[Any, float] = {}
        for point in points:
            key = point.row.lens, point.row.shape
            best[key] = min(best.get(key, point.us), point.us)
        self._weight = np.array([best[p.row.lens, p.row.shape] / p.us for p in points])

    def whole(self) -> cost.Model:
        """Fitted to every point."""
        model = cost.Model({})
        for kernel in cost.KERNELS:
            at = np.flatnonzero([p.kernel == kernel for p in self.points])
            seen = cost.Points([self._calls[i] for i in at])
            model.constants[kernel] = cost.fit_constants(seen, self._us[at], self._weight[at])
            left = np.log(self._us[at] / seen.us(model.constants[kernel]))
            model.residual[kernel] = cost.boosted(self._features[at], left, self._weight[at])
        return model

    def held_out(self, fold: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Microseconds of every point, by the formula and with the residual, each fitted without the point's fold."""
        plain, with_residual = np.zeros(len(self.points)), np.zeros(len(self.points))
        for kernel in cost.KERNELS:
            mine = np.array([p.kernel == kernel for p in self.points])
            for number in np.unique(fold[mine]):
                at, out = np.flatnonzero(mine & (fold != number)), np.flatnonzero(mine & (fold == number))
                if not len(at):
                    raise ValueError(f"{kernel}: found no time outside of a fold")
                seen, hidden = (cost.Points([self._calls[i] for i in where]) for where in (at, out))
                constants = cost.fit_constants(seen, self._us[at], self._weight[at])
                left = np.log(self._us[at] / seen.us(constants))
                model = cost.Model(
                    {kernel: constants}, {kernel: cost.boosted(self._features[at], left, self._weight[at])}
                )
                plain[out] = model.us(kernel, hidden)
                with_residual[out] = model.us(kernel, hidden, self._features[out])
        return plain, with_residual


def page(points: Sequence[Point], gpu: Gpu) -> list[str]:
    """The whole document; empty where no row counts."""
    counted, known = [], groups(points)
    for group in known:
        told = group[0].row.stats
        grid = taken(group, on_grid(told.num_seqs, told.num_decodes, told.max_query_len, told.max_seq_len), gpu)
        exact = taken(group, decided_by(told), gpu)
        if grid is not None and exact is not None:
            counted.append((group, grid, exact))
    if not counted:
        return []
    lines = [
        "# Who chooses best: rules, rules from exact integers, a cost model",
        "",
        "Made by `python -m compare study deciders` of committed times of Triton's kernels on the H200; nothing here",
        f"was measured for it. {len(counted)} rows count of {len(known)} with {LEAST} candidates or more, by",
        f"{len(points)} times in all. Regret is over the best that was timed on the row, a lower bound; the rules were",
        "written from many of these rows, the model is held out. Rows on which the rules take what nobody timed do not",
        "count, so what they lose on rows that nobody looked at is not here: `python -m compare study regret` has it.",
        "A measured winner has no line: on its own row it loses nothing, and no other row here has its key.",
        "What follows: the winner of a key, else the rules; the model ranks what the tuner measures first. It does not",
        "overrule the rules, whatever it promises, for on rows and shapes held out that loses more than it gains.",
        "",
        "| held out | decider | regret: mean % | p90 % | worst % |",
        "|---|---|---|---|---|",
    ]
    lines.append(f"| in sample | rules on the grid | {regret.spread([_regret(g, grid) for g, grid, _ in counted])} |")
    lines.append(
        f"| in sample | rules from exact integers | {regret.spread([_regret(g, exact) for g, _, exact in counted])} |"
    )
    fitted, index = Fitted(points, gpu), {id(point): i for i, point in enumerate(points)}
    for what, fold in (("rows", _by_row(points)), ("shapes", _by_shape(points))):
        predicted = dict(zip(("formula", "formula and residual"), fitted.held_out(fold), strict=True))
        for name, us in predicted.items():
            ranked = [(g, np.argsort([us[index[id(p)]] for p in g])) for g, _, _ in counted]
            lines.append(f"| {what} | {name} | {regret.spread([_regret(g, order[0]) for g, order in ranked])} |")
            for first in (3, 5):
                best = [min(_regret(g, i) for i in order[:first]) for g, order in ranked]
                lines.append(f"| {what} | {name}, best of its first {first} | {regret.spread(best)} |")
        us = predicted["formula and residual"]
        for promise in PROMISED:
            best = [_regret(g, _over(g, exact, [us[index[id(p)]] for p in g], promise)) for g, _, exact in counted]
            lines.append(
                f"| {what} | rules unless the model promises {100 * (promise - 1):.0f}% | {regret.spread(best)} |"
            )
    return lines


def host(gpu: Gpu, repeat: int = 3) -> list[str]:
    """What a choice takes the host, in microseconds of this thread: misses and hits of `auto`, candidates of the model.

    The first choice of a process, which reads rules and tables, is made before.
    """
    rows = [row for name in ("serving", "tuning") for row in suites.suite(name)] * repeat
    lines = ["| what | median us | most us |", "|---|---|---|"]

    def told(what: str, spent: Sequence[float]) -> None:
        lines.append(f"| {what} | {statistics.median(spent):.0f} | {max(spent):.0f} |")

    def us(work: Callable[[], object]) -> float:
        began = time.thread_time_ns()
        work()
        return (time.thread_time_ns() - began) / 1e3

    for dsl in registry.DSLS:
        try:
            auto = registry.load(f"{dsl}/auto")
        except registry.Unavailable:
            continue
        misses, hits = [], []
        for number, row in enumerate([rows[0], *rows]):
            stats = replace(row.stats, num_tokens=row.stats.num_tokens + number)  # a batch that nobody asked for yet
            misses.append(us(partial(auto.choose, row.shape, stats, gpu)))
            hits.append(us(partial(auto.choose, row.shape, stats, gpu)))
        told(f"{dsl}/auto, a miss", misses[1:])
        told(f"{dsl}/auto, a hit", hits[1:])
    kernel, model = registry.load("triton/q_block"), cost.fitted()
    config = registry.config_dict(kernel.DEFAULT)
    formula = [us(lambda row=row: cost.launches("q_block", config, row, gpu)) for row in rows]
    told("a launch of a candidate, its tiles dealt", formula)
    row = rows[0]
    call = cost.launches("q_block", config, row, gpu)
    points, seen = cost.Points([call] * 1000), np.array([cost.features(config, row, call)] * 1000)
    told("1000 candidates by the formula", [us(lambda: model.us("q_block", points)) for _ in range(9)])
    told("1000 candidates, the residual too", [us(lambda: model.us("q_block", points, seen)) for _ in range(9)])
    return lines


def _regret(group: Sequence[Point], which: int) -> float:
    return regret.of(group[which].us, min(point.us for point in group))


def _over(group: Sequence[Point], rule: int, us: Sequence[float], promise: float) -> int:
    """The model's first where it promises so much, else the rule's."""
    first = int(np.argmin(us))
    return first if us[rule] > promise * us[first] else rule


def _by_row(points: Sequence[Point]) -> np.ndarray:
    rows = sorted({str((p.row.lens, p.row.shape)) for p in points})
    random.Random(SEED).shuffle(rows)
    fold = {row: number % FOLDS for number, row in enumerate(rows)}
    return np.array([fold[str((p.row.lens, p.row.shape))] for p in points])


def _by_shape(points: Sequence[Point]) -> np.ndarray:
    """A fold a shape; the most common one in rows' folds of its own, or nothing were left to fit."""
    shapes = sorted({str(p.row.shape) for p in points}, key=lambda s: -sum(str(p.row.shape) == s for p in points))
    rows = _by_row(points)
    number = {shape: FOLDS + n for n, shape in enumerate(shapes)}
    return np.array(
        [f if str(p.row.shape) == shapes[0] else number[str(p.row.shape)] for p, f in zip(points, rows, strict=True)]
    )


def options(new: argparse.ArgumentParser) -> None:
    new.add_argument("--write", action="store_true", help="fit the tuner's model to all times, and write it")
    new.add_argument("--out", metavar="FILE", help="write the page there too")
    new.add_argument(
        "--runs", metavar="DIR", nargs="+", default=list(TUNED), help="tuning runs (default the committed one)"
    )


def write(points: Sequence[Point], gpu: Gpu) -> None:
    """compare/tune/constants.json: the model of the tuner's prior."""
    model = Fitted(points, gpu).whole()
    plain = {"gpu": gpu.name, "names": list(cost.CONSTANTS), "times": len(points)}
    plain["of"] = "python -m compare study deciders --write: committed times of the H200"
    plain["constants"] = {name: [float(f"{x:.3g}") for x in values] for name, values in model.constants.items()}
    plain["residual"] = {name: one.plain() for name, one in model.residual.items()}
    cost.DATA.write_text(json.dumps(plain) + "\n", encoding="utf-8")


def main(asked: argparse.Namespace) -> int:
    if asked.write:
        write(committed(asked.runs), resolve("h200"))
        return OK
    lines = page(committed(asked.runs), resolve("h200"))
    lines += ["", "## What a choice takes the host", "", *host(resolve("h200"))] if lines else []
    print("\n".join(lines) if lines else "no row counts")
    if lines and asked.out:
        Path(asked.out).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return OK if lines else NOTHING
