"""The committed reports: what `python -m compare report RUN` writes of each committed run, so that git stays clean.

    python -m compare pages reports [--write] [--runs h200/peers,h200/serving]

In: manifest.json and cells.jsonl of the runs under docs/results that have a report. Out: report.md and figures/*.svg;
git ignores report.html and summary.csv.
Exit codes: 0; 1 where a report is out of date and --write is not given; 2 for a run that is none.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

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


def options(parser: argparse.ArgumentParser) -> None:
    add_write(parser)
    parser.add_argument("--runs", help="comma-separated folders under docs/results; all that have a report")


def main(asked: argparse.Namespace) -> int:
    """0; 1 where a report is out of date; 2 for a run that is none."""
    runs = [RESULTS / name for name in asked.runs.split(",")] if asked.runs else committed()
    try:
        new = dict(one for run in runs for one in written(run))
    except (NotARun, OSError) as error:
        say(error)
        return USAGE
    return settle_all(new, "reports", write=asked.write)
