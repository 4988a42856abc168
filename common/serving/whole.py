"""Files that are kept between processes: written whole or not at all, and read only if no other user can write them."""

import hashlib
import os
import tempfile
from pathlib import Path


def triton_cache() -> Path:
    """Where Triton caches code."""
    home = os.environ.get("TRITON_HOME") or os.path.expanduser("~")
    return Path(os.environ.get("TRITON_CACHE_DIR") or Path(home, ".triton", "cache"))


def is_ours(found: os.stat_result) -> bool:
    """Whether a file's owner is this user or root, and no other user may write to it."""
    return os.name != "posix" or (found.st_uid in (os.geteuid(), 0) and not found.st_mode & 0o022)


def put(path: Path, content: bytes) -> None:
    """Write a temporary file beside `path` and move it there. Raises OSError; nothing is left then."""
    descriptor, made = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(made, path)
    except BaseException:
        os.unlink(made)
        raise


def put_sealed(path: Path, text: str) -> None:
    """`put` a text behind its hash, in a folder that is made where it is missing. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    put(path, f"{_seal(text)}\n{text}".encode())


def read_sealed(path: Path) -> str:
    """The text of `put_sealed`. Raises OSError, and ValueError for a file that cannot be trusted."""
    with path.open(encoding="utf-8") as file:
        if not is_ours(os.fstat(file.fileno())):
            raise ValueError("somebody else may write to it")
        head, _, text = file.read().partition("\n")
    if head != _seal(text):
        raise ValueError("its hash is another")
    return text


def _seal(text: str) -> str:
    return f"# diptych {hashlib.sha256(text.encode()).hexdigest()}"
