"""C: what a report writes of committed runs, byte for byte: the SHA-256 of each file.

A run is copied alone, without what was written of it: what a report says of files beside a run (costs, generated code,
what each kernel can do) holds sizes of today's sources and is no part of this. Nothing that is written says where the
run lies or when it was written.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from compare.report import report
from compare.studies.graphs import report as graph_report
from goldens.table import Rows

RESULTS = Path(__file__).parents[2] / "docs" / "results"
RUNS = ("h200/peers", "h200/fig6", "h200/features", "h200/graphs", "mi300/family")
GIVEN = ("manifest.json", "cells.jsonl", "graphs.jsonl")
WRITTEN = ("report.md", "summary.csv", "figures/*.svg")


def rows(runs: Sequence[str] = RUNS) -> Rows:
    found: Rows = {}
    for name in runs:
        with tempfile.TemporaryDirectory() as scratch:
            folder = _copied(name, Path(scratch))
            _write(folder)
            for path in sorted(path for pattern in WRITTEN for path in folder.glob(pattern)):
                found[f"{name}/{path.relative_to(folder)}"] = _bytes(path)
    return found


def few() -> Rows:
    """Of a run of few rows, and of one of graphs."""
    return rows(RUNS[1:4:2])


def _copied(name: str, scratch: Path) -> Path:
    """The run's folder under `scratch`, with only what was measured."""
    folder = scratch / name
    folder.mkdir(parents=True)
    for path in (RESULTS / name).iterdir():
        if path.name in GIVEN:
            shutil.copy(path, folder)
    return folder


def _write(folder: Path) -> None:
    lines = folder / "graphs.jsonl"
    if lines.exists():
        graph_report.write(folder, [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()])
    else:
        report.write(folder)


def _bytes(path: Path) -> dict[str, str]:
    """The file's SHA-256; of markdown also that of each section, by its heading, so that a change says where it is."""
    found = {"whole": _sha(path.read_bytes())}
    if path.suffix == ".md":
        sections = re.split(r"^(?=## )", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        found |= {section.partition("\n")[0]: _sha(section.encode())[:16] for section in sections}
    return found


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
