"""A child's answers: events on a descriptor of their own, one JSON line each."""

import json
import os
import sys
from typing import Any


class Channel:
    """Events on a descriptor of their own. Descriptor 1 now leads to stderr: prints of kernels cannot mix in."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.dup(1), "w", encoding="utf-8")
        sys.stdout.flush()
        os.dup2(2, 1)

    def send(self, event: str, **fields: Any) -> None:
        """`logged`: bytes on stderr so far, where that is a file; what follows is what the event leads to."""
        plain = {"event": event, "logged": os.fstat(2).st_size} | fields
        self._file.write(json.dumps(plain, allow_nan=False) + "\n")
        self._file.flush()
