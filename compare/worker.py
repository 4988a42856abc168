"""The process that runs kernels: takes a job a line on stdin and streams an event a line, whatever a kernel prints.

Three modes: `check` interprets kernels on the CPU (TRITON_INTERPRET=1 in its environment before triton is imported),
`model` executes their machine code for an absent GPU there (compare.model_worker), `measure` runs them on a GPU. A line
with `compile` makes it compile ahead first (compare.warm). Events: `ready` with the versions, `start` naming the cell
that whatever happens next is blamed on, `row` with a finished cell, `sick` when the device answers no more (the process
then ends), `done` behind a job.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from compare import gate, warm
from compare.arena import Arena
from compare.measure import measure
from compare.records import Evidence, GateResult
from compare.subject import Subject
from compare.task import Channel, Sick, Task, ok, versions

CPU_SETS = 2  # page sets in the interpreter: enough to catch a kernel that ignores the block table
CPU_PADDING = 3  # rows of query and out past the last sequence, as an engine leaves them: nobody may write them


def check(task: Task) -> None:
    """Every cell in the interpreter: two poisoned runs, other values and the LSE, and no time anywhere."""
    arena = task.arena(CPU_SETS, CPU_PADDING)
    for cell, kernel_id in task.cells if arena else ():
        task.start(cell)
        identity: dict[str, Any] = {}
        try:
            verdict = _check_cell(task, arena, kernel_id, identity)
            task.row(cell, identity | ok(verdict, Evidence.INTERPRETED))
        except Exception as error:
            task.failed(cell, error, identity)


def _check_cell(task: Task, arena: Arena, kernel_id: str, identity: dict[str, Any]) -> GateResult:
    """Judge one kernel; `identity` is filled as soon as it is known. Raises what a kernel may raise, and Rejected."""
    arena.set_values(0)
    subject = Subject(kernel_id, arena, task.gpu, heuristics=task.heuristics)
    identity.update(subject.identity())
    contract = subject.kernel.CONTRACT
    verdict = gate.before(arena, lambda: subject.launch(0), [0], contract)
    arena.set_values(1)
    subject.plan()
    last = CPU_SETS - 1
    if "lse" in subject.kernel.SUPPORTS:
        return gate.with_lse(arena, lambda: subject.launch(last, arena.lse), last, contract, verdict)
    return gate.again(arena, lambda: subject.launch(last), [last], contract, verdict)


def _modes() -> dict[str, Callable[[Task], None]]:
    from compare.model_worker import check_in_model

    return {"check": check, "measure": measure, "model": check_in_model}


def main() -> None:
    mode = sys.argv[1]
    channel = Channel()
    channel.send("ready", versions=versions())
    for line in sys.stdin:
        plain = json.loads(line)
        if "compile" in plain:
            warm.ahead(plain, channel)
            continue
        try:
            _modes()[mode](Task(plain, channel))
        except Sick:
            channel.send("sick")
            return
        channel.send("done")


if __name__ == "__main__":
    main()
