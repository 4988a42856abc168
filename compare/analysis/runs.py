"""A run folder as a report reads it: the manifest, the cells, their table and their compiled functions."""

import difflib
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from compare.analysis import committed, summary, tables, verdict
from compare.analysis.cells import combined
from compare.record import noise, packed
from compare.record.folder import NotARun
from compare.record.manifest import read as read_manifest
from compare.record.noise import Noise
from compare.record.records import Record, Status, latest
from compare.record.store import load


@dataclass(frozen=True)
class RunData:
    """The content of manifest.json and cells.jsonl; nothing is measured, estimated or looked up.

    raw: the last row of each cell and process; `records` combines processes. note: the lines that could not be read,
    empty where all could. figures: drawn figures by name.
    """

    folder: Path
    manifest: dict[str, Any]
    raw: list[Record]
    note: str = ""
    figures: dict[str, Path] = field(default_factory=dict)

    @cached_property
    def records(self) -> list[Record]:
        """One record a cell, its processes combined."""
        return combined(self.raw)

    @cached_property
    def rows(self) -> pd.DataFrame:
        return summary.table(self.raw, self.judged)

    @cached_property
    def facts(self) -> list[dict[str, Any]]:
        return summary.distinct_facts(self.records)

    @cached_property
    def floor(self) -> tuple[Noise | None, str]:
        """(the noise floor in the folder, a sentence about it). A floor of another GPU or contract is ignored."""
        path = self.folder / "noise.json"
        if not path.exists():
            return None, "No noise floor was measured with this run (`python -m compare doctor`)."
        try:
            found = noise.read(path)
        except (noise.NotNoise, OSError) as error:
            return None, f"The noise floor was not read: {error}."
        if (found.gpu, found.contract) != (self.gpu, self.contract):
            return None, f"The noise floor is that of {found.gpu} under {found.contract}: not used."
        words = f"Identical code differed by {tables.share(found.within)} within a process and"
        return found, f"{words} {tables.share(found.between)} between processes (`python -m compare doctor`)."

    @property
    def margin(self) -> float:
        """The margin of its verdicts."""
        return verdict.margin_of(self.floor[0])

    @cached_property
    def judged(self) -> list[verdict.Verdict]:
        """Every timed cell against the unit."""
        unit = verdict.unit_of(self.raw)
        return verdict.judge(self.raw, verdict.unit_pairs(self.raw, unit), self.margin) if unit else []

    @property
    def ok(self) -> list[Record]:
        return [record for record in self.records if record.status is Status.OK]

    @property
    def timed(self) -> bool:
        return not self.rows.empty and bool(self.rows.us.notna().any())

    @property
    def absent(self) -> bool:
        """Whether the run named a GPU that was absent."""
        gpu = self.manifest.get("gpu")
        return bool(gpu) and not gpu.get("present", False)

    @property
    def gpu(self) -> str:
        """`h200`; `cpu` where no GPU was asked for."""
        return (self.manifest.get("gpu") or {}).get("name") or "cpu"

    @property
    def gpu_title(self) -> str:
        gpu = self.manifest.get("gpu") or {}
        return gpu.get("title") or gpu.get("name") or "no GPU"

    @property
    def contract(self) -> str:
        """The name of the timing contract; times of different contracts are never compared."""
        contract = self.manifest.get("contract") or {}
        return contract.get("name") or self.manifest.get("timing_contract", "")

    @property
    def suite(self) -> str:
        return self.manifest.get("suite") or "run"

    @property
    def elsewhere(self) -> committed.Committed | None:
        """The committed speeds, for a run of a machine without a GPU that named none."""
        return committed.headline() if self.gpu == "cpu" and not self.timed else None

    @property
    def title(self) -> str:
        if found := self.elsewhere:
            return f"Correctness on this machine; speeds measured on an {found.gpu} on {found.day}"
        return f"Paged attention: {self.suite} on {self.gpu_title}"

    @property
    def headline(self) -> str:
        """The first line of the report: the evidence behind its figures."""
        if self.manifest.get("headline"):
            return self.manifest["headline"]
        if self.absent:
            return f"{self.gpu} is not here: compiled and checked, not timed"
        if not self.timed:
            return "No GPU: checked under the interpreter, not timed"
        return f"Checked and timed on {self.gpu_title}"


def read(folder: Path) -> RunData:
    """The run in a folder. Raises NotARun."""
    folder = Path(folder)
    try:
        manifest = read_manifest(folder / "manifest.json")
        cells = folder / "cells.jsonl"
        loaded = load(cells) if packed.there(cells) else None
    except OSError as error:
        name = Path(error.filename or folder).name
        why = f"where {name} cannot be read ({error.strerror})" if folder.is_dir() else "which is no folder"
        message = f"run folder: found {folder}, {why}, allowed one that compare.run wrote"
        raise NotARun(message + _nearest(folder)) from error
    except (ValueError, RecursionError) as error:
        raise NotARun(f"run folder: found {folder} with {error}, allowed one that compare.run wrote") from error
    return RunData(folder, manifest, latest(loaded.records) if loaded else [], loaded.note if loaded else "")


def tell_left_out(runs: Iterable[RunData]) -> None:
    """Say on stderr which lines of which run are in no figure, because they could not be read."""
    for run in runs:
        if run.note:
            print(f"{run.folder}: {run.note}", file=sys.stderr)


class Incomparable(ValueError):
    """Runs whose figures have different meanings; the message names two of them and what differs."""


def ensure_one(what: str, runs: Iterable[RunData], of: Callable[[RunData], str]) -> None:
    """Raise Incomparable unless `of` says the same of all runs."""
    first, *others = [(run, of(run)) for run in runs] or [None]
    for run, found in others:
        if found != first[1]:
            both = f"{first[0].folder} under {first[1] or 'none'} and {run.folder} under {found or 'none'}"
            raise Incomparable(f"{what}: found {both}; allowed runs of one {what}")


def _nearest(folder: Path) -> str:
    """Runs inside a folder that is no run, else similar names beside it."""
    inside = folder.is_dir()
    try:
        there = sorted(path.parent.name for path in (folder if inside else folder.parent).glob("*/manifest.json"))
    except OSError:
        return ""
    near = there[:3] if inside else difflib.get_close_matches(folder.name, there, n=3, cutoff=0.5)
    at = folder if inside else folder.parent
    return f"; nearest: {', '.join(str(at / name) for name in near)}" if near else ""
