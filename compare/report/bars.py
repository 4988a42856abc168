"""The picture of a report's first screen: grouped bars of speed, or how the cells of every kernel ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compare.analysis.standing import Standing
from compare.competitors.registry import in_order
from compare.record.records import Evidence, Record, Status
from compare.report.style import colour_of, label, legend, pyplot, save

WIDTH_IN = 7.0  # 700 pixels: legible in a README and on a narrow page
_HATCHES = ("", "///", "...", "xx", "\\\\\\")  # of bars of one colour, in turn


def speeds(found: Mapping[str, Sequence[Standing]], unit: str, path: Path) -> Path:
    """A group of bars a class, a bar a kernel: its geometric mean against the unit, with the 99% interval."""
    kernels = in_order(standing.kernel for of in found.values() for standing in of)
    looks = _looks(kernels)
    figure, axes = pyplot().subplots(figsize=(WIDTH_IN, 3.9), layout="constrained")
    width = 0.86 / len(kernels)
    turned = len(kernels) * len(found) > 12
    for rank, kernel in enumerate(kernels):
        for at, of in enumerate(found.values()):
            for standing in of:
                if standing.kernel == kernel:
                    place = at + (rank - (len(kernels) - 1) / 2) * width
                    _bar(axes, place, 0.92 * width, standing, looks[kernel], turned)
        axes.bar([0], [0], label=label(kernel), **looks[kernel])
    axes.axhline(1.0, color="#000000", linewidth=1.2)
    axes.set_xticks(range(len(found)), [f"{kind}, {_rows(of)}" for kind, of in found.items()])
    axes.set_xlim(-0.5, len(found) - 0.5)
    axes.grid(False, axis="x")
    axes.set_ylim(0, axes.get_ylim()[1] * (1.16 if turned else 1.08))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.10g}×")
    axes.set_ylabel(f"speed, {label(unit)} = 1×\n(higher is faster)")
    legend(figure, [axes])
    return save(figure, path)


def _rows(of: Sequence[Standing]) -> str:
    rows = max(standing.compared for standing in of)
    return f"{rows} row{'s' * (rows != 1)}"


def _bar(axes: Any, at: float, width: float, standing: Standing, look: dict[str, Any], turned: bool) -> None:
    speed = standing.speed
    axes.bar([at], [speed.ratio], width, **look)
    known = 0 < speed.low <= speed.ratio <= speed.high < float("inf")
    if known:
        axes.plot([at, at], [speed.low, speed.high], color="#000000", linewidth=0.9)
    top = speed.high if known else speed.ratio
    turn = {"rotation": 90} if turned else {}
    axes.annotate(
        f"{speed.ratio:.2f}", (at, top), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=8, **turn
    )


def _looks(kernels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour of the kernel's family, and a hatch where another bar has that colour."""
    seen: Counter[str] = Counter()
    looks = {}
    for kernel in kernels:
        colour = colour_of(kernel)
        looks[kernel] = {"color": colour, "hatch": _HATCHES[seen[colour] % len(_HATCHES)], "edgecolor": "#ffffff"}
        seen[colour] += 1
    return looks


# How a cell ended, the strongest proof first: colour and hatch.
_ENDINGS = {
    "right, executed in the model": ("#0072B2", ""),
    "right, interpreted": ("#56B4E9", "///"),
    "right": ("#009E73", ""),
    "not run": ("#BBBBBB", ""),
    "failed": ("#D55E00", "xx"),
}


def endings(records: Sequence[Record], path: Path) -> Path:
    """A bar a kernel: how many of its cells ended how."""
    kernels = in_order(record.kernel for record in records)
    counts = {kernel: Counter(_ending(r) for r in records if r.kernel == kernel) for kernel in kernels}
    figure, axes = pyplot().subplots(figsize=(WIDTH_IN, 1.3 + 0.26 * len(kernels)), layout="constrained")
    left = dict.fromkeys(kernels, 0)
    for name, (colour, hatch) in _ENDINGS.items():
        widths = [counts[kernel][name] for kernel in kernels]
        if any(widths):
            axes.barh(
                range(len(kernels)), widths, 0.74, left=list(left.values()), color=colour, hatch=hatch,
                edgecolor="#ffffff", label=name,
            )  # fmt: skip
            left = {kernel: left[kernel] + width for kernel, width in zip(kernels, widths, strict=True)}
    axes.set_yticks(range(len(kernels)), list(map(label, kernels)))
    axes.set_ylim(len(kernels) - 0.4, -0.6)
    axes.grid(False, axis="y")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("cells; nothing was timed")
    figure.legend(loc="outside upper center", ncols=len(_ENDINGS), fontsize=9)
    return save(figure, path)


def _ending(record: Record) -> str:
    if record.status is not Status.OK:
        return "failed" if record.status.is_failure else "not run"
    if Evidence.EXECUTED_IN_MODEL in record.evidence:
        return "right, executed in the model"
    return "right, interpreted" if Evidence.INTERPRETED in record.evidence else "right"
