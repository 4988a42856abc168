"""The figures of a report, as SVG: one for each class, and a trace's load."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from compare.analysis.standing import KINDS
from compare.analysis.summary import FA3
from compare.competitors.registry import CALLED, in_order, split
from compare.record.records import Record
from compare.report import paper
from compare.report.style import WIDTH_IN, eights, legend, marks, plain_log, pyplot, save
from compare.stats import geomean


def _shifts(kernels: Sequence[str]) -> dict[str, float]:
    """Horizontal offsets, so that kernels of a workload stand side by side."""
    return {kernel: (at - (len(kernels) - 1) / 2) * 0.84 / len(kernels) for at, kernel in enumerate(kernels)}


def _points(axes: Any, rows: pd.DataFrame, column: str, order: dict[str, int], shifts: dict[str, float]) -> None:
    """Draw one marker for each cell, smaller where there are many workloads."""
    size = 6.5 if len(order) <= 8 else 5.0
    for kernel in in_order(rows.kernel):
        mine = rows[(rows.kernel == kernel) & rows[column].notna()]
        places = [order[label] + shifts[kernel] for label in mine.workload]
        axes.plot(places, list(mine[column]), linestyle="none", **marks(kernel, size))


def _workload_axis(axes: Any, order: dict[str, int]) -> None:
    """Label each workload, with a stripe behind every other one."""
    axes.set_xticks(list(order.values()), list(order), rotation=35, ha="right", rotation_mode="anchor")
    axes.set_xlim(-0.6, len(order) - 0.4)
    axes.grid(False, axis="x")
    for at in range(0, len(order), 2):
        axes.axvspan(at - 0.5, at + 0.5, color="#F4F4F4", zorder=0)


def _of_class(rows: pd.DataFrame, kind: str) -> tuple[pd.DataFrame, bool]:
    """(the timed rows of a class with their `speed`, whether it is relative to FA3, else to the best kernel)."""
    mine = rows[(rows.kind == kind) & rows.us.notna()]
    fa3 = bool(mine.speed_of_fa3.notna().any())
    return mine.assign(speed=mine.speed_of_fa3 if fa3 else 1 / mine.ratio_to_best), fa3


def leading(rows: pd.DataFrame) -> list[list[str]]:
    """The kernels of each figure: FA3 and `auto` first, then by mean speed."""
    means = {kernel: geomean(of) for kernel, of in rows[rows.speed.notna()].groupby("kernel", sort=False).speed}
    ranked = sorted(
        dict.fromkeys(rows.kernel), key=lambda k: (k != FA3, split(k)[0] not in CALLED, -means.get(k, 0.0), k)
    )
    return eights(ranked)


def latency(rows: pd.DataFrame, kind: str, path: Path, gpu: str, kernels: Sequence[str] | None = None) -> Path:
    """Two panels over the workloads of a class: speed relative to FA3 (or the best kernel), and microseconds.

    kernels: those to draw; default all.
    """
    plt = pyplot()
    mine, fa3 = _of_class(rows, kind)
    order = {label: at for at, label in enumerate(dict.fromkeys(mine.workload))}
    mine = mine if kernels is None else mine[mine.kernel.isin(kernels)]
    shifts = _shifts(in_order(mine.kernel))
    figure, (upper, lower) = plt.subplots(2, 1, figsize=(WIDTH_IN, 7.5), sharex=True, layout="constrained")
    _points(upper, mine[mine.kernel != FA3] if fa3 else mine, "speed", order, shifts)
    upper.axhline(1.0, color="#000000", linewidth=1.2)
    upper.set_ylim(0.0, 1.08 * max(1.0, float(mine.speed.max())))
    upper.yaxis.set_major_formatter(lambda value, _: f"{value:.10g}×")
    yardstick = "FlashAttention 3" if fa3 else "the best kernel of the row"
    upper.set_ylabel(f"speed, {yardstick} = 1×\n(higher is faster)")
    _points(lower, mine, "us", order, shifts)
    plain_log(lower)
    floors = mine.groupby("workload").floor_us.max()
    for label, floor in floors[floors > 0].items():
        lower.hlines(floor, order[label] - 0.45, order[label] + 0.45, color="#000000", linewidth=1.0, linestyle=":")
    lower.plot([], [], color="#000000", linewidth=1.0, linestyle=":", label="floor: stated peaks")
    lower.set_ylabel("median latency, µs\n(lower is faster)")
    for axes in (upper, lower):
        _workload_axis(axes, order)
    how = f"{', '.join(sorted(set(mine.cache)))} cache, {', '.join(sorted(set(mine.timer)))} timing"
    upper.set_title(f"{kind} on {gpu}, {how}", loc="left")
    legend(figure, [lower])
    return save(figure, path)


def load(records: Sequence[Record], path: Path) -> Path:
    """Draw the kept steps of a trace, in order: query tokens, decodes among the sequences, and KV tokens."""
    plt = pyplot()
    steps = list({record.workload.id: record.workload for record in records}.values())
    at = range(len(steps))
    figure, panels = plt.subplots(3, 1, figsize=(WIDTH_IN, 6.5), sharex=True, layout="constrained")
    decodes = [step.num_decodes for step in steps]
    panels[0].bar(at, [step.total_seq_len for step in steps], color="#0072B2", width=0.7)
    panels[0].set_ylabel("KV tokens")
    panels[1].bar(at, decodes, color="#009E73", width=0.7, label="decodes")
    chunks = [step.num_seqs - step.num_decodes for step in steps]
    panels[1].bar(at, chunks, bottom=decodes, color="#E69F00", hatch="///", width=0.7, label="prompt chunks")
    panels[1].set_ylabel("sequences")
    panels[1].legend(loc="upper left", ncols=2, fontsize=9)
    panels[2].bar(at, decodes, color="#009E73", width=0.7)
    prompt = [step.num_tokens - step.num_decodes for step in steps]
    panels[2].bar(at, prompt, bottom=decodes, color="#E69F00", hatch="///", width=0.7)
    panels[2].set_ylabel("query tokens")
    panels[2].set_xlabel("kept step (even quantiles of the KV tokens)")
    panels[2].set_xticks(list(at), [step.label for step in steps], rotation=35, ha="right", rotation_mode="anchor")
    for axes in panels:
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.grid(False, axis="x")
    panels[0].set_title("The load: kept steps of continuous batching over the trace", loc="left")
    return save(figure, path)


def _numbered(
    name: str, groups: Sequence[Sequence[str]], folder: Path, drawn: Callable[[Sequence[str], Path], Path]
) -> dict[str, Path]:
    """Draw a figure for each group of kernels: `decode`, then `decode-2` and so on."""
    names = [f"{name}-{number}" if number > 1 else name for number in range(1, len(groups) + 1)]
    return {name: drawn(of, folder / f"{name}.svg") for name, of in zip(names, groups, strict=True)}


def draw(
    records: Sequence[Record],
    rows: pd.DataFrame,
    folder: Path,
    *,
    gpu: str,
    trace: bool,
    suite: str = "",
) -> dict[str, Path]:
    """Draw every figure that this run has data for, by name: a suite's own figures, else one for each class. A run
    without times gets no time axis."""
    folder.mkdir(parents=True, exist_ok=True)
    made = paper.draw(suite, records, folder)
    for kind in () if made or suite == "features" else KINDS:
        if not rows.empty and rows[rows.kind == kind].us.notna().any():
            groups = leading(_of_class(rows, kind)[0])
            made |= _numbered(kind, groups, folder, lambda of, path, kind=kind: latency(rows, kind, path, gpu, of))
    if trace and records:
        made["load"] = load(records, folder / "load.svg")
    return made
