"""manifest.json, read with suspicion: it may be another tool's, of a later version, or damaged.

A field that is null says nothing, and is left out; one that is not of its kind is an error that names it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compare.record.contract import CACHES, TIMERS


def _is_number(found: object) -> bool:
    return isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found)


def _is_count(found: object) -> bool:
    return isinstance(found, int) and not isinstance(found, bool) and found >= 0


def _is_text(found: object) -> bool:
    return isinstance(found, str)


def _is_object(found: object) -> bool:
    return isinstance(found, dict)


def _is_words(found: object) -> bool:
    return isinstance(found, dict) and all(map(_is_text, found.values()))


def _are_texts(found: object) -> bool:
    return isinstance(found, list) and all(map(_is_text, found))


def _are_objects(found: object) -> bool:
    return isinstance(found, list) and all(map(_is_object, found))


Check = tuple[Callable[[object], bool], str]
_TEXT, _NUMBER = (_is_text, "a text"), (_is_number, "a finite number")
_COUNT, _FLAG = (_is_count, "an integer of at least 0"), (lambda found: isinstance(found, bool), "true or false")
_TEXTS = (
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
_FIELDS: dict[str, Check] = dict.fromkeys(_TEXTS, _TEXT)
_FIELDS |= dict.fromkeys(("gpu", "contract", "machine", "trace", "parts"), (_is_object, "an object"))
_FIELDS |= {
    "versions": (_is_words, "an object of texts"),
    "kernels": (_are_texts, "a list of texts"),
    "workloads": (_are_objects, "a list of objects"),
    "resumed": (_are_objects, "a list of objects"),
    "planned": _COUNT,
    "finished": _COUNT,
    "exit_code": _COUNT,
    "seconds": _NUMBER,
    "dirty": _FLAG,
}
_CONTRACT: dict[str, Check] = {
    "timer": (TIMERS.__contains__, ", ".join(TIMERS)),
    "cache": (CACHES.__contains__, ", ".join(CACHES)),
    "name": _TEXT,
    "line": _TEXT,
    "processes": _COUNT,
    "precision": _NUMBER,
    "max_time_s": _NUMBER,
}
_GPU: dict[str, Check] = {"name": _TEXT, "title": _TEXT, "asked": _TEXT, "present": _FLAG}
_TRACE: dict[str, Check] = {"name": _TEXT, "assumptions": _TEXT}


def _checked(found: Any, fields: dict[str, Check], where: str) -> dict[str, Any]:
    """Without what is null. Raises ValueError."""
    if not isinstance(found, dict):
        raise ValueError(f"{where}: found {type(found).__name__}, allowed an object")
    said = {name: value for name, value in found.items() if value is not None}
    for name, (fits, allowed) in fields.items():
        if name in said and not (isinstance(said[name], str | int | float | dict | list) and _fits(fits, said[name])):
            raise ValueError(f"{where}: found {name} {said[name]!r:.60}, allowed {allowed}")
    return said


def _fits(fits: Callable[[object], bool], value: object) -> bool:
    try:
        return fits(value)
    except TypeError:  # a list where a word is looked up
        return False


def checked(found: Any) -> dict[str, Any]:
    """A manifest as it may be used. Raises ValueError naming what is not of its kind."""
    said = _checked(found, _FIELDS, "manifest.json")
    for name, fields in (("contract", _CONTRACT), ("gpu", _GPU), ("trace", _TRACE)):
        if name in said:
            said[name] = _checked(said[name], fields, f"manifest.json, {name}")
    if "parts" in said:
        said["parts"] = {name: checked(part) for name, part in said["parts"].items()}
    return said


def read(path: Path) -> dict[str, Any]:
    """The manifest in a file. Raises OSError, ValueError or RecursionError."""
    return checked(json.loads(path.read_text(encoding="utf-8")))
