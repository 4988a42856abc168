"""The committed reports: what `python -m compare report RUN` writes of each committed run, so that git stays clean.

    python -m compare pages reports [--write] [--runs h200/peers,h200/serving]

In: manifest.json and cells.jsonl of the runs under docs/results that have a report. Out: report.md and figures/*.svg;
git ignores report.html and summary.csv. Without --runs also docs/results/README.md, which lists the runs.
Exit codes: 0; 1 where a report is out of date and --write is not given; 2 for a run that is none.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from compare.analysis import tables
from compare.analysis.runs import NotARun
from compare.exits import USAGE, say
from compare.pages import add_write, settle_all
from compare.record import packed
from compare.record.folder import ROOT
from compare.report import report

HELP = "docs/results: reports of committed runs"
RESULTS = ROOT / "docs" / "results"


def committed(results: Path = RESULTS) -> list[Path]:
    """The run folders that have a report."""
    return sorted(path.parent for path in results.rglob("report.md") if packed.there(path.parent / "cells.jsonl"))


def written(run: Path) -> Iterator[tuple[Path, str]]:
    """(path in the run's folder, text) of the committed files of a report that is written now. Raises NotARun."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / run.name
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns("report.*", "summary.csv", "figures"))
        report.write(copy)
        for path in [copy / "report.md", *sorted(copy.rglob("*.svg"))]:
            yield run / path.relative_to(copy), path.read_text(encoding="utf-8")


HEAD = """\
# Committed runs

Written by `python -m compare pages reports --write`. A GPU has a folder, and a run a folder in it: `manifest.json` has
the command, commit, versions, timing contract and rows; `cells.jsonl.xz` one line for each cell, with every sample
([measuring.md](../measuring.md)); `candidates.jsonl.xz` one line for each config that a tuning or `study regret` timed.
`python -m compare report FOLDER` writes a run's report. `python -m compare tune --fit docs/results` reads all of them.
Quoted figures: [figures.toml](figures.toml). Older runs: the page of this name at commit 6f3c944f.

"""
SHOWN = 5  # names of folders in a line


def index(results: Path | None = None) -> str:
    """docs/results/README.md: one line for each GPU and kind of run."""
    results = results or RESULTS
    found: dict[tuple[str, str], list[tuple[str, str, int]]] = defaultdict(list)
    for gpu in sorted(path for path in results.iterdir() if any(path.rglob("manifest.json"))):
        for path in sorted(gpu.rglob("manifest.json")):
            said = json.loads(path.read_text(encoding="utf-8"))
            regret = "regret" in path.parent.name
            kind = said.get("suite") or ("study regret" if regret else "tune")
            day, cells = str(said.get("started", ""))[:10], said.get("finished") or 0
            found[gpu.name, kind].append((path.parent.relative_to(gpu).as_posix(), day, cells))
        runs = {path.relative_to(gpu).parts[0] for path in gpu.rglob("manifest.json")}
        others = sorted(path.name for path in gpu.iterdir() if path.name not in runs)
        found[gpu.name, "no runs: logs and pages"] += [(name, "", 0) for name in others]
    body = []
    for (gpu_name, kind), runs in found.items():
        names = [f"[{name}]({gpu_name}/{name})" for name, _, _ in runs]
        if len(names) > SHOWN:
            names = [*names[: SHOWN - 1], f"... {names[-1]}"]
        days = sorted(day for _, day, _ in runs if day)
        cells = sum(cells for _, _, cells in runs)
        when = " to ".join(dict.fromkeys(days[:1] + days[-1:]))
        body.append([gpu_name, kind, str(len(runs)), f"{cells:,}" if cells else "", when, ", ".join(names)])
    columns = ("GPU", "suite or command", "folders", "cells", "measured", "where")
    return HEAD + tables.of_page([(name, name in ("folders", "cells")) for name in columns], body) + "\n"


def options(parser: argparse.ArgumentParser) -> None:
    add_write(parser)
    parser.add_argument("--runs", help="comma-separated folders under docs/results; all that have a report")


def main(asked: argparse.Namespace) -> int:
    """0; 1 where a report is out of date; 2 for a run that is none."""
    runs = [RESULTS / name for name in asked.runs.split(",")] if asked.runs else committed()
    try:
        new = dict(one for run in runs for one in written(run))
        if not asked.runs:
            new[RESULTS / "README.md"] = index()
    except (NotARun, OSError) as error:
        say(error)
        return USAGE
    return settle_all(new, "reports", write=asked.write)
