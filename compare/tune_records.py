"""What the tuner keeps: one line a candidate in candidates.jsonl, its last line wins; and the times by row and policy.

Fields: arm, row, kernel, policy, config, status, reason, t (seconds of the arm's budget spent when it was written),
screen_us of the screening, and for the finalists final_us with p05_us, p95_us and rounds: the second time, which alone
is quoted. A line with `done` says that a kernel has no candidate left on a row, and where its seconds
went: tensors_s and host_s (beside the others), waited_s for the GPU, device_s alone on it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compare.store import Lines
from compare.tune_space import DEFAULT

# Statuses of a candidate that was not timed because it is slow; what is wrong or does not fit must never be chosen.
SLOW = frozenset({"hopeless", "raced", "timeout", "not_reached", "spills", "workspace"})
LOST, FORBIDDEN = 4.0, 1000.0  # regret that stands for `slow, not timed` (it was above 2 or 3) and for `must not run`


class Log:
    """Appends lines to a JSONL file, each on the disk before `add` returns; reads what an earlier run left."""

    def __init__(self, path: Path) -> None:
        self._kept = Lines(path)
        self.lines: list[dict[str, Any]] = read(path)

    def add(self, **fields: Any) -> None:
        self._kept.append(json.dumps(fields))
        self.lines.append(fields)

    def close(self) -> None:
        self._kept.close()


def read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def done(lines: Sequence[dict[str, Any]], arm: str) -> set[tuple[str, str]]:
    """The (row, kernel) pairs of an arm with no candidate left."""
    return {(line["row"], line["kernel"]) for line in lines if line["arm"] == arm and line.get("done")}


def spent(lines: Sequence[dict[str, Any]], arm: str) -> float:
    """Seconds of the arm's budget that its lines say are gone."""
    return max((line["t"] for line in lines if line["arm"] == arm), default=0.0)


def latest(lines: Sequence[dict[str, Any]], arm: str) -> dict[tuple[str, str, str], dict[str, Any]]:
    """The last line of each (kernel, row, policy) of an arm."""
    return {(x["kernel"], x["row"], x["policy"]): x for x in lines if x["arm"] == arm and not x.get("done")}


@dataclass(frozen=True)
class Times:
    """Of one kernel: us[row, policy], the final time where there is one, else no less than the row's worst final.

    A loser of the screening lost by times that nobody repeated, so it gets the worse of the two. regret[row, policy] is
    us over the row's best, LOST or FORBIDDEN where there is no time.
    """

    kernel: str
    rows: tuple[str, ...]
    policies: tuple[str, ...]
    us: np.ndarray
    regret: np.ndarray


def times(lines: Sequence[dict[str, Any]], arm: str, kernel: str) -> Times:
    """Every row on which the kernel is done, and every policy that has a time on one of them.

    What was wrong, lost its process or did not compile on one row is no choice on any other.
    """
    last = latest(lines, arm)
    rows = sorted({row for row, k in done(lines, arm) if k == kernel})
    mine = {(row, policy): line for (k, row, policy), line in last.items() if k == kernel and row in rows}
    policies = list(dict.fromkeys(policy for (_, policy), x in mine.items() if "screen_us" in x))
    us = np.full((len(rows), len(policies)), np.nan)
    missing = np.full(us.shape, LOST)
    for i, row in enumerate(rows):
        finals = [x["final_us"] for (r, _), x in mine.items() if r == row and "final_us" in x]
        for j, policy in enumerate(policies):
            line = mine.get((row, policy), {"status": "not_reached"})
            if line["status"] == "duplicate":
                line = mine.get((row, line["of"]), line)
            if line["status"] == "ok" and finals:
                us[i, j] = line.get("final_us", max(line["screen_us"], *finals))
            elif line["status"] not in SLOW | {"ok", "duplicate"}:
                missing[i, j] = FORBIDDEN
    kept = np.isfinite(us).any(axis=1).nonzero()[0]
    us, missing = us[kept], missing[kept]
    never = (np.isnan(us) & (missing == FORBIDDEN)).any(axis=0) & (np.array(policies) != DEFAULT.name)
    us, missing, policies = (
        us[:, ~never],
        missing[:, ~never],
        [p for p, bad in zip(policies, never, strict=True) if not bad],
    )
    best = np.nanmin(us, axis=1, keepdims=True) if len(kept) else us
    regret = np.where(np.isnan(us), missing, us / best)
    return Times(kernel, tuple(rows[i] for i in kept), tuple(policies), us, regret)
