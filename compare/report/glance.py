"""A run at a glance: a card a class of workloads, with what a caller of either DSL gets against the unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compare.analysis import tables, verdict
from compare.analysis.runs import RunData
from compare.analysis.standing import KINDS, Standing, standings
from compare.analysis.verdict import Outcome
from compare.competitors.registry import BOUNDS, base, is_own
from compare.report.verdicts import floor, interval

_FAMILIES = ("triton", "helion")
_SAID = (Outcome.FASTER, Outcome.SAME, Outcome.AMBIGUOUS, Outcome.SLOWER)


@dataclass(frozen=True)
class Entry:
    """A kernel of a card: its speed, the 99% interval, and on how many rows it is what."""

    kernel: str
    speed: str
    interval: str
    tally: str


@dataclass(frozen=True)
class Card:
    """A class: entries of both DSLs, and over what the means are."""

    kind: str
    entries: tuple[Entry, ...]
    note: str


def cards(run: RunData) -> list[Card]:
    """A card for each class in which a kernel of a DSL was compared; none where nothing was timed."""
    unit = verdict.unit_of(run.raw)
    if unit is None:
        return []
    shown = _shown(run, unit)
    rows = [record for record in run.raw if record.kernel in {unit, *(k for of in shown.values() for k in of)}]
    pairs = verdict.unit_pairs(rows, unit)
    noise, _ = floor(run.folder, run.gpu, run.contract)
    judged = verdict.judge(rows, pairs, verdict.margin_of(noise))
    found = {(s.group, s.kernel): s for s in standings(rows, judged, pairs) if s.speed}
    made = []
    for kind in KINDS:
        mine = [found[kind, kernel] for kernel in shown.get(kind, ()) if (kind, kernel) in found]
        if mine:
            made.append(Card(kind, tuple(map(_entry, mine)), _note(mine, unit)))
    return made


def _shown(run: RunData, unit: str) -> dict[str, list[str]]:
    """Per class: `auto` of both DSLs where it ran, else each DSL's kernel with the highest mean speed there."""
    speeds: dict[tuple[str, str], list[float]] = {}
    for kind, kernel, ratio in zip(run.rows.kind, run.rows.kernel, run.rows.ratio_to_best, strict=True):
        if is_own(kernel) and kernel not in BOUNDS and kernel != unit and ratio == ratio:
            speeds.setdefault((kind, kernel), []).append(1 / ratio)
    shown: dict[str, list[str]] = {}
    for kind in KINDS:
        for family in _FAMILIES:
            of = {k: sum(v) / len(v) for (at, k), v in speeds.items() if at == kind and k.startswith(f"{family}/")}
            called = [kernel for kernel in of if base(kernel) == f"{family}/auto"]
            shown.setdefault(kind, []).extend(called or sorted(of, key=of.__getitem__)[-1:])
    return shown


def _entry(standing: Standing) -> Entry:
    tally = ", ".join(f"{standing.outcomes[o]} {o}" for o in _SAID if standing.outcomes.get(o))
    lost = "".join(f", {count} {why}" for why, count in standing.missing.items())
    return Entry(standing.kernel, tables.times(standing.speed.ratio), interval(standing.speed), tally + lost)


def _note(mine: Sequence[Standing], unit: str) -> str:
    rows = max(standing.cells for standing in mine)
    return f"Geometric mean over {rows} row{'s' * (rows != 1)}; `{unit}` = 1×, above is faster."
