"""The committed reports: what `python -m compare report RUN` writes of each committed run, so that git stays clean.

    python -m compare pages reports [--write] [--runs h200/peers,h200/fig6]

In: manifest.json and cells.jsonl of the runs under docs/results that have a report. Out: report.md and figures/*.svg;
git ignores report.html and summary.csv. Without --runs also docs/results/README.md, which lists the runs.
Exit codes: 0; 1 where a report is out of date and --write is not given; 2 for a run that is none.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from compare.analysis import markup
from compare.analysis.runs import NotARun
from compare.exits import refusing
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


HEAD = Path(__file__).parent / "templates" / "reports.md"


def index(results: Path | None = None) -> str:
    """docs/results/README.md: a line for each folder of a GPU with several runs, one for all with one, one for logs."""
    results, body = results or RESULTS, []
    for gpu in sorted(path for path in results.iterdir() if any(path.rglob("manifest.json"))):
        runs = {path.name: sorted(path.rglob("manifest.json")) for path in sorted(gpu.iterdir())}
        lines = [[name] for name, found in runs.items() if len(found) > 1]
        lines += [[name for name, found in runs.items() if len(found) == count] for count in (1, 0)]
        for names in filter(None, lines):
            said = [json.loads(path.read_text(encoding="utf-8")) for name in names for path in runs[name]]
            days = sorted(str(one["started"])[:10] for one in said if one.get("started"))
            suites = sorted({suite for one in said for suite in (one.get("suite") or "").split(", ") if suite})
            cells = sum(one.get("finished") or 0 for one in said)
            where = ", ".join(f"[{name}]({gpu.name}/{name})" for name in names)
            what = ", ".join(suites) if said else "logs and pages"
            when = " to ".join(dict.fromkeys(days[:1] + days[-1:]))
            body.append([gpu.name, where, what, when, len(said) or "", f"{cells:,}" if cells else ""])
    titles = ("GPU", "folder", "suites", "measured", "runs", "cells")
    return HEAD.read_text(encoding="utf-8").format(table=markup.table(titles, body, 4))


def options(parser: argparse.ArgumentParser) -> None:
    add_write(parser)
    parser.add_argument("--runs", help="comma-separated folders under docs/results; all that have a report")


@refusing(NotARun, OSError)
def main(asked: argparse.Namespace) -> int:
    runs = [RESULTS / name for name in asked.runs.split(",")] if asked.runs else committed()
    new = dict(one for run in runs for one in written(run))
    if not asked.runs:
        new[RESULTS / "README.md"] = index()
    return settle_all(new, "reports", write=asked.write)
