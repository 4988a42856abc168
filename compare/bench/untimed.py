"""What the two modes without a time share, interpreter and ISA model: the loop over cells, and the last judgement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compare.bench import gate
from compare.bench.arena import Arena
from compare.bench.subject import Subject
from compare.bench.task import Task, ok
from compare.record.records import Evidence, GateResult

SETS = 2  # page sets: enough to catch a kernel that ignores the block table
PADDING = 3  # rows of query and out past the last sequence, as an engine leaves them: nobody may write them

Judge = Callable[[Subject, dict[str, Any]], GateResult]


def judge_cells(task: Task, judge: Judge, *evidence: Evidence) -> None:
    """The row of every cell. `judge` fills the dict with what is known of a cell also where it raises."""
    arena = task.arena(SETS, PADDING)
    for cell, kernel_id in task.cells if arena else ():
        task.start(cell)
        known: dict[str, Any] = {}
        try:
            arena.set_values(0)
            subject = Subject(kernel_id, arena, task.gpu, heuristics=task.heuristics)
            known.update(subject.identity())
            verdict = judge(subject, known)
            task.row(cell, known | ok(verdict, *evidence))
        except Exception as error:
            task.failed(cell, error, known)


def on_other_values(subject: Subject, launch: Callable[..., None], first: GateResult) -> GateResult:
    """The last judgement: other values, the last page set, and the LSE where the kernel has it. Raises Rejected.

    launch(number) and launch(number, lse) are one call on that page set.
    """
    arena: Arena = subject.arena
    arena.set_values(1)
    subject.plan()
    contract, last = subject.kernel.CONTRACT, SETS - 1
    if "lse" in subject.kernel.SUPPORTS:
        return gate.with_lse(arena, lambda: launch(last, arena.lse), last, contract, first)
    return gate.again(arena, lambda: launch(last), [last], contract, first)
