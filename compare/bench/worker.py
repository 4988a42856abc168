"""The process that runs kernels: reads a job a line from stdin, and streams an event a line whatever a kernel prints.

Three modes: `check` interprets kernels on the CPU (TRITON_INTERPRET=1 is set before triton is imported), `model`
executes their machine code for an absent GPU there, `measure` runs them on a GPU. A line with `compile` makes it
compile ahead first (compare.bench.warm); one with `rest` makes it release the device's memory, because another process
is timed next. Events: `ready` with the versions; `start` with the cell that is to blame for what happens next; `row`
with a finished cell; `sick` when the device no longer answers (the process then ends); `done` after a job; `compiled`
and `resting`.
"""

import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from compare.bench import gate, warm
from compare.bench.arena import Arena
from compare.bench.gate import Rejected
from compare.bench.measure import measure
from compare.bench.subject import Subject
from compare.bench.task import Sick, Task, free_memory, ok, versions
from compare.process.channel import Channel
from compare.record.records import Evidence, GateResult, Status
from compare.static.compiled import CompiledLaunch
from compare.static.counts.counting import counted
from compare.static.counts.l2 import L2
from compare.static.crosscompile import WITHIN, beyond_2gib, executing, facts_of
from compare.static.isa.errors import Fault, NotExecutable
from compare.static.isa.execute import execute

# Shared by the two modes without times, interpreter and ISA model: the loop over cells, and the last judgement.


SETS = 2  # page sets: enough to catch a kernel that ignores the block table
PADDING = 3  # rows past the last sequence, which nobody may write; engines leave such rows

Judge = Callable[[Subject, dict[str, Any]], GateResult]


def judge_cells(
    task: Task, judge: Judge, *evidence: Evidence, around: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> None:
    """Send the row of every cell. `judge` fills the dict with what is known of a cell, also where it raises.

    around: the context in which a kernel plans a step, whose launches are not its calls'.
    """
    arena = task.arena(SETS, PADDING)
    for cell, kernel_id in task.cells if arena else ():
        task.start(cell)
        known: dict[str, Any] = {}
        try:
            arena.set_values(0)
            subject = Subject(kernel_id, arena, task.gpu, heuristics=task.heuristics, around=around)
            known.update(subject.identity())
            verdict = judge(subject, known)
            task.intact.ensure()
            task.row(cell, known | ok(verdict, *evidence))
        except Exception as error:
            task.failed(cell, error, known)


def on_other_values(subject: Subject, launch: Callable[..., None], first: GateResult) -> GateResult:
    """The last judgement: other values, the last page set, and the LSE where the kernel has it. Raises Rejected.

    launch(number) and launch(number, lse) make one call on that page set.
    """
    arena: Arena = subject.arena
    arena.set_values(1)
    subject.plan()
    contract, last = subject.kernel.CONTRACT, SETS - 1
    if "lse" in subject.kernel.SUPPORTS:
        return gate.with_lse(arena, lambda: launch(last, arena.lse), last, contract, first)
    return gate.again(arena, lambda: launch(last), [last], contract, first)


# The mode `model`: every cell compiled for an absent GPU, and the machine code executed on the CPU.
#
# The launches of a kernel are compiled with the JIT's own specialisation and run in the functional model of the ISA
# (compare.static.isa) on the arena's tensors; the gate judges what they wrote, as it judges a GPU. The last run sees K
# and V in tensors above 2 GiB, for which AMD's compiler takes other instructions.


class _Runs:
    """The launches of one subject in the model. `facts`: of the first run's kernels, with the model's counts."""

    def __init__(self, subject: Subject, gpu: Any) -> None:
        self.subject, self.gpu = subject, gpu
        self.facts: list[dict[str, Any]] = []

    def _counted(self, launch: CompiledLaunch) -> dict[str, Any]:
        return counted(launch).executed(L2(dies=self.gpu.xcds))

    def launch(self, number: int, lse: torch.Tensor | None = None, *, large_cache: bool = False) -> None:
        """One call on page set `number`. Raises Rejected for code that is wrong or that the model cannot run."""
        subject, arena = self.subject, self.subject.arena
        batch = arena.batches[number]
        found: list[dict[str, Any]] = []
        run = execute if self.facts else self._counted  # count everything in the first run's launches
        try:
            with executing(self.gpu, lambda launch: found.append(run(launch))) as launches:
                subject.launch_on(beyond_2gib(batch, copy=True) if large_cache else batch, number, lse)
        except NotExecutable as error:
            known = f"the model of {self.gpu.arch} does not know {error}"
            raise Rejected(Status.NOT_EXECUTABLE, known) from error
        except Fault as error:
            raise Rejected(Status.INCORRECT, f"in the model of {self.gpu.arch}: {error}") from error
        finally:
            if not self.facts:
                found += [{}] * (len(launches) - len(found))
                pairs = zip(launches, found, strict=True)
                self.facts = [facts_of(launch, WITHIN).as_dict() | {"executed": seen} for launch, seen in pairs]


def check_in_model(task: Task) -> None:
    """Check every cell in the functional model; no times."""

    def judge(subject: Subject, known: dict[str, Any]) -> GateResult:
        return _modelled(subject, known, task.gpu)

    planning = partial(executing, task.gpu, execute)
    judge_cells(task, judge, Evidence.EXECUTED_IN_MODEL, Evidence.COMPILED, around=planning)


def _modelled(subject: Subject, known: dict[str, Any], gpu: Any) -> GateResult:
    """Judge one kernel; `known` gets its facts. Raises what a kernel may raise, and Rejected."""
    runs = _Runs(subject, gpu)
    try:
        first = gate.before(subject.arena, lambda: runs.launch(0), [0], subject.kernel.CONTRACT)
    finally:
        known["facts"] = runs.facts
    if not runs.facts:
        raise Rejected(Status.NOT_EXECUTABLE, "launched no Triton kernel: there is no machine code to execute")
    return on_other_values(subject, partial(runs.launch, large_cache=True), first)


def check(task: Task) -> None:
    """Check every cell in the interpreter: two poisoned runs, other values and the LSE; no times."""
    judge_cells(task, _interpreted, Evidence.INTERPRETED)


def _interpreted(subject: Subject, known: dict[str, Any]) -> GateResult:
    """Judge one kernel. Raises what a kernel may raise, and Rejected."""
    first = gate.before(subject.arena, lambda: subject.launch(0), [0], subject.kernel.CONTRACT)
    return on_other_values(subject, subject.launch, first)


def _modes() -> dict[str, Callable[[Task], None]]:
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
