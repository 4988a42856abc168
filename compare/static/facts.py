"""Static facts beside a run: what the compiler says of every own cell, for a GPU that is here or absent."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from common.gpus import Gpu
from common.process import cores
from compare.competitors.registry import is_own
from compare.plan.job import Cell
from compare.process.pool import Jobs, Pool, in_order
from compare.record.records import Evidence, Status
from compare.static.compile import Compilation, Outcome, compile_in_child

Asked = tuple[str, Compilation]  # a cell's id
CPUS_PER_LANE, MAX_LANES = 4, 4  # compilers beside a check, which needs its own core
ALONE_CPUS_KEPT, MAX_ALONE = 4, 12  # before a measurement: cores left to compiling processes


class StaticFacts:
    """Compiles own cells for one GPU in child processes, in the background and in the order of asking.

    A lane is a thread and its child. Both live until `close`, because a child's imports take seconds, and Helion keeps
    traces in it. Ask from one thread. alone: nothing is timed before `wait` returns; the code that the lanes leave in
    Triton's disk cache is what is timed.
    """

    def __init__(
        self, cells: Iterable[Cell], gpu: Gpu | None, limit_s: float, heuristics: str = "tree", alone: bool = False
    ) -> None:
        self._gpu, self._limit_s, self._heuristics = gpu, limit_s, heuristics
        cpus = cores()
        many = min(cpus - ALONE_CPUS_KEPT, MAX_ALONE) if alone else min(cpus // CPUS_PER_LANE, MAX_LANES)
        self._most = max(many, 1)
        self._jobs: Jobs[Asked] = Jobs(growing=True, of=in_order)
        self._pool: Pool[Asked, tuple[str, Outcome]] = Pool([], self._jobs, blame=_blamed)
        self._wanted: set[str] = set()
        self._found: dict[str, Outcome] = {}
        self.more(cells)

    def more(self, cells: Iterable[Cell]) -> None:
        """Have these compiled as well."""
        own = [cell for cell in cells if is_own(cell.kernel)] if self._gpu else []
        self._wanted |= {cell.id for cell in own}
        how = {"heuristics": self._heuristics}
        self._jobs.add((cell.id, Compilation(cell.workload, cell.kernel, **how)) for cell in own)
        for _ in range(self._pool.working, min(self._most, len(self._jobs))):
            self._pool.start(self._lane)

    def _lane(self, jobs: Iterator[Asked]) -> Iterator[tuple[str, Outcome]]:
        mine, compiled = itertools.tee(jobs)
        outcomes = compile_in_child((job for _, job in compiled), self._gpu, limit_s=self._limit_s)
        for outcome, (cell, _) in zip(outcomes, mine, strict=False):
            yield cell, outcome

    def _hear(self, cells: set[str]) -> None:
        """Wait for the outcomes of these cells."""
        results = self._pool.results()
        while not cells <= self._found.keys():
            self._found.update([next(results)])

    def wait(self) -> None:
        """Until every cell has its outcome; then the lanes do nothing."""
        self._hear(self._wanted)

    def of(self, cell: Cell) -> Outcome | None:
        """The outcome of a cell, waited for; None for a kernel that is not compiled here."""
        if cell.id not in self._wanted:
            return None
        self._hear({cell.id})
        return self._found[cell.id]

    def close(self) -> None:
        """End the lanes, each after its current cell."""
        self._pool.close()


def _blamed(asked: Asked, raised: BaseException | None) -> tuple[str, Outcome]:
    """The outcome of a cell whose compiler is gone."""
    why = f"could not be asked: {type(raised).__name__}: {raised}" if raised else "answered no more"
    return asked[0], Outcome(asked[1], Status.CRASH, reason=f"the compiler {why}")


def with_facts(fields: dict[str, Any], compiled: Outcome, *, must_compile: bool) -> dict[str, Any]:
    """The cell with its static facts; where it can only be compiled, a failure to compile is the cell's."""
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
