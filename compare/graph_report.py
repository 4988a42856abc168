"""The report of compare.graphs: tables and two figures, from manifest.json and graphs.jsonl alone.

python -m compare.graph_report DIR     writes report.md and figures/ of a run again, or of one that was cut short
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compare import figures_graphs, tables
from compare.summary import KINDS

Rows = Sequence[dict[str, Any]]
LINES = "graphs.jsonl"  # a result a line, as it came
MIB = 2**20


def write(folder: Path, rows: Rows) -> Path:
    """report.md and figures/*.svg into the folder; returns the report's path."""
    (folder / "figures").mkdir(exist_ok=True)
    headline = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["headline"]
    parts = [f"# Captured graphs\n\n{headline}. Microseconds a call, cold, medians in turns."]
    parts += _one_for_all(rows, folder) + _powers(rows, folder) + _memory(rows) + _partial(rows) + _host(rows)
    wrong = [f"- `{row['kernel']}`, {_where(row)}: {row['wrong']}" for row in rows if row.get("wrong")]
    parts += ["## Wrong outputs and errors", "\n".join(wrong)] if wrong else []
    report = folder / "report.md"
    report.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return report


def _where(row: dict[str, Any]) -> str:
    """The place of a row: its experiment, and what of it."""
    return ", ".join(str(row[name]) for name in ("experiment", "row", "sequences", "graph") if name in row)


def ratios(rows: Rows) -> list[dict[str, Any]]:
    """Row by row and DSL by DSL: auto's time with a graph of its own over static_grid's in the graph for all."""
    times: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        if row["experiment"] == "one for all" and row["us"]:
            dsl, name = row["kernel"].split("/")
            pair = times.setdefault((dsl, row["row"]), {"dsl": dsl, "row": row["row"], "kind": row["kind"]})
            pair[name] = row["us"]
    pairs = [pair for pair in times.values() if "auto" in pair and "static_grid" in pair]
    return [pair | {"ratio": pair["auto"] / pair["static_grid"]} for pair in pairs]


def _one_for_all(rows: Rows, folder: Path) -> list[str]:
    pairs = ratios(rows)
    if not pairs:
        return []
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
        ("row", False),
        ("DSL", False),
        ("static_grid, one graph", True),
        ("auto, its own", True),
        ("ratio", True),
    )
    return [
        "## One graph for all",
        "static_grid is captured once at the capacity; auto anew for every row. The ratio is auto's time over"
        " static_grid's: above 1 the one graph is faster.",
        tables.markdown(
            (
                ("class", False),
                ("DSL", False),
                ("geometric mean", True),
                ("rows", True),
                ("worst", True),
                ("in", False),
            ),
            means,
        ),
        tables.markdown(titles, body),
        f"![Ratio row by row](figures/{figures_graphs.ratios(pairs, folder / 'figures' / 'one_for_all.svg').name})",
    ]


def _powers(rows: Rows, folder: Path) -> list[str]:
    found = [row for row in rows if row["experiment"] == "powers of two" and row["us"]]
    if not found:
        return []
    graphs = list(dict.fromkeys(row["graph"] for row in sorted(found, key=_order)))
    body = []
    for dsl in dict.fromkeys(row["kernel"].split("/")[0] for row in found):
        for seqs in dict.fromkeys(row["sequences"] for row in found):
            us = {r["graph"]: r["us"] for r in found if r["kernel"].startswith(dsl) and r["sequences"] == seqs}
            body.append([dsl, seqs, *(tables.number(us[g]) if g in us else "" for g in graphs)])
    return [
        "## A graph for more sequences than there are",
        f"Decodes of {found[0]['keys']} keys. A column is the graph that served them: auto's own for just that batch,"
        " auto's for 1, 2, 4 ... sequences of unknown length, whose excess programs start and leave, and static_grid's"
        " one graph for all.",
        tables.markdown((("DSL", False), ("sequences", True), *((graph, True) for graph in graphs)), body),
        f"![Time over the graph's size](figures/{figures_graphs.waves(found, folder / 'figures' / 'waves.svg').name})",
    ]


def _order(row: dict[str, Any]) -> int:
    return {"its own": 0, "one for all": 2**30}.get(row["graph"]) or int(row["graph"].isdigit() and row["graph"])


def _memory(rows: Rows) -> list[str]:
    found = [row for row in rows if row["experiment"].endswith(": memory")]
    body = [
        [r["experiment"].removesuffix(": memory"), r["kernel"], r["graphs"]]
        + [tables.number(r[name] / MIB) for name in ("graph_bytes", "scratch_bytes")]
        for r in found
    ]
    titles = (("", False), ("kernel", False), ("graphs", True), ("graphs, MiB", True), ("scratch, MiB", True))
    words = "Device memory that captures took, as the driver hands it out. A graph holds a launch per page set."
    return ["## Memory", words, tables.markdown(titles, body)] if found else []


def _partial(rows: Rows) -> list[str]:
    found = [row for row in rows if row["experiment"] == "partial" and row["us"]]
    us = {(row["kernel"], row["graph"]): tables.number(row["us"]) for row in found}
    body = [
        [kernel, *(us.get((kernel, kind), "") for kind in ("full", "partial"))]
        for kernel in dict.fromkeys(kernel for kernel, _ in us)
    ]
    words = (
        "A layer: one small operation and attention over a decode of 8. Partial: attention is launched between graphs."
    )
    return (
        ["## Partial graphs", words, tables.markdown((("kernel", False), ("full", True), ("partial", True)), body)]
        if found
        else []
    )


def _host(rows: Rows) -> list[str]:
    found = [row for row in rows if row["experiment"] == "host" and not row.get("wrong")]
    names = ("launch", "call", "plan", "graph")
    body = [[r["row"], r["kernel"], *(tables.number(r[name]) for name in names), r["kept"]] for r in found]
    titles = (("row", False), ("kernel", False), *((name, True) for name in names), ("kept", True))
    words = (
        "Microseconds of host time to enqueue: the kernel's own launch, the public call and a plan, which repeat what"
        " they kept, and a graph."
    )
    return ["## Host", words, tables.markdown(titles, body)] if found else []


def main(argv: Sequence[str] | None = None) -> int:
    """0; 2 where the folder holds no run of compare.graphs."""
    given = sys.argv[1:] if argv is None else list(argv)
    folder = Path(given[0]) if len(given) == 1 else None
    if folder is None or not all((folder / name).exists() for name in (LINES, "manifest.json")):
        print(f"compare.graph_report: found {' '.join(given) or 'nothing'}, allowed a folder that compare.graphs wrote")
        return 2
    lines = (folder / LINES).read_text(encoding="utf-8").splitlines(keepends=True)
    rows = [json.loads(line) for line in lines if line.endswith("\n")]  # a torn last line is left out
    print(f"report: {write(folder, rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
