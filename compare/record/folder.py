"""A run's folder, `results/<UTC>_<gpu>_<commit>/`, and what identifies the code that ran."""

import datetime
import importlib.metadata
import os
import platform
import shlex
import subprocess
from pathlib import Path
from typing import Any

import torch

from compare.identity import FOLDER as ROOT
from compare.record import packed
from compare.record.contract import Contract
from compare.record.spec_identity import spec_hash
from compare.record.whole import CannotWrite

__all__ = ["CannotWrite", "NotARun"]


class NotARun(ValueError):
    """A folder without a readable manifest.json or cells.jsonl; the message names the file."""


def commit() -> str:
    """$DIPTYCH_COMMIT, else git's short commit, `-dirty` behind it where tracked files changed; else `nogit`."""
    if said := os.environ.get("DIPTYCH_COMMIT"):  # of a copy, whose repository may be another's or older
        return said
    try:
        if not (ROOT / ".git").exists():  # installed, perhaps inside another repository
            raise FileNotFoundError(ROOT / ".git")
        head = _git("rev-parse", "--short=10", "HEAD")
        return head + ("-dirty" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return "nogit"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


def versions() -> dict[str, str]:
    """The versions of installed packages, read without importing them."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for package in ("triton", "helion", "numpy"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def now() -> str:
    """`2026-11-28T09:00:00+00:00`, as manifests have it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def make(out: str | None, gpu: str, or_else: str = "") -> Path:
    """The run's folder: writable, and new or without cells. or_else: what else is allowed where it holds a run.

    Raises CannotWrite before any work is done.
    """
    folder = named(out, gpu)
    if packed.there(folder / "cells.jsonl"):
        raise CannotWrite(f"out: found {folder}, which holds a run already; allowed a new or empty folder{or_else}")
    return folder


def named(out: str | None, gpu: str, what: str = "") -> Path:
    """The folder `out`, by default one below results/ with the time, made if it does not exist. Raises CannotWrite."""
    at = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    folder = Path(out) if out else Path("results") / f"{what}{at}_{gpu}_{commit()}"
    ensure_writable(folder)
    return folder


def ensure_writable(folder: Path) -> None:
    """Make the folder and write into it, before hours of work would fail there. Raises CannotWrite."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise CannotWrite(f"out: found {folder}, which cannot be written: {error.strerror or error}") from error


def command(argv: list[str]) -> str:
    return shlex.join(["python", "-m", "compare.run", *argv])


def manifest(argv: list[str], run_id: str, facts: dict[str, Any]) -> dict[str, Any]:
    """The manifest: `facts`, how to repeat the run, and what it ran with."""
    return {
        "schema": 1,
        "run_id": run_id,
        "command": command(argv),
        "started": now(),
        "commit": commit().removesuffix("-dirty"),
        "dirty": commit().endswith("-dirty"),
        "machine": {"system": platform.platform(terse=True), "cpus": os.cpu_count()},
        "spec": spec_hash(),
        "timing_contract": Contract().name,
        "versions": versions(),
    } | facts
