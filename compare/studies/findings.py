"""A JSONL file of a study's findings. The first line identifies the run; a later call of the same run appends."""

import json
from pathlib import Path
from typing import Any

from compare.record.store import Lines


class Findings:
    """found: all findings in the file, including added ones. Raises ValueError for a file of another run; Busy."""

    def __init__(self, path: Path, head: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lines = Lines(path)  # cuts a torn last line
        lines = path.read_text(encoding="utf-8").splitlines()
        if not lines:
            self._lines.append(json.dumps(head))
        elif json.loads(lines[0]) != head:
            self._lines.close()
            raise ValueError(f"out: found {path} of {lines[0]}, allowed one of {json.dumps(head)}")
        self.found: list[dict[str, Any]] = [*map(json.loads, lines[1:])]

    def add(self, found: dict[str, Any]) -> None:
        self._lines.append(json.dumps(found))
        self.found.append(found)

    def close(self) -> None:
        self._lines.close()
