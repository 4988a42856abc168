"""The tuner's log candidates.jsonl: a line per candidate, of which the last one counts.

Fields: arm, row, kernel, policy, config, status, reason, t (seconds of the arm's budget spent when it was written),
screen_us of the screening, and for the finalists final_us with p05_us, p95_us and rounds: the second time, which alone
is quoted. A line with `done` says that a kernel has no candidate left on a row, and where its seconds
went: tensors_s and host_s (beside the others), waited_s for the GPU, device_s alone on it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from compare.record import folder as run_folder
from compare.record import packed, plain
from compare.record.fields import (
    COUNT,
    FLAG,
    NUMBER,
    OBJECT,
    OBJECTS,
    TEXT,
    TIME,
    WORDS,
    checked,
    list_of,
    nothing_or,
    object_of,
)
from compare.record.records import ensure_typed
from compare.record.store import Lines
from compare.workloads import Workload

_KERNEL = (lambda found: isinstance(found, str) and found.count("/") == 1, "a kernel's id, as triton/auto")
_LINE = dict.fromkeys(("arm", "row", "policy", "status", "reason"), TEXT) | {"kernel": _KERNEL, "t": NUMBER}
_LINE |= {"config": nothing_or(OBJECT), "screen_us": TIME, "final_us": TIME, "done": FLAG}
_ALWAYS, _CANDIDATE, _TIMED = ("arm", "row", "kernel"), ("policy", "status"), ("config", "screen_us")
_FIELDS = dict.fromkeys(("gpu", "started", "commit", "plan"), TEXT) | {"minutes": NUMBER, "seed": COUNT}
_FIELDS |= {"rows": list_of(OBJECT), "policies": object_of(OBJECTS), "sources": WORDS, "versions": WORDS}
_NEEDED = ("gpu", "rows", "policies")


class NotThisRun(run_folder.CannotWrite):
    """The folder holds a run with other rows, kernels, seed, candidates or GPU."""


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


def read(path: Path, fits: bool = False) -> list[dict[str, Any]]:
    """The lines of a log. fits: whether timed lines must have the fields of a fit.

    Raises NotThisRun naming the line and field of what is not in such a log.
    """
    if not packed.there(path):
        return []
    whole = packed.read_bytes(path).rpartition(b"\n")[0]  # a killed run may leave a torn last line
    found = []
    for number, line in enumerate(whole.split(b"\n"), 1):
        if line.strip():
            try:
                found.append(_candidate(plain.loads(line.decode("utf-8")), fits))
            except (ValueError, RecursionError) as error:
                raise NotThisRun(f"{path}, line {number}: {error}") from error
    return found


def _candidate(said: Any, fits: bool) -> dict[str, Any]:
    line = checked(said, _LINE, "candidate", _ALWAYS)
    needed = (*_CANDIDATE * (not line.get("done")), *_TIMED * (fits and "final_us" in line))
    return checked(line, _LINE, "candidate", needed)


def manifest(folder: Path, needed: Sequence[str] = _NEEDED) -> dict[str, Any]:
    """The manifest of a tuner's run. Raises NotThisRun that names the field; OSError where there is none."""
    path = folder / "manifest.json"
    try:
        found = checked(plain.loads(path.read_text(encoding="utf-8")), _FIELDS, "manifest.json", needed)
        if bad := [kernel for kernel in found.get("policies", ()) if not _KERNEL[0](kernel)]:
            raise ValueError(f"manifest.json: found policies of {bad[0]!r:.60}, allowed {_KERNEL[1]}")
        list(workloads(found))
    except (ValueError, RecursionError) as error:
        raise NotThisRun(f"fit: found {folder} with {error}, allowed a folder that tune wrote") from error
    return found


def workloads(of: dict[str, Any]) -> Iterator[Workload]:
    """The rows of a manifest. Raises ValueError that names the one which is no workload."""
    for number, row in enumerate(of.get("rows", ())):
        try:
            made = Workload.from_dict(row)
            ensure_typed(made)
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
            why = f"no field {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"manifest.json: found rows[{number}] with {why}, allowed a workload") from error
        yield made


def done(lines: Sequence[dict[str, Any]], arm: str) -> set[tuple[str, str]]:
    """The (row, kernel) pairs that an arm has finished."""
    return {(line["row"], line["kernel"]) for line in lines if line["arm"] == arm and line.get("done")}


def spent(lines: Sequence[dict[str, Any]], arm: str) -> float:
    """Seconds of its budget that an arm has spent, according to its lines."""
    return max((line["t"] for line in lines if line["arm"] == arm), default=0.0)


def latest(lines: Sequence[dict[str, Any]], arm: str) -> dict[tuple[str, str, str], dict[str, Any]]:
    """The last line of each (kernel, row, policy) of an arm."""
    return {(x["kernel"], x["row"], x["policy"]): x for x in lines if x["arm"] == arm and not x.get("done")}
