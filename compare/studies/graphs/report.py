"""The report of `study graphs`: tables and two figures, from manifest.json and graphs.jsonl only."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compare.analysis import tables
from compare.analysis.runs import RunData
from compare.analysis.summary import KINDS
from compare.analysis.tables import Table
from compare.exits import USAGE
from compare.report import render
from compare.report.blocks import Bullets, Picture, Section, Text
from compare.report.style import WIDTH_IN, legend, marks, plain_log, pyplot, save

# The two figures of compare.studies.graphs.graphs: one graph for all batches against one a batch, and the cost of
# surplus programs.


Rows = Sequence[dict[str, Any]]
STATIC_AT = 2.2  # where static_grid's graph for all stands, times the largest graph


def draw_ratios(pairs: Rows, path: Path) -> Path:
    """Draw, for each row, auto's time in its own graph over static_grid's time in the one graph."""
    names = list(dict.fromkeys(pair["row"] for pair in sorted(pairs, key=lambda p: KINDS.index(p["kind"]))))
    figure, axes = pyplot().subplots(figsize=(WIDTH_IN, 5.2), layout="constrained")
    for dsl in dict.fromkeys(pair["dsl"] for pair in pairs):
        mine = [pair for pair in pairs if pair["dsl"] == dsl]
        at = [names.index(pair["row"]) for pair in mine]
        style = marks(f"{dsl}/static_grid") | {"label": f"{dsl}/auto over {dsl}/static_grid"}
        axes.plot(at, [pair["ratio"] for pair in mine], linestyle="none", **style)
    axes.axhline(1.0, color="#000000", linewidth=1.2)
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right", rotation_mode="anchor", fontsize=8)
    axes.set_ylim(0, 1.08 * max(1.0, *(pair["ratio"] for pair in pairs)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.10g}×")
    axes.set_ylabel("time in a graph of its own / in the one graph\n(above 1×: the one graph is faster)")
    legend(figure, [axes])
    return save(figure, path)


def waves(found: Rows, path: Path) -> Path:
    """Draw a panel a DSL: auto's decode of few sequences over the number of sequences that its graph was captured for.

    Filled markers: a graph of its own; at the right, static_grid's one graph for all. A rising line is the cost of
    surplus programs: they start, find no work and exit, wave by wave.
    """
    dsls = list(dict.fromkeys(row["kernel"].split("/")[0] for row in found))
    figure, panels = pyplot().subplots(
        1, len(dsls), figsize=(WIDTH_IN, 5.0), sharey=True, layout="constrained", squeeze=False
    )
    sizes = sorted({int(row["graph"]) for row in found if row["graph"].isdigit()} | {row["sequences"] for row in found})
    for axes, dsl in zip(panels[0], dsls, strict=True):
        axes.set_title(dsl)
        for seqs in dict.fromkeys(row["sequences"] for row in found):
            mine = [row for row in found if row["kernel"].startswith(f"{dsl}/") and row["sequences"] == seqs]
            _of_one_batch(axes, dsl, seqs, mine, sizes[-1])
        _sizes(axes, sizes)
    plain_log(panels[0][0])
    panels[0][0].set_ylabel("median latency, µs\n(lower is faster)")
    figure.supxlabel(
        "sequences that the graph was captured for; beside the points: sequences in the batch", fontsize=10
    )
    legend(figure, panels[0])
    return save(figure, path)


def _of_one_batch(axes: Any, dsl: str, seqs: int, mine: Rows, largest: int) -> None:
    """Draw the times of one batch in every graph that can serve it."""
    sized = sorted((int(row["graph"]), row["us"]) for row in mine if row["graph"].isdigit())
    plain = marks(f"{dsl}/parallel_softmax")
    axes.plot(*zip(*sized, strict=True), linestyle="-", **plain | {"label": f"{dsl}/auto, captured for more"})
    for row in mine:
        if row["graph"] == "its own":
            axes.plot(seqs, row["us"], linestyle="none", **marks(f"{dsl}/auto") | {"label": f"{dsl}/auto, its own"})
        elif row["graph"] == "one for all":
            style = marks(f"{dsl}/static_grid") | {"label": f"{dsl}/static_grid, one for all"}
            axes.plot(largest * STATIC_AT, row["us"], linestyle="none", **style)
            axes.annotate(f"{seqs}", (largest * STATIC_AT, row["us"]), **_beside(6, 0), va="center")
    if sized:
        axes.annotate(f"{seqs}", sized[0], **_beside(-5, 5), ha="right")


def _beside(right: float, up: float) -> dict[str, Any]:
    """Keywords of `annotate` for a small text at an offset in points."""
    return {"textcoords": "offset points", "xytext": (right, up), "fontsize": 9}


def _sizes(axes: Any, sizes: Sequence[int]) -> None:
    """A logarithmic x axis with a tick at each power of two, and one for the graph for all."""
    from matplotlib.ticker import NullLocator

    axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_locator(NullLocator())
    powers = [size for size in sizes if size & (size - 1) == 0]
    axes.set_xticks([*powers, sizes[-1] * STATIC_AT], [*map(str, powers), "all"])
    axes.set_xlim(sizes[0] / 1.8, sizes[-1] * STATIC_AT * 2.2)


LINES = "graphs.jsonl"  # a result a line, in order of arrival
MIB = 2**20


def write(folder: Path, rows: Rows) -> Path:
    """Write report.md, report.html and figures/*.svg into the folder; returns report.md's path."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    run = RunData(folder, manifest | {"suite": "captured graphs"}, [], figures=_draw(rows, folder / "figures"))
    made = sections(rows)
    report = folder / "report.md"
    report.write_text(render.markdown(run, made), encoding="utf-8")
    (folder / "report.html").write_text(render.page([run], [made]), encoding="utf-8")
    return report


def sections(rows: Rows) -> list[Section]:
    """The sections of all experiments that have rows."""
    made = [_one_for_all(rows), _powers(rows), _memory(rows), _partial(rows), _wrong(rows)]
    return [section for section in made if section]


def _draw(rows: Rows, folder: Path) -> dict[str, Path]:
    folder.mkdir(exist_ok=True)
    drawn: dict[str, Path] = {}
    if pairs := ratios(rows):
        drawn["one_for_all"] = draw_ratios(pairs, folder / "one_for_all.svg")
    if found := _sized(rows):
        drawn["waves"] = waves(found, folder / "waves.svg")
    return drawn


def _wrong(rows: Rows) -> Section | None:
    lines = tuple(f"`{row['kernel']}`, {_where(row)}: {row['wrong']}" for row in rows if row.get("wrong"))
    return Section("wrong", "Wrong outputs and errors", (Bullets(lines),)) if lines else None


def _where(row: dict[str, Any]) -> str:
    """Which experiment a row belongs to, and which part of it."""
    return ", ".join(str(row[name]) for name in ("experiment", "row", "sequences", "graph") if name in row)


def ratios(rows: Rows) -> list[dict[str, Any]]:
    """For each row and DSL: auto's time in its own graph over static_grid's time in the one graph."""
    times: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        if row["experiment"] == "one for all" and row["us"]:
            dsl, name = row["kernel"].split("/")
            pair = times.setdefault((dsl, row["row"]), {"dsl": dsl, "row": row["row"], "kind": row["kind"]})
            pair[name] = row["us"]
    pairs = [pair for pair in times.values() if "auto" in pair and "static_grid" in pair]
    return [pair | {"ratio": pair["auto"] / pair["static_grid"]} for pair in pairs]


def _one_for_all(rows: Rows) -> Section | None:
    pairs = ratios(rows)
    if not pairs:
        return None
    means = []
    for dsl in dict.fromkeys(pair["dsl"] for pair in pairs):
        for kind in KINDS:
            found = [pair for pair in pairs if (pair["dsl"], pair["kind"]) == (dsl, kind)]
            if found:
                mean = math.exp(sum(math.log(pair["ratio"]) for pair in found) / len(found))
                worst = min(found, key=lambda pair: pair["ratio"])
                means.append([kind, dsl, tables.times(mean), len(found), tables.times(worst["ratio"]), worst["row"]])
    body = [
        [p["row"], p["dsl"], tables.number(p["static_grid"]), tables.number(p["auto"]), tables.times(p["ratio"])]
        for p in pairs
    ]
    titles = (
        ("row", False), ("DSL", False), ("static_grid, one graph", True), ("auto, its own", True), ("ratio", True),
    )  # fmt: skip
    classes = (
        ("class", False), ("DSL", False), ("geometric mean", True), ("rows", True), ("worst", True), ("in", False),
    )  # fmt: skip
    words = (
        "static_grid is captured once at the capacity; auto anew for every row. Microseconds a call, cold, medians in"
        " turns. The ratio is auto's time over static_grid's: above 1 the one graph is faster."
    )
    blocks = (Text(words), Table(classes, means), Picture("one_for_all", "Ratio row by row"), Table(titles, body))
    return Section("one", "One graph for all", blocks)


def _sized(rows: Rows) -> Rows:
    """The rows of decodes in graphs for more sequences."""
    return [row for row in rows if row["experiment"] == "powers of two" and row["us"]]


def _powers(rows: Rows) -> Section | None:
    found = _sized(rows)
    if not found:
        return None
    graphs = list(dict.fromkeys(row["graph"] for row in sorted(found, key=_order)))
    body = []
    for dsl in dict.fromkeys(row["kernel"].split("/")[0] for row in found):
        for seqs in dict.fromkeys(row["sequences"] for row in found):
            us = {r["graph"]: r["us"] for r in found if r["kernel"].startswith(dsl) and r["sequences"] == seqs}
            body.append([dsl, seqs, *(tables.number(us[g]) if g in us else "" for g in graphs)])
    words = (
        f"Decodes of {found[0]['keys']} keys. A column is the graph that served them: auto's own for just that batch,"
        " auto's for 1, 2, 4 ... sequences of unknown length, whose excess programs start and leave, and static_grid's"
        " one graph for all."
    )
    columns = (("DSL", False), ("sequences", True), *((graph, True) for graph in graphs))
    blocks = (Text(words), Picture("waves", "Time over the graph's size"), Table(columns, body))
    return Section("waves", "A graph for more sequences than there are", blocks)


def _order(row: dict[str, Any]) -> int:
    return {"its own": 0, "one for all": 2**30}.get(row["graph"]) or int(row["graph"].isdigit() and row["graph"])


def _memory(rows: Rows) -> Section | None:
    found = [row for row in rows if row["experiment"].endswith(": memory")]
    body = [
        [r["experiment"].removesuffix(": memory"), r["kernel"], r["graphs"]]
        + [tables.number(r[name] / MIB) for name in ("graph_bytes", "scratch_bytes")]
        for r in found
    ]
    titles = (("", False), ("kernel", False), ("graphs", True), ("graphs, MiB", True), ("scratch, MiB", True))
    words = "Device memory that captures took, as the driver hands it out. A graph holds a launch per page set."
    return Section("memory", "Memory", (Text(words), Table(titles, body))) if found else None


def _partial(rows: Rows) -> Section | None:
    found = [row for row in rows if row["experiment"] == "partial" and row["us"]]
    us = {(row["kernel"], row["graph"]): tables.number(row["us"]) for row in found}
    body = [
        [kernel, *(us.get((kernel, kind), "") for kind in ("full", "partial"))]
        for kernel in dict.fromkeys(kernel for kernel, _ in us)
    ]
    words = (
        "A layer: one small operation and attention over a decode of 8. Partial: attention is launched between graphs."
    )
    columns = (("kernel", False), ("full", True), ("partial", True))
    return Section("partial", "Partial graphs", (Text(words), Table(columns, body))) if found else None


def again(folder: Path) -> int:
    """Write the report of a finished or interrupted run. Returns 0, or 2 if the folder holds no such run."""
    if not all((folder / name).exists() for name in (LINES, "manifest.json")):
        print(f"--report: found {folder}, allowed a folder that study graphs wrote", file=sys.stderr)
        return USAGE
    lines = (folder / LINES).read_text(encoding="utf-8").splitlines(keepends=True)
    rows = [json.loads(line) for line in lines if line.endswith("\n")]  # a torn last line is left out
    print(f"report: {write(folder, rows)}")
    return 0
