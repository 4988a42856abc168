"""Read a log that may be compressed: `cells.jsonl` or `cells.jsonl.xz`.

Committed logs are 20 to 60 times smaller that way (`xz -9 cells.jsonl`). A run writes plain lines; to continue a
compressed log, unpack it first.
"""

import lzma
from pathlib import Path

from compare.record.whole import put

SUFFIX = ".xz"


def _packed(path: Path) -> Path:
    return path.with_name(path.name + SUFFIX)


def there(path: Path) -> bool:
    """Whether the log exists, compressed or not."""
    return path.exists() or _packed(path).exists()


def read_bytes(path: Path) -> bytes:
    """The log's bytes. Raises OSError where it is missing or incomplete."""
    if path.exists() or not _packed(path).exists():
        return path.read_bytes()
    try:
        return lzma.decompress(_packed(path).read_bytes())
    except lzma.LZMAError as error:
        raise OSError(None, f"no whole xz file: {error}", str(_packed(path))) from error


def unpack(path: Path) -> None:
    """Unpack a compressed log, to continue it; does nothing where it is plain or absent. Raises CannotWrite, and then
    keeps the compressed log."""
    if not path.exists() and _packed(path).exists():
        put(path, read_bytes(path))
        _packed(path).unlink()
