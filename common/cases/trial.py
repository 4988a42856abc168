"""Launch a kernel on a case and judge it: everything that it wrote, and everything that it must not change."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from common.cases.case import Case, build, config_for, outputs
from common.oracle.integrity import Guards, Snapshot, damage
from common.oracle.reference import Expected, reference
from common.oracle.tolerance import RULES, Verdict, check
from common.spec import Features, PagedBatch
from common.spec.kernel import Capacity, Kernel, Precision, planned


def ready(kernel: Any, batch: PagedBatch, features: Features, config: Any) -> Any:
    """The planned workspace with which `kernel.launch` serves this batch."""
    return planned(kernel, batch, features, config, kernel.workspace(batch.shape, Capacity.of(batch), config))


@dataclass(frozen=True)
class Judgement:
    """The checker's verdict on the output, and a sentence for each thing that was damaged."""

    verdict: Verdict
    damage: list[str]

    @property
    def ok(self) -> bool:
        return self.verdict.ok and not self.damage

    @property
    def reason(self) -> str:
        """ "" when ok."""
        return "; ".join(filter(None, (self.verdict.reason, *self.damage)))

    @property
    def rule(self) -> str:
        """The rule that rejects it: the checker's tier, "exact", or "untouched" for damage alone; "-" when ok."""
        if self.verdict.ok:
            return "untouched" if self.damage else "-"
        return "exact" if math.isinf(self.verdict.worst) else RULES[self.verdict.rule]


@dataclass
class Trial:
    """One launch on a batch between guards. The caller launches, writing to `out` and `lse`.

    structured: whether the checker must not assume independent rounding errors. lse: None where none is asked for.
    before: the inputs when the trial is made. poison: what fills the outputs.
    """

    batch: PagedBatch
    features: Features
    out: Tensor
    lse: Tensor | None
    guards: Guards
    structured: bool = False
    poison: float = math.nan

    def __post_init__(self) -> None:
        self.before = Snapshot.of(self.batch, self.features)

    @classmethod
    def of(
        cls, case: Case, device: torch.device | str = "cpu", poison: float = math.nan, *, lse: bool = True
    ) -> "Trial":
        """Raises SpecError where the case refuses the shape itself."""
        guards = Guards(device)
        batch, features = build(case, device, guards)
        out, with_lse = outputs(case, batch, guards, poison)
        return cls(batch, features, out, with_lse if lse else None, guards, case.structured, poison)

    @property
    def _lse(self) -> dict[str, Tensor]:
        return {} if self.lse is None else {"lse": self.lse}

    def launch(self, kernel: Kernel, config: Any) -> None:
        """One launch of `kernel`, with a workspace of its own. Raises what the kernel raises."""
        workspace = ready(kernel, self.batch, self.features, config)
        kernel.launch(self.batch, self.features, self.out, config, workspace, **self._lse)

    def judge(self, contract: Precision, expected: Expected | None = None) -> Judgement:
        """Judge the output against the reference, which is computed from the current inputs unless `expected` is
        given."""
        given = (self.batch, self.features)
        expected = expected or reference(*given)
        verdict = check(self.out, self.lse, *given, contract, expected, structured=self.structured)
        written = {"out": self.out} | self._lse
        return Judgement(verdict, damage(self.before, *given, written, self.poison, self.guards))


def tried(kernel: Kernel, case: Case, config: Any, *, lse: bool = True) -> Judgement:
    """One judged launch on a CPU, on a case, under `config` with the case's tile size.

    Raises SpecError where the case or the kernel refuses, and whatever else a launch raises.
    """
    trial = Trial.of(case, lse=lse)
    trial.launch(kernel, config_for(case, config))
    return trial.judge(kernel.CONTRACT)
