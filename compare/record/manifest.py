"""Read manifest.json defensively: it may be another tool's, of a later version, or damaged.

A null field is left out; a field of the wrong type is an error that names it.
"""

import json
from pathlib import Path
from typing import Any

from compare.record import fields, plain
from compare.record.contract import CACHES, TIMERS
from compare.record.fields import Check, nothing_or, object_of, one_of

_NAMES = ("run_id", "command", "started", "commit", "spec", "timing_contract", "headline", "suite", "plan")
_FIELDS: dict[str, Check] = dict.fromkeys((*_NAMES, "heuristics"), fields.TEXT)
_FIELDS |= dict.fromkeys(("gpu", "contract", "machine", "trace", "parts", "fleet"), fields.OBJECT)
_FIELDS |= {
    "versions": fields.WORDS,
    "kernels": fields.TEXTS,
    "workloads": fields.OBJECTS,
    "resumed": fields.OBJECTS,
    **dict.fromkeys(("schema", "planned", "finished", "exit_code"), fields.COUNT),
    "seconds": fields.NUMBER,
    "dirty": fields.FLAG,
}
_CONTRACT: dict[str, Check] = {"timer": one_of(TIMERS), "cache": one_of(CACHES), "processes": fields.COUNT}
_CONTRACT |= dict.fromkeys(("name", "line"), fields.TEXT) | dict.fromkeys(("precision", "max_time_s"), fields.NUMBER)
_GPU: dict[str, Check] = {"name": fields.TEXT, "title": fields.TEXT, "asked": fields.TEXT, "present": fields.FLAG}
_TRACE: dict[str, Check] = {"name": fields.TEXT, "assumptions": fields.TEXT}
_FLEET: dict[str, Check] = {"seats": object_of(fields.OBJECT), "losses": fields.TEXTS, "unfit": fields.WORDS}
_SEAT: dict[str, Check] = {"rows": fields.COUNT, "address": nothing_or(fields.TEXT), "noise": nothing_or(fields.OBJECT)}
_NOISE: dict[str, Check] = {"mean": fields.NUMBER, "most": fields.NUMBER, "cells": fields.COUNT}
_INSIDE = {"contract": _CONTRACT, "gpu": _GPU, "trace": _TRACE}


def checked(found: Any) -> dict[str, Any]:
    """The usable part of a manifest. Raises ValueError naming a field of the wrong type."""
    said = fields.checked(found, _FIELDS, "manifest.json")
    for name, inside in _INSIDE.items():
        if name in said:
            said[name] = fields.checked(said[name], inside, f"manifest.json, {name}")
    for number, load in enumerate(said.get("workloads", ())):
        fields.checked(load, {"label": fields.TEXT}, f"manifest.json, workloads[{number}]", ["label"])
    if "fleet" in said:
        _ensure_fleet(said["fleet"])
    if "parts" in said:
        said["parts"] = {name: checked(part) for name, part in said["parts"].items()}
    return said


def _ensure_fleet(fleet: dict[str, Any]) -> None:
    where = "manifest.json, fleet"
    fields.checked(fleet, _FLEET, where, ["seats"])
    for name, seat in fleet["seats"].items():
        fields.checked(seat, _SEAT, f"{where}, {name}", ["rows"])
        if seat.get("noise"):
            fields.checked(seat["noise"], _NOISE, f"{where}, {name}, noise", _NOISE)


def read(path: Path) -> dict[str, Any]:
    """The manifest in a file. Raises OSError, ValueError or RecursionError."""
    try:
        found = plain.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"manifest.json that is no JSON ({error})") from error
    return checked(found)
