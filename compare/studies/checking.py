"""What a verdict costs: processor time of `diptych-check` and its children, by kernel and level, on this CPU.

    python -m compare study checking --out FILE [--only torch triton helion] [--level first smoke] [--share 1]

A right kernel of each kind. With --share N every N-th case is asked, and the time of all is N times that of these
beside what starting takes, which one case tells. A line a kernel and level is put behind the others in FILE; the last
counts. Exit codes: 0; 1 where the kit finds one of them wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from common import process
from common.kit import levels
from compare.exits import OK, WRONG
from compare.record.folder import ROOT
from compare.workloads.numbers import at_least_one

HELP = "processor time of diptych-check's levels for a kernel of torch, of Triton and of Helion"
KERNELS = {  # name -> (description, kernel)
    "torch": ("a torch callable", "kit_callables:right"),
    "triton": ("a naive Triton kernel, interpreted", "kit_triton:right"),
    "helion": ("a naive Helion kernel, interpreted", "dsl_helion.naive"),
}
FOLDER = ROOT / "tests" / "common" / "kit"  # of the first two kernels
LEVELS = ("first", "smoke")
LIMIT_S = 24 * 3600.0


def _spent() -> float:
    """Processor seconds of the children that have ended, with their own children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def once(kernel: str, cases: Sequence[str]) -> dict[str, Any]:
    """Ask these cases of a kernel in one call of the command: {"processor_s", "judged", "right"}."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, str(ROOT / "diptych_check.py"), kernel, "-n", "2", "--no-minimise"]
        command += [f"--case={case}" for case in cases] + ["--report", str(report)]
        path = os.pathsep.join([str(ROOT), str(FOLDER)])
        before = _spent()
        process.once(command, os.environ | {"PYTHONPATH": path}, b"", LIMIT_S)
        used = _spent() - before
        told = json.loads(report.read_text(encoding="utf-8"))["cases"]
    judged = [case for case in told if not case["declared"] and case["status"] != "too_large"]
    right = all(case["status"] == "ok" for case in judged)
    return {"processor_s": used, "judged": len(judged), "right": right}


def measured(kernel: str, level: str, share: int) -> dict[str, Any]:
    names = list(levels.level(level))
    found = once(kernel, names[::share])
    start_s = once(kernel, ["sequence-1"])["processor_s"] if share > 1 else 0.0
    seconds = start_s + share * (found["processor_s"] - start_s)
    told = {"cases": len(names), "asked": len(names[::share]), "judged": found["judged"], "right": found["right"]}
    return {"processor_s": round(seconds)} | told


def rows(path: Path) -> list[dict[str, Any]]:
    """The last line of each kernel and level."""
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return list({(line["kind"], line["level"]): line for line in lines}.values())


def table(lines: Sequence[dict[str, Any]]) -> list[str]:
    """Processor seconds by kernel and level; "about" where only a part of the cases was asked."""
    of = {(line["kind"], line["level"]): line for line in lines}
    found = [f"| kernel | {' | '.join(LEVELS)} |", "|---|" + "---:|" * len(LEVELS)]
    for kind, (what, _) in KERNELS.items():
        cells = [_cell(of.get((kind, level))) for level in LEVELS]
        found.append(f"| {what} | {' | '.join(cells)} |")
    return found


def _cell(line: dict[str, Any] | None) -> str:
    if line is None:
        return "not measured"
    part = "" if line["asked"] == line["cases"] else f", by {line['asked']} of {line['cases']} cases"
    return f"{'about ' if part else ''}{line['processor_s']:,} s{part}"


def options(new: argparse.ArgumentParser) -> None:
    new.add_argument("--out", type=Path, required=True, metavar="FILE")
    new.add_argument("--only", nargs="+", choices=KERNELS, default=list(KERNELS), help="default all")
    new.add_argument("--level", nargs="+", choices=LEVELS, default=list(LEVELS), help="default both")
    new.add_argument("--share", type=at_least_one, default=1, help="every case of so many is asked; default 1, all")


def main(asked: argparse.Namespace) -> int:
    import torch

    asked.out.parent.mkdir(parents=True, exist_ok=True)
    here = {"torch": torch.__version__, "day": date.today().isoformat()}
    for kind in asked.only:
        for level in asked.level:
            line = {"kind": kind, "level": level} | measured(KERNELS[kind][1], level, asked.share) | here
            with asked.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
    lines = rows(asked.out)
    print("\n".join(table(lines)))
    return OK if all(line["right"] for line in lines) else WRONG
