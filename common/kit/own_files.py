"""The files that a judge runs and a kernel might write: what changed between two looks.

A source counts by its bytes. Compiled code in `__pycache__`, which other processes may write too, counts by its
content: it is suspicious where Python would not make it from the source. The kit itself never reads it
(`diptych_check.main`). A library counts by its place on disk, size and time.
"""

import hashlib
import importlib.util
import marshal
import os
import sys
from collections.abc import Iterable
from pathlib import Path

COMMON = Path(__file__).resolve().parents[1]
_HEADER = 16  # bytes of a .pyc before its code


class OwnFiles:
    """The present state of the files below `folder`, and of `others`."""

    def __init__(self, folder: Path = COMMON, others: Iterable[Path] = ()) -> None:
        self._folder, self._others = folder, tuple(others)
        self._before = _digests(folder, self._others)

    def changed(self) -> list[str]:
        """Paths of files that were written, added or removed since."""
        now = _digests(self._folder, self._others)
        differ = [path for path in sorted(now.keys() | self._before.keys()) if now.get(path) != self._before.get(path)]
        return [_name(path, self._folder.parent) for path in differ if not _is_honest(path)]


def imported() -> list[Path]:
    """The files of all imported modules."""
    found = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return [Path(path) for path in sorted(filter(None, found))]


def _name(path: Path, above: Path) -> str:
    return os.path.relpath(path, above) if path.is_relative_to(above) else str(path)


def _digests(folder: Path, others: Iterable[Path]) -> dict[Path, str]:
    paths = [*folder.rglob("*.py"), *folder.rglob("*.pyc"), *folder.rglob("*.so"), *folder.rglob("*.pth")]
    # beside the packages, or beside a wheel's package
    paths += [path for above in folder.parents[:2] for path in above.glob("diptych_check.py")]
    return {path: _digest(path) for path in (*paths, *others)}


def _digest(path: Path) -> str:
    try:
        if path.suffix in (".py", ".pyc", ".pth"):
            return hashlib.sha256(path.read_bytes()).hexdigest()
        found = path.stat()
    except OSError as error:
        return str(error.errno)
    return f"{found.st_ino} {found.st_size} {found.st_mtime_ns}"


def _is_honest(path: Path) -> bool:
    """Whether compiled code does what its source does, or would not be read by this Python."""
    if path.suffix != ".pyc" or path.parent.name != "__pycache__":
        return False
    if not path.exists():
        return True
    try:
        raw, source = path.read_bytes(), Path(importlib.util.source_from_cache(str(path)))
        _, _, level = path.stem.partition(".opt-")
        wanted = compile(source.read_bytes(), str(source), "exec", dont_inherit=True, optimize=int(level or 0))
        return raw[:4] != importlib.util.MAGIC_NUMBER or marshal.loads(raw[_HEADER:]) == wanted
    except (OSError, ValueError, EOFError, TypeError, SyntaxError):
        return False
