"""Write a file for this user alone, whole or not at all, whichever other process writes there."""

import os
import tempfile
from pathlib import Path


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
