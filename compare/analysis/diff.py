"""What became slower, faster, wrong, new or gone between two runs, and why.

    python -m compare diff BEFORE AFTER --fail-on regress      exit 4: a cell is slower, or was right and now fails
    python -m compare diff BEFORE AFTER --unit KERNEL          times over that kernel's of the same run and row
    python -m compare diff BEFORE AFTER --all                  unchanged cells too

Exit codes: 0; 2 for usage, for what is no run folder, and for runs of different timing contracts, specs or GPUs; 4 a
gate failed; 5 nothing in common, or nothing selected.
"""

import argparse
import enum
import fnmatch
import functools
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from compare import stats
from compare.analysis import merge, verdict
from compare.analysis.runs import Incomparable, NotARun, RunData, ensure_one, read, tell_left_out
from compare.analysis.verdict import Outcome, Series
from compare.exits import GATE, NOTHING, OK, refusing
from compare.plan.fingerprint import changed, pairs_that_differ
from compare.record import noise
from compare.record.records import Record, Status, WorkloadInfo
from compare.stats import Ratio

HELP = "say what changed between two runs, and why"

# The thresholds of a change between two runs.

# FA3's binary, measured on an H200 in two sessions, moved by up to 6%: a smaller change says more of the
# machine than of the kernel.
RELATIVE = 0.05
ABSOLUTE_US = 0.5  # the resolution of an event, and about what a graph node's launch varies by


def threshold(us: float, floor: float) -> float:
    """The relative threshold of a cell that took `us` before. floor: the noise between processes, 0 where unknown."""
    return max(RELATIVE, floor, ABSOLUTE_US / us)


# Compare two runs: what became slower, faster, wrong, new or gone, and what changed that may explain it.
#
# Times of two runs never ran side by side, so they are resampled each on their own. A change is REGRESS or IMPROVED
# where its whole 99% interval lies beyond the threshold, SAME where all of it lies within, AMBIGUOUS otherwise. The
# threshold is the largest of the relative one, the absolute one over the time before, and the noise floor between
# processes: what identical code was seen to differ by is no regression.


class Change(enum.StrEnum):
    """The kinds of change, most important first."""

    REGRESS = "REGRESS"
    STATUS_CHANGED = "STATUS_CHANGED"
    REMOVED = "REMOVED"
    AMBIGUOUS = "AMBIGUOUS"
    IMPROVED = "IMPROVED"
    NEW = "NEW"
    SAME = "SAME"


_OF_OUTCOME = {
    Outcome.FASTER: Change.IMPROVED,
    Outcome.SLOWER: Change.REGRESS,
    Outcome.SAME: Change.SAME,
    Outcome.AMBIGUOUS: Change.AMBIGUOUS,
}


@dataclass(frozen=True)
class Difference:
    """A cell in two runs. before, after: its status, None where the run lacks it. ratio: time after over before.

    why: what changed of the cell itself, "source 1a2b -> 3c4d", "tile_size 64 -> 128".
    """

    gpu: str
    workload: WorkloadInfo
    kernel: str
    change: Change
    before: Status | None
    after: Status | None
    before_us: float | None = None
    after_us: float | None = None
    ratio: Ratio | None = None
    why: tuple[str, ...] = ()
    same_fingerprint: bool = False

    @property
    def is_regression(self) -> bool:
        """Whether the cell became slower, or was right and now fails."""
        broken = self.before is Status.OK and self.after is not None and self.after.is_failure
        return self.change is Change.REGRESS or broken


def ensure_comparable(before: RunData, after: RunData) -> None:
    """Raise Incomparable unless both runs have one spec, one timing contract and a GPU in common."""
    ensure_one("timing contract", (before, after), lambda run: run.contract)
    ensure_one("spec", (before, after), lambda run: run.manifest.get("spec", ""))
    gpus = [{part.gpu for part in merge.parts(run)} for run in (before, after)]
    if not gpus[0] & gpus[1]:
        names = [", ".join(sorted(names)) for names in gpus]
        both = f"{before.folder} of {names[0]} and {after.folder} of {names[1]}"
        raise Incomparable(f"GPU: found {both}; allowed runs that have one in common")


def differences(before: RunData, after: RunData, floor: float = 0.0, unit: str | None = None) -> list[Difference]:
    """Every cell of either run, in their order. Raises Incomparable.

    unit: compare times relative to that kernel's in the same run and row, so that a slower machine is not a regression.
    """
    ensure_comparable(before, after)
    found = []
    old, new = map(_by_gpu, (before, after))
    for gpu in dict.fromkeys([*old, *new]):
        found += _of_gpu(gpu, old.get(gpu, []), new.get(gpu, []), floor, unit)
    return found


def _by_gpu(run: RunData) -> dict[str, list[Record]]:
    """GPU -> its rows in all parts; a run in shares, or a resumed one, has several parts of a GPU."""
    found: dict[str, list[Record]] = {}
    for part in merge.parts(run):
        found.setdefault(part.gpu, []).extend(part.raw)
    return found


_Key = tuple[str, str]


def _of_gpu(
    gpu: str, before: Sequence[Record], after: Sequence[Record], floor: float, unit: str | None
) -> list[Difference]:
    old, new = _rows(before), _rows(after)
    times = verdict.series(before), verdict.series(after)
    found = []
    for key in dict.fromkeys([*old, *new]):
        rows = old.get(key), new.get(key)
        if rows[0] is None or rows[1] is None:
            here = rows[0] or rows[1]
            change = Change.REMOVED if rows[1] is None else Change.NEW
            found.append(Difference(gpu, here.workload, key[1], change, *(r.status if r else None for r in rows)))
        else:
            found.append(_of_cell(gpu, rows, times, floor, None if key[1] == unit else unit))
    return found


def _rows(records: Sequence[Record]) -> dict[_Key, Record]:
    """One row a cell: the first that is not ok, else the first."""
    found: dict[_Key, Record] = {}
    for record in records:
        key = record.workload.id, record.kernel
        if key not in found or (found[key].status is Status.OK and record.status is not Status.OK):
            found[key] = record
    return found


def _of_cell(
    gpu: str,
    rows: tuple[Record, Record],
    times: tuple[Mapping[_Key, Series], Mapping[_Key, Series]],
    floor: float,
    unit: str | None,
) -> Difference:
    """The difference of a cell that both runs have."""
    old, new = rows
    same = old.fingerprint == new.fingerprint != ""
    known = {"gpu": gpu, "workload": new.workload, "kernel": new.kernel, "before": old.status, "after": new.status}
    known |= {"why": changed(old, new), "same_fingerprint": same}
    if old.status is not new.status:
        return Difference(change=Change.STATUS_CHANGED, **known)
    key = new.workload.id, new.kernel
    before, after = (of.get(key) for of in times)
    if before is None or after is None:  # one of them was checked and not timed
        change = Change.SAME if before is after else Change.STATUS_CHANGED
        return Difference(change=change, **known)
    samples = [_samples(series, of, unit) for series, of in ((before, times[0]), (after, times[1]))]
    few = min(sum(map(len, each)) for each in samples) < stats.FEW
    ratio = (stats.few_ratio if few else stats.unpaired_ratio)(samples[1], samples[0])
    same_rounds = before.samples == after.samples  # the same rows: a wide interval leaves nothing open
    outcome = Outcome.SAME if same_rounds else verdict.decide(ratio.inverse(), threshold(before.median_us, floor))
    us = {"before_us": before.median_us, "after_us": after.median_us}
    return Difference(change=_OF_OUTCOME[outcome], ratio=ratio, **us, **known)


def _samples(series: Series, times: Mapping[_Key, Series], unit: str | None) -> list[Sequence[float]]:
    """samples[process][round]: times, or times over the unit's of the same round where a unit is given.

    Raises Incomparable where the unit was not timed on this workload.
    """
    if unit is None:
        return list(series.samples.values())
    other = times.get((series.workload.id, unit))
    if other is None:
        raise Incomparable(f"unit: found no time of {unit} on {series.workload.label}, allowed a kernel timed on it")
    mine, theirs, pairs = verdict.shared(series, other)
    if pairs:
        return [[a / b for a, b in zip(x, y, strict=True)] for x, y in zip(mine, theirs, strict=True)]
    return [[a / other.median_us for a in rounds] for rounds in mine]


def surroundings(before: RunData, after: RunData) -> list[tuple[str, Any, Any]]:
    """(name, before, after) of what differs between two whole runs: commit, versions, GPU, heuristics."""
    return pairs_that_differ(*(_surroundings(run.manifest) for run in (before, after)))


def _surroundings(manifest: Mapping[str, Any]) -> dict[str, Any]:
    gpu, machine = manifest.get("gpu") or {}, manifest.get("machine") or {}
    dirty = " with local changes" if manifest.get("dirty") else ""
    return {
        "commit": f"{manifest.get('commit', 'unknown')}{dirty}",
        "GPU": gpu.get("title", "none"),
        "system": machine.get("system", "unknown"),
        "heuristics": manifest.get("heuristics", "tree"),
        **(manifest.get("versions") or {}),
    }


COLOURS = {Change.REGRESS: "red", Change.STATUS_CHANGED: "red", Change.AMBIGUOUS: "yellow", Change.IMPROVED: "green"}
WIDTH = 112  # columns of the table; in a pipe rich would take 80 and cut


def options(new: argparse.ArgumentParser) -> None:
    new.add_argument("before", type=Path, help="a folder that run or merge wrote")
    new.add_argument("after", type=Path, help="another")
    new.add_argument("--fail-on", choices=["regress"], help="exit 4 where a cell is slower, or was right and now fails")
    new.add_argument("--kernels", metavar="GLOBS", help="only these, comma-separated")
    new.add_argument("--workload", metavar="GLOBS", help="only these rows, comma-separated")
    new.add_argument("--unit", metavar="KERNEL", help="compare times over this kernel's of the same run and row")
    new.add_argument("--all", action="store_true", help="print unchanged cells too")


def limits(before: RunData, after: RunData) -> tuple[float, str]:
    """(the noise floor of the run after, else before; a line about it). Raises NotNoise."""
    path = next((path for run in (after, before) if (path := run.folder / "noise.json").exists()), None)
    if path is None:
        return 0.0, "noise floor: not measured with either run (python -m compare doctor)"
    found = noise.read(path)
    if found.contract != after.contract or (found.gpu != after.gpu and not after.manifest.get("parts")):
        return 0.0, f"noise floor: that of {found.gpu} under {found.contract}, not used"
    return found.between, f"noise floor: {found.between:.2%} between processes, of {path}"


def select(found: Sequence[Difference], kernels: str | None, workload: str | None) -> list[Difference]:
    """The differences whose kernel and row each match one of the globs."""
    return [d for d in found if _matches(d.kernel, kernels) and _matches(d.workload.label, workload)]


def _matches(name: str, globs: str | None) -> bool:
    return globs is None or any(fnmatch.fnmatchcase(name, glob.strip()) for glob in globs.split(","))


def summary(found: Sequence[Difference]) -> str:
    """`437 cells: 2 REGRESS, 435 SAME`."""
    counts = Counter(d.change for d in found)
    return f"{len(found)} cells: " + ", ".join(f"{counts[change]} {change}" for change in Change if counts[change])


def _told(found: Sequence[Difference], everything: bool) -> Iterator[tuple[str, ...]]:
    """The columns of each cell: change, row, kernel, before, after, ratio, what changed; regressions first, the largest
    first. Unchanged cells only with `everything`."""
    order = list(Change)
    several = len({d.gpu for d in found}) > 1
    for d in sorted(found, key=lambda d: (order.index(d.change), -d.ratio.ratio if d.ratio else 0.0)):
        if everything or d.change is not Change.SAME:
            change = f"[{COLOURS[d.change]}]{d.change}[/]" if d.change in COLOURS else str(d.change)
            kernel = f"{d.gpu}: {d.kernel}" if several else d.kernel
            nothing = d.same_fingerprint and d.change is not Change.SAME
            why = "; ".join(d.why) or "nothing" * nothing
            yield change, *map(escape, (d.workload.label, kernel, _end(d, 0), _end(d, 1), _ratio(d), why))


def table(found: Sequence[Difference], everything: bool) -> Table:
    """One line for each cell."""
    view = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for title, right in (("change", False), ("row", False), ("kernel", False), ("before", True), ("after", True)):
        view.add_column(title, justify="right" if right else "left", no_wrap=True)
    view.add_column("time, 99% interval", justify="right", no_wrap=True)
    view.add_column("what changed")
    for row in _told(found, everything):
        view.add_row(*row)
    return view


def lines(found: Sequence[Difference], everything: bool) -> Iterator[str]:
    """Two or three lines a cell, for a window narrower than the table."""
    for change, row, kernel, before, after, ratio, why in _told(found, everything):
        ends = " -> ".join(filter(None, (before, after)))
        yield f"{change}  {row}  {kernel}"
        yield f"  {', '.join(filter(None, (ends, ratio)))}"
        if why:
            yield f"  {why}"


def _end(d: Difference, after: int) -> str:
    status, us = ((d.before, d.before_us), (d.after, d.after_us))[after]
    return "" if status is None else f"{us:.2f} us" if us is not None else str(status)


def _ratio(d: Difference) -> str:
    if d.ratio is None:
        return ""
    low, high = (f"{100 * (end - 1):+.1f}" for end in (d.ratio.low, d.ratio.high))
    interval = f"[{low}, {high}]" if d.ratio.high < math.inf else "[one sample]"
    return f"{100 * (d.ratio.ratio - 1):+.1f}% {interval}"


def show(before: RunData, after: RunData, found: Sequence[Difference], noise_said: str, everything: bool) -> None:
    """Print what changed around the runs, the changed cells, and their counts."""
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH
    plain = functools.partial(console.print, markup=False, highlight=False)
    changes = [f"{name} {a} -> {b}" for name, a, b in surroundings(before, after)]
    common = [d for d in found if d.before is not None and d.after is not None]
    alike = sum(d.same_fingerprint for d in common)
    plain(f"between the runs: {'; '.join(changes) or 'nothing changed'}")
    plain(f"{alike} of {len(common)} common cells have one fingerprint; {noise_said}")
    shown = table(found, everything)
    if shown.row_count and console.width >= WIDTH:
        console.print(shown)
    elif shown.row_count:
        for line in lines(found, everything):
            console.print(line, highlight=False)
    plain(summary(found))


def gate(found: Sequence[Difference], fail_on: str | None) -> int:
    """GATE for a regression that must fail, NOTHING where the runs share no cell, else OK."""
    if not any(d.before is not None and d.after is not None for d in found):
        return NOTHING
    return GATE if fail_on == "regress" and any(d.is_regression for d in found) else OK


@refusing(NotARun, Incomparable, noise.NotNoise)
def main(asked: argparse.Namespace) -> int:
    before, after = read(asked.before), read(asked.after)
    tell_left_out((before, after))
    allowed, said = limits(before, after)
    found = select(differences(before, after, allowed, asked.unit), asked.kernels, asked.workload)
    code = gate(found, asked.fail_on)
    if code == NOTHING:
        print(f"{before.folder} and {after.folder} have no selected cell in common", file=sys.stderr)
    elif before.raw == after.raw:
        print(f"{before.folder} and {after.folder} hold the same run: {len(found)} cells, none changed")
    else:
        show(before, after, found, said, asked.all)
    return code
