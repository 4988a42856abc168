"""docs/paper.md: a row for every statement of the paper, with the command that repeats it, its figure and ours.

    python -m compare pages choosing --write    writes docs/paper.md too

What the paper states is compare/pages/templates/paper.toml. Figures of ours are read from docs/results/h200; a row
whose run is not there says so.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from compare.analysis import tables
from compare.analysis.runs import read
from compare.analysis.summary import FA3
from compare.record.folder import ROOT
from compare.report import paper
from compare.report.paper import Point, points
from compare.stats import geomean
from compare.studies import capability
from compare.studies import sizes as source_sizes
from compare.workloads.suites import OUTPUTS

# What the committed runs say about a statement of the paper, one line of text each; None where no run says anything.


LAST = OUTPUTS[-1]  # output tokens of Figure 9's last point


@dataclass(frozen=True)
class Runs:
    """The committed runs of one GPU: `docs/results/<gpu>/`."""

    folder: Path

    @cached_property
    def _loaded(self) -> dict[str, list[Point]]:
        return {}

    def points(self, name: str) -> list[Point]:
        """The timed cells of a run; none where it is not committed."""
        if name not in self._loaded:
            there = (self.folder / name / "manifest.json").exists()
            self._loaded[name] = points(read(self.folder / name).records) if there else []
        return self._loaded[name]

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The lines of a JSONL file other than a run's; none where it is not committed."""
        path = self.folder / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


Measure = Callable[[Runs], str | None]
Chosen = Callable[[Point], bool]


def kind(name: str) -> Chosen:
    return lambda point: point.load.kind == name


def _ratios(found: Sequence[Point], kernel: str, other: str) -> dict[str, float]:
    """Workload id -> the other's time over the kernel's, where both were timed."""
    theirs = {p.load.id: p.us for p in found if p.kernel == other}
    return {p.load.id: theirs[p.load.id] / p.us for p in found if p.kernel == kernel and p.load.id in theirs}


def speeds(run: str, kernels: str, other: str, chosen: Chosen = lambda point: True, rows: str = "rows") -> Measure:
    """A measure: the geometric mean of the other's time over each kernel's; `*` in a kernel stands for both DSLs."""

    def measure(runs: Runs) -> str | None:
        found = [p for p in runs.points(run) if chosen(p)]
        parts, paired = [], set()
        for pattern in kernels.split():
            for kernel, unit in _pairs(pattern, other):
                ratios = _ratios(found, kernel, unit)
                if ratios:
                    parts.append(f"`{kernel}` {tables.times(geomean(list(ratios.values())))}")
                    paired |= ratios.keys()
        count = len(paired)
        words = rows.removesuffix("s") if count == 1 else rows
        against = f"the same DSL's `{other.split('/')[1]}`" if "*" in other else f"`{other}`"
        return f"{', '.join(parts)} of the speed of {against} ({count} {words} of {run})" if parts else None

    return measure


def _pairs(kernel: str, other: str) -> list[tuple[str, str]]:
    """(kernel, its unit) for both DSLs where the kernel has a `*`, else one pair."""
    dsls = ("triton", "helion") if "*" in kernel else ("",)
    return [(kernel.replace("*", dsl), other.replace("*", dsl)) for dsl in dsls]


def most(run: str, kernel: str, other: str, chosen: Chosen = lambda point: True) -> Measure:
    """A measure: the largest of the ratios of `speeds`, and its row."""

    def measure(runs: Runs) -> str | None:
        found = [p for p in runs.points(run) if chosen(p)]
        parts = []
        for mine, unit in _pairs(kernel, other):
            theirs = {p.load.id: p.us for p in found if p.kernel == unit}
            pairs = [
                (theirs[p.load.id] / p.us, p.load.label) for p in found if p.kernel == mine and p.load.id in theirs
            ]
            if pairs:
                ratio, label = max(pairs)
                parts.append(f"`{mine}` up to {tables.times(ratio)} of `{unit}` ({label})")
        return "; ".join(parts) if parts else None

    return measure


def over_outputs(kernels: str, other: str = FA3) -> Measure:
    """A measure: Figure 9's last point, the other's time over all decode steps of the output over the kernel's."""

    def measure(runs: Runs) -> str | None:
        found = runs.points("fig9")
        parts = []
        for pattern in kernels.split():
            for kernel, unit in _pairs(pattern, other):
                mine, theirs = (
                    paper.summed_us([p for p in found if p.kernel == name], LAST) for name in (kernel, unit)
                )
                if math.isfinite(mine) and math.isfinite(theirs):
                    parts.append(f"`{kernel}` {100 * theirs / mine:.1f}% of `{unit}`")
        return f"{', '.join(parts)}, over the steps of {LAST:,} tokens (fig9)" if parts else None

    return measure


def host(runs: Runs) -> str | None:
    """Host time of each way to call, from compare.studies.host, as in docs/choosing-a-dsl.md."""
    found = runs.lines("host/host.jsonl")
    names = {
        "launch": "Triton's or Helion's own launch",
        "call": "the public call",
        "plan": "a plan",
        "graph": "a graph",
    }
    parts = []
    for name, words in names.items():
        us = sorted(line[name] for line in found)
        parts += [f"{words} {us[0]:.0f} to {us[-1]:.0f} µs"] if us else []
    return f"{', '.join(parts)} ({len(found)} lines)" if parts else None


def excess(runs: Runs) -> str | None:
    """What a graph for 256 sequences costs a decode of few, relative to a graph of its own."""
    found = [row for row in runs.lines("graphs/graphs.jsonl") if row["experiment"] == "powers of two" and row.get("us")]
    own = {(row["kernel"], row["sequences"]): row["us"] for row in found if row["graph"] == "its own"}
    most_of = max((int(row["graph"]) for row in found if row["graph"].isdigit()), default=0)
    parts = [
        f"`{row['kernel']}` at {row['sequences']} {tables.times(row['us'] / own[row['kernel'], row['sequences']])}"
        for row in found
        if row["graph"] == str(most_of) and (row["kernel"], row["sequences"]) in own
    ]
    words = f"time in a graph for {most_of} sequences over that of its own"
    return f"{words}: {', '.join(parts)} (graphs)" if parts else None


def tuning(runs: Runs) -> str | None:
    """Seconds until the tuner's choices reach 95% of the best known, its budget, and the untuned share."""
    found = [row for row in runs.lines("costs/costs.jsonl") if row["cost"] == "tuning" and row["status"] == "ok"]
    known = {arm: [row for row in found if row["arm"] == arm] for arm in dict.fromkeys(row["arm"] for row in found)}
    parts = []
    for arm, rows in known.items():
        reached = sorted(row["to_95%_s"] for row in rows if row["to_95%_s"] is not None)
        within = f"after {reached[0]:.0f} to {reached[-1]:.0f} s" if reached else "never"
        spent = max(row["spent_s"] for row in rows)
        untuned = sorted(row["untuned"] for row in rows if row.get("untuned") is not None)
        start = f", {untuned[0]:.0%} to {untuned[-1]:.0%} untuned" if untuned else ""
        parts.append(f"{arm}: {len(reached)} of {len(rows)} kernels {within}, {spent:.0f} s spent{start}")
    return f"to 95% of the best known: {'; '.join(parts)} (costs)" if parts else None


def sizes(runs: Runs) -> str | None:
    """Helion's device code over Triton's, for kernels that a conformance run shows to be equally capable."""
    path = runs.folder.parent / "conformance" / "cells.jsonl"
    if not path.exists():
        return None
    found = [row for row in source_sizes.pairs(capability.read(path)) if not row["unequal"]]
    ratios = {name: [row[f"ratio_{name}"] for row in found] for name in ("tokens", "lines", "cyclomatic")}
    said = ", ".join(f"{name} {tables.times(geomean(of))}" for name, of in ratios.items() if of)
    rungs = f"{len(found)} rung{'s' * (len(found) != 1)} of equal capability"
    return f"Helion's device code over Triton's: {said} ({rungs})" if found else None


def several(*measures: Measure) -> Measure:
    """Join everything that the measures say."""

    def measure(runs: Runs) -> str | None:
        said = [text for one in measures if (text := one(runs))]
        return ". ".join(said) if said else None

    return measure


_DECODE = (kind("decode"), "decode rows")
_PREFILL = (kind("prefill"), "prefill rows")
_MIXED = (kind("mixed"), "mixed rows")
_RUNGS = "*/q_block */parallel_softmax */unpaged"

OF_SOURCES = frozenset({"E30"})  # figures that need no GPU
MEASURES: dict[str, Measure] = {  # by the id of a row of docs/paper.md
    "E1": several(
        over_outputs("*/naive"),
        speeds("peers", "*/naive", FA3, *_DECODE),
        speeds("peers", "*/naive", FA3, *_PREFILL),
    ),
    "E2": several(
        over_outputs("*/q_block", "*/naive"),
        over_outputs("*/q_block"),
        speeds("peers", "*/q_block", FA3, *_PREFILL),
    ),
    "E3": several(
        over_outputs("*/parallel_softmax", "*/q_block"),
        over_outputs("*/parallel_softmax"),
        speeds("peers", "*/parallel_softmax", "*/q_block", *_DECODE),
    ),
    "E4": several(
        speeds("fig7", "*/adjustable_tile", "*/q_block@page"),
        speeds("fig7", "*/adjustable_tile", "*/parallel_softmax@page"),
        speeds("fig7", "*/adjustable_tile", FA3, lambda p: p.load.block_size == 544, "rows of pages of 544"),
    ),
    "E5": several(
        over_outputs("*/static_grid"),
        over_outputs("*/static_grid", "*/parallel_softmax"),
        speeds("peers", "*/static_grid", FA3, *_DECODE),
    ),
    "E6": several(
        speeds("peers", "*/auto", FA3, *_DECODE),
        speeds("peers", "*/auto", FA3, *_PREFILL),
        speeds("serving", "*/auto", FA3, *_MIXED),
    ),
    "E7": speeds("ablations", "*/ablations.cumulative", "*/q_block"),
    "E8": several(
        most("fig8", "*/q_block@tree", "*/q_block@fixed"),
        speeds("fig8", "*/q_block@tree", "*/q_block@fixed"),
        speeds("fig8", "*/auto@tree", FA3),
    ),
    "E9": several(
        most("fig8", "*/q_block@paper", "*/q_block@fixed"),
        speeds("fig8", "*/q_block@paper", "*/q_block@fixed"),
    ),
    "E10": tuning,
    "E11": host,
    "E12": excess,
    "E13": speeds("fig6", "*/naive */q_block */parallel_softmax", FA3),
    "E14": several(
        speeds("fig6", "*/parallel_softmax", FA3, *_DECODE),
        speeds("fig6", "*/q_block", FA3, *_PREFILL),
        speeds("fig6", "*/q_block", FA3, kind("mixed"), "rows of half decodes"),
    ),
    "E15": several(
        speeds("fig7", "*/adjustable_tile", FA3),
        most("fig8", "*/auto@tree", "*/q_block@fixed"),
    ),
    "E16": over_outputs("*/naive */q_block */parallel_softmax */static_grid"),
    "E18": speeds("ablations", "*/ablations.fused", "*/q_block"),
    "E19": speeds("ablations", "*/ablations.elementwise", "*/q_block"),
    "E20": excess,
    "E23": several(
        speeds("peers", "*/split", "*/naive", *_DECODE),
        speeds("peers", "*/split", FA3, *_PREFILL),
    ),
    "E26": speeds("trace", "*/q_block */parallel_softmax", FA3),
    "E28": several(
        speeds("peers", _RUNGS, FA3, *_DECODE),
        speeds("peers", _RUNGS, FA3, *_PREFILL),
    ),
    "E29": several(
        speeds("peers", "helion/auto", "triton/auto", *_DECODE),
        speeds("peers", "helion/auto", "triton/auto", *_PREFILL),
        speeds("peers", "helion/auto", "triton/auto", *_MIXED),
    ),
    "E30": sizes,
    "E31": over_outputs("*/static_grid */parallel_softmax", "*/naive"),
}


PAGE = ROOT / "docs" / "paper.md"
ROWS = Path(__file__).parent / "templates" / "paper.toml"
MEASURED_ON = "h200"
DRAWN = {
    "fig6": ("fig6-by-length", "fig6-by-share"),
    "fig7": ("fig7-by-page",),
    "fig8": ("fig8-by-choice",),
    "fig9": ("fig9-by-output",),
    "graphs": ("waves",),
}


@dataclass(frozen=True)
class Item:
    """One statement. theirs: the paper's figure, with its limits. open: why it is not done, or not completely."""

    id: str
    what: str
    source: str
    theirs: str
    here: str = ""
    command: str = ""
    open: str = ""

    @property
    def anchor(self) -> str:
        """The heading's anchor in a markdown page."""
        return re.sub(r"[^\w\- ]", "", f"{self.id}: {self.what}".lower()).replace(" ", "-")

    def state(self, ours: str | None) -> str:
        """measured, not measured yet, open, in the code; `, in part` where something of it is open."""
        if self.id not in MEASURES:
            return "open" if self.open else "in the code"
        return ("measured" if ours else "not measured yet") + (", in part" if self.open else "")


@dataclass(frozen=True)
class Group:
    title: str
    items: list[Item] = field(default_factory=list)


def rows() -> tuple[str, list[Group]]:
    """(introduction, groups) of paper.toml. Raises TypeError for a field that Item lacks."""
    plain = tomllib.loads(ROWS.read_text(encoding="utf-8"))
    return plain["introduction"].strip(), [
        Group(group["title"], [Item(**{k: " ".join(v.split()) for k, v in item.items()}) for item in group["item"]])
        for group in plain["group"]
    ]


def page(runs: Runs) -> str:
    """The document."""
    introduction, groups = rows()
    items = [item for group in groups for item in group.items]
    said = {item.id: MEASURES[item.id](runs) if item.id in MEASURES else None for item in items}
    columns = (("row", False), ("what", False), ("where it is from", False), ("state", False))
    index = [[f"[{i.id}](#{i.anchor})", i.what, i.source, i.state(said[i.id])] for i in items]
    parts = ["# The paper, row by row", introduction, tables.of_page(columns, index)]
    for group in groups:
        parts += [f"## {group.title}"]
        for item in group.items:
            parts += [f"### {item.id}: {item.what}", "\n".join(_lines(item, said[item.id]))]
    parts += ["## Drawn", *_figures()]
    return "\n\n".join(parts) + "\n"


def _lines(item: Item, ours: str | None) -> Iterator[str]:
    yield f"- Theirs ({item.source}): {item.theirs}"
    if item.here:
        yield f"- Here: {item.here}"
    if item.command:
        yield f"- Repeat: `{item.command}`"
    if ours:
        where = "" if item.id in OF_SOURCES else f", {MEASURED_ON.upper()}"
        yield f"- Ours{where}: {ours}."
    elif item.id in MEASURES:
        yield f"- Ours: *not measured yet; no such run of the {MEASURED_ON.upper()} is committed.*"
    if item.open:
        yield f"- Open: {item.open}"


def _figures() -> Iterator[str]:
    """Include blocks, which docs/include.py fills."""
    for run, names in DRAWN.items():
        for name in names:
            path = f"results/{MEASURED_ON}/{run}/figures/{name}.svg"
            there = (ROOT / "docs" / path).exists()
            missing = f"*Not measured yet: no run is committed as docs/{path}.*"
            shown = f"![{run}: {name}]({path})" if there else missing
            yield f"<!-- include: docs/{path}#{run}: {name} -->\n{shown}\n<!-- end -->"


def texts() -> dict[Path, str]:
    """The page by its path."""
    return {PAGE: page(Runs(ROOT / "docs" / "results" / MEASURED_ON))}
