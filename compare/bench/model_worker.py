"""The worker's `model` mode: every cell compiled for a GPU that is not here, and the machine code executed on the CPU.

The launches of a kernel are compiled with the JIT's own specialisation and run in the functional model of the ISA
(compare.static.isa) on the arena's tensors; the gate judges what they wrote, as it judges a GPU. The last run sees K
and V in tensors above 2 GiB, for which AMD's compiler takes other instructions.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from compare.bench import gate
from compare.bench.gate import Rejected
from compare.bench.subject import Subject
from compare.bench.task import Task
from compare.bench.untimed import judge_cells, on_other_values
from compare.record.records import Evidence, GateResult, Status
from compare.static.crosscompile import WITHIN, beyond_2gib, executing, facts_of
from compare.static.isa.errors import Fault, NotExecutable
from compare.static.isa.execute import execute


class _Runs:
    """The launches of one subject in the model. `facts`: of the first run's kernels, with what the model counted."""

    def __init__(self, subject: Subject, gpu: Any) -> None:
        self.subject, self.gpu = subject, gpu
        self.facts: list[dict[str, Any]] = []

    def launch(self, number: int, lse: torch.Tensor | None = None, *, large_cache: bool = False) -> None:
        """One call on page set `number`. Raises Rejected for code that is wrong or that the model cannot run."""
        subject, arena = self.subject, self.subject.arena
        batch = arena.batches[number]
        counted: list[dict[str, Any]] = []
        try:
            with executing(self.gpu, lambda launch: counted.append(execute(launch))) as launches:
                subject.launch_on(beyond_2gib(batch, copy=True) if large_cache else batch, number, lse)
        except NotExecutable as error:
            known = f"the model of {self.gpu.arch} does not know {error}"
            raise Rejected(Status.NOT_EXECUTABLE, known) from error
        except Fault as error:
            raise Rejected(Status.INCORRECT, f"in the model of {self.gpu.arch}: {error}") from error
        finally:
            if not self.facts:
                counted += [{}] * (len(launches) - len(counted))
                pairs = zip(launches, counted, strict=True)
                self.facts = [facts_of(launch, WITHIN).as_dict() | {"executed": seen} for launch, seen in pairs]


def check_in_model(task: Task) -> None:
    """Every cell in the functional model; no time anywhere."""

    def judge(subject: Subject, known: dict[str, Any]) -> GateResult:
        return _modelled(subject, known, task.gpu)

    judge_cells(task, judge, Evidence.EXECUTED_IN_MODEL, Evidence.COMPILED)


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
