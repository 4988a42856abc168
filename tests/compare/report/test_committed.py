"""A committed run's report written again is the committed one: `report RUN` leaves git clean."""

import re
import shutil
from pathlib import Path

import pytest

from compare.record import packed
from compare.report import report

RESULTS = Path("docs/results")
QUICK = {"mi300/family", "h200/fig7"}  # 3 s each; all of them together take minutes
RUNS = sorted(
    folder.relative_to(RESULTS).as_posix()
    for folder in (path.parent for path in RESULTS.rglob("report.md"))
    if packed.there(folder / "cells.jsonl")
)


def words(folder):
    """By figure its texts: what a release of matplotlib that draws a path otherwise does not change."""
    return {path.name: re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text()) for path in folder.glob("*.svg")}


@pytest.mark.parametrize("run", [pytest.param(run, marks=[] if run in QUICK else pytest.mark.slow) for run in RUNS])
def test_it_is_written_as_it_was(run, tmp_path):
    committed, again = RESULTS / run, tmp_path / Path(run).name
    again.mkdir()
    for name in ("manifest.json", "cells.jsonl.xz", "noise.json"):
        if (committed / name).exists():
            shutil.copy(committed / name, again)
    report.write(again)
    assert (again / "report.md").read_text() == (committed / "report.md").read_text()
    assert words(again / "figures") == words(committed / "figures")


def test_there_are_runs_to_write_again():
    assert set(RUNS) >= QUICK and len(RUNS) > 20
