"""A mutant: one edit of the emulation, the scope of the edit, and the case that must expose it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from common.cases.case import Case, named
from common.cases.trial import Judgement, Trial
from common.mutants.emulation import Edits, Schedule, emulate
from common.oracle.reference import reference
from common.spec.metadata import Lens
from common.spec.precision import Precision

DEFAULT = Precision()
Scope = Literal["all", "one sequence", "one head", "long"]  # long: sequences past 2,048 keys only


@dataclass(frozen=True)
class Probe:
    """A case and how the emulation runs it. lse: whether the LSE is asked for and judged too."""

    case: Case
    tile: int = 32
    segments: int = 1
    lse: bool = True

    def but(
        self, tile: int | None = None, lse: bool | None = None, segments: int | None = None, **case: Any
    ) -> "Probe":
        """The probe with other fields, its own and those of its case."""
        own = {"tile": tile, "lse": lse, "segments": segments}
        own = {name: value for name, value in own.items() if value is not None}
        return replace(self, case=self.case.but(**case), **own)


def probe(name: str, lens: Lens, tile: int = 64, segments: int = 1, lse: bool = False, **options: Any) -> Probe:
    """A case of 8 query heads of 64 lanes over 2 KV heads. options: fields of the case."""
    sizes = {"heads": (8, 2), "head_size": 64, "pad_tokens": 2}
    return Probe(named(name, lens=tuple(lens), **sizes | options), tile, segments, lse)


@dataclass(frozen=True)
class Mutant:
    """One wrong kernel.

    edits: makes a new instance per run, because some mutants keep state. report: what it repeats of a published kernel,
    and where that was reported.
    """

    name: str
    scope: Scope
    case: Probe
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
    case: Probe,
    edits: Callable[[], Edits] | None = None,
    *,
    report: str = "",
    **seams: Callable[..., Any],
) -> Mutant:
    """A mutant with some seams edited, or with a class of edits."""
    return Mutant(name, scope, case, edits or edited(**seams), report)


def judge(case: Probe, edits: Edits, contract: Precision = DEFAULT) -> Judgement:
    """Run the emulation with `edits` on `case` between guards and poison, and judge the result like any kernel's."""
    trial = Trial.of(case.case, lse=case.lse)
    expected = reference(trial.batch, trial.features)  # before the run: an edit may change the inputs
    schedule = Schedule(case.tile, case.segments)
    emulate(trial.batch, trial.features, trial.out, schedule, lse=trial.lse, edits=edits)
    return trial.judge(contract, expected)


LONG = probe("long", [(1, 2605), (1, 40), (2, 90)], segments=4)
MIXED = probe("mixed", [(1, 130), (17, 65), (33, 33), (5, 300)], tile=32)
WINDOW = probe("window", [(1, 2605), (33, 2100), (1, 40)], sliding_window=256, segments=2)
SINKS = LONG.but(sinks="drawn")  # the sink takes about half of the longest sequence's mass
EMPTY = probe("empty", [(1, 50), (2, 0), (3, 40)], lse=True)
SHORT_BEHIND_LONG = probe("short-behind-long", [(1, 300), (1, 20), (1, 200)], tile=16, segments=6)
CAPPED = MIXED.but(softcap=2.0)
