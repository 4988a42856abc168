"""Load foreign JSON as plain values: finite numbers of 64 bits, no duplicate keys, texts that every page can hold.

Everything that reads a run's files (rows, manifests, a tuner's lines) uses it, so that later code meets no NaN, no
integer beyond a float, no lone surrogate, and no nesting that overflows Python's stack.
"""

import json
import math
from typing import Any

MOST_DEEP = 100  # of nested objects and lists; a run's have 7
MOST = 2**63 - 1


def loads(text: str) -> Any:
    """The value of a JSON text. Raises ValueError naming the field, RecursionError.

    Lone surrogates become their escape, as text. Walking all values takes as long as the rest of reading a row, and
    most texts do not need it.
    """
    try:
        found = json.loads(text, object_pairs_hook=_unique, parse_float=_float, parse_int=_int, parse_constant=_float)
    except _Unsound:
        return _sound(json.loads(text, object_pairs_hook=_unique), "", 0)
    needed = text.count("{") + text.count("[") > MOST_DEEP or "\\ud" in text.lower()
    return _sound(found, "", 0) if needed else found


class _Unsound(Exception):
    """A number that is not finite; a walk finds where."""


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _Unsound
    return value


def _int(text: str) -> int:
    value = int(text)
    if abs(value) > MOST:
        raise _Unsound
    return value


def writable(text: str) -> str:
    """The text as UTF-8 can hold it: lone surrogates become their escapes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        first = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"{first:.60}: found it twice in one object")
    return found


def _sound(value: Any, at: str, deep: int) -> Any:
    if isinstance(value, str):
        return writable(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{at or 'value'}: found {value}, allowed finite numbers")
    elif isinstance(value, int):
        if abs(value) > MOST:
            raise ValueError(f"{at or 'value'}: found an integer of {value.bit_length()} bits, allowed 63")
    elif isinstance(value, dict | list):
        if deep == MOST_DEEP:
            raise ValueError(f"{at}: found a nest of {MOST_DEEP} objects and lists, allowed fewer")
        if isinstance(value, list):
            return [_sound(item, f"{at}[{number}]", deep + 1) for number, item in enumerate(value)]
        dot = f"{at}." if at else ""
        return {writable(name): _sound(item, f"{dot}{name:.60}", deep + 1) for name, item in value.items()}
    return value
