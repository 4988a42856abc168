"""The page that holds the model of compare.static.estimate against measurements, and the spread that reports print.

docs/results/h200/estimates.md and the part of compare/static/estimate_spread.json about NVIDIA are made of committed
cells alone. docs/results/mi300/estimates.md, about published times, was written once and stands.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from common import gpus
from common.gpus import Gpu
from compare.analysis.cells import combined
from compare.record import folder as run_folder
from compare.record.records import Record, latest
from compare.record.store import read_records
from compare.static.estimate import SPREAD, Estimate, NoEstimate, estimate, machine_of
from compare.studies.estimates.stats import Point, Summary, grouped, summarise
from compare.workloads import Workload, cost, suites

OWN_SUITES = ("peers", "serving")
RESULTS = run_folder.ROOT / "docs" / "results"
HEAD = (
    "| | points | below the floor | measured / estimate 10% | 50% | 90% | pairs of configs in order | rank, configs of "
    "a workload | rank, workloads of a config | rank, all | right limiter | one factor | then 10% | 90% |"
)


def _point(
    workload: Workload, setup: str, gpu: Gpu, said: tuple[float, float, str], measured: float, launches: int, **more
) -> Point:
    """said: floor, estimate, limiter. launches: of the call."""
    machine, _ = machine_of(gpu)
    needed = more.pop("needed", None) or cost.cost(workload)
    peak = gpu.fp32_tflops if workload.shape.dtype is torch.float32 else gpu.bf16_tflops
    return Point(
        group=more.pop("group", workload.label),
        setup=setup,
        kind=more.pop("kind", workload.kind),
        floor_us=said[0],
        estimate_us=said[1],
        limiter=said[2],
        measured_us=measured,
        bytes_us=needed.bytes / (machine.sustained * gpu.hbm_gbps * 1e3),
        matrix_us=needed.flops / peak / 1e6,
        launch_us=launches * machine.launch_us,
        **more,
    )


def _own_point(record: Record, workload: Workload, gpu: Gpu) -> Point | None:
    """None for a cell without a time, or that the model has no rule for."""
    if record.timing is None:
        return None
    try:
        said: Estimate = estimate(workload, record.kernel, record.config or {}, record.facts, gpu)
    except NoEstimate:
        return None
    told = (said.floor_us, said.us, said.limiter)
    return _point(workload, record.kernel, gpu, told, record.timing.median_us, len(said.launches))


def own_points(gpu: Gpu, folder: Path) -> list[Point]:
    """Every measured cell of the committed suites that the model has a rule for; facts are those in the cells."""
    points = []
    for name in OWN_SUITES:
        rows = {row.id: row for row in suites.suite(name)}
        for record in combined(latest(read_records(folder / name / "cells.jsonl"))):
            if record.workload.id in rows:
                points.append(_own_point(record, rows[record.workload.id], gpu))
    return [point for point in points if point is not None]


def _number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _summary_row(name: str, s: Summary) -> str:
    pairs = "" if s.pairs is None else f"{100 * s.pairs:.0f}% ({s.pairs_n})"
    ranks = [pairs, f"{_number(s.within)} ({s.within_n})", f"{_number(s.across)} ({s.across_n})", _number(s.whole, 3)]
    ratios = [_number(value) for value in (s.p10, s.p50, s.p90)]
    fitted = [_number(s.factor), _number(s.fitted10), _number(s.fitted90)]
    cells = [name, str(s.n), str(s.below_floor), *ratios, *ranks, f"{100 * s.right:.0f}%", *fitted]
    return "| " + " | ".join(cells) + " |"


def _tables(points: Sequence[Point], splits: Sequence[Callable[[Point], str]]) -> list[str]:
    lines = [HEAD, "|" + "---|" * (HEAD.count("|") - 1), _summary_row("all", summarise(points))]
    for key in splits:
        for name, group in grouped(points, key).items():
            if len(group) > 1:
                lines.append(_summary_row(name, summarise(group)))
    return lines


def _listing(points: Sequence[Point]) -> list[str]:
    head = (
        "| workload | what ran | floor us | estimate us | limiter said | measured us | measured / estimate | spent on |"
    )
    lines = [head, "|" + "---|" * 8]
    for p in points:
        times = f"{p.floor_us:.2f} | {p.estimate_us:.1f} | {p.limiter} | {p.measured_us:.1f} | {p.ratio:.2f}"
        lines.append(f"| {p.group} | {p.note or p.setup} | {times} | {p.observed} |")
    return lines


HOW_TO_READ = """
- floor: larger of distinct bytes / memory peak and useful FLOPs / matrix peak. A time below it would be a mistake of
  the floor, of the workload as read, or of warm caches.
- estimate: `compare/static/estimate.py`, launch by launch; each formula and constant has its source there. Nothing is
  fitted in the columns up to `right limiter`. `one factor`: the median ratio of a random half of the points (seed 0);
  `then 10%`, `90%`: the other half's ratios over that factor.
- pairs of configs in order: of two setups of one workload with different estimates, how often the one with the lower
  estimate was measured faster; in brackets, how many pairs. A coin gives 50%.
- rank: Spearman's correlation, averaged over groups of three and more; in brackets, how many groups.
- right limiter: a time tells what it was spent on only where one resource, at its stated or sustained peak, accounts
  for half of it: launch, bytes or matrix; what is left is `other`, which `issue` and `latency` both mean.
"""


def _h200(points: Sequence[Point]) -> str:
    s = summarise(points)
    lines = [
        "# Estimates against measurements: H200",
        "",
        "Written by `python -m compare pages reports --write` from the cells of `peers` and `serving`. The "
        "estimate of each cell follows from the facts of the code object that was timed (in the cell), the workload "
        "and the constants of `compare/static/estimate.py` alone. The formulas and constants were committed "
        "(919191c) before they were held against any cell, and have not been changed for the H200 since; the cells "
        "of today were measured after it.",
        "",
        f"{s.n} points; {s.below_floor} below the floor; 10 to 90% of measured / estimate: {s.p10:.2f} to {s.p90:.2f}.",
        HOW_TO_READ,
        *_tables(points, [lambda p: p.kind, lambda p: p.setup]),
        "",
        "## All points",
        "",
        *_listing(points),
    ]
    return "\n".join(lines) + "\n"


def texts(results: Path = RESULTS) -> dict[Path, str]:
    """Each file that is made of what lies under `results`, and its text. AMD's spread stands, as its page does."""
    path = results / "h200" / "estimates.md"
    points = own_points(gpus.resolve("h200"), results / "h200")
    s = summarise(points)
    told = path.relative_to(run_folder.ROOT) if path.is_relative_to(run_folder.ROOT) else path.name
    nvidia = {"p10": round(s.p10, 2), "p90": round(s.p90, 2), "points": s.n, "page": str(told)}
    spread = json.loads(SPREAD.read_text(encoding="utf-8")) | {"nvidia": nvidia}
    return {path: _h200(points), SPREAD: json.dumps(spread, indent=1) + "\n"}
