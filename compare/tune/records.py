"""What the tuner keeps: one line a candidate in candidates.jsonl, its last line wins.

Fields: arm, row, kernel, policy, config, status, reason, t (seconds of the arm's budget spent when it was written),
screen_us of the screening, and for the finalists final_us with p05_us, p95_us and rounds: the second time, which alone
is quoted. A line with `done` says that a kernel has no candidate left on a row, and where its seconds
went: tensors_s and host_s (beside the others), waited_s for the GPU, device_s alone on it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compare.record import folder as run_folder
from compare.record.store import Lines


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
    named = ("commit", "minutes", "plan", "seed")
    plain = {name: list(dict.fromkeys(m[name] for m in manifests if name in m)) for name in named}
    told = {name: found[0] if len(found) == 1 else ", ".join(map(str, found)) for name, found in plain.items() if found}
    sources = {kernel: manifests[number].get("sources", {}).get(kernel, "") for kernel, number in last.items()}
    return manifests[-1] | told | {"rows": list(rows.values()), "policies": policies, "sources": sources}, lines
