"""`doctor --versions`: what the torch, triton and helion that are here make of the smoke cells, a verdict a DSL.

Each rung of a DSL is interpreted on a decode, a chunk and a speculative batch and judged as `run` judges it, and
compiled for a GPU of either vendor, or for the one that is here; in children, so that a compiler that crashes costs one
cell.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console

from common import gpus, versions
from common.gpus import Gpu
from compare.competitors import registry
from compare.exits import NOTHING, OK, WRONG
from compare.plan.plan import Plan
from compare.plan.selection import ABSENT_EVERY, Selection
from compare.plan.situation import Situation
from compare.process.crew import Crew
from compare.record.contract import Contract
from compare.record.records import Status
from compare.static.compile import Compilation, compile_in_child
from compare.workloads import suites

# Of the suite smoke, and of one form: Helion generates code once a rung.
ROWS = "ragged-decode,chunk-17-over-40,speculative-4"
TARGETS = ("h200", "mi300")  # where no GPU is here
LIMIT_S = 300.0  # of a cell


@dataclass(frozen=True)
class Seen:
    """The outcome of a cell. how: `interpreted`, or the GPU that it was compiled for."""

    how: str
    cell: str
    status: str
    reason: str


def rungs(dsl: str) -> tuple[str, ...]:
    """The kernel ids of a DSL."""
    return tuple(kernel for kernel in registry.OWN if kernel.startswith(f"{dsl}/"))


def _plan(kernels: tuple[str, ...], gpu: Gpu | None, every: int) -> Plan:
    """A plan in which each kernel has one of every `every` ROWS."""
    rows = suites.pick(suites.suite("smoke"), ROWS)
    return Plan.over(Situation(gpu, False, "cpu", ""), Selection("smoke", rows, kernels, every=every), Contract())


def interpreted(kernels: tuple[str, ...]) -> Iterator[Seen]:
    """Check every kernel on every row in one process, so that Helion generates each kernel's code once."""
    with contextlib.closing(Crew("check", None, "cpu", LIMIT_S)) as crew:
        for job in _plan(kernels, None, 1).jobs:
            for outcome in crew.run(job):
                cell = f"{outcome.cell.kernel} on {outcome.cell.workload.label}"
                yield Seen("interpreted", cell, str(outcome.fields["status"]), str(outcome.fields.get("reason", "")))


def compiled(dsl: str, gpu: Gpu) -> Iterator[Seen]:
    """Compile every rung, each on another row."""
    cells = [cell for job in _plan(rungs(dsl), gpu, ABSENT_EVERY).jobs for cell in job.cells]
    found = compile_in_child([Compilation(cell.workload, cell.kernel) for cell in cells], gpu, limit_s=LIMIT_S)
    for cell, outcome in zip(cells, found, strict=True):
        last = (outcome.log_tail.strip().splitlines() or [""])[-1]  # the last line of a compiler's error names it
        reason = outcome.reason if last in outcome.reason else f"{outcome.reason} {last}"
        yield Seen(gpu.name, f"{cell.kernel} on {cell.workload.label}", str(outcome.status), reason)


def seen(dsl: str, targets: Sequence[Gpu]) -> Iterator[Seen]:
    """All outcomes of a DSL. Interpretation is skipped if Triton is too old for it."""
    with contextlib.suppress(versions.Unsuitable):
        versions.ensure(dsl, interpreted=True)
        yield from interpreted(rungs(dsl))
    for gpu in targets:
        yield from compiled(dsl, gpu)


def verdict(dsl: str, cells: Sequence[Seen]) -> tuple[int, list[str]]:
    """OK, WRONG, or NOTHING where nothing could run; and the lines that say so."""
    how = dict.fromkeys(one.how for one in cells)
    counts = [(name, [one.status == Status.OK for one in cells if one.how == name]) for name in how]
    said = ", ".join(f"{name} {sum(right)} of {len(right)}" for name, right in counts)
    tried = [one for one in cells if one.status not in (Status.UNAVAILABLE, Status.UNSUPPORTED)]
    wrong = [one for one in tried if one.status != Status.OK]
    if not tried:
        return NOTHING, [f"{dsl}: not tested: {cells[0].reason if cells else 'nothing could be tried'}"]
    lines = [f"{dsl}: {'does not work' if wrong else 'works'}: {said}"]
    return WRONG if wrong else OK, lines + [f"  {one.how} {one.cell}: {one.status}: {one.reason}" for one in wrong]


def judged(console: Console, here: Gpu | None) -> int:
    """Print what is here, whether it is a tested set, and a verdict a DSL; the worst of their exit codes. A DSL that is
    not installed is no fault."""
    targets = [here] if here else [gpus.resolve(name) for name in TARGETS]
    found = ", ".join(f"{package} {versions.here(package) or 'not installed'}" for package in versions.PACKAGES)
    name = versions.tested()
    console.print(f"{found}: {f'the tested set `{name}`' if name else 'no tested set'}", markup=False, soft_wrap=True)
    codes = []
    for dsl in registry.DSLS:
        try:
            versions.ensure(dsl, interpreted=False)
        except versions.Unsuitable as error:
            console.print(f"{dsl}: not tested: {error}", markup=False, soft_wrap=True)
            continue
        code, lines = verdict(dsl, list(seen(dsl, targets)))
        codes.append(code)
        console.print("\n".join(lines), markup=False, soft_wrap=True, highlight=False)
    return max((code for code in codes if code != NOTHING), default=NOTHING)
