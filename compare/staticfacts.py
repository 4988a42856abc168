"""Static facts beside a run: what the compiler says of every own cell, for a GPU that is here or absent."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from common.gpus import Gpu
from compare.compile_child import CompileJob, Outcome, compile_in_child
from compare.plan import Cell
from compare.records import Evidence, Status
from compare.registry import OWN


class StaticFacts:
    """Compiles every own cell for one GPU in a child process, in the background and in the order of the plan."""

    def __init__(self, cells: Sequence[Cell], gpu: Gpu | None, limit_s: float) -> None:
        self._cells = [cell for cell in cells if cell.kernel in OWN] if gpu else []
        self._ready: queue.Queue[Outcome | Exception] = queue.Queue()
        self._found: dict[str, Outcome] = {}
        self._waiting = iter(self._cells)
        if self._cells:
            threading.Thread(target=self._compile, args=(gpu, limit_s), daemon=True).start()

    def _compile(self, gpu: Gpu, limit_s: float) -> None:
        wanted = [_compile_job(cell) for cell in self._cells]
        try:
            for outcome in compile_in_child(wanted, gpu, limit_s=limit_s):
                self._ready.put(outcome)
        except Exception as error:  # raised again where somebody waits for it
            self._ready.put(error)

    def of(self, cell: Cell) -> Outcome | None:
        """The outcome of a cell, waited for; None for a kernel that is not compiled here."""
        if cell.kernel not in OWN or not self._cells:
            return None
        while cell.id not in self._found:
            outcome = self._ready.get()
            if isinstance(outcome, Exception):
                raise outcome
            self._found[next(self._waiting).id] = outcome
        return self._found[cell.id]


def _compile_job(cell: Cell) -> CompileJob:
    row = cell.workload
    return CompileJob(kernel=cell.kernel, lens=row.lens, shape=row.shape, cache_style=row.style, **asdict(row.ask))


def with_facts(fields: dict[str, Any], compiled: Outcome, *, must_compile: bool) -> dict[str, Any]:
    """The cell with its static facts; where compiling is all that can be done, its failure is the cell's."""
    fields.setdefault("config", compiled.config)
    fields.setdefault("config_origin", compiled.config_origin)
    if compiled.status == Status.OK:
        evidence = [*fields.get("evidence", ()), Evidence.COMPILED]
        return fields | {"facts": list(compiled.facts), "evidence": evidence}
    status = Status(fields["status"])
    if must_compile and (status is Status.OK or status is Status.TOO_LARGE):
        return fields | {"status": compiled.status, "reason": compiled.reason, "log_tail": compiled.log_tail}
    if status is Status.OK:
        return fields | {"reason": f"no static facts: {compiled.reason}"}
    return fields
