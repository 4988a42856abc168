"""Write a file whole or not at all; errors name its path."""

import contextlib
import os
from pathlib import Path


class CannotWrite(OSError):
    """A file or a run's folder cannot be made or written; the message names it and the reason."""


def put(path: Path, content: str | bytes) -> Path:
    """Write a temporary file, sync it, and move it to `path`. Raises CannotWrite; the old content is then kept."""
    temporary = path.with_name(path.name + ".tmp")
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        why = error.strerror or error
        kept = "rows of cells.jsonl are kept, and `report` writes pages and figures again"
        raise CannotWrite(f"{path}: found `{why}` when it was to be written; {kept}") from error
    return path
