"""The two figures of compare.studies.graphs.graphs: one graph for all against one a batch, and what programs in excess
cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compare.analysis.summary import KINDS
from compare.report.style import WIDTH_IN, legend, marks, plain_log, pyplot, save

Rows = Sequence[dict[str, Any]]
STATIC_AT = 2.2  # times the largest graph: where static_grid's graph for all stands


def ratios(pairs: Rows, path: Path) -> Path:
    """Row by row auto's time in a graph of its own over static_grid's in the graph for all."""
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
    """A panel a DSL: auto's decode of few sequences over the number that its graph was captured for.

    Filled: a graph of its own. At the right static_grid's one graph for all. A line that rises is what programs without
    work cost: they start, find nothing and leave, wave by wave.
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
    """One batch in every graph that can serve it."""
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
    """The keywords of a small text so many points from what it names."""
    return {"textcoords": "offset points", "xytext": (right, up), "fontsize": 9}


def _sizes(axes: Any, sizes: Sequence[int]) -> None:
    """A logarithmic x axis with a tick at each power of two, and one for the graph for all."""
    from matplotlib.ticker import NullLocator

    axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_locator(NullLocator())
    powers = [size for size in sizes if size & (size - 1) == 0]
    axes.set_xticks([*powers, sizes[-1] * STATIC_AT], [*map(str, powers), "all"])
    axes.set_xlim(sizes[0] / 1.8, sizes[-1] * STATIC_AT * 2.2)
