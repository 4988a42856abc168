"""Speeds over the rows of several runs, a mean for each class: `report RUN... --print means --unit KERNEL`.

A kernel and its unit have their times of a row from one run, where they took turns; of two runs with the row, the later
on the command line counts. Prints markdown: the geometric mean, the number of rows in it, and the worst row.
"""

import fnmatch
from collections.abc import Iterable, Mapping, Sequence

from compare.analysis import tables, verdict
from compare.analysis.runs import RunData, ensure_one
from compare.analysis.standing import KINDS
from compare.analysis.verdict import Verdict
from compare.competitors.registry import BOUNDS
from compare.stats import geomean


def ensure_alike(runs: Sequence[RunData]) -> None:
    """Raise Incomparable unless all are of one GPU and one timing contract."""
    ensure_one("GPU", runs, lambda run: run.gpu)
    ensure_one("timing contract", runs, lambda run: run.contract)


def standings(runs: Iterable[RunData], against: str, kernels: str = "*") -> dict[tuple[str, str, str], Verdict | None]:
    """(class, kernel, row) -> the kernel's speed relative to `against`: the other's time over its own.

    None where the kernel was asked and one of the two has no time. kernels: comma-separated globs. A later run replaces
    the rows of an earlier one.
    """
    found: dict[tuple[str, str, str], Verdict | None] = {}
    globs = [glob.strip() for glob in kernels.split(",")]
    for run in runs:
        names = {record.kernel for record in run.raw} - {against} - set(BOUNDS)
        names = {name for name in names if any(fnmatch.fnmatchcase(name, glob) for glob in globs)}
        judged = verdict.judge(run.raw, [(name, against) for name in sorted(names)])
        found |= {(r.workload.kind, r.kernel, r.workload.label): None for r in run.raw if r.kernel in names}
        found |= {(one.workload.kind, one.kernel, one.workload.label): one for one in judged}
    return found


def table(found: Mapping[tuple[str, str, str], Verdict | None]) -> str:
    """A line for each class and kernel: the mean, how many of its rows are in it, the worst speed and its row."""
    body = []
    for kind, kernel in sorted({cell[:2] for cell in found}, key=lambda pair: (KINDS.index(pair[0]), pair[1])):
        rows = {cell[2]: one for cell, one in found.items() if cell[:2] == (kind, kernel)}
        speed = {label: one.speed.ratio for label, one in rows.items() if one}
        worst = min(speed, key=speed.__getitem__, default="")
        mean, least = (f"{geomean(list(speed.values())):.3f}", f"{speed[worst]:.3f}") if speed else ("", "")
        body.append([kind, f"`{kernel}`", mean, f"{len(speed)} of {len(rows)}", least, worst])
    columns = [("class", False), ("kernel", False), ("speed", True), ("rows", True), ("worst", True), ("row", False)]
    return tables.Table(columns, body).markdown


def text(runs: Sequence[RunData], unit: str, kernels: str = "*") -> str:
    """The table with its heading; empty where no row has times of `unit` and a kernel."""
    found = standings(runs, unit, kernels)
    heading = f"Speed over {unit}: its time over the kernel's, above 1 is faster"
    return f"{heading}\n\n{table(found)}" if any(found.values()) else ""
