"""Static facts beside a run: what the compiler says of every own cell, for a GPU that is here or absent."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from common.gpus import Gpu
from compare.competitors.registry import is_own
from compare.plan.job import Cell
from compare.record.records import Evidence, Status
from compare.static.compile import CompileJob, Outcome, compile_in_child

CPUS_PER_LANE, MAX_LANES = 4, 4  # compilers beside a check, which needs a core of its own
ALONE_CPUS_KEPT, MAX_ALONE = 4, 12  # before a measurement: cores for the processes that compile ahead


class StaticFacts:
    """Compiles own cells for one GPU in child processes, in the background and in the order of asking.

    A lane is a thread and its child. Both wait for the cells that are asked for later, until `close`: a child imports
    for seconds, and Helion keeps a kernel's trace in it.
    alone: nothing is timed before `wait` returns. The code that they leave in Triton's disk cache is what is timed.
    """

    def __init__(
        self, cells: Iterable[Cell], gpu: Gpu | None, limit_s: float, heuristics: str = "tree", alone: bool = False
    ) -> None:
        self._gpu, self._limit_s, self._heuristics = gpu, limit_s, heuristics
        cpus = os.cpu_count() or 1
        many = min(cpus - ALONE_CPUS_KEPT, MAX_ALONE) if alone else min(cpus // CPUS_PER_LANE, MAX_LANES)
        self._most, self._lanes, self._closed = max(many, 1), 0, False
        self._waiting: deque[tuple[str, CompileJob]] = deque()
        self._wanted: set[str] = set()
        self._found: dict[str, Outcome] = {}
        self._news = threading.Condition()
        self.more(cells)

    def more(self, cells: Iterable[Cell]) -> None:
        """Have these compiled as well."""
        own = [cell for cell in cells if is_own(cell.kernel)] if self._gpu else []
        with self._news:
            self._wanted |= {cell.id for cell in own}
            self._waiting += [(cell.id, _compile_job(cell, self._heuristics)) for cell in own]
            while self._lanes < min(self._most, len(self._waiting)):
                self._lanes += 1
                threading.Thread(target=self._lane, daemon=True).start()
            self._news.notify_all()

    def _lane(self) -> None:
        taken: list[tuple[str, CompileJob]] = []  # what the child is at
        reason = "the compiler answered no more"
        try:
            for outcome in compile_in_child(self._jobs(taken), self._gpu, limit_s=self._limit_s):
                cell, _ = taken.pop()
                self._tell({cell: outcome})
        except Exception as error:
            reason = f"the compiler could not be asked: {type(error).__name__}: {error}"
        finally:
            self._end_lane(taken, reason)

    def _jobs(self, taken: list[tuple[str, CompileJob]]) -> Iterator[CompileJob]:
        """The next cells that no lane has, each also put into `taken`, until `close`."""
        while True:
            with self._news:
                self._news.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                taken.append(self._waiting.popleft())
            yield taken[-1][1]

    def _end_lane(self, lost: list[tuple[str, CompileJob]], reason: str) -> None:
        """Somebody waits for what it was at, and behind the last lane for everything."""
        with self._news:
            self._lanes -= 1
            if not self._lanes:
                lost = [*lost, *self._waiting]
                self._waiting.clear()
            self._tell({cell: Outcome(job, Status.CRASH, reason=reason) for cell, job in lost})

    def _tell(self, found: dict[str, Outcome]) -> None:
        with self._news:
            self._found |= found
            self._news.notify_all()

    def wait(self) -> None:
        """Until every cell has its outcome; then the lanes do nothing."""
        with self._news:
            self._news.wait_for(lambda: self._wanted <= self._found.keys())

    def of(self, cell: Cell) -> Outcome | None:
        """The outcome of a cell, waited for; None for a kernel that is not compiled here."""
        if cell.id not in self._wanted:
            return None
        with self._news:
            self._news.wait_for(lambda: cell.id in self._found)
        return self._found[cell.id]

    def close(self) -> None:
        """End the lanes, each behind the cell that it is at."""
        with self._news:
            self._closed = True
            self._news.notify_all()


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
