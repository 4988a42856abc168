"""The plan of a run, made once: situation, rows, kernels, contract, cells and their fingerprints."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from compare.plan import fingerprint
from compare.plan.job import MODELLED, Cell, Job, interpreter_seconds, jobs, model_seconds, plan_hash
from compare.plan.options import RowOptions, TimingOptions, WhereOptions
from compare.plan.selection import Selection, selection
from compare.plan.situation import Situation, situation
from compare.record.contract import Contract


@dataclass(frozen=True)
class Plan:
    """where: budgets, time limits, and whose configs. software: of the machine that runs it, None for this one's."""

    situation: Situation
    selection: Selection
    contract: Contract
    jobs: tuple[Job, ...]
    where: WhereOptions = field(default_factory=WhereOptions)
    software: Mapping[str, str] | None = None

    @classmethod
    def of(cls, rows: RowOptions, where: WhereOptions, timing: TimingOptions) -> "Plan":
        """The plan of a command line. Raises what its parts raise: UnknownGpu, UnknownKernel,
        GrammarError, SpecError."""
        now = situation(where.gpu, where.device)
        return cls.over(now, selection(rows, now), timing.contract(now.measure), where)

    @classmethod
    def over(cls, now: Situation, chosen: Selection, contract: Contract, where: WhereOptions | None = None) -> "Plan":
        """A plan of every selected kernel on every selected row."""
        gpu = now.target.name if now.target else None
        planned = jobs(chosen.workloads, chosen.kernels, gpu, chosen.every)
        return cls(now, chosen, contract, planned, where or WhereOptions())

    @property
    def gpu(self) -> str | None:
        """The name of the GPU that is meant; None for the CPU alone."""
        return self.situation.target.name if self.situation.target else None

    @property
    def device(self) -> str | None:
        """The device on which cells are timed; None if none is timed."""
        return self.situation.device if self.situation.measure else None

    @cached_property
    def hash(self) -> str:
        """A hash of the cells in their order."""
        return plan_hash(self.jobs)

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(cell for job in self.jobs for cell in job.cells)

    @property
    def records(self) -> int:
        """The number of records: one per cell and process."""
        return len(self.cells) * self.contract.processes

    @cached_property
    def fingerprints(self) -> Mapping[str, str]:
        """The fingerprint of each cell by its id. A finished cell counts if its fingerprint is still the same."""
        of = (self.contract, self.where.heuristics, self.software)
        return fingerprint.of_cells(self.jobs, self.gpu, self.device, *of)

    @property
    def modelled(self) -> bool:
        """Whether the GPU is absent and its code can be executed on the CPU."""
        return self.situation.absent and self.situation.target.arch in MODELLED

    def seconds(self, cell: Cell) -> float:
        """Estimated seconds of a cell that is not timed."""
        estimate = model_seconds if self.modelled else interpreter_seconds
        return estimate(cell.kernel, cell.workload)

    def fits(self, cell: Cell, budget_s: float) -> bool:
        """Whether a cell is timed, or stays within `budget_s` seconds on a CPU."""
        return self.situation.measure or self.seconds(cell) <= budget_s
