"""One JSON object a line, read with suspicion: a checksum, no key twice, finite numbers, fields of their types."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
import zlib
from typing import Any

_SEAL = ',"check":"'  # the last field of a line: CRC-32 of all that stands before it, 8 hex digits


def seal(text: str) -> str:
    """The JSON object with its checksum as the last field."""
    return f'{text[:-1]}{_SEAL}{zlib.crc32(text[:-1].encode()):08x}"}}'


def parse(line: str) -> tuple[Any, bool]:
    """(what the line says, whether it carries its checksum). Raises ValueError or RecursionError.

    A checksum that is not the line's is an error, and so are NaN, infinities, numbers that are no finite floats, and a
    key that comes twice.
    """
    line = line.strip()
    found = json.loads(line, parse_constant=_no_number, parse_float=_finite, object_pairs_hook=_unique)
    if not isinstance(found, dict) or found.pop("check", None) is None:
        return found, False
    text, _, _ = line.rpartition(_SEAL)
    if not text or seal(text + "}") != line:
        raise ValueError("check: the line is not the one that was written")
    return found, True


def _no_number(name: str) -> float:
    raise ValueError(f"found {name}, allowed finite numbers")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"found {text}, allowed finite numbers")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("found a key twice in one object")
    return found


def ensure_typed(value: Any) -> None:
    """Raise ValueError naming the first field of a dataclass, at any depth, whose value is not of its type."""
    for name, hint in _hints(type(value)).items():
        found = getattr(value, name)
        if not _matches(found, hint):
            shown = f"{found!r:.60}"
            raise ValueError(f"{name}: found {shown}, allowed {getattr(hint, '__name__', hint)}")
        if dataclasses.is_dataclass(found):
            ensure_typed(found)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _matches(value: Any, hint: Any) -> bool:
    """Whether a value is of a type of records: plain classes, optional ones, tuples of one type, dicts."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (types.UnionType, typing.Union):
        return any(_matches(value, each) for each in inside)
    if origin is tuple:
        return isinstance(value, tuple) and all(_matches(item, inside[0]) for item in value)
    if origin is dict:
        pairs = value.items() if isinstance(value, dict) else [(None, None)]
        return all(_matches(key, inside[0]) and _matches(item, inside[1]) for key, item in pairs)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)
