"""Tuning time: how good the best config so far was, second by second of an arm's budget, from the tuner's log.

The quality of a kernel at time t is the geometric mean over its rows of (best known time) / (best time so far), 0 while
a row has none. A candidate counts from the line that first timed it, with its last word: the repeated time of a
finalist, else the screening's. Best known: of the same arm and kernel, so each DSL is held to what it found itself;
with `across`, of any arm and kernel on the row, the other DSL's included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compare import tune_records

SHARES = (0.90, 0.95, 0.99)


def _timed(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry a candidate that has a time: arm, kernel, row, t of its first time, us of its last word."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for line in lines:
        if line.get("done") or line.get("status") != "ok":
            continue
        us = line.get("final_us", line.get("screen_us"))
        if us is None:
            continue
        key = tuple(line[name] for name in ("arm", "kernel", "row", "policy"))
        kept = found.setdefault(key, dict(zip(("arm", "kernel", "row", "policy"), key, strict=True)) | {"t": line["t"]})
        kept["us"] = us
    return sorted(found.values(), key=lambda entry: entry["t"])


def _best(entries: Sequence[dict[str, Any]]) -> dict[str, float]:
    best: dict[str, float] = {}
    for entry in entries:
        best[entry["row"]] = min(entry["us"], best.get(entry["row"], math.inf))
    return best


def curve(lines: Sequence[dict[str, Any]], arm: str, kernel: str, *, across: bool = False) -> list[tuple[float, float]]:
    """(seconds, quality) at every improvement; empty where the kernel was never timed on all of its rows."""
    everything = _timed(lines)
    mine = [entry for entry in everything if entry["arm"] == arm and entry["kernel"] == kernel]
    rows = {entry["row"] for entry in mine}
    known = _best(everything if across else mine)
    so_far: dict[str, float] = {}
    points: list[tuple[float, float]] = []
    for entry in mine:
        row = entry["row"]
        if entry["us"] >= so_far.get(row, math.inf):
            continue
        so_far[row] = entry["us"]
        if len(so_far) == len(rows):
            logs = [math.log(known[name] / so_far[name]) for name in rows]
            points.append((entry["t"], math.exp(math.fsum(logs) / len(logs))))
    return points


def time_to(points: Sequence[tuple[float, float]], share: float) -> float | None:
    """The first second from which the quality is at least `share`; None where it never was."""
    return next((seconds for seconds, quality in points if quality >= share - 1e-12), None)


def rows(folder: Path) -> list[dict[str, Any]]:
    """One row an arm and kernel of a tuning run's folder (candidates.jsonl)."""
    lines = tune_records.read(folder / "candidates.jsonl")
    found = []
    for arm, kernel in dict.fromkeys((line["arm"], line["kernel"]) for line in lines):
        mine = [line for line in lines if (line["arm"], line["kernel"]) == (arm, kernel)]
        own, across = (curve(lines, arm, kernel, across=flag) for flag in (False, True))
        row: dict[str, Any] = {"cost": "tuning", "arm": arm, "kernel": kernel, "run": folder.name, "status": "ok"}
        row |= {"candidates": len({(x["row"], x.get("policy")) for x in mine if not x.get("done")})}
        row |= {"rows": len({line["row"] for line in mine}), "spent_s": max(line["t"] for line in mine)}
        row |= {f"to_{share:.0%}_s": time_to(own, share) for share in SHARES}
        row |= {f"across_to_{share:.0%}_s": time_to(across, share) for share in SHARES}
        row["curve"] = [[round(t, 2), round(quality, 4)] for t, quality in own]
        found.append(row)
    return found
