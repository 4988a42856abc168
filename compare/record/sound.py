"""The values that a row's fields may have, beyond their types: times, sizes, compiled code (`facts`), an estimate."""

from typing import Any

from compare.record.contract import CACHES, TIMERS
from compare.record.fields import (
    AMOUNT,
    COUNT,
    LIST,
    OBJECT,
    TEXT,
    TIME,
    Check,
    checked,
    list_of,
    nothing_or,
    object_of,
    one_of,
)

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
