"""A log of lines that a commit keeps compressed: `cells.jsonl` may lie as `cells.jsonl.xz`, and is read as itself.

Committed logs are 20 to 60 times smaller that way (`xz -9 cells.jsonl`). A run writes plain lines; whoever goes on
with a compressed log unpacks it first.
"""

from __future__ import annotations

import lzma
from pathlib import Path

from compare.record.whole import put

SUFFIX = ".xz"


def _packed(path: Path) -> Path:
    return path.with_name(path.name + SUFFIX)


def there(path: Path) -> bool:
    """Whether there is such a log, compressed or not."""
    return path.exists() or _packed(path).exists()


def read_bytes(path: Path) -> bytes:
    """What the log holds. Raises OSError where it is neither there nor whole."""
    if path.exists() or not _packed(path).exists():
        return path.read_bytes()
    try:
        return lzma.decompress(_packed(path).read_bytes())
    except lzma.LZMAError as error:
        raise OSError(None, f"no whole xz file: {error}", str(_packed(path))) from error


def unpack(path: Path) -> None:
    """Lay a compressed log there as plain lines, to be gone on with; nothing where it is plain or absent.
    Raises CannotWrite; the compressed one is then kept."""
    if not path.exists() and _packed(path).exists():
        put(path, read_bytes(path))
        _packed(path).unlink()
