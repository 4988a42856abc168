"""What the tuner keeps: one line a candidate in candidates.jsonl, its last line wins; and the times by row and policy.

Fields: arm, row, kernel, policy, config, status, reason, t (seconds of the arm's budget spent when it was written),
screen_us of the screening, and for the finalists final_us with p05_us, p95_us and rounds: the second time, which alone
is quoted. A line with `done` says that a kernel has no candidate left on a row, and where its seconds
went: tensors_s and host_s (beside the others), waited_s for the GPU, device_s alone on it.
"""

from __future__ import annotations

import json
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compare.record import folder as run_folder
from compare.record.store import Lines
from compare.tune.space import DEFAULT

# Statuses of a candidate that was not timed because it is slow; what is wrong or does not fit must never be chosen.
SLOW = frozenset({"hopeless", "raced", "timeout", "not_reached", "spills", "workspace"})
LOST, FORBIDDEN = 4.0, 1000.0  # regret that stands for `slow, not timed` (it was above 2 or 3) and for `must not run`


class NotThisRun(run_folder.CannotWrite):
    """The folder holds another run: other rows, kernels, seed, candidates or GPU."""


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
    whole = path.read_text(encoding="utf-8").rpartition("\n")[0]  # a run that was killed may leave a torn line behind
    return [json.loads(line) for line in whole.splitlines() if line]


def done(lines: Sequence[dict[str, Any]], arm: str) -> set[tuple[str, str]]:
    """The (row, kernel) pairs of an arm with no candidate left."""
    return {(line["row"], line["kernel"]) for line in lines if line["arm"] == arm and line.get("done")}


def spent(lines: Sequence[dict[str, Any]], arm: str) -> float:
    """Seconds of the arm's budget that its lines say are gone."""
    return max((line["t"] for line in lines if line["arm"] == arm), default=0.0)


def latest(lines: Sequence[dict[str, Any]], arm: str) -> dict[tuple[str, str, str], dict[str, Any]]:
    """The last line of each (kernel, row, policy) of an arm."""
    return {(x["kernel"], x["row"], x["policy"]): x for x in lines if x["arm"] == arm and not x.get("done")}


def _status(line: dict[str, Any]) -> str:
    """A line's status; before 2026-11-21 17:30 a compiler that ran out of time was logged as a compile_error."""
    return "timeout" if line.get("reason", "").startswith("the compiler's process: timeout") else line["status"]


def together(folders: Sequence[Path]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The manifest and the lines of one run, or of several; a kernel's policies and lines are those of the last that
    has it. Raises NotThisRun where they are of several GPUs."""
    missing = [str(folder) for folder in folders if not (folder / "manifest.json").exists()]
    if missing:
        raise NotThisRun(f"fit: found {', '.join(missing)} without manifest.json, allowed folders that tune wrote")
    manifests = [json.loads((folder / "manifest.json").read_text()) for folder in folders]
    gpus = {manifest["gpu"] for manifest in manifests}
    if len(gpus) > 1:
        raise NotThisRun(f"fit: found runs of {', '.join(sorted(gpus))}, allowed runs of one GPU")
    last = {kernel: number for number, manifest in enumerate(manifests) for kernel in manifest["policies"]}
    lines = [
        line
        for number, folder in enumerate(folders)
        for line in read(folder / "candidates.jsonl")
        if last[line["kernel"]] == number
    ]
    rows = {row["label"]: row for manifest in manifests for row in manifest["rows"]}
    policies = {kernel: manifests[number]["policies"][kernel] for kernel, number in last.items()}
    plain = {name: list(dict.fromkeys(m[name] for m in manifests)) for name in ("commit", "minutes", "plan", "seed")}
    told = {name: found[0] if len(found) == 1 else ", ".join(map(str, found)) for name, found in plain.items()}
    return manifests[-1] | told | {"rows": list(rows.values()), "policies": policies}, lines


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


def times(lines: Sequence[dict[str, Any]], arm: str, kernel: str, among: Container[str] | None = None) -> Times:
    """Every row (of `among`) on which the kernel is done, and every policy that has a time on one of them.

    What was wrong, lost its process or did not compile on one row is no choice on any other. A row on which there was
    no time for the default says nothing, for every choice is judged against it.
    """
    last = latest(lines, arm)
    rows = sorted({row for row, k in done(lines, arm) if k == kernel and (among is None or row in among)})
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
            elif _status(line) not in SLOW | {"ok", "duplicate"}:
                missing[i, j] = FORBIDDEN
    is_default = np.array([policy == DEFAULT.name for policy in policies], dtype=bool)
    never = (np.isnan(us) & (missing == FORBIDDEN)).any(axis=0) & ~is_default
    us, missing, is_default = us[:, ~never], missing[:, ~never], is_default[~never]
    policies = [policy for policy, bad in zip(policies, never, strict=True) if not bad]
    silent = (np.isnan(us) & (missing == LOST) & is_default).any(axis=1)
    kept = (np.isfinite(us).any(axis=1) & ~silent).nonzero()[0]
    us, missing = us[kept], missing[kept]
    best = np.nanmin(us, axis=1, keepdims=True) if len(kept) else us
    regret = np.where(np.isnan(us), missing, us / best)
    return Times(kernel, tuple(rows[i] for i in kept), tuple(policies), us, regret)
