"""Tuning time: the quality of the configs in use, second by second of a tuner's budget, from its log.

The quality of a kernel at time t is the geometric mean over its rows of (best known time) / (best time so far). A tuner
that takes one row after another leaves most rows untimed for long, and there a caller runs the untuned default: so a
row starts at 0 s with the default's time in the log (`Start.DEFAULT`). `Start.NOTHING` counts an untimed row as 0: its
first point is the second at which the last row was timed. A candidate counts from the line that first timed it, with
its final time: the repeated time of a finalist; else the screening's, at least the worst finalist's of the row. The
best known time is that of the same arm and kernel, so a DSL that tried less has a lower mark. Comparable between arms
are only the figures `across_...`: over the rows that every arm reached with that rung, against the best that any arm
found.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from compare.tune import records
from compare.tune.space import DEFAULT

SHARES = (0.90, 0.95, 0.99)
_KEY = ("arm", "kernel", "row", "policy")
BUDGET = ("gpu", "gpus", "cores", "minutes", "seed")  # fields of a manifest that compared arms share
Points = list[tuple[float, float]]


class Start(enum.Enum):
    """How a row counts before the tuner has timed anything on it."""

    DEFAULT = "the untuned default"
    NOTHING = "nothing"


def _timed(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """An entry for each timed candidate: arm, kernel, row, policy, t of its first time, us of its final time."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    worst: dict[tuple[str, ...], float] = {}  # of the finalists of an arm, kernel and row
    for line in lines:
        if line.get("done") or line.get("status") != "ok" or line.get("screen_us", line.get("final_us")) is None:
            continue
        key = tuple(line[name] for name in _KEY)
        kept = found.setdefault(key, dict(zip(_KEY, key, strict=True)) | {"t": line["t"]})
        kept["screen"], kept["final"] = line.get("screen_us"), line.get("final_us")
        worst[key[:3]] = max(worst.get(key[:3], 0.0), line.get("final_us") or 0.0)
    for key, kept in found.items():
        screen, final = kept.pop("screen"), kept.pop("final")
        kept["us"] = max(screen, worst[key[:3]]) if final is None else final
    return sorted(found.values(), key=lambda entry: entry["t"])


def _best(entries: Sequence[dict[str, Any]]) -> dict[str, float]:
    best: dict[str, float] = {}
    for entry in entries:
        best[entry["row"]] = min(entry["us"], best.get(entry["row"], math.inf))
    return best


def _quality(so_far: Mapping[str, float], known: Mapping[str, float], rows: Collection[str]) -> float:
    """The geometric mean of known / so-far times over the rows; 0 if a row has no time."""
    logs = [math.log(known[row] / so_far[row]) for row in rows if row in so_far]
    return math.exp(math.fsum(logs) / len(rows)) if len(logs) == len(rows) else 0.0


def curve(
    lines: Sequence[dict[str, Any]],
    arm: str,
    kernel: str,
    *,
    across: bool = False,
    start: Start = Start.NOTHING,
    among: Collection[str] | None = None,
) -> Points:
    """(seconds, quality) at every improvement, over the rows that the arm timed the kernel on (or only `among`).

    Points of quality 0, before every row has a time, are left out. across: best known is any arm's.
    """
    rung = [entry for entry in _timed(lines) if _rung(entry["kernel"]) == _rung(kernel)]
    mine = [x for x in rung if (x["arm"], x["kernel"]) == (arm, kernel) and (among is None or x["row"] in among)]
    rows = {entry["row"] for entry in mine}
    known = _best(rung if across else mine)
    so_far: dict[str, float] = {}
    if start is Start.DEFAULT:
        so_far = {entry["row"]: entry["us"] for entry in mine if entry["policy"] == DEFAULT.name}
    points = [(0.0, _quality(so_far, known, rows))] if rows else []
    for entry in mine:
        if entry["us"] < so_far.get(entry["row"], math.inf):
            so_far[entry["row"]] = entry["us"]
            points.append((entry["t"], _quality(so_far, known, rows)))
    return [point for point in points if point[1] > 0.0]


def time_to(points: Sequence[tuple[float, float]], share: float) -> float | None:
    """The first second from which the quality is at least `share`; None where it never was."""
    return next((seconds for seconds, quality in points if quality >= share - 1e-12), None)


def _figures(points: Points, prefix: str = "") -> dict[str, float | None]:
    """Seconds until each of SHARES is reached, and `untuned`, the quality of the default."""
    found: dict[str, float | None] = {f"{prefix}untuned": round(points[0][1], 4) if points else None}
    return found | {f"{prefix}to_{share:.0%}_s": time_to(points, share) for share in SHARES}


def _rung(kernel: str) -> str:
    return kernel.rpartition("/")[2]


def _reached(lines: Sequence[dict[str, Any]]) -> dict[tuple[str, str], set[str]]:
    """The timed rows of each (arm, kernel)."""
    found: dict[tuple[str, str], set[str]] = {(line["arm"], line["kernel"]): set() for line in lines}
    for entry in _timed(lines):
        found[entry["arm"], entry["kernel"]].add(entry["row"])
    return found


class UnequalBudgets(ValueError):
    """The runs cannot be compared; the message names the field, the values found and what is allowed."""


def _manifest(folder: Path) -> dict[str, Any]:
    """The manifest beside a log; empty if there is none."""
    path = folder / "manifest.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def check_budgets(folders: Sequence[Path]) -> None:
    """Raises UnequalBudgets where manifests differ in BUDGET or in the rows that were asked for."""
    manifests = {folder.name: _manifest(folder) for folder in folders}
    known = {name: manifest for name, manifest in manifests.items() if manifest}
    for field in BUDGET:
        found = {name: manifest[field] for name, manifest in known.items()}
        if len(set(found.values())) > 1:
            said = ", ".join(f"{value} in {name}" for name, value in found.items())
            raise UnequalBudgets(f"--tuned: found {field} {said}, allowed one for all")
    asked = {name: {row["label"] for row in manifest["rows"]} for name, manifest in known.items()}
    if any(rows != next(iter(asked.values())) for rows in asked.values()):
        said = ", ".join(f"{len(rows)} in {name}" for name, rows in asked.items())
        raise UnequalBudgets(f"--tuned: found other rows: {said}, allowed the same for all")


def _about(folder: Path) -> dict[str, Any]:
    """What the tuner ran with; a row's own `commit`, `versions` and `ran_on` are those of the command that writes
    it."""
    manifest = _manifest(folder)
    found = {field: manifest[field] for field in BUDGET if field in manifest}
    return found | {f"tuned_{name}": manifest[name] for name in ("commit", "versions") if name in manifest}


def rows(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """One row an arm and kernel of tuning runs' folders (candidates.jsonl, manifest.json). Raises UnequalBudgets."""
    check_budgets(folders)
    logs = {folder: records.read(folder / "candidates.jsonl") for folder in folders}
    lines = [line for log in logs.values() for line in log]
    reached = _reached(lines)
    found = []
    for folder, log in logs.items():
        for arm, kernel in dict.fromkeys((line["arm"], line["kernel"]) for line in log):
            row = {"cost": "tuning", "arm": arm, "kernel": kernel, "run": folder.name, "status": "ok"} | _about(folder)
            twins = [timed for (_, other), timed in reached.items() if _rung(other) == _rung(kernel)]
            common = set.intersection(*twins) if len(twins) > 1 else None
            found.append(row | _row(lines, arm, kernel, common))
    return found


def _row(lines: Sequence[dict[str, Any]], arm: str, kernel: str, common: set[str] | None) -> dict[str, Any]:
    """The row of an arm and kernel. common: the rows that the other arms have too; None where there are no others."""
    mine = [line for line in lines if (line["arm"], line["kernel"]) == (arm, kernel)]
    timed = _timed(mine)
    own = curve(lines, arm, kernel, start=Start.DEFAULT)
    found: dict[str, Any] = {"candidates": len({(x["row"], x.get("policy")) for x in mine if not x.get("done")})}
    found |= {"timed": len(timed), "rows": len({x["row"] for x in timed}), "spent_s": max(x["t"] for x in mine)}
    found |= _figures(own) | {"covered_s": time_to(curve(lines, arm, kernel), 0.0)}
    if common is not None:
        points = curve(lines, arm, kernel, across=True, start=Start.DEFAULT, among=common)
        found |= {"across_rows": len(common)} | _figures(points, "across_")
    return found | {"curve": [[round(t, 2), round(quality, 4)] for t, quality in own]}
