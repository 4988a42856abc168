"""Time a right candidate on the GPU that is here, by `python -m compare.run`: a row of decodes and one of prompts."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import process
from compare.identity import IMPORTED_FROM
from compare.record import store
from compare.studies.grade.judge import LIMIT_S, MODULE, Candidate, alone

ROWS = {"decode": "32q1s2k", "prompt": "2q1ks1k"}


def times(candidate: Candidate, entry: str) -> dict[str, float | str]:
    """Microseconds of each of ROWS, or why there are none; the run judges the candidate again."""
    return {name: _one(candidate, entry, row) for name, row in ROWS.items()}


def _one(candidate: Candidate, entry: str, row: str) -> float | str:
    with alone(candidate) as folder, tempfile.TemporaryDirectory(prefix="diptych-times-") as runs:
        out = Path(runs) / "run"
        path = os.pathsep.join(filter(None, [str(folder), str(IMPORTED_FROM), os.environ.get("PYTHONPATH", "")]))
        command = [sys.executable, "-m", "compare.run", "--kernels", f"{MODULE}:{entry}", "--workload", row]
        command += ["--quiet", "--out", str(out)]
        try:
            _, _, err = process.once(command, os.environ | {"PYTHONPATH": path}, b"", LIMIT_S, folder=folder)
            record = store.read_records(out / "cells.jsonl")[-1]
        except process.Lost as lost:
            return lost.reason
        except (OSError, ValueError, IndexError):
            return err.decode(errors="replace").strip().rpartition("\n")[2]
    return f"{record.status}: {record.reason}" if record.timing is None else round(record.timing.median_us, 1)


def told(found: dict[str, Any] | None) -> str:
    """The times in one line."""
    if found is None:
        return "not timed: no GPU is here"
    return ", ".join(
        f"{name} {us:,} us" if isinstance(us, float) else f"{name} not timed: {us}" for name, us in found.items()
    )
