"""Resume a run: decide which rows of its folder still count, and move the others aside.

A row counts where its cell is planned and has the fingerprint that it would get now. Kernels of one job and process
take turns, and their rounds are pairs: where one of them has no time yet and none of the rows says why, all of them are
timed again together. What does not count moves to `superseded.jsonl`; nothing that was measured is thrown away.
"""

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compare.record import packed
from compare.record.manifest import read as read_manifest
from compare.record.records import Record, Status, latest
from compare.record.store import Lines, Loaded, load
from compare.record.whole import put

if TYPE_CHECKING:  # a plan knows GPUs, and with them torch
    from compare.plan.plan import Plan

SUPERSEDED = "superseded.jsonl"


@dataclass(frozen=True)
class Kept:
    """The rows that count, and (row, reason) for the others. Bad lines are in `loaded.skipped`."""

    loaded: Loaded
    records: tuple[Record, ...]
    dropped: tuple[tuple[Record, str], ...]

    @property
    def done(self) -> set[tuple[str, int]]:
        """(cell, process) pairs that need not run again."""
        return {(record.cell_id, record.process) for record in self.records}

    @property
    def line(self) -> str:
        """One line that says how many rows were kept."""
        whys = Counter(why for _, why in self.dropped)
        again = "; ".join(f"{count} {why}" for why, count in whys.items())
        parts = [f"{len(self.records)} finished rows kept", again, self.loaded.note]
        return "; ".join(filter(None, parts))


def keep(
    loaded: Loaded,
    fingerprints: Mapping[str, str],
    jobs: Sequence[Sequence[str]],
    processes: int = 1,
    *,
    retry: bool = False,
    also: Sequence[Mapping[str, str]] = (),
) -> Kept:
    """Which rows count. fingerprints: of every planned cell. jobs: the cells that are run together. retry: run what
    failed or was unavailable again. also: further fingerprints that count, of other nodes."""
    why: dict[tuple[str, int], str] = {}
    rows = {(record.cell_id, record.process): record for record in latest(loaded.records)}
    for key, record in rows.items():
        why[key] = _why_not(record, [fingerprints, *also], processes, retry)
    for job in jobs:
        for process in range(processes):
            keys = [(cell, process) for cell in job]
            timed = [key for key in keys if key in rows and not why[key] and rows[key].timing]
            if timed and any(key not in rows or why[key] for key in keys):
                why |= dict.fromkeys(timed, "to be timed again with the others of their row")
        why |= dict.fromkeys(_of_two_gpus(job, rows, why, processes), "to be timed again on one GPU")
    counted = tuple(record for key, record in rows.items() if not why[key])
    last = {id(record) for record in rows.values()}
    dropped = [(record, "a later row of the same cell") for record in loaded.records if id(record) not in last]
    dropped += [(record, why[key]) for key, record in rows.items() if why[key]]
    return Kept(loaded, counted, tuple(dropped))


def _of_two_gpus(
    job: Sequence[str], rows: Mapping[tuple[str, int], Record], why: Mapping[tuple[str, int], str], processes: int
) -> list[tuple[str, int]]:
    """The timed rows of a job, where a fleet timed it: processes of one cell are repetitions on one GPU, and what is
    not there yet may come from another one."""
    keys = [(cell, process) for cell in job for process in range(processes)]
    timed = [key for key in keys if key in rows and not why[key] and rows[key].timing]
    seats = {rows[key].seat for key in timed}
    whole = all(key in rows and not why[key] for key in keys)
    return timed if len(seats) > 1 or (seats - {""} and not whole) else []


def _why_not(record: Record, fingerprints: Sequence[Mapping[str, str]], processes: int, retry: bool) -> str:
    """Why a row does not count; empty if it does."""
    if record.cell_id not in fingerprints[0] or record.process >= processes:
        return "not planned now"
    if record.fingerprint not in {known[record.cell_id] for known in fingerprints}:
        return "of another fingerprint"
    failed = record.status.is_failure or record.status is Status.UNAVAILABLE
    return "failed, run again" if retry and failed else ""


def settle(kept: Kept) -> None:
    """Leave the rows that count alone in the file; the others and the bad lines move to SUPERSEDED beside it.

    Whatever ends this, each row is in one of the two files. Raises OSError; Busy where another run writes there.
    """
    path = kept.loaded.path
    if not kept.dropped and not kept.loaded.skipped:
        return
    with Lines(path):  # nobody else writes meanwhile; this cuts a torn line
        with Lines(path.with_name(SUPERSEDED)) as moved:
            for line in _others(kept):
                moved.append(line)
        put(path, "".join(f"{record.to_json()}\n" for record in kept.records))


def _others(kept: Kept) -> list[str]:
    """Dropped rows and unreadable whole lines, as text; a torn last line is left out."""
    data = kept.loaded.path.read_bytes().split(b"\n")
    bad = [data[skipped.line - 1] for skipped in kept.loaded.skipped if skipped.line - 1 < len(data) - 1]
    return [record.to_json() for record, _ in kept.dropped] + [line.decode("utf-8", "replace") for line in bad]


def finished(folder: Path) -> Loaded:
    """The rows in a run's folder; empty without cells.jsonl."""
    path = folder / "cells.jsonl"
    return load(path) if packed.there(path) else Loaded(path, [])


class CannotResume(ValueError):
    """No such run can be resumed; the message says what was found."""


@dataclass(frozen=True)
class Former:
    """The run to resume: its folder and its manifest."""

    folder: Path
    manifest: Mapping[str, Any]

    def told(self, kept: Kept, now: str) -> list[dict[str, Any]]:
        """The manifest's list of resumptions: when, at which commit, and how many rows were kept."""
        entry = {"at": now, "commit": self.manifest.get("commit", ""), "kept": len(kept.records)}
        return [*self.manifest.get("resumed", []), entry]

    @property
    def seconds(self) -> float:
        """Seconds of all parts so far. A killed part counts until its last row."""
        known, begun, rows = self.manifest.get("seconds", 0.0), _begun(self.manifest), self.folder / "cells.jsonl"
        if "exit_code" in self.manifest or begun is None or not rows.exists():
            return known
        return known + max(0.0, rows.stat().st_mtime - begun)


def _begun(manifest: Mapping[str, Any]) -> float | None:
    """When the last part of a run began, in seconds since 1970; None if the manifest does not say."""
    parts = [manifest.get("started"), *(part.get("at") for part in manifest.get("resumed", ()))]
    try:
        return datetime.datetime.fromisoformat(parts[-1]).timestamp()
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def find(plan: "Plan", named: str | None, results: Path = Path("results"), *, begins: bool = False) -> Former | None:
    """The run in the folder `named`; without a name, the last of this plan and contract.

    begins: where `named` holds no run yet, one begins there: None. Raises CannotResume for a run of another plan or
    timing contract, both named, and where there is none.
    """
    if named:
        folder = Path(named)
        if packed.there(folder / "cells.jsonl"):
            return _same(folder, plan)
        if not begins:
            raise absent(folder)
        return None
    for path in sorted(results.glob("*/manifest.json"), reverse=True):  # a folder's name begins with the time
        manifest = _manifest(path)
        if (manifest.get("plan"), manifest.get("timing_contract")) == (plan.hash, plan.contract.name):
            return Former(path.parent, manifest)
    raise CannotResume(f"resume: found no run of plan {plan.hash} under {results}, allowed --resume DIR")


def absent(folder: Path) -> CannotResume:
    """The error for a folder that holds no run."""
    found = "which holds no run" if folder.exists() else "which is not there"
    return CannotResume(f"resume: found {folder}, {found}, allowed a run's folder; --out {folder} --resume begins one")


def _same(folder: Path, plan: "Plan") -> Former:
    manifest = _manifest(folder / "manifest.json")
    for what, name, asked in (("plan", "plan", plan.hash), ("timing contract", "timing_contract", plan.contract.name)):
        if manifest.get(name) != asked:
            found = f"{folder} with {what} {manifest.get(name, 'none')}"
            raise CannotResume(f"resume: found {found}, allowed {asked} as asked for; another --out begins anew")
    return Former(folder, manifest)


def _manifest(path: Path) -> Mapping[str, Any]:
    """The manifest of a folder; empty if it cannot be read."""
    try:
        return read_manifest(path)
    except (OSError, ValueError, RecursionError):
        return {}
