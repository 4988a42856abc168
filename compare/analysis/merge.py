"""Merge several runs, of one GPU or of several, into one folder.

    python -m compare merge RUN RUN [RUN ...] --out DIR

The folder's manifest keeps each run's own under `parts`; a row says by its `run_id` whose it is. Repetitions of one
measurement (a cell of one GPU with one fingerprint) become further processes of it. Refused: runs of different specs,
times of different contracts, a run given twice, and a cell that two runs have with different fingerprints. Exit codes:
0, 2.
"""

import argparse
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from compare.analysis.runs import Incomparable, NotARun, RunData, ensure_one, read, tell_left_out
from compare.exits import refusing
from compare.plan.fingerprint import changed
from compare.record import folder as run_folder
from compare.record.records import Record, write_manifest
from compare.record.store import Store

HELP = "put several runs into one folder, with one report"


def parts(run: RunData) -> list[RunData]:
    """The runs that a merged folder was made of, each with its rows; any other run is its own single part."""
    manifests = run.manifest.get("parts")
    if not manifests:
        return [run]
    of = {name: [record for record in run.raw if record.run_id == name] for name in manifests}
    return [RunData(run.folder, manifest, of[name], run.note) for name, manifest in manifests.items()]


def tables(run: RunData) -> list[RunData]:
    """The runs that a report shows as tables: the parts, or one run where the parts are shares of it.

    Shares have one suite, GPU, machine and versions, and no cell twice: rows dealt to the GPUs of a machine, or left by
    an interrupted run. Their commits are listed together.
    """
    pieces = parts(run)
    manifests = [piece.manifest for piece in pieces]
    versions = _versions(manifests)
    if len(pieces) == 1 or not _are_shares(pieces, versions):
        return pieces
    planned = {(row["label"], kernel) for one in manifests for row in one["workloads"] for kernel in one["kernels"]}
    one = manifests[0] | {
        "run_id": run.manifest["run_id"],
        "command": " && ".join(manifest.get("command", "") for manifest in manifests),
        "commit": ", ".join(dict.fromkeys(manifest.get("commit", "") for manifest in manifests)),
        "dirty": any(manifest.get("dirty") for manifest in manifests),
        "versions": versions,
        "planned": len(planned),
        "finished": len({record.cell_id for record in run.raw}),
    }
    return [RunData(run.folder, one, run.raw, run.note)]


def as_one(run: RunData) -> RunData:
    """The run as one table where the report shows one; else as it lies in its folder."""
    shown = tables(run)
    return shown[0] if len(shown) == 1 else run


def _are_shares(pieces: Sequence[RunData], versions: dict[str, str]) -> bool:
    manifests = [piece.manifest for piece in pieces]
    if any(not manifest.get("workloads") or not manifest.get("kernels") for manifest in manifests):
        return False
    alike = ("gpu", "machine", "suite", "headline", "heuristics", "trace")
    if any(manifest.get(key) != manifests[0].get(key) for manifest in manifests for key in alike):
        return False
    if any(versions[name] != found for one in manifests for name, found in one.get("versions", {}).items()):
        return False
    cells = [{record.cell_id for record in piece.raw} for piece in pieces]
    return sum(map(len, cells)) == len(set().union(*cells))


def _versions(manifests: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The versions of all parts together: an interrupted run may lack some."""
    return {name: found for manifest in manifests for name, found in manifest.get("versions", {}).items()}


def merge(runs: Sequence[RunData], out: Path) -> Path:
    """Write the merged folder and return it. Raises Incomparable; CannotWrite where a run is."""
    pieces = [part for run in runs for part in parts(run)]
    ensure_alike(pieces)
    names = _names(pieces)
    rows = list(_rows(pieces, names))
    folder = run_folder.make(str(out), "merged")
    with Store(folder / "cells.jsonl") as store:
        for row in rows:
            store.append(row)
    write_manifest(folder / "manifest.json", _manifest(pieces, names, folder.name, len(rows)))
    return folder


def ensure_alike(pieces: Sequence[RunData]) -> None:
    """Raise Incomparable unless all have one spec, and those with times one timing contract."""
    ensure_one("spec", pieces, lambda run: run.manifest.get("spec", ""))
    ensure_one("timing contract", filter(_timed, pieces), lambda run: run.contract)


def _timed(run: RunData) -> bool:
    return any(record.timing for record in run.raw)


def _names(pieces: Sequence[RunData]) -> list[str]:
    """A name for each part: its run's id, with a number where the id occurs again."""
    names: list[str] = []
    for run in pieces:
        name = run.manifest.get("run_id") or run.folder.name
        numbered = (f"{name}#{number}" for number in itertools.count(2))
        names.append(next(one for one in itertools.chain([name], numbered) if one not in names))
    return names


def _rows(pieces: Sequence[RunData], names: Sequence[str]) -> Iterator[Record]:
    """The rows under their part's name. Processes of one GPU are numbered across parts, because rounds of two runs are
    never pairs."""
    seen: dict[tuple[str, str, str], tuple[Record, str]] = {}
    used: dict[str, int] = {}
    for run, name in zip(pieces, names, strict=True):
        first = used.get(run.gpu, 0)
        for record in run.raw:
            key = run.gpu, record.workload.id, record.kernel
            other, whose = seen.setdefault(key, (record, name))
            if whose != name:
                _ensure_repetition(other, whose, record, name)
            yield record.replace(run_id=name, process=first + record.process)
        used[run.gpu] = first + 1 + max((record.process for record in run.raw), default=-1)


def _ensure_repetition(first: Record, whose: str, second: Record, name: str) -> None:
    what = f"{first.kernel} on {first.workload.label}"
    if first == second:
        raise Incomparable(f"{what}: found the same row in {whose} and in {name}, allowed each measurement once")
    if first.fingerprint and first.fingerprint == second.fingerprint:
        return
    prints = [record.fingerprint or "none" for record in (first, second)]
    why = ", ".join(changed(first, second)) or f"fingerprints {' and '.join(prints)}"
    raise Incomparable(f"{what}: found it in {whose} and in {name}, which differ ({why}); allowed repetitions")


def _manifest(pieces: Sequence[RunData], names: Sequence[str], run_id: str, rows: int) -> dict[str, Any]:
    gpus = {run.gpu: run.manifest.get("gpu") for run in pieces}
    first = pieces[0].manifest
    timed = next((run.contract for run in pieces if _timed(run)), pieces[0].contract)
    contracts = [run.manifest["contract"] for run in pieces if run.contract == timed and "contract" in run.manifest]
    return {
        "schema": 1,
        "run_id": run_id,
        "command": f"python -m compare merge {' '.join(names)}",
        "started": run_folder.now(),
        "headline": "; ".join(dict.fromkeys(run.headline for run in pieces)),
        "gpu": next(iter(gpus.values())) if len(gpus) == 1 else None,
        "suite": ", ".join(dict.fromkeys(run.suite for run in pieces)),
        "spec": first.get("spec", ""),
        "timing_contract": timed,
        "versions": first.get("versions", {}) if len(pieces) == 1 else {},
        "planned": sum(run.manifest.get("planned", len(run.raw)) for run in pieces),
        "finished": rows,
        "parts": dict(zip(names, (run.manifest for run in pieces), strict=True)),
    } | ({"contract": contracts[0]} if contracts else {})


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a folder that run wrote")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="the new folder")


@refusing(NotARun, Incomparable)
def main(asked: argparse.Namespace) -> int:
    runs = [read(folder) for folder in asked.runs]
    if len(runs) < 2:
        raise Incomparable(f"runs: found {len(runs)}, allowed two or more")
    folder = merge(runs, asked.out)
    tell_left_out(runs)
    print(f"{sum(len(run.raw) for run in runs)} rows of {len(runs)} runs; {folder}")
    return 0
