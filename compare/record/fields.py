"""The values that a field of foreign JSON may have, as (test, words), and the function that checks them."""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

Check = tuple[Callable[[Any], bool], str]
MOST_US = 1e12  # microseconds: 11 days


def _is_int(found: object) -> bool:
    return isinstance(found, int) and not isinstance(found, bool)


def _is_number(found: object) -> bool:
    return isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found)


def _is_time(found: object) -> bool:
    return _is_number(found) and 0.0 < found <= MOST_US


def nothing_or(check: Check) -> Check:
    return lambda found: found is None or check[0](found), f"{check[1]}, or null"


def list_of(check: Check) -> Check:
    return lambda found: isinstance(found, list | tuple) and all(map(check[0], found)), f"a list, of {check[1]} each"


def object_of(check: Check) -> Check:
    fits = check[0]
    return lambda found: isinstance(found, dict) and all(map(fits, found.values())), f"an object, of {check[1]} each"


def one_of(words: Collection[str]) -> Check:
    return lambda found: isinstance(found, str) and found in words, ", ".join(words)


TEXT: Check = (lambda found: isinstance(found, str), "a text")
FLAG: Check = (lambda found: isinstance(found, bool), "true or false")
NUMBER: Check = (_is_number, "a finite number")
TIME: Check = (_is_time, f"microseconds above 0 and up to {MOST_US:g}")
AMOUNT: Check = (lambda found: _is_number(found) and 0.0 <= found <= 1e15, "a number from 0 to 1e15")
COUNT: Check = (lambda found: _is_int(found) and found >= 0, "an integer of at least 0")
OBJECT: Check = (lambda found: isinstance(found, dict), "an object")
LIST: Check = (lambda found: isinstance(found, list | tuple), "a list")
TEXTS, OBJECTS, WORDS = list_of(TEXT), list_of(OBJECT), object_of(TEXT)


def checked(found: Any, fields: Mapping[str, Check], where: str, needed: Collection[str] = ()) -> dict[str, Any]:
    """The object without nulls where null is allowed. Raises ValueError naming the field."""
    if not isinstance(found, dict):
        raise ValueError(f"{where}: found {type(found).__name__}, allowed an object")
    if missing := [name for name in needed if name not in found]:
        raise ValueError(f"{where}: found no {missing[0]}, allowed {fields[missing[0]][1]}")
    said = {name: value for name, value in found.items() if value is not None or name in needed}
    for name, (fits, allowed) in fields.items():
        if name in said and not fits(said[name]):
            raise ValueError(f"{where}: found {name} {said[name]!r:.60}, allowed {allowed}")
    return said
