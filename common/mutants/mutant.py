"""A mutant: one edit of the emulation, the scope of the edit, and the case that must expose it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from common.cases import case
from common.cases.batch import make_batch
from common.cases.fills import Fill, structured
from common.cases.trial import Judgement, Trial
from common.mutants.emulation import Edits, Schedule, emulate
from common.oracle.integrity import Guards
from common.oracle.reference import reference
from common.spec import AttentionShape, Features, PagedBatch
from common.spec.metadata import Lens
from common.spec.precision import Precision

DEFAULT = Precision()
Scope = Literal["all", "one sequence", "one head", "long"]  # long: sequences past 2,048 keys only


@dataclass(frozen=True)
class Probe:
    """One batch and how the emulation runs it.

    sink: mean of the normally distributed sinks; None for no sinks. loud: factor on the queries; the data are then
    structured, so only the W tier judges. fill: values that break kernels. lse: whether the LSE is asked for and
    judged.
    """

    lens: Lens
    shape: AttentionShape = field(default_factory=lambda: AttentionShape(8, 2, 64, 16))
    causal: bool = True
    sliding_window: int | None = None
    softcap: float | None = None
    sink: float | None = None
    tile: int = 64
    segments: int = 1
    loud: float = 1.0
    lse: bool = False
    spare_pages: int = 3
    extra_columns: int = 3
    fill: Fill | None = None
    seed: int = 0

    def features(self) -> Features:
        sinks = None
        if self.sink is not None:
            generator = torch.Generator().manual_seed(self.seed)
            sinks = self.sink + torch.randn(self.shape.num_query_heads, generator=generator)
        return Features(self.causal, self.sliding_window, self.softcap, sinks)

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.tile, self.segments)

    def trial(self) -> Trial:
        """The batch, with an LSE where it is asked for."""
        guards = Guards()
        batch = self.batch(guards)
        out = guards.full("out", tuple(batch.query.shape), self.shape.dtype, math.nan)
        lse = guards.full("lse", tuple(batch.query.shape[:2]), torch.float32, math.nan) if self.lse else None
        return Trial(batch, self.features(), out, lse, guards, self.loud != 1.0 or structured(self.fill))

    def batch(self, guards: Guards | None = None) -> PagedBatch:
        options = {"seed": self.seed, "pad_tokens": 2, "spare_pages": self.spare_pages, "guards": guards}
        batch = make_batch(self.lens, self.shape, extra_columns=self.extra_columns, **options)
        batch.query.mul_(self.loud)
        if self.fill is not None:
            self.fill(batch, self.features())
        return batch


@dataclass(frozen=True)
class Named:
    """A case of `common.cases.case` and how the emulation runs it; the LSE is judged too."""

    case: case.Case
    tile: int = 32
    segments: int = 1

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.tile, self.segments)

    def trial(self) -> Trial:
        return Trial.of(self.case)


@dataclass(frozen=True)
class Mutant:
    """One wrong kernel.

    edits: makes a new instance per run, because some mutants keep state. report: what it repeats of a published kernel,
    and where that was reported.
    """

    name: str
    scope: Scope
    case: Probe | Named
    edits: Callable[[], Edits]
    report: str = ""

    def run(self, contract: Precision = DEFAULT) -> Judgement:
        return judge(self.case, self.edits(), contract)


NO_EDIT = Edits()  # what a seam gives in a right kernel


def edited(**seams: Callable[..., Any]) -> type[Edits]:
    """Edits with these seams in place of the right ones, each a function of what the seam takes."""
    return type("Edited", (Edits,), {seam: _without_self(change) for seam, change in seams.items()})


def _without_self(change: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _, *given: change(*given)


def wrong(
    name: str,
    scope: Scope,
    case: Probe | Named,
    edits: Callable[[], Edits] | None = None,
    *,
    report: str = "",
    **seams: Callable[..., Any],
) -> Mutant:
    """A mutant with some seams edited, or with a class of edits."""
    return Mutant(name, scope, case, edits or edited(**seams), report)


def judge(case: Probe | Named, edits: Edits, contract: Precision = DEFAULT) -> Judgement:
    """Run the emulation with `edits` on `case` between guards and poison, and judge the result like any kernel's."""
    trial = case.trial()
    expected = reference(trial.batch, trial.features)  # before the run: an edit may change the inputs
    emulate(trial.batch, trial.features, trial.out, case.schedule, lse=trial.lse, edits=edits)
    return trial.judge(contract, expected)


LONG = Probe([(1, 2605), (1, 40), (2, 90)], segments=4)
MIXED = Probe([(1, 130), (17, 65), (33, 33), (5, 300)], tile=32)
WINDOW = Probe([(1, 2605), (33, 2100), (1, 40)], sliding_window=256, segments=2)
SINKS = replace(LONG, sink=math.log(2605.0))  # the sink takes about half of the longest sequence's mass
EMPTY = Probe([(1, 50), (2, 0), (3, 40)], lse=True)
SHORT_BEHIND_LONG = Probe([(1, 300), (1, 20), (1, 200)], tile=16, segments=6)
CAPPED = replace(MIXED, softcap=2.0)
