"""What changed in speed from day to day: the classes' means over commits and toolchains, on equal rows.

    python -m compare history --gpu h200
    python -m compare pages history [--write]

A point is one day and toolchain of committed runs of a suite; the later of two times of a row counts. Points that lack
more than LACKS of the newest point's rows are left out. A mean is over the rows that all points of a kernel have, so a
mean only moves when the kernel, the choice or the compiler did.
Exit codes: 0; 1 where a page is out of date and --write is not given; 2 for a run that cannot be read.
"""

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

from compare.analysis import means, tables
from compare.analysis.runs import NotARun, RunData, read
from compare.analysis.standing import KINDS
from compare.exits import NOTHING, OK, refusing, say
from compare.pages import add_write, settle_all
from compare.record import manifest, packed
from compare.record.contract import UNIT, Contract
from compare.record.folder import ROOT
from compare.report import style
from compare.stats import geomean

HELP = "the classes' means over days, commits and toolchains, from committed runs, on equal rows"
RESULTS, PICTURES = ROOT / "docs" / "results", ROOT / "docs" / "pictures"
KERNELS = {"triton/auto": "Triton", "helion/auto": "Helion", "triton/native.auto": "Gluon (Hopper only)"}
LOOKS = {"triton/auto": ("#0072B2", "o"), "helion/auto": ("#D55E00", "D"), "triton/native.auto": ("#009E73", "s")}
SUITES = ("peers", "serving")
MOST_DAYS = 6  # that an axis names; with more their labels meet
PAGE = ROOT / "docs" / "comparing-runs.md"
BLOCK = re.compile(r"<!-- dated: history (\w+) -->\n.*?<!-- end dated -->", re.DOTALL)
LACKS, LOST, SHOWN = 0.25, 0.1, 12


@dataclass(order=True)
class Point:
    """A day's speeds over FlashAttention 3 with one toolchain. rows: (class, kernel, row) -> speed."""

    day: str
    triton: str
    helion: str
    commits: list[str] = field(default_factory=list, compare=False)
    rows: dict[tuple[str, str, str], float] = field(default_factory=dict, compare=False)

    def of(self, kernel: str) -> set[tuple[str, str]]:
        return {(kind, row) for kind, name, row in self.rows if name == kernel}

    def mean(self, kernel: str, kind: str, rows: set[tuple[str, str]]) -> float | None:
        mine = [self.rows[of, kernel, row] for of, row in sorted(rows) if of == kind]
        return geomean(mine) if mine else None


def _runs(folder: Path, suite: str) -> Iterator[RunData]:
    """The runs of a suite below a folder that were timed by the contract of today, the oldest first. Raises NotARun."""
    found = []
    for path in sorted(folder.rglob("manifest.json")):
        if not packed.there(path.parent / "cells.jsonl"):
            continue
        try:
            said = manifest.read(path)
        except (OSError, ValueError, RecursionError) as error:
            raise NotARun(f"history: found {path} with {error}, allowed a run's manifest") from error
        if said.get("suite") == suite and said.get("gpu", {}).get("present"):
            run = read(path.parent)
            found += [run] if run.contract == Contract().name else []
    return iter(sorted(found, key=lambda run: run.manifest["started"]))


def points(runs: Iterator[RunData] | Sequence[RunData]) -> list[Point]:
    """The points of these runs, by day. A merged run has the versions and commits of its parts."""
    found: dict[tuple[str, str, str], Point] = {}
    for run in runs:
        parts = [part for part in run.manifest.get("parts", {}).values() if part] or [run.manifest]
        at = tuple(
            "/".join(sorted({p.get("versions", {}).get(name, "?") for p in parts})) for name in ("triton", "helion")
        )
        speeds = {cell: one.speed.ratio for cell, one in means.standings([run], UNIT, ",".join(KERNELS)).items() if one}
        if speeds:
            point = found.setdefault((run.manifest["started"][:10], *at), Point(run.manifest["started"][:10], *at))
            point.rows |= speeds
            commits = [part["commit"][:7] for part in parts if part.get("commit")]
            point.commits = list(dict.fromkeys(point.commits + commits))
    return sorted(found.values())


def alike(found: Sequence[Point], kernel: str) -> tuple[list[Point], set[tuple[str, str]]]:
    """The points of a kernel that have most of the newest one's rows, and the rows (class, label) that all of these
    have."""
    mine = [point for point in found if point.of(kernel)]
    newest = max(mine, key=lambda point: (point.day, len(point.of(kernel)))).of(kernel) if mine else set()
    kept = [point for point in mine if len(newest - point.of(kernel)) <= LACKS * len(newest)]
    return kept, reduce(set.intersection, (point.of(kernel) for point in kept), newest)


def table(found: Sequence[Point], suite: str) -> str:
    """A line for each kernel and point: its classes' means, and in how many rows."""
    columns = [(name, False) for name in ("kernel", "rows of", "commits")]
    body = []
    for kernel, name in KERNELS.items():
        kept, rows = alike(found, kernel)
        for point in kept:
            values = [point.mean(kernel, kind, rows) for kind in KINDS]
            cells = ["" if value is None else f"{value:.2f}" for value in values]
            where = f"{suite}, {point.day}, Triton {point.triton}, Helion {point.helion}"
            body.append([name, where, ", ".join(point.commits), *cells, len(rows)])
    return tables.Table([*columns, *((kind, True) for kind in KINDS), ("equal rows", True)], body).markdown


def slower(found: Sequence[Point]) -> str:
    """A line for each row on which a kernel's last point is more than LOST behind an earlier one, the worst first."""
    lines = []
    for kernel, name in KERNELS.items():
        kept, rows = alike(found, kernel)
        for kind, row in rows if len(kept) > 1 else ():
            last = kept[-1].rows[kind, kernel, row]
            best = max(kept[:-1], key=lambda point: point.rows[kind, kernel, row])
            before = best.rows[kind, kernel, row]
            if before > (1 + LOST) * last:
                where = f"{best.day}, Triton {best.triton}"
                lines.append((before / last, [name, row, kind, f"{before:.2f}", where, f"{last:.2f}", kept[-1].day]))
    columns = [("kernel", False), ("row", False), ("class", False), ("best", True), ("on", False), ("last", True)]
    body = [line for _, line in sorted(lines, key=lambda one: -one[0])[:SHOWN]]
    return tables.Table([*columns, ("of", False)], body).markdown if body else ""


def drawn(found: Mapping[str, Sequence[Point]]) -> str:
    """SVG: suites and classes of two rows or more as panels, kernels as lines; a hollow mark is another Triton."""
    panels = [
        (suite, kind) for suite, of in found.items() for kind in KINDS
        if any(sum(one == kind for one, _ in alike(of, kernel)[1]) > 1 for kernel in KERNELS)
    ]  # fmt: skip
    plt = style.pyplot()
    wide, days = 3, sorted({p.day for of in found.values() for kernel in KERNELS for p in alike(of, kernel)[0]})
    figure, axes = plt.subplots(
        -(-len(panels) // wide), wide, figsize=(9.0, 2.5 * -(-len(panels) // wide) + 0.5),
        sharex=True, layout="constrained", squeeze=False,
    )  # fmt: skip
    for ax in axes.flat[len(panels) :]:
        ax.set_visible(False)
    tritons = sorted(p.triton for of in found.values() for p in of)
    usual = max(tritons, key=tritons.count)
    for (suite, kind), ax in zip(panels, axes.flat, strict=False):
        counts = set()
        for kernel, (colour, marker) in LOOKS.items():
            kept, rows = alike(found[suite], kernel)
            if not any(of == kind for of, _ in rows):
                continue
            counts.add(sum(of == kind for of, _ in rows))
            line = [(days.index(p.day), p.mean(kernel, kind, rows), p.triton) for p in kept]
            same = [(x, y) for x, y, triton in line if triton == usual]
            ax.plot(*zip(*same, strict=True), f"{marker}-", color=colour, label=KERNELS[kernel]) if same else None
            for x, y, triton in line:
                if triton != usual:
                    ax.plot(x, y, marker, color=colour, markerfacecolor="none", markersize=9, label=f"Triton {triton}")
        ax.axhline(1, color="#000000", linewidth=1)
        ax.set_title(f"{kind}, {'/'.join(map(str, sorted(counts)))} rows of {suite}", fontsize=10)
        ax.tick_params(labelbottom=True)
        every = -(-len(days) // MOST_DAYS)
        told = range((len(days) - 1) % every, len(days), every)
        ax.set_xticks(told, [days[i][5:] for i in told], fontsize=8)
    _legend(figure, axes.flat, usual)
    return style.text_of(figure)


def _legend(figure: Any, panels: Any, usual: str) -> None:
    handles: dict[str, Any] = {}
    for ax in panels:
        for handle, name in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    title = f"speed, FlashAttention 3 = 1 (the line; above is faster); filled: Triton {usual}"
    figure.legend(
        handles.values(), handles, loc="outside upper center", ncols=len(handles), fontsize=9, title=title,
        title_fontsize=9,
    )  # fmt: skip


def of_gpu(gpu: str, results: Path = RESULTS) -> dict[str, list[Point]]:
    """The points of each suite that was measured on two days or with two toolchains. Raises NotARun."""
    found = {suite: points(_runs(results / gpu, suite)) for suite in SUITES}
    return {suite: of for suite, of in found.items() if len(of) > 1}


def told(found: Mapping[str, Sequence[Point]]) -> str:
    """A table for each suite, below its name, and the rows that became slower."""
    parts = []
    for suite, of in found.items():
        parts += [f"Suite {suite}:", table(of, suite)]
        if lost := slower(of):
            parts += [
                f"Rows of suite {suite} that lost more than {LOST:.0%} since an earlier day, the worst first:",
                lost,
            ]
    return "\n\n".join(parts)


def filled(text: str, results: Path = RESULTS) -> str:
    """The page with every block `<!-- dated: history GPU -->` .. `<!-- end dated -->` of today. Raises NotARun."""

    def block(found: re.Match) -> str:
        return f"<!-- dated: history {found[1]} -->\n{told(of_gpu(found[1], results))}\n<!-- end dated -->"

    return BLOCK.sub(block, text)


def options(parser: argparse.ArgumentParser) -> None:
    add_write(parser)
    parser.add_argument("--gpu", type=str.lower, help="print the tables of this GPU and look at no page")


@refusing(NotARun)
def main(asked: argparse.Namespace) -> int:
    if asked.gpu:
        found = of_gpu(asked.gpu)
        if not found:
            say(f"--gpu: found {asked.gpu}, allowed one with two committed days: {', '.join(_gpus())}")
            return NOTHING
        print(told(found))
        return OK
    text = PAGE.read_text(encoding="utf-8")
    new = {PAGE: filled(text)} | {PICTURES / f"history-{gpu}.svg": drawn(of_gpu(gpu)) for gpu in _gpus()}
    return settle_all(new, "history", write=asked.write)


def _gpus() -> list[str]:
    """The GPUs that the page has a block of."""
    return BLOCK.findall(PAGE.read_text(encoding="utf-8"))
