"""A: what runs write as cells, but for what names a run, a place, a version or a time.

The Triton rungs on the smoke suite and the Helion rungs on one of its rows, interpreted, and a rung of each DSL for an
absent GPU, compiled and executed in the model. `few` is one row's; the figures of the checker, whose last digits are
the processor's, are not among it.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from compare.exits import OK
from compare.record import store
from compare.record.records import Record
from compare.run import command
from goldens.code import NO_LINES
from goldens.table import Rows

FEW = ["--device", "cpu", "--suite", "smoke", "--workload", "mixed-with-empty", "--kernels", "triton/*"]
RUNS = (
    ["--device", "cpu", "--suite", "smoke", "--kernels", "triton/*"],
    ["--device", "cpu", "--suite", "smoke", "--workload", "speculative-4", "--kernels", "helion/*"],
    ["--device", "cpu", "--gpu", "mi300", "--suite", "smoke", "--workload", "prefill-33", "--kernels", "*/q_block"],
)
LEFT_OUT = {"run_id", "workload", "kernel", "command", "versions", "source_sha", "seconds", "fingerprint", "schema"}


def rows() -> Rows:
    return {name: value for words in RUNS for name, value in _cells(words).items()}


def few() -> Rows:
    return {name: value for name, value in _cells(FEW).items() if not name.startswith("figures ")}


def _cells(words: list[str]) -> Rows:
    """The rows of one run, the cells, and the figures that the checker gave them."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, NO_LINES):
        assert command.main([*words, "--quiet", "--out", folder]) == OK
        records = store.load(Path(folder) / "cells.jsonl").records
    found: Rows = {}
    for record in records:
        name = f"{record.kernel} on {record.workload.label}" + (f" for {words[3]}" if "--gpu" in words else "")
        found[f"row {record.workload.label}"] = vars(record.workload)
        found[f"cell {name}"], found[f"figures {name}"] = _said(record)
    return found


def _said(record: Record) -> tuple[dict[str, Any], dict[str, str]]:
    said = {name: value for name, value in vars(record).items() if name not in LEFT_OUT and value not in (None, "", ())}
    said["facts"] = [_fact(fact) for fact in record.facts]
    said["gate"] = {name: value for name, value in vars(record.gate).items() if name != "worst"}
    return said, {name: f"{value:.6g}" for name, value in record.gate.worst.items()}


def _fact(fact: dict[str, Any]) -> dict[str, Any]:
    """Without seconds, and without the cache lines that the model met: where tensors lie decides how many."""
    kept = {name: value for name, value in fact.items() if name != "seconds"}
    executed = {name: value for name, value in fact.get("executed", {}).items() if not name.endswith("lines")}
    return kept | ({"executed": executed} if executed else {})
