"""The values that a field of foreign JSON may have, as (test, words), and the function that checks them.

Last the fields of a row beyond their types: times, sizes, compiled code (`facts`), an estimate.
"""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from compare.record.contract import CACHES, TIMERS

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


_TIMING = {
    "timer": one_of(TIMERS),
    "cache": one_of(CACHES),
    **dict.fromkeys(("median_us", "p05_us", "p95_us"), TIME),
    **dict.fromkeys(("low_us", "high_us"), nothing_or(TIME)),
    "samples_us": list_of(TIME),
    **dict.fromkeys(("rounds", "calls_per_sample", "page_sets", "cycle_bytes", "processes"), COUNT),
    "half_width": nothing_or(AMOUNT),
}
_DERIVED = dict.fromkeys(("gbps", "tflops", "floor_us", "floor_share"), AMOUNT) | {"joules": nothing_or(AMOUNT)}
_GATE = {"worst": object_of(AMOUNT), "page_sets": COUNT, "value_sets": COUNT}
_SIZES = ("num_seqs", "num_tokens", "num_decodes", "max_query_len", "max_seq_len", "total_seq_len", "num_query_heads")
_LOAD = dict.fromkeys((*_SIZES, "num_kv_heads", "head_size", "block_size", "kv_bytes", "flops"), COUNT)
_LOAD |= {"prompt_seq_len": nothing_or(COUNT)}
_PARTS = {"workload": _LOAD, "timing": _TIMING, "derived": _DERIVED, "gate": _GATE}

_COUNTS = object_of(COUNT)
# Keys: the bits of a lane, or a descriptor.
_LOADS: Check = (
    lambda found: _COUNTS[0](found) and all(bits == "tma" or bits.isdecimal() for bits in found),
    "an object of counts by bits or tma",
)
_LOOP = {"matrix": _COUNTS, "loads": _LOADS, "barriers": COUNT, "waits": COUNT}
_OFTEN = {
    "kernel": TEXT,
    "arch": TEXT,
    "sha256": TEXT,
    "cache": TEXT,
    **dict.fromkeys(("num_warps", "num_stages", "registers", "spills", "scratch_bytes", "shared_bytes"), COUNT),
    "code_bytes": COUNT,
    "matrix": _COUNTS,
    "loads": _LOADS,
    "agprs": nothing_or(COUNT),
}
_FACT = _OFTEN | {
    "loops": list_of(OBJECT),
    "occupancy": OBJECT,
    "executed": _COUNTS,
    "matrix_redundancy": nothing_or(AMOUNT),
    "grid": LIST,
}
_ESTIMATE = {"text": TEXT, "limiter": nothing_or(TEXT)}


def ensure_sound(record: Any) -> None:
    """Raise ValueError naming a field of a record that is missing or has an impossible value."""
    for name, fields in _PARTS.items():
        if (part := getattr(record, name)) is not None:
            checked(vars(part), fields, name)
    checked(vars(record), {"seconds": AMOUNT}, "row")
    for number, fact in enumerate(record.facts):
        where = f"facts[{number}]"
        checked(fact, _FACT, where, _OFTEN)
        for at, loop in enumerate(fact.get("loops") or ()):
            checked(loop, _LOOP, f"{where}.loops[{at}]", _LOOP)
    if record.estimate is not None:
        checked(record.estimate, _ESTIMATE, "estimate", _ESTIMATE)
