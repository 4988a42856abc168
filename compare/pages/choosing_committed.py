"""What is committed of one GPU, as the blocks of docs/choosing-a-dsl.md read it, and what they are written with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from compare.analysis import merge
from compare.analysis.runs import RunData, read
from compare.studies import generated
from compare.studies.costs import costs


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A markdown table, its first column text and the others figures."""
    lines = ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def missing(command: str) -> str:
    return f"*Not measured yet.* `{command}`"


@dataclass(frozen=True)
class Committed:
    """What is committed of one GPU. names: the run folders whose times count."""

    results: Path
    names: tuple[str, ...]

    @cached_property
    def runs(self) -> list[RunData]:
        """The named runs that are there. Raises NotARun for one that is none."""
        return [merge.as_one(read(self.results / name)) for name in self.names if (self.results / name).is_dir()]

    @cached_property
    def costs(self) -> list[dict[str, Any]]:
        folder = self.results / "costs"
        return costs.read(folder) if (folder / "costs.jsonl").is_file() else []

    @cached_property
    def code(self) -> list[dict[str, Any]]:
        folder = self.results / "code"
        return generated.pairs(generated.read(folder)) if (folder / "code.jsonl").is_file() else []

    def cost(self, part: str) -> list[dict[str, Any]]:
        return [row for row in self.costs if row["cost"] == part and row["status"] == "ok"]

    @cached_property
    def hosts(self) -> list[dict[str, Any]]:
        """Host times of calls: lines of compare.studies.host, else of compare.studies.costs.costs."""
        path = self.results / "host" / "host.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else self.cost("host")
