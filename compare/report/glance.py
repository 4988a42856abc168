"""The first screen of a report: what ran, a sentence of verdicts for each class, one picture, and what failed.

Where nothing was timed, the sentences say what was proved and what was not.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compare.analysis import summary, tables, verdict
from compare.analysis.committed import COLUMNS
from compare.analysis.markup import said
from compare.analysis.runs import RunData
from compare.analysis.standing import KINDS, Standing, standings
from compare.analysis.verdict import Outcome, Verdict
from compare.competitors.registry import BOUNDS, CALLED, RUNGS, base, in_order, is_own
from compare.record.records import Evidence, Record, Status
from compare.report import bars
from compare.report.blocks import Bullets, Picture, Section, Text
from compare.report.style import MOST_SERIES

PICTURE = "glance"  # the figure's name
MOST_FAILURES = 5  # on the first screen; the section Failures has all of them
_FAMILIES = ("triton", "helion")


@dataclass(frozen=True)
class Entry:
    """A kernel against the unit over a class: the verdict on its mean, and its slowest row."""

    standing: Standing
    outcome: Outcome
    worst: Verdict


@dataclass(frozen=True)
class Verdicts:
    """unit: the kernel at 1x, empty where nothing was timed. shown: class -> kernels with a sentence; bars: class ->
    kernels in the picture; both in order."""

    unit: str
    shown: Mapping[str, tuple[Entry, ...]]
    bars: Mapping[str, tuple[Standing, ...]]


def verdicts(run: RunData) -> Verdicts:
    """The verdicts behind the picture and the sentences."""
    unit = verdict.unit_of(run.raw)
    if unit is None:
        return Verdicts("", {}, {})
    shown = _shown(run, unit)
    drawn = _drawn(run, unit, shown)
    rows = [record for record in run.raw if record.kernel in {unit, *drawn, *(k for of in shown.values() for k in of)}]
    pairs = verdict.unit_pairs(rows, unit)
    judged = [one for one in run.judged if (one.kernel, unit) in pairs]
    found = {(s.group, s.kernel): s for s in standings(rows, judged, pairs) if s.speed}
    worst: dict[tuple[str, str], Verdict] = {}
    for one in judged:
        at = one.workload.kind, one.kernel
        worst[at] = min(worst.get(at, one), one, key=lambda v: v.speed.ratio)
    entries = {
        kind: tuple(
            Entry(found[kind, k], verdict.decide(found[kind, k].speed, run.margin), worst[kind, k])
            for k in shown.get(kind, ())
            if (kind, k) in found
        )
        for kind in KINDS
    }
    columns = {kind: tuple(found[kind, k] for k in drawn if (kind, k) in found) for kind in KINDS}
    return Verdicts(unit, entries, {kind: of for kind, of in columns.items() if of})


def _speeds(run: RunData) -> dict[tuple[str, str], list[float]]:
    """(class, kernel) -> its speeds relative to the best of each row."""
    speeds: dict[tuple[str, str], list[float]] = {}
    for kind, kernel, ratio in zip(run.rows.kind, run.rows.kernel, run.rows.ratio_to_best, strict=True):
        if ratio == ratio:
            speeds.setdefault((kind, kernel), []).append(1 / ratio)
    return speeds


def _shown(run: RunData, unit: str) -> dict[str, list[str]]:
    """Class -> both DSLs' `auto` where it ran, else each DSL's kernel with the highest mean speed; and every kernel
    from outside."""
    speeds = {at: of for at, of in _speeds(run).items() if at[1] not in {unit, *BOUNDS}}
    shown: dict[str, list[str]] = {}
    for kind in KINDS:
        means = {k: sum(v) / len(v) for (at, k), v in speeds.items() if at == kind}
        for family in _FAMILIES:
            of = [k for k in means if is_own(k) and k.startswith(f"{family}/")]
            called = [k for k in of if base(k) in CALLED]
            shown.setdefault(kind, []).extend(called or sorted(of, key=means.__getitem__)[-1:])
        shown[kind] += [k for k in means if summary.family(k) == "other" and not is_own(k)]
    return shown


def _drawn(run: RunData, unit: str, shown: Mapping[str, Sequence[str]]) -> list[str]:
    """The bars of a class: kernels with sentences, then baselines, then others, the fastest first. Where more ran than
    a picture has room for, the rungs of a DSL whose `auto` ran are left out: it chooses among them."""
    means: dict[str, float] = {}
    for (_, kernel), of in _speeds(run).items():
        means[kernel] = max(means.get(kernel, 0.0), sum(of) / len(of))
    told = {kernel for of in shown.values() for kernel in of}
    chosen = {base(kernel).removesuffix("auto") for kernel in told if base(kernel) in CALLED}
    rungs = {f"{family}{rung}" for family in chosen for rung in RUNGS}
    rest = [kernel for kernel in means if kernel not in {unit, *told, *BOUNDS}]
    if len(told) + len(rest) > MOST_SERIES:
        rest = [kernel for kernel in rest if base(kernel) not in rungs]
    rest.sort(key=lambda kernel: (not kernel.startswith("baseline/"), -means[kernel]))
    return in_order([*in_order(told), *rest][:MOST_SERIES])


def draw(run: RunData, folder: Path) -> dict[str, Path]:
    """Draw the picture: speeds by class, or, where nothing was timed, how each kernel's cells ended."""
    found = verdicts(run)
    path = folder / f"{PICTURE}.svg"
    if found.bars:
        return {PICTURE: bars.speeds(found.bars, found.unit, path)}
    return {PICTURE: bars.endings(run.records, path)} if run.records and not run.timed else {}


def section(run: RunData) -> Section | None:
    """The first screen; None for a folder without cells."""
    if not run.records:
        return None
    words = list(_sentences(verdicts(run))) if run.timed else list(_proofs(run))
    blocks: list = [Text(_ran(run)), Bullets(tuple(words))]
    if PICTURE in run.figures:
        blocks.append(Picture(PICTURE, _caption(run)))
    blocks.append(Bullets(tuple(_endings(run))))
    return Section("glance", "At a glance", tuple(blocks))


def elsewhere(run: RunData) -> Section | None:
    """The committed speeds, marked as another machine's; None where the run has its own, or named a GPU."""
    if not run.records or not (found := run.elsewhere):
        return None
    words = (
        f"**Not of this machine.** One {found.gpu}, on {found.day}: FlashAttention 3 is 1, and above 1 is faster;"
        " means over rows, the worst row in brackets. `docs/speed.md` has every figure and its command; on a GPU this"
        " command times what is here."
    )
    return Section("elsewhere", f"Speeds, measured on an {found.gpu}", (Text(words), tables.Table(COLUMNS, found.body)))


def _ran(run: RunData) -> str:
    """`22 kernels on 23 rows of peers: 506 of 506 cells gave the right answer and were timed, ...`"""
    kernels, rows = {r.kernel for r in run.records}, {r.workload.id for r in run.records}
    right, timed = len(run.ok), sum(record.timing is not None for record in run.records)
    where = f"on the {run.gpu_title}" if run.gpu != "cpu" and not run.absent else "on a CPU"
    ended = "; none was timed"
    if timed:
        ended = " and were timed" if timed == right else f", and {timed:,} of them were timed"
    ran = f"{_count(len(kernels), 'kernel')} on {_count(len(rows), 'row')} of `{run.suite}`, {where}"
    return f"{ran}: {right:,} of {_count(len(run.records), 'cell')} gave the right answer{ended}."


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _caption(run: RunData) -> str:
    if run.timed:
        return "Speed by class, geometric means over its rows"
    return "How the cells of every kernel ended"


def _sentences(found: Verdicts) -> Iterator[str]:
    for kind, entries in found.shown.items():
        if entries:
            rows = max(entry.standing.cells for entry in entries)
            told = "; ".join(_told(entry, found.unit if entry is entries[0] else "it") for entry in entries)
            yield f"**{kind.capitalize()}**, {_count(rows, 'row')}: {told}."
    if not any(found.shown.values()):
        others = sorted({s.kernel for of in found.bars.values() for s in of})
        beside = f"beside {', '.join(f'`{kernel}`' for kernel in others)}" if others else "alone"
        yield f"`{found.unit}` was timed {beside}: no kernel of a DSL to compare with it."


_WORDS = {
    Outcome.FASTER: "is faster than",
    Outcome.SAME: "is level with",
    Outcome.AMBIGUOUS: "cannot be told from",
    Outcome.SLOWER: "is slower than",
}


def _told(entry: Entry, unit: str) -> str:
    """`triton/auto` is faster than `baseline/flash_attn3`, 1.19× [1.17, 1.21] (13 faster, 3 same; worst ...)"""
    s = entry.standing
    tally = ", ".join(f"{s.outcomes[o]} {o}" for o in _WORDS if s.outcomes.get(o)) if s.cells > 1 else ""
    lost = "".join(f", {count} {why}" for why, count in s.missing.items())
    at = f"worst {tables.times(entry.worst.speed.ratio)} on {entry.worst.workload.label}" if s.compared > 1 else ""
    interval = tables.interval(s.speed.low, s.speed.high)
    speed = f"**{tables.times(s.speed.ratio)}**" + (f" {interval}" if interval else "")
    behind = "; ".join(filter(None, [(tally + lost).removeprefix(", "), at]))
    against = unit if unit == "it" else f"`{unit}`"
    return f"`{s.kernel}` {_WORDS[entry.outcome]} {against}, {speed}" + (f" ({behind})" if behind else "")


def _proofs(run: RunData) -> Iterator[str]:
    """The evidence behind a run without times, and what it does not prove."""
    having = {kind: sum(kind in record.evidence for record in run.ok) for kind in Evidence}
    arches = ", ".join(sorted({fact["arch"] for fact in run.facts}))
    if count := having[Evidence.EXECUTED_IN_MODEL]:
        yield (
            f"**Proved**: the machine code for {arches} gives the right answer, on {_count(count, 'cell')}. It ran on a"
            " CPU, in a functional model of the instruction set."
        )
    if count := having[Evidence.INTERPRETED]:
        yield f"**Proved**: the algorithm gives the right answer in the DSL's interpreter, on {_count(count, 'cell')}."
    if count := having[Evidence.COMPILED]:
        yield (
            f"**Proved**: the kernels compile for {arches} and fit, on {_count(count, 'cell')}; registers, spills and"
            " shared memory are exact."
        )
    lacking = [f"speed: nothing here is a time of {'a GPU' if run.gpu == 'cpu' else run.gpu_title}"]
    if not having[Evidence.COMPILED]:
        lacking.append("that the kernels compile for a GPU")
    if not having[Evidence.EXECUTED_IN_MODEL]:
        lacking.append("what the compiled code computes")
    yield f"**Not proved**: {'; '.join([*lacking, 'races between programs; faults of the hardware'])}."


def _endings(run: RunData) -> Iterator[str]:
    """What failed, what was not run, and what is missing."""
    failed = [record for record in run.records if record.status.is_failure]
    if failed:
        first = "" if len(failed) <= MOST_FAILURES else f" The first {MOST_FAILURES}:"
        yield f"**{_count(len(failed), 'cell')} failed**; Failures has the command that repeats each.{first}"
        yield from map(_failure, failed[:MOST_FAILURES])
    else:
        yield "No cell failed."
    skipped = Counter(r.status for r in run.records if r.status is not Status.OK and not r.status.is_failure)
    if skipped:
        yield f"Not run: {', '.join(f'{count} {status}' for status, count in skipped.items())}; the reasons are below."
    if (planned := run.manifest.get("planned", 0)) > len(run.records):
        yield f"**{planned - len(run.records)} of {planned} planned cells are missing**: the run did not get to them."


def _failure(record: Record) -> str:
    reason = " ".join(record.reason.split())
    words = said(reason if len(reason) <= 120 else reason[:119] + "…")
    return f"`{record.kernel}` on {record.workload.label}: {record.status}" + (f", {words}" if words else "")
