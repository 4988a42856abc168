"""What a study finds, a line a case: the first line says of which run, and a later call of that run goes on behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from compare.record.store import Lines


class Findings:
    """found: the objects that the file holds, `add`ed ones too. Raises ValueError for a file of another run; Busy."""

    def __init__(self, path: Path, head: dict[str, int]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lines = Lines(path)  # which cuts what a kill left of a line
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
