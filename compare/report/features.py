"""What each feature costs: the time of a row with the feature over that of the plain row, for the same kernel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from compare.analysis import tables
from compare.analysis.means import ensure_alike
from compare.analysis.runs import RunData, read
from compare.competitors.registry import in_order
from compare.record.records import Record
from compare.report.paper import Point, points
from compare.report.style import WIDTH_IN, legend, marks, pyplot, save
from compare.workloads.suites import ASKED, MARK, PLAIN

APART = 0.11  # of a feature's height, between kernels, so that equal ratios stay apart
NAME, CAPTION = "features-cost", "What each feature costs: time over that of the plain row, the same kernel"


def ratios(found: Sequence[Point]) -> dict[str, dict[str, dict[str, float]]]:
    """Class of row -> feature -> kernel -> time over the plain row's, where both were measured."""
    us = {(point.load.label, point.kernel): point.us for point in found}
    made: dict[str, dict[str, dict[str, float]]] = {}
    for name, label in PLAIN.items():
        plain = {kernel: time for (row, kernel), time in us.items() if row == label}
        for feature in ASKED[name]:
            own = {k: us[at] / plain[k] for k in plain if (at := (f"{label}{MARK}{feature}", k)) in us}
            if own:
                made.setdefault(name, {})[feature] = own
    return made


def draw(records: Sequence[Record], folder: Path) -> dict[str, Path]:
    """The figure by name: a panel a class of rows, a line a feature; none where no pair was measured."""
    found = ratios(points(records))
    if not found:
        return {}
    folder.mkdir(parents=True, exist_ok=True)
    lines = [len(features) for features in found.values()]
    plt = pyplot()
    figure, panels = plt.subplots(
        len(found), 1, figsize=(WIDTH_IN, 1.6 + 0.34 * sum(lines)), sharex=True, layout="constrained",
        height_ratios=[count + 1 for count in lines], squeeze=False,
    )  # fmt: skip
    for axes, (name, features) in zip(panels[:, 0], found.items(), strict=True):
        names = list(features)
        kernels = in_order(k for own in features.values() for k in own)
        for rank, kernel in enumerate(kernels):
            at = [i for i, feature in enumerate(names) if kernel in features[feature]]
            beside = (rank - (len(kernels) - 1) / 2) * APART
            heights = [i + beside for i in at]
            axes.plot([features[names[i]][kernel] for i in at], heights, linestyle="none", **marks(kernel, 5.0))
        axes.axvline(1.0, color="#444444", linewidth=1.0)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_title(f"{name}: {PLAIN[name]}")
    panels[-1, 0].set_xlim(left=0)
    panels[-1, 0].xaxis.set_major_formatter(lambda value, _: f"{value:.10g}×")
    panels[-1, 0].set_xlabel("time, the same kernel's without the feature = 1× (left is faster)")
    legend(figure, panels[:, 0])
    return {NAME: save(figure, folder / f"{NAME}.svg")}


# `report RUN... --print features`: what each feature costs, over several runs of the suite `features`.
#
# A line a feature, a column a plain row and kernel, the time over the plain row's in the same run. Of two runs that
# pair, the later on the command line counts.


Costs = dict[tuple[str, str, str], float]  # (class of row, kernel, feature): time over the plain row's


def costs(runs: Iterable[RunData]) -> Costs:
    """The ratios of each run; later runs replace earlier ones."""
    found: Costs = {}
    for run in runs:
        for name, features in ratios(points(run.records)).items():
            found |= {
                (name, kernel, feature): over for feature, own in features.items() for kernel, over in own.items()
            }
    return found


def table(found: Mapping[tuple[str, str, str], float]) -> str:
    """A line a feature in the suite's order; empty where a pair was not measured or is no row of the suite."""
    names = [name for name in PLAIN if any(name == at[0] for at in found)]
    columns = [(name, kernel) for name in names for kernel in in_order(at[1] for at in found if at[0] == name)]
    features = dict.fromkeys(feature for name in names for feature in ASKED[name])
    body = [
        [feature, *(f"{found[at]:.2f}" if (at := (*column, feature)) in found else "" for column in columns)]
        for feature in features
        if any(at[2] == feature for at in found)
    ]
    titles = [(f"{PLAIN[name]} `{kernel}`", True) for name, kernel in columns]
    return tables.markdown([("feature", False), *titles], body)


def text(folders: Sequence[Path]) -> str:
    """The table of several runs; empty where no row with a feature has its plain row's time.

    Raises NotARun, Incomparable.
    """
    runs = [read(folder) for folder in folders]
    ensure_alike(runs)
    return table(found) if (found := costs(runs)) else ""
