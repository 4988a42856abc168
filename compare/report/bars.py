"""The picture of a report's first screen: grouped bars of speed, or how each kernel's cells ended."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compare.analysis.standing import Standing
from compare.competitors.registry import in_order
from compare.record.records import Evidence, Record, Status
from compare.report.style import colour_of, label, pyplot, save

WIDTH_IN = 4.6  # 442 pixels: legible on a phone and in a README
LINE_IN = 0.175  # of a bar, or of a class's title
FONT = 9
_HATCHES = ("", "///", "...", "xx", "\\\\\\")  # of bars of the same colour, in turn


def speeds(found: Mapping[str, Sequence[Standing]], unit: str, path: Path) -> Path:
    """One group of bars for each class, one bar for each kernel: its geometric mean relative to the unit, with the 99%
    interval."""
    kernels = in_order(standing.kernel for of in found.values() for standing in of)
    looks = _looks(kernels)
    lines: list[tuple[float, str, bool]] = []  # (position, label, whether it is a class's title)
    places: list[tuple[float, Standing]] = []
    at = 0.0
    for kind, of in found.items():
        lines.append((at, f"{kind}, {_rows(of)}", True))
        for standing in sorted(of, key=lambda s: kernels.index(s.kernel)):
            at += 1
            lines.append((at, label(standing.kernel), False))
            places.append((at, standing))
        at += 1.4
    figure, axes = pyplot().subplots(figsize=(WIDTH_IN, 0.55 + LINE_IN * at), layout="constrained")
    axes.axvline(1.0, color="#000000", linewidth=1.2)
    for place, standing in places:
        _bar(axes, place, standing, looks[standing.kernel])
    axes.set_yticks([place for place, _, _ in lines], [said for _, said, _ in lines], fontsize=FONT)
    for tick, (_, _, is_title) in zip(axes.get_yticklabels(), lines, strict=True):
        tick.set_fontweight("bold" if is_title else "normal")
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=FONT)
    axes.set_ylim(at - 0.8, -0.7)
    axes.set_xlim(0, 1.14 * max(1.0, *(_top(standing) for _, standing in places)))
    axes.grid(False, axis="y")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.10g}×")
    figure.supxlabel(f"speed, {label(unit)} = 1× (longer is faster)", fontsize=FONT)
    return save(figure, path)


def _rows(of: Sequence[Standing]) -> str:
    rows = max(standing.compared for standing in of)
    return f"{rows} row{'s' * (rows != 1)}"


def _is_known(standing: Standing) -> bool:
    """Whether its mean has an interval."""
    speed = standing.speed
    return 0 < speed.low <= speed.ratio <= speed.high < float("inf")


def _top(standing: Standing) -> float:
    return standing.speed.high if _is_known(standing) else standing.speed.ratio


def _bar(axes: Any, at: float, standing: Standing, look: dict[str, Any]) -> None:
    speed = standing.speed
    axes.barh([at], [speed.ratio], 0.82, **look)
    if _is_known(standing):
        axes.plot([speed.low, speed.high], [at, at], color="#000000", linewidth=0.9, solid_capstyle="butt")
    # On a background of its own, because the line at 1 may cross it.
    ground = {"facecolor": "#ffffff", "edgecolor": "none", "pad": 0.5}
    axes.annotate(
        f"{speed.ratio:.2f}", (_top(standing), at), xytext=(5, 0), textcoords="offset points", va="center_baseline",
        fontsize=FONT, bbox=ground,
    )  # fmt: skip


def _looks(kernels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The colour of the kernel's family, hatched where another bar has that colour."""
    seen: Counter[str] = Counter()
    looks = {}
    for kernel in kernels:
        colour = colour_of(kernel)
        looks[kernel] = {"color": colour, "hatch": _HATCHES[seen[colour] % len(_HATCHES)], "edgecolor": "#ffffff"}
        seen[colour] += 1
    return looks


# How a cell ended, the strongest evidence first: colour and hatch.
_ENDINGS = {
    "right, executed in the model": ("#0072B2", ""),
    "right, interpreted": ("#56B4E9", "///"),
    "right": ("#009E73", ""),
    "not run": ("#BBBBBB", ""),
    "failed": ("#D55E00", "xx"),
}


def endings(records: Sequence[Record], path: Path) -> Path:
    """One bar for each kernel: how many of its cells ended in each way."""
    kernels = in_order(record.kernel for record in records)
    counts = {kernel: Counter(_ending(r) for r in records if r.kernel == kernel) for kernel in kernels}
    figure, axes = pyplot().subplots(figsize=(WIDTH_IN, 1.0 + LINE_IN * len(kernels)), layout="constrained")
    left = dict.fromkeys(kernels, 0)
    for name, (colour, hatch) in _ENDINGS.items():
        widths = [counts[kernel][name] for kernel in kernels]
        if any(widths):
            axes.barh(
                range(len(kernels)), widths, 0.74, left=list(left.values()), color=colour, hatch=hatch,
                edgecolor="#ffffff", label=name,
            )  # fmt: skip
            left = {kernel: left[kernel] + width for kernel, width in zip(kernels, widths, strict=True)}
    axes.set_yticks(range(len(kernels)), list(map(label, kernels)), fontsize=FONT)
    axes.tick_params(axis="x", labelsize=FONT)
    axes.set_ylim(len(kernels) - 0.4, -0.6)
    axes.grid(False, axis="y")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("cells; nothing was timed", fontsize=FONT)
    figure.legend(loc="outside upper center", ncols=2, fontsize=FONT)
    return save(figure, path)


def _ending(record: Record) -> str:
    if record.status is not Status.OK:
        return "failed" if record.status.is_failure else "not run"
    if Evidence.EXECUTED_IN_MODEL in record.evidence:
        return "right, executed in the model"
    return "right, interpreted" if Evidence.INTERPRETED in record.evidence else "right"
