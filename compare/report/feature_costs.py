"""`python -m compare.report.feature_costs RUN [RUN ...]`: what each feature costs, over several runs of the suite
`features`.

    python -m compare.report.feature_costs docs/results/h200/features docs/results/h200/features-rest

Prints markdown: a line a feature, a column a plain row and kernel, the time over the plain row's in the same run. Of
two runs that have a pair the later on the command line counts. Exit codes: 0; 2 for usage, for no run folder, and for
runs of different GPUs or timing contracts; 5 no row under a feature has its plain row's time beside it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from compare.analysis import tables
from compare.analysis.means import ensure_alike
from compare.analysis.runs import NotARun, RunData, read
from compare.analysis.thresholds import Incomparable
from compare.competitors.registry import in_order
from compare.exits import NOTHING, OK, USAGE
from compare.report.features import ratios
from compare.report.paper import points
from compare.workloads.feature_suite import ASKED, PLAIN

Costs = dict[tuple[str, str, str], float]  # (class of row, kernel, feature): time over the plain row's


def costs(runs: Iterable[RunData]) -> Costs:
    """The ratios of each run, those of later runs in place of earlier ones."""
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


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of a command line."""
    new = argparse.ArgumentParser(prog="python -m compare.report.feature_costs", description=__doc__.splitlines()[0])
    new.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a folder that compare.run wrote")
    try:
        runs = [read(folder) for folder in new.parse_args(argv).runs]
        ensure_alike(runs)
    except (NotARun, Incomparable, OSError) as error:
        print(error, file=sys.stderr)
        return USAGE
    if not (found := costs(runs)):
        print(f"no row under a feature has times beside one of {', '.join(PLAIN.values())}", file=sys.stderr)
        return NOTHING
    print(table(found))
    return OK


if __name__ == "__main__":
    sys.exit(main())
