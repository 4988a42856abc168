"""What identifies a measurement, and what differs between two."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from compare.records import Record


def of(**parts: Any) -> str:
    """16 hex digits over named parts in plain values, the same whatever their order. Raises TypeError for others."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def changed(before: Record, after: Record) -> tuple[str, ...]:
    """What differs between two rows of one cell beside their times: source, config and where it is from."""
    found = []
    if before.source_sha != after.source_sha:
        found.append(f"source {before.source_sha or 'unknown'} -> {after.source_sha or 'unknown'}")
    found += [f"{name} {a} -> {b}" for name, a, b in pairs_that_differ(before.config or {}, after.config or {})]
    if before.config_origin != after.config_origin:
        found.append(f"config of {before.config_origin or 'nobody'} -> {after.config_origin or 'nobody'}")
    return tuple(found)


def pairs_that_differ(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(name, before, after) of what differs; `none` where a side has no such name."""
    found = [(name, before.get(name, "none"), after.get(name, "none")) for name in dict.fromkeys([*before, *after])]
    return [each for each in found if each[1] != each[2]]
