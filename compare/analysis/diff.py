"""`python -m compare.analysis.diff BEFORE AFTER`: what became slower, faster, wrong, new or gone between two runs, and
why.

    python -m compare.analysis.diff BEFORE AFTER --fail-on regress      exit 4 where a cell is slower, or was right and
    now fails python -m compare.analysis.diff BEFORE AFTER --unit KERNEL          times over that kernel's of the same
    run and row python -m compare.analysis.diff BEFORE AFTER --all --json FILE      unchanged cells too; every cell as
    JSON

Exit codes: 0; 2 for usage, for what is no run folder, and for runs of different timing contracts, specs or GPUs; 4 a
gate failed; 5 nothing in common, or nothing selected.
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from compare.analysis import thresholds
from compare.analysis.difference import Change, Difference, differences, surroundings
from compare.analysis.runs import NotARun, RunData, read
from compare.analysis.thresholds import Incomparable, Thresholds
from compare.exits import GATE, NOTHING, OK, USAGE
from compare.record import noise

COLOURS = {Change.REGRESS: "red", Change.STATUS_CHANGED: "red", Change.AMBIGUOUS: "yellow", Change.IMPROVED: "green"}
WIDTH = 112  # columns in a pipe, where rich takes 80 and cuts


def parser() -> argparse.ArgumentParser:
    new = argparse.ArgumentParser(prog="python -m compare.analysis.diff", description=__doc__.splitlines()[0])
    new.add_argument("before", type=Path, help="a folder that compare.run or compare.analysis.merge wrote")
    new.add_argument("after", type=Path, help="another")
    thresholds.add_options(new)
    new.add_argument("--kernels", metavar="GLOBS", help="only these, comma-separated")
    new.add_argument("--workload", metavar="GLOBS", help="only these rows, comma-separated")
    new.add_argument("--unit", metavar="KERNEL", help="compare times over this kernel's of the same run and row")
    new.add_argument("--all", action="store_true", help="print unchanged cells too")
    new.add_argument("--json", type=Path, metavar="FILE", help="write every cell as JSON")
    return new


def limits(asked: argparse.Namespace, before: RunData, after: RunData) -> tuple[Thresholds, str]:
    """(the thresholds with the noise floor, a line about it). Raises NotNoise for a --noise that is none."""
    base = thresholds.of(asked)
    paths = [asked.noise] if asked.noise else [run.folder / "noise.json" for run in (after, before)]
    path = next((path for path in paths if path.exists()), None)
    if asked.noise is None and path is None:
        return base, "noise floor: not measured with either run (python -m compare.run.doctor)"
    try:
        found = noise.read(path or asked.noise)
    except OSError as error:
        raise noise.NotNoise(f"noise: found {asked.noise}, which cannot be read: {error.strerror}") from error
    if found.contract != after.contract or (found.gpu != after.gpu and not after.manifest.get("parts")):
        return base, f"noise floor: that of {found.gpu} under {found.contract}, not used"
    return base.with_noise(found), f"noise floor: {found.between:.2%} between processes, of {path}"


def select(found: Sequence[Difference], kernels: str | None, workload: str | None) -> list[Difference]:
    """Those whose kernel and whose row match one of the globs."""
    return [d for d in found if _matches(d.kernel, kernels) and _matches(d.workload.label, workload)]


def _matches(name: str, globs: str | None) -> bool:
    return globs is None or any(fnmatch.fnmatchcase(name, glob.strip()) for glob in globs.split(","))


def summary(found: Sequence[Difference]) -> str:
    """`437 cells: 2 REGRESS, 435 SAME`."""
    counts = Counter(d.change for d in found)
    return f"{len(found)} cells: " + ", ".join(f"{counts[change]} {change}" for change in Change if counts[change])


def table(found: Sequence[Difference], everything: bool) -> Table:
    """A line a cell, regressions first, the largest first; unchanged ones only where everything is asked for."""
    view = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for title, right in (("change", False), ("row", False), ("kernel", False), ("before", True), ("after", True)):
        view.add_column(title, justify="right" if right else "left", no_wrap=True)
    view.add_column("time, 99% interval", justify="right", no_wrap=True)
    view.add_column("what changed")
    order = list(Change)
    several = len({d.gpu for d in found}) > 1
    for d in sorted(found, key=lambda d: (order.index(d.change), -d.ratio.ratio if d.ratio else 0.0)):
        if everything or d.change is not Change.SAME:
            change = f"[{COLOURS[d.change]}]{d.change}[/]" if d.change in COLOURS else str(d.change)
            kernel = f"{d.gpu}: {d.kernel}" if several else d.kernel
            nothing = d.same_fingerprint and d.change is not Change.SAME
            why = "; ".join(d.why) or "nothing" * nothing
            view.add_row(change, d.workload.label, kernel, _end(d, 0), _end(d, 1), _ratio(d), why)
    return view


def _end(d: Difference, after: int) -> str:
    status, us = ((d.before, d.before_us), (d.after, d.after_us))[after]
    return "" if status is None else f"{us:.2f} us" if us is not None else str(status)


def _ratio(d: Difference) -> str:
    if d.ratio is None:
        return ""
    low, high = (f"{100 * (end - 1):+.1f}" for end in (d.ratio.low, d.ratio.high))
    interval = f"[{low}, {high}]" if d.ratio.high < math.inf else "[one sample]"
    return f"{100 * (d.ratio.ratio - 1):+.1f}% {interval}"


def _plain(d: Difference) -> dict[str, Any]:
    """For JSON: one sample has no interval, which is no number there."""
    plain = asdict(d)
    if d.ratio and d.ratio.high == math.inf:
        plain["ratio"] |= {"low": None, "high": None}
    return plain


def show(before: RunData, after: RunData, found: Sequence[Difference], noise_said: str, everything: bool) -> None:
    """Print what changed around the runs, the cells that changed, and the count."""
    console = Console()
    console.width = max(console.width, WIDTH)
    plain = functools.partial(console.print, markup=False, highlight=False)
    for run in (before, after):
        if run.note:
            plain(f"{run.folder}: {run.note}")
    changes = [f"{name} {a} -> {b}" for name, a, b in surroundings(before, after)]
    common = [d for d in found if d.before is not None and d.after is not None]
    alike = sum(d.same_fingerprint for d in common)
    plain(f"between the runs: {'; '.join(changes) or 'nothing changed'}")
    plain(f"{alike} of {len(common)} common cells have one fingerprint; {noise_said}")
    shown = table(found, everything)
    if shown.row_count:
        console.print(shown)
    plain(summary(found))


def gate(found: Sequence[Difference], fail_on: str | None) -> int:
    """GATE where a regression is to fail and there is one, NOTHING where the runs have no cell in common, else OK."""
    if not any(d.before is not None and d.after is not None for d in found):
        return NOTHING
    return GATE if fail_on == "regress" and any(d.is_regression for d in found) else OK


def against(folder: Path, after: RunData, asked: argparse.Namespace) -> int:
    """compare.run's `--against`: print how its run differs from the one in `folder`, over the cells that it planned.

    Returns the code as `gate` does. Raises NotARun, Incomparable, NotNoise.
    """
    before = read(folder)
    allowed, said = limits(asked, before, after)
    planned = {(load["id"], kernel) for load in after.manifest["workloads"] for kernel in after.manifest["kernels"]}
    found = [d for d in differences(before, after, allowed) if (d.workload.id, d.kernel) in planned]
    show(before, after, found, said, everything=False)
    return gate(found, asked.fail_on)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of a command line."""
    asked = parser().parse_args(argv)
    try:
        before, after = read(asked.before), read(asked.after)
        allowed, said = limits(asked, before, after)
        found = select(differences(before, after, allowed, asked.unit), asked.kernels, asked.workload)
        code = gate(found, asked.fail_on)
        if code == NOTHING:
            print(f"{before.folder} and {after.folder} have no selected cell in common", file=sys.stderr)
        else:
            show(before, after, found, said, asked.all)
        if asked.json:
            cells = json.dumps([_plain(d) for d in found], indent=1, allow_nan=False)
            asked.json.write_text(cells + "\n", encoding="utf-8")
    except (NotARun, Incomparable, noise.NotNoise, OSError) as error:
        print(error, file=sys.stderr)
        return USAGE
    return code


if __name__ == "__main__":
    sys.exit(main())
