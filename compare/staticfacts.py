"""Static facts beside a run: what the compiler says of every own cell, for a GPU that is here or absent."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

from common.gpus import Gpu
from compare.compile_child import CompileJob, Outcome, compile_in_child
from compare.plan import Cell
from compare.records import Evidence, Status
from compare.registry import is_own

CPUS_PER_LANE, MAX_LANES = 4, 4  # compilers beside a check, which needs a core of its own
ALONE_CPUS_KEPT, MAX_ALONE = 4, 12  # before a measurement: cores for the processes that compile ahead


class StaticFacts:
    """Compiles every own cell for one GPU in child processes, in the background and in the order of the plan.

    alone: nothing is timed before `wait` returns. The code that they leave in Triton's disk cache is what is timed.
    """

    def __init__(
        self, cells: Sequence[Cell], gpu: Gpu | None, limit_s: float, heuristics: str = "tree", alone: bool = False
    ) -> None:
        own = [cell for cell in cells if is_own(cell.kernel)] if gpu else []
        self._found: dict[str, Outcome] = {}
        self._news = threading.Condition()
        cpus = os.cpu_count() or 1
        many = min(cpus - ALONE_CPUS_KEPT, MAX_ALONE) if alone else min(cpus // CPUS_PER_LANE, MAX_LANES)
        lanes = max(min(many, len(own)), 1)
        jobs = {cell.id: _compile_job(cell, heuristics) for cell in own}
        self._wanted = jobs.keys()
        for lane in range(lanes if own else 0):
            mine = dict(list(jobs.items())[lane::lanes])
            threading.Thread(target=self._compile, args=(mine, gpu, limit_s), daemon=True).start()

    def _compile(self, left: dict[str, CompileJob], gpu: Gpu, limit_s: float) -> None:
        """One lane: a child process and the cells, by id, that it compiles."""
        reason = "the compiler answered no more"
        try:
            for outcome in compile_in_child(list(left.values()), gpu, limit_s=limit_s):
                done = next(iter(left))
                del left[done]
                self._tell({done: outcome})
        except Exception as error:
            reason = f"the compiler could not be asked: {type(error).__name__}: {error}"
        finally:  # the lane is gone: somebody waits for each of its cells
            self._tell({cell: Outcome(job, Status.CRASH, reason=reason) for cell, job in left.items()})

    def _tell(self, found: dict[str, Outcome]) -> None:
        with self._news:
            self._found |= found
            self._news.notify_all()

    def wait(self) -> None:
        """Until every cell has its outcome."""
        with self._news:
            self._news.wait_for(lambda: self._wanted <= self._found.keys())

    def of(self, cell: Cell) -> Outcome | None:
        """The outcome of a cell, waited for; None for a kernel that is not compiled here."""
        if cell.id not in self._wanted:
            return None
        with self._news:
            self._news.wait_for(lambda: cell.id in self._found)
        return self._found[cell.id]


def _compile_job(cell: Cell, heuristics: str) -> CompileJob:
    row = cell.workload
    how = {"cache_style": row.style, "new_kv": row.new_kv, "heuristics": heuristics}
    return CompileJob(kernel=cell.kernel, lens=row.lens, shape=row.shape, ask=row.ask, **how)


def with_facts(fields: dict[str, Any], compiled: Outcome, *, must_compile: bool) -> dict[str, Any]:
    """The cell with its static facts; where compiling is all that can be done, its failure is the cell's."""
    fields.setdefault("config", compiled.config)
    fields.setdefault("config_origin", compiled.config_origin)
    if compiled.status == Status.OK:
        evidence = [*fields.get("evidence", ()), Evidence.COMPILED]
        return fields | {"facts": list(compiled.facts), "evidence": evidence}
    status = Status(fields["status"])
    if must_compile and (status is Status.OK or status is Status.TOO_LARGE):
        failure = {"status": compiled.status, "reason": compiled.reason, "log_tail": compiled.log_tail}
        return fields | failure | {"facts": list(compiled.facts)}  # of code that compiled and does not fit
    if status is Status.OK:
        return fields | {"reason": f"no static facts: {compiled.reason}"}
    return fields
