"""G: the case that exposes each mutant, the rule by which it dies, and what it damages.

How far it is from right is left out: the last digits of that are the processor's.
"""

from __future__ import annotations

from common.mutants import MUTANTS
from common.mutants.mutant import Mutant, Named, Probe
from goldens.table import Rows


def rows() -> Rows:
    return {mutant.name: _death(mutant) for mutant in MUTANTS}


def _death(mutant: Mutant) -> dict[str, object]:
    outcome = mutant.run()
    return {"scope": mutant.scope, "case": _words(mutant.case), "rule": outcome.rule, "damage": outcome.damage}


def _words(case: Probe | Named) -> str:
    """A named case by its name, another by its lengths, its dtype and what it asks; and how the emulation cuts it."""
    cuts = f"{case.segments} x {case.tile}"
    if isinstance(case, Named):
        return f"{case.case.name}, {cuts}"
    lens = "_".join(f"q{query_len}s{seq_len}" for query_len, seq_len in case.lens)
    asked = [case.sliding_window, case.softcap, case.sink, case.loud, case.lse, case.seed]
    features = " ".join(sorted(case.features().names()))
    return f"{lens} {case.shape.to_dict()} {features} {asked}, {cuts}"
