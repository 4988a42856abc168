"""`run` with --fleet: one plan and folder for a kind of GPU, whose rows are dealt to its seats, and one report.

A seat does what a run on one machine does. This process plans, writes rows as they arrive, and uses no GPU.
"""

import contextlib
import functools
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from common import gpus
from compare.analysis import seats
from compare.exits import NO_GPU, NOTHING, OK, Parser, refusing
from compare.fleet import muster
from compare.fleet.cluster import AUTO, Cluster, Lost, NoFleet, RemoteSeat
from compare.fleet.drive import Drive, Share, cut, longest_first
from compare.fleet.muster import Mixed, Muster
from compare.plan.job import Cell, Job
from compare.plan.plan import Plan
from compare.plan.selection import selection
from compare.plan.situation import Situation
from compare.record.records import Record
from compare.record.store import Store, load
from compare.run import command, progress
from compare.run.command import Run
from compare.run.options import Options
from compare.run.rows import CHUNK_CELLS, Rows
from compare.workloads import GrammarError
from compare.workloads.cost import floor_us

REPEATS = "repeats.jsonl"
SLACK_S = 600.0  # beyond a cell's own limit: compiling many rows gives no sign of life


@dataclass(frozen=True)
class Asked:
    """The words of a verb with --fleet. address: HOST:PORT, auto or local. mixed: seats of one kind may have different
    versions. words: all others."""

    address: str
    mixed: bool
    words: tuple[str, ...]

    @classmethod
    def of(cls, words: Sequence[str]) -> "Asked":
        own = Parser(prog="--fleet", add_help=False, allow_abbrev=False)
        own.add_argument("--fleet", nargs="?", const=AUTO)
        own.add_argument("--mixed", action="store_true")
        found, rest = own.parse_known_args(words)
        return cls(found.fleet, found.mixed, tuple(rest))


class Deaf:
    """Shows no progress: the driver does that."""

    def say(self, words: str) -> None: ...

    def process(self, number: int, of: int) -> None: ...

    def begin(self, cell: Cell) -> None: ...


@dataclass
class SeatedRows:
    """What a seat does: a share is row numbers, a result a line of cells.jsonl.

    The worker processes live until `close` and rest between shares, as between the chunks of a run.
    """

    plan: Plan
    options: Options
    run_id: str
    _stack: Any = None
    _take: Any = None

    def open(self, seat: str) -> None:
        rows = Rows(self.plan, self.options, self.run_id)
        rows.seat = seat
        self._stack = contextlib.ExitStack()
        self._take = self._stack.enter_context(rows.at_work(Deaf(), lanes=1))

    def do(self, share: Sequence[int]) -> Iterator[str]:
        """Yield every cell of these rows from every process; the processes then rest."""
        for record in self._take(share, range(len(self.plan.jobs))):
            yield record.to_json()

    def close(self) -> None:
        self._stack.close()


@refusing(NoFleet, Mixed)
def main(asked: Any) -> int:
    """Run `run --fleet`, a `compare.__main__.Command`; returns its exit code."""
    over = Asked.of(asked.words)
    execute = functools.partial(_execute, over=over, given=asked.words)
    return command.main(over.words, execute)


def _execute(options: Options, *, over: Asked, given: tuple[str, ...]) -> int:
    """Run the options on a cluster. given: the command's words. Raises GrammarError, NoFleet, Mixed."""
    if options.where.device is not None:
        raise GrammarError(f"--device: found {options.where.device} beside --fleet, allowed without it")
    options = replace(options, given=given)
    asked = None if options.where.gpu in (None, "auto") else [gpus.resolve(options.where.gpu).name]
    tell = _quiet if options.shown.quiet else _tell
    with Cluster(over.address, _outside(options)) as cluster:
        pretended = muster.pretending()
        found = muster.gpus(cluster, asked, tell, pretended=pretended)
        if len(found.of) > 1:
            raise GrammarError(f"--gpu: found a fleet of {', '.join(found.of)}, allowed --gpu with one of them")
        kind = next(iter(found.of), asked[0] if asked else None)
        ours = found.of.get(kind, [])
        if ours and not over.mixed:
            muster.ensure_alike(kind, ours)
        if options.where.require_gpu and not ours:
            print(f"--require-gpu: {kind or 'a GPU'} is not in the fleet, nothing was run", file=sys.stderr)
            return NO_GPU
        plan = _plan(options, kind, found, pretended)
        print(plan.situation.line, flush=True)
        if options.shown.list:
            print("\n".join(command.listing(plan)))
            return OK
        if not plan.cells:
            print("nothing selected", file=sys.stderr)
            return NOTHING
        return Fleet(options, plan, ours or muster.cores(cluster, len(plan.jobs), tell), found.unfit, tell).execute()


def _outside(options: Options) -> list[str]:
    """The modules of foreign kernels, `package.module:name`."""
    named = [kernel.partition(":")[0] for kernel in (options.rows.kernels or "").split(",")]
    return [name for name in named if name and "/" not in name and "*" not in name]


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _quiet(line: str) -> None:
    """Print nothing; the manifest has it."""


def _plan(options: Options, kind: str | None, found: Muster, pretended: bool) -> Plan:
    """The plan that a machine with this GPU would make. Raises what Plan.of raises."""
    seats = found.of.get(kind, [])
    if kind is None:
        now = Situation(None, False, "cpu", "no GPU in the fleet: checked in the interpreter, nothing is timed")
    elif not seats:
        line = f"{kind} is not in the fleet: compiled and checked on its cores, not timed"
        now = Situation(gpus.resolve(kind), False, "cpu", line)
    elif pretended:
        line = f"{kind} x {len(seats)} are pretended: compiled and checked, not timed"
        now = Situation(gpus.resolve(kind), False, "cpu", line)
    else:
        gpu = found.gpu(kind)
        now = Situation(gpu, True, "cuda:0", f"{kind} x {len(seats)} in the fleet ({gpu.title}): checked and timed")
    where, timing = replace(options.where, gpu=kind), options.timing.contract(now.measure)
    plan = Plan.over(now, selection(options.rows, now), timing, where)
    if not seats:  # any core may take any cell
        plan = replace(plan, jobs=tuple(job.only([cell.id]) for job in plan.jobs for cell in job.cells))
    return plan


class Fleet:
    """A run over seats: opens the work on them, deals shares, keeps rows. unfit: (seat, reason) of those left out."""

    def __init__(
        self, options: Options, plan: Plan, seats: Sequence[RemoteSeat], unfit: Sequence[tuple[str, str]], tell: Any
    ) -> None:
        self.options, self.plan, self.unfit, self.tell = replace(options, where=plan.where), plan, unfit, tell
        plans = [replace(plan, software=seat.facts["software"]) for seat in seats]
        accepted = [other.fingerprints for other in plans[1:]]
        self.run = Run(plans[0] if plans else plan, self.options, accepted)
        self.rows: Counter[str] = Counter()  # received from each seat
        self.seats = self._opened(seats, plans)
        repeat = plan.situation.measure and len(self.seats) > 1
        self.drive = Drive(self.seats, self._shares(seats), tell, repeat)

    def _shares(self, seats: Sequence[RemoteSeat]) -> list[Share]:
        """The rows that are left, the longest first."""
        plan = self.plan
        left = [number for number, job in enumerate(plan.jobs) if not _is_done(self.run, job)]
        rows = [left[at] for at in longest_first([_floor_us(plan, number) for number in left])]
        most = CHUNK_CELLS if all(seat.timed for seat in seats) else 1
        dealt = cut([len(plan.jobs[number].cells) for number in rows], len(seats), most)
        return [Share(tuple(rows[at] for at in share.rows)) for share in dealt]

    def _opened(self, seats: Sequence[RemoteSeat], plans: Sequence[Plan]) -> list[RemoteSeat]:
        begun = []
        for seat, own in zip(seats, plans, strict=True):
            try:
                seat.open(SeatedRows(own, self.run.options, self.run.run_id), own.where.timeout_s + SLACK_S)
                begun.append(seat)
            except Lost as lost:
                self.tell(f"{seat.name} is left out: {lost}")
        return begun

    def execute(self) -> int:
        """Deal every share, keep what comes, and return the exit code."""
        run, whole = self.run, False
        with (
            contextlib.ExitStack() as stack,
            progress.Bars(run.left, quiet=self.options.shown.quiet) as show,
            contextlib.suppress(KeyboardInterrupt),
        ):
            stack.callback(self._end)
            for seat in self.seats:
                show.seat(seat.name, run.plan.records // len(self.seats))
            keep = stack.enter_context(run.keeping())
            again = stack.enter_context(Store(run.folder / REPEATS)) if self.drive.repeat else None
            for found in self.drive.results():
                record = Record.from_json(found.what)
                if found.share is None:
                    again.append(record)
                    continue
                keep(record)
                self.rows[found.seat] += 1
                show.finished(record)
            whole = True
        return self._concluded(whole)

    def _end(self) -> None:
        """Begin nothing more; end the actors and their processes."""
        self.drive.stop()
        for seat in self.seats:
            seat.close() if self.drive.left == 0 else seat.end()
        for seat in self.seats:
            seat.end()

    def _concluded(self, whole: bool) -> int:
        """Move rows of lost shares aside, write the report, and return the exit code."""
        run, drive = self.run, self.drive
        run.settle()
        run.whole = whole
        run.manifest["fleet"] = self._told()
        code = run.conclude()
        if whole and drive.left:
            gone = f"{drive.left} of {len(drive.shares)} shares were not done"
            self.tell(f"{self.plan.situation.name}: {gone}; --resume {run.folder} goes on")
            return max(code, NO_GPU)
        return code

    def _told(self) -> dict[str, Any]:
        """The manifest's entry `fleet`: each seat with its rows, versions and noise, and what was lost."""
        folder, noise = self.run.folder, {}
        if (folder / REPEATS).exists():
            noise = seats.noise(load(folder / "cells.jsonl").records, load(folder / REPEATS).records)
        told = {
            seat.name: {
                "address": seat.facts.get("address", ""),
                "rows": self.rows[seat.name],
                "versions": seat.facts["software"],
                "noise": noise.get(seat.name),
            }
            for seat in self.seats
        }
        return {"seats": told, "losses": self.drive.losses, "unfit": dict(self.unfit)}


def _floor_us(plan: Plan, number: int) -> float:
    """The least microseconds that a row takes at the GPU's peaks; 0 without a GPU or known peaks."""
    gpu = plan.situation.target
    return (gpu and floor_us(plan.jobs[number].workload, gpu)) or 0.0


def _is_done(run: Run, job: Job) -> bool:
    return all((cell.id, p) in run.rows.done for cell in job.cells for p in range(run.plan.contract.processes))
