"""The style of every figure: a colour for each DSL, a marker for each rung, a line style for each
choice of configs.

Colours are Okabe and Ito's, distinguishable with any colour vision: blue is Triton, vermilion Helion, black and green
the baselines. A rung has a marker, hollow in Triton and half filled in Helion, legible on a black-and-white printer;
public kernels are filled. Ablations are lighter, with the left or right half filled. Texts stay texts: a page can
search, scale and recolour them.
"""

import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from compare.analysis.markup import seen
from compare.competitors.registry import BOUNDS, split
from compare.record.whole import put

WIDTH_IN = 9.0  # 900 px at 100 dpi, the width of a report's page
MOST_SERIES = 8  # in one figure; more cannot be told apart, and go into further figures
OTHER = ("#999999", "P", "full")
RUNG_MARKERS = {
    "naive": "^",
    "q_block": "s",
    "parallel_softmax": "o",
    "adjustable_tile": "D",
    "static_grid": "h",
    "split": "v",
    "unpaged": "p",
}
STYLES = {  # colour, marker, which part of it is filled
    **{f"triton/{rung}": ("#0072B2", marker, "none") for rung, marker in RUNG_MARKERS.items()},
    "triton/auto": ("#0072B2", "P", "full"),
    "triton/native.sm90_prefill": ("#0072B2", "*", "none"),
    "triton/native.auto": ("#0072B2", "X", "none"),
    **{f"helion/{rung}": ("#D55E00", marker, "bottom") for rung, marker in RUNG_MARKERS.items()},
    "helion/auto": ("#D55E00", "X", "full"),
    "helion/ablations.idiomatic": ("#E69F00", "h", "right"),
    "baseline/flash_attn3": ("#000000", "*", "full"),
    "baseline/sdpa": ("#009E73", ">", "full"),
    "baseline/sdpa_dense": ("#CC79A7", "d", "none"),
    "baseline/vllm_triton": ("#56B4E9", "s", "full"),
    "baseline/flashinfer_decode": ("#E69F00", "8", "full"),
    "baseline/flashinfer_fa2": ("#E69F00", "v", "full"),
    "baseline/flashinfer_fa3": ("#E69F00", "D", "full"),
    "baseline/flashinfer_pod": ("#E69F00", "p", "full"),
    "baseline/cudnn": ("#CC79A7", "<", "full"),
    "baseline/cudnn_dense": ("#CC79A7", "*", "bottom"),
    "baseline/flex": ("#009E73", "d", "full"),
    "baseline/flag_gems": ("#56B4E9", "H", "full"),
    "baseline/aiter_triton": ("#56B4E9", "^", "full"),
    "baseline/sglang": ("#009E73", "o", "full"),
    "baseline/lmdeploy": ("#009E73", "s", "left"),
    "baseline/vllm_chunked": ("#56B4E9", "v", "left"),
    "baseline/conch": ("#CC79A7", "D", "left"),
    "baseline/conch_decode": ("#CC79A7", "d", "left"),
    "baseline/aiter_decode": ("#56B4E9", "<", "left"),
    "baseline/xformers_splitk": ("#CC79A7", "p", "left"),
}
LINES = {None: "-", "tree": "-", "default": (0, (7, 2)), "paper": "--", "fixed": ":", "page": "--", "planning": ":"}


def pyplot() -> Any:
    """matplotlib.pyplot, set up so that the same rows give the same file."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update(
        {
            "font.size": 10,
            "axes.grid": True,
            "grid.color": "#DDDDDD",
            "grid.linewidth": 0.6,
            "axes.axisbelow": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlesize": 10,
            "svg.hashsalt": "diptych",  # the same run gives the same file
            "svg.fonttype": "none",
            "text.parse_math": False,  # a label may contain dollars
            "legend.frameon": False,
        }
    )
    import matplotlib.pyplot as plt

    return plt


def save(figure: Any, path: Path) -> Path:
    """Write the figure as SVG or PNG, by the path's suffix. Raises CannotWrite."""
    drawn, kind = io.BytesIO(), path.suffix[1:]
    metadata = {"Date": None, "Creator": None} if kind == "svg" else None  # no date, no version
    figure.savefig(drawn, format=kind, metadata=metadata, dpi=100)
    pyplot().close(figure)
    return put(path, seen(numbered(drawn.getvalue().decode("utf-8"))) if kind == "svg" else drawn.getvalue())


def text_of(figure: Any, **options: Any) -> str:
    """The figure as the SVG of a committed picture."""
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None}, **options)
    pyplot().close(figure)
    return "\n".join(line.rstrip() for line in numbered(drawn.getvalue()).splitlines()) + "\n"


def label(kernel: str) -> str:
    return f"{kernel} (bound)" if kernel in BOUNDS else kernel


def colour_of(kernel: str) -> str:
    return STYLES.get(split(kernel)[0], OTHER)[0]


def eights(kernels: Iterable[str]) -> list[list[str]]:
    """The kernels in groups of at most MOST_SERIES, in their order."""
    rest = list(kernels)
    return [rest[at : at + MOST_SERIES] for at in range(0, len(rest), MOST_SERIES)]


def marks(kernel: str, size: float = 6.5) -> dict[str, Any]:
    """Keywords of matplotlib's `plot` for a kernel: colour, marker, filling, label."""
    base, _ = split(kernel)
    colour, marker, fill = STYLES.get(base, OTHER)
    return {
        "color": colour,
        "marker": marker,
        "markersize": size * 1.4 if marker == "*" else size,
        "fillstyle": fill,
        "markerfacecoloralt": "none",
        "label": label(kernel),
    }


def line(kernel: str) -> dict[str, Any]:
    """`marks`, with the line style of the kernel's choice of configs."""
    return marks(kernel) | {"linestyle": LINES[split(kernel)[1]], "linewidth": 1.2}


def plain_log(axes: Any) -> None:
    """Make the y axis logarithmic, with plain numbers at 1, 2 and 5 of every decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def plain_steps(axes: Any, values: Iterable[float], rotation: float = 0) -> None:
    """Make the x axis logarithmic, with a plain number at every measured value and nowhere else."""
    from matplotlib.ticker import NullFormatter, NullLocator

    steps = sorted(set(values))
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    how = {"rotation": rotation, "ha": "right", "rotation_mode": "anchor"} if rotation else {}
    axes.set_xticks(steps, [f"{value:,.10g}" for value in steps], **how)


def legend(figure: Any, panels: Sequence[Any]) -> None:
    """Draw one legend above all panels, each name once: a column for Triton, one for Helion, one for others."""
    from matplotlib.lines import Line2D

    columns: dict[str, dict[str, Any]] = {"triton": {}, "helion": {}, "": {}}
    for axes in panels:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            family = name.split("/")[0]
            columns[family if family in columns else ""].setdefault(name, handle)
    used = [list(column.items()) for column in columns.values() if column]
    rows = max(map(len, used), default=0)
    blank = ("", Line2D([], [], linestyle="none"))
    filled = [entry for column in used for entry in column + [blank] * (rows - len(column))]
    names, handles = [name for name, _ in filled], [handle for _, handle in filled]
    figure.legend(handles, names, loc="outside upper center", ncols=len(used), fontsize=9, numpoints=1)


def numbered(svg: str) -> str:
    """An SVG whose ids count up. Matplotlib's are hashes of coordinates, whose last bits depend on the processor."""
    names = dict.fromkeys(re.findall(r'id="([a-z][0-9a-f]{10})"', svg))
    numbers = {name: f"{name[0]}{number}" for number, name in enumerate(names, 1)}
    return re.sub(r"[a-z][0-9a-f]{10}", lambda found: numbers.get(found[0], found[0]), svg)
