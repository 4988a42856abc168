"""A golden as a file: plain values by name, an entry a line, and what differs from it."""

import json
import re
from importlib import metadata
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
PINS = FOLDER.parents[1] / "constraints-cpu.txt"
SHOWN = 12  # entries that differ, of those that a failure prints

Rows = dict[str, Any]


def plain(rows: Rows) -> Rows:
    """As a file gives them back: tuples are lists, the order is that of the names."""
    return json.loads(json.dumps(rows, sort_keys=True, allow_nan=False))


def path(name: str) -> Path:
    return FOLDER / f"{name}.json"


def read(name: str) -> Rows:
    return json.loads(path(name).read_text(encoding="utf-8"))


def write(name: str, rows: Rows) -> Path:
    lines = [f"{json.dumps(key)}: {_line(value)}" for key, value in plain(rows).items()]
    path(name).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    return path(name)


def _line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def differences(golden: Rows, found: Rows, *, whole: bool = True) -> str:
    """What differs, an entry a line with what was and what is; empty where nothing does. whole: entries of the golden
    that were not found differ too."""
    found = plain(found)
    names = [name for name in {**golden, **found} if name in found or whole]
    wrong = [name for name in names if name not in golden or name not in found or golden[name] != found[name]]
    lines = [f"{name}: {_change(golden.get(name), found.get(name))}" for name in wrong[:SHOWN]]
    if len(wrong) > SHOWN:
        lines.append(f"and {len(wrong) - SHOWN} more of {len(names)}")
    return "\n".join(lines)


def _change(before: Any, after: Any) -> str:
    """Of two dicts or lists of one length only the members that differ."""
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        before, after = dict(enumerate(before)), dict(enumerate(after))
    if isinstance(before, dict) and isinstance(after, dict):
        same = {key for key in before.keys() & after.keys() if before[key] == after[key]}
        before, after = ({k: v for k, v in side.items() if k not in same} for side in (before, after))
    return f"{_line(before)[:600]} -> {_line(after)[:600]}"


def unpinned(*names: str) -> str:
    """What of these packages is not here in the pinned version, with which goldens are written; empty where all are."""
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)", PINS.read_text(encoding="utf-8"), re.MULTILINE))
    here = {name: _version(name) for name in names}
    return ", ".join(f"{name} {here[name]}, not {pinned[name]}" for name in names if here[name] != pinned[name])


def _version(name: str) -> str:
    """Without the label of a build; ROCm's triton goes by another name, and is another."""
    try:
        return metadata.version(name).split("+")[0]
    except metadata.PackageNotFoundError:
        return "missing"
