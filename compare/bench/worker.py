"""The process that runs kernels: takes a job a line on stdin and streams an event a line, whatever a kernel prints.

Three modes: `check` interprets kernels on the CPU (TRITON_INTERPRET=1 in its environment before triton is imported),
`model` executes their machine code for an absent GPU there (compare.bench.model_worker), `measure` runs them on a GPU.
A line with `compile` makes it compile ahead first (compare.bench.warm), one with `rest` give the device's memory back,
for another process is timed next. Events: `ready` with the versions, `start` naming the cell that whatever happens next
is blamed on, `row` with a finished cell, `sick` when the device answers no more (the process then ends), `done` behind
a job, `compiled` and `resting`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from compare.bench import gate, warm
from compare.bench.measure import measure
from compare.bench.subject import Subject
from compare.bench.task import Sick, Task, free_memory, versions
from compare.bench.untimed import judge_cells, on_other_values
from compare.process.channel import Channel
from compare.record.records import Evidence, GateResult


def check(task: Task) -> None:
    """Every cell in the interpreter: two poisoned runs, other values and the LSE, and no time anywhere."""
    judge_cells(task, _interpreted, Evidence.INTERPRETED)


def _interpreted(subject: Subject, known: dict[str, Any]) -> GateResult:
    """Judge one kernel. Raises what a kernel may raise, and Rejected."""
    first = gate.before(subject.arena, lambda: subject.launch(0), [0], subject.kernel.CONTRACT)
    return on_other_values(subject, subject.launch, first)


def _modes() -> dict[str, Callable[[Task], None]]:
    from compare.bench.model_worker import check_in_model

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
        if "rest" in plain:
            channel.send("resting", held=free_memory())
            continue
        try:
            _modes()[mode](Task(plain, channel))
        except Sick:
            channel.send("sick")
            return
        channel.send("done")


if __name__ == "__main__":
    main()
