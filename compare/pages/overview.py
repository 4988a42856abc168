"""The bar charts of README.md, docs/speed.md and docs/choosing-a-dsl.md, drawn from the table of results.

Each exists in a light and a dark version, legible at 700 pixels. Okabe and Ito's colours and hatches tell bars apart
for any colour vision and any printer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare.analysis.standing import KINDS
from compare.competitors.registry import RUNGS
from compare.pages.quoted import COLUMNS, HEADLINE, Figure
from compare.record.folder import ROOT
from compare.report import style

PICTURES = ROOT / "docs" / "pictures"
WIDTH_IN = 7.0  # 700 px at 100 dpi, the width of a README
LABEL = 0.1  # height of a value above its bar, in parts of the axis
HATCHES = (None, "///", "...", "xxx")
Table = Mapping[str, Figure]


@dataclass(frozen=True)
class Look:
    """ink: texts and axes. page: the hatches' colour. bars: a colour for each series."""

    ink: str
    faint: str
    page: str
    bars: tuple[str, ...]


LOOKS = {
    "light": Look("#1F2328", "#D1D9E0", "#FFFFFF", ("#0072B2", "#D55E00", "#009E73", "#9A9A9A")),
    "dark": Look("#E6EDF3", "#3D444D", "#0D1117", ("#56B4E9", "#E69F00", "#2BC49A", "#8B949E")),
}


@dataclass(frozen=True)
class Bars:
    """One panel. series: names of the bars of a group. groups: label -> a value for each series, None for no bar.

    form: format of a value above its bar. paint: the colour index of each series. level: a line across, (height, name).
    """

    axis: str
    series: Sequence[str]
    groups: Mapping[str, Sequence[float | None]]
    form: str = "{:.2f}"
    paint: Sequence[int] = (0, 1, 2, 3)
    level: tuple[float, str] | None = None


def _values(figures: Table, names: Sequence[str]) -> list[float | None]:
    return [figures[name].value if name in figures else None for name in names]


def classes(figures: Table) -> list[Bars]:
    groups = {}
    for kind in KINDS:
        first = figures.get(f"{HEADLINE}.{kind}.triton")
        rows = f"\n{first.rows} row{'s' if first.rows > 1 else ''}" if first else ""
        groups[kind + rows] = _values(figures, [f"{HEADLINE}.{kind}.{short}" for short in COLUMNS])
    return [Bars("speed, FlashAttention 3 = 1", list(COLUMNS.values()), groups, level=(1, "FlashAttention 3"))]


def speed(figures: Table) -> list[Bars]:
    suites = {group: f"suite {group}" for group in ("peers", "serving", "unseen", "features")}
    groups = {k: _values(figures, [f"{group}.{k}.helion-over-triton" for group in suites]) for k in KINDS}
    return [Bars("Helion's speed, Triton = 1", list(suites.values()), groups, paint=(1,) * 4, level=(1, "Triton"))]


def size(figures: Table) -> list[Bars]:
    rungs = [rung for rung in RUNGS if f"size.{rung}.tokens.triton" in figures]
    panels = []
    for unit in ("tokens", "lines"):
        groups = {}
        for rung in rungs:
            values = _values(figures, [f"size.{rung}.{unit}.{dsl}" for dsl in ("triton", "helion")])
            groups[rung.replace("_", "\n")] = [v and v / 1000 for v in values] if unit == "tokens" else values
        axis, form = ("thousand tokens", "{:.1f}") if unit == "tokens" else ("logical lines", "{:.0f}")
        panels.append(Bars(axis, ("Triton", "Helion"), groups, form))
    return panels


def start(figures: Table) -> list[Bars]:
    later = "first call of a later process,\nPython's bytecode not kept"
    whens = {"start": "first call,\nnothing cached", "restart": later}
    groups = {
        words: _values(figures, [f"cost.{name}.{d}" for d in ("triton", "helion")]) for name, words in whens.items()
    }
    return [Bars("seconds of a core, import included", ("Triton", "Helion"), groups, "{:.1f}")]


def refused(figures: Table) -> list[Bars]:
    words = {"nothing": "nothing lost", "lines": "more to write", "loss": "speed or\na feature lost"}
    groups = {words[name]: [figures[f"refused.{name}"].value] for name in words}
    return [Bars("constructs", ("rejected by Helion, by what the workaround costs",), groups, "{:.0f}", paint=(1,))]


DRAWN = {
    "classes": classes,
    "choosing-speed": speed,
    "choosing-size": size,
    "choosing-start": start,
    "choosing-refused": refused,
}


def drawn(figures: Table) -> dict[Path, str]:
    """path -> SVG, the same text for the same figures."""
    made = {name: panels(figures) for name, panels in DRAWN.items()}
    return {PICTURES / f"{n}-{look}.svg": _svg(made[n], LOOKS[look]) for n in made for look in LOOKS}


def _svg(panels: Sequence[Bars], look: Look) -> str:
    plt = style.pyplot()
    height = 0.7 + 2.4 * len(panels)
    figure, axes = plt.subplots(len(panels), figsize=(WIDTH_IN, height), layout="constrained", squeeze=False)
    for bars, ax in zip(panels, axes.flat, strict=True):
        _panel(bars, ax, look)
    names = len(panels[0].series) + bool(panels[0].level)
    figure.legend(
        handles=_legend(panels[0], look), loc="outside upper center", ncols=names, fontsize=9.5, labelcolor=look.ink,
        columnspacing=1.2,
    )  # fmt: skip
    return style.text_of(figure, transparent=True)


def _panel(bars: Bars, ax: Any, look: Look) -> None:
    top = max(
        value for values in bars.groups.values() for value in (*values, bars.level[0] if bars.level else 0) if value
    )
    for number, values in enumerate(bars.groups.values()):
        there = [(index, value) for index, value in enumerate(values) if value is not None]  # missing bars leave no gap
        width = min(0.21, 0.84 / max(len(there), 1)) if len(bars.series) > 2 else 0.36
        for place, (index, value) in enumerate(there):
            x = number + (place - (len(there) - 1) / 2) * width
            ax.bar(
                x, value, width * 0.92, color=look.bars[bars.paint[index]], hatch=HATCHES[index], edgecolor=look.page
            )
            level = bars.level[0] if bars.level else None
            above = level if level and level - LABEL * top < value < level else value  # keep words off the line
            ax.text(
                x, above + 0.015 * top, bars.form.format(value), ha="center", va="bottom", color=look.ink, fontsize=9
            )
    if bars.level:
        ax.axhline(bars.level[0], color=look.ink, linewidth=1.4)
    ax.set_xlim(-0.5, len(bars.groups) - 0.5)
    ax.set_ylim(0, 1.15 * top)
    ax.set_xticks(
        range(len(bars.groups)), list(bars.groups), fontsize=10 if len(bars.groups) < 6 else 9, color=look.ink
    )
    ax.tick_params(colors=look.ink, length=0)
    ax.set_ylabel(bars.axis, color=look.ink, fontsize=10)
    ax.grid(axis="x", visible=False)
    ax.grid(axis="y", color=look.faint)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(look.faint)


def _legend(bars: Bars, look: Look) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Patch(facecolor=look.bars[bars.paint[index]], hatch=HATCHES[index], edgecolor=look.page, label=name)
        for index, name in enumerate(bars.series)
    ]
    if bars.level:
        handles.append(Line2D([], [], color=look.ink, linewidth=1.4, label=bars.level[1]))
    return handles
