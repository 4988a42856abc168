"""Read manifest.json defensively: it may be another tool's, of a later version, or damaged.

A null field is left out; a field of the wrong type is an error that names it.
"""

from pathlib import Path
from typing import Any

from compare.record import plain
from compare.record.contract import CACHES, TIMERS
from compare.record.fields import (
    COUNT,
    FLAG,
    NUMBER,
    OBJECT,
    OBJECTS,
    TEXT,
    TEXTS,
    WORDS,
    Check,
    nothing_or,
    object_of,
    one_of,
)
from compare.record.fields import checked as _checked

_NAMES = (
    "run_id",
    "command",
    "started",
    "commit",
    "spec",
    "timing_contract",
    "headline",
    "suite",
    "plan",
    "heuristics",
)
_FIELDS: dict[str, Check] = dict.fromkeys(_NAMES, TEXT)
_FIELDS |= dict.fromkeys(("gpu", "contract", "machine", "trace", "parts", "fleet"), OBJECT)
_FIELDS |= {
    "versions": WORDS,
    "kernels": TEXTS,
    "workloads": OBJECTS,
    "resumed": OBJECTS,
    **dict.fromkeys(("schema", "planned", "finished", "exit_code"), COUNT),
    "seconds": NUMBER,
    "dirty": FLAG,
}
_CONTRACT: dict[str, Check] = {
    "timer": one_of(TIMERS),
    "cache": one_of(CACHES),
    "name": TEXT,
    "line": TEXT,
    "processes": COUNT,
    "precision": NUMBER,
    "max_time_s": NUMBER,
}
_GPU: dict[str, Check] = {"name": TEXT, "title": TEXT, "asked": TEXT, "present": FLAG}
_TRACE: dict[str, Check] = {"name": TEXT, "assumptions": TEXT}
_FLEET: dict[str, Check] = {"seats": object_of(OBJECT), "losses": TEXTS, "unfit": WORDS}
_SEAT: dict[str, Check] = {"rows": COUNT, "address": nothing_or(TEXT), "noise": nothing_or(OBJECT)}
_NOISE: dict[str, Check] = {"mean": NUMBER, "most": NUMBER, "cells": COUNT}
_INSIDE = {"contract": _CONTRACT, "gpu": _GPU, "trace": _TRACE}


def checked(found: Any) -> dict[str, Any]:
    """The usable part of a manifest. Raises ValueError naming a field of the wrong type."""
    said = _checked(found, _FIELDS, "manifest.json")
    for name, fields in _INSIDE.items():
        if name in said:
            said[name] = _checked(said[name], fields, f"manifest.json, {name}")
    for number, load in enumerate(said.get("workloads", ())):
        _checked(load, {"label": TEXT}, f"manifest.json, workloads[{number}]", ["label"])
    if "fleet" in said:
        _ensure_fleet(said["fleet"])
    if "parts" in said:
        said["parts"] = {name: checked(part) for name, part in said["parts"].items()}
    return said


def _ensure_fleet(fleet: dict[str, Any]) -> None:
    where = "manifest.json, fleet"
    _checked(fleet, _FLEET, where, ["seats"])
    for name, seat in fleet["seats"].items():
        _checked(seat, _SEAT, f"{where}, {name}", ["rows"])
        if seat.get("noise"):
            _checked(seat["noise"], _NOISE, f"{where}, {name}, noise", _NOISE)


def read(path: Path) -> dict[str, Any]:
    """The manifest in a file. Raises OSError, ValueError or RecursionError."""
    return checked(plain.loads(path.read_text(encoding="utf-8")))
