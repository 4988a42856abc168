"""What each feature costs: the time of a row with the feature over that of the plain row, for the same kernel."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from compare.analysis import tables
from compare.analysis.means import ensure_alike
from compare.analysis.runs import RunData, read
from compare.competitors.registry import in_order
from compare.workloads.suites import ASKED, MARK, PLAIN

Costs = dict[tuple[str, str, str], float]  # (class of row, kernel, feature): time over the plain row's


def costs(runs: Iterable[RunData]) -> Costs:
    """The ratios of each run; of two runs that pair, the later counts."""
    found: Costs = {}
    for run in runs:
        us = {(one.workload.label, one.kernel): one.timing.median_us for one in run.records if one.timing}
        for name, label in PLAIN.items():
            for kernel, plain in ((kernel, time) for (row, kernel), time in us.items() if row == label):
                for feature in ASKED[name]:
                    if own := us.get((f"{label}{MARK}{feature}", kernel)):
                        found[name, kernel, feature] = own / plain
    return found


def table(found: Mapping[tuple[str, str, str], float]) -> tables.Table:
    """One line for each feature, in the suite's order; one column for each plain row and kernel."""
    names = [name for name in PLAIN if any(name == at[0] for at in found)]
    columns = [(name, kernel) for name in names for kernel in in_order(at[1] for at in found if at[0] == name)]
    features = dict.fromkeys(feature for name in names for feature in ASKED[name])
    body = [
        [feature, *(f"{found[at]:.2f}" if (at := (*column, feature)) in found else "" for column in columns)]
        for feature in features
        if any(at[2] == feature for at in found)
    ]
    titles = [(f"{PLAIN[name]} `{kernel}`", True) for name, kernel in columns]
    return tables.Table([("feature", False), *titles], body)


def text(folders: Sequence[Path]) -> str:
    """The table of several runs as markdown; empty where no row with a feature has its plain row's time.

    Raises NotARun, Incomparable.
    """
    runs = [read(folder) for folder in folders]
    ensure_alike(runs)
    return table(found).markdown if (found := costs(runs)) else ""
