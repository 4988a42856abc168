"""`run` with --fleet: one plan and folder for each kind of GPU, rows dealt to its seats, and one report.

A seat does what a run on one machine does. This process plans, writes rows as they arrive, and uses no GPU.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common import gpus
from compare.analysis import merge, runs, seats
from compare.exits import INTERRUPTED, NO_GPU, NOTHING, OK, ending
from compare.fleet import muster, shares
from compare.fleet.asked import Asked, Command
from compare.fleet.cluster import Cluster, Lost, Node, NoFleet, RemoteSeat
from compare.fleet.drive import Drive, Found
from compare.fleet.muster import Mixed, Muster
from compare.fleet.shares import Share
from compare.plan import resume
from compare.plan.job import Cell, Job
from compare.plan.plan import Plan
from compare.plan.selection import selection
from compare.plan.situation import Situation
from compare.process.pool import Jobs, Pool, in_order
from compare.record import folder as run_folder
from compare.record.records import Record
from compare.record.store import Store, load
from compare.run import command, progress
from compare.run.command import Run
from compare.run.options import Options
from compare.run.rows import CHUNK_CELLS, Rows
from compare.workloads import GrammarError
from compare.workloads.cost import floor_us

REPEATS = "repeats.jsonl"
CPU = "cpu"
SLACK_S = 600.0  # beyond a cell's own limit: compiling many rows gives no sign of life


class Deaf:
    """Shows no progress: the driver does that."""

    def say(self, words: str) -> None: ...

    def process(self, number: int, of: int) -> None: ...

    def begin(self, cell: Cell) -> None: ...


@dataclass
class SeatedRows:
    """A work (compare.fleet.seat.Work): a share is row numbers, a result a line of cells.jsonl.

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


@dataclass
class Part:
    """One kind of GPU: its run, its seats, and the Drive that deals its shares."""

    run: Run
    seats: list[RemoteSeat]
    drive: Drive
    rows: Counter[str] = field(default_factory=Counter)  # rows received from each seat

    @property
    def kind(self) -> str:
        return self.run.plan.situation.name

    def end(self) -> None:
        """Begin nothing more; end the actors and their processes."""
        self.drive.stop()
        for seat in self.seats:
            seat.close() if self.drive.left == 0 else seat.end()
        for seat in self.seats:
            seat.end()


def main(asked: Command) -> int:
    """Run `run --fleet`; returns the worst exit code over the kinds of GPU."""
    over = Asked.of(asked.words)
    execute = functools.partial(_execute, over=over, given=asked.words)
    return ending(lambda: command.main(over.words, execute), (NoFleet, Mixed))


def _execute(options: Options, *, over: Asked, given: tuple[str, ...]) -> int:
    """Run the options on a cluster. given: the command's words. Raises GrammarError, NoFleet, Mixed."""
    if options.where.device is not None:
        raise GrammarError(f"--device: found {options.where.device} beside --fleet, allowed without it")
    options = replace(options, given=given)
    asked = muster.kinds(options.where.gpu)
    tell = _quiet if options.shown.quiet else _tell
    with Cluster(over.address, _outside(options)) as cluster:
        pretended = muster.pretending()
        found = muster.gpus(cluster, asked, tell, pretended=pretended)
        for kind, seats in found.of.items():
            if not over.mixed:
                muster.ensure_alike(kind, seats)
        kinds = asked if asked is not None else [*found.of] or [None]
        if options.where.require_gpu and (lacking := [kind or "a GPU" for kind in kinds if kind not in found.of]):
            print(f"--require-gpu: {', '.join(lacking)} is not in the fleet, nothing was run", file=sys.stderr)
            return NO_GPU
        plans = {kind: _plan(options, kind, found, pretended) for kind in kinds}
        for plan in plans.values():
            print(plan.situation.line, flush=True)
        if options.shown.list:
            for plan in plans.values():
                print("\n".join(command.listing(plan)))
            return OK
        if not any(plan.cells for plan in plans.values()):
            print("nothing selected", file=sys.stderr)
            return NOTHING
        return Fleet(options, cluster, found, plans, tell).execute()


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
    """A run over several kinds of GPU: starts seats, deals shares, keeps rows."""

    def __init__(
        self, options: Options, cluster: Cluster, found: Muster, plans: dict[str | None, Plan], tell: Any
    ) -> None:
        self.options, self.cluster, self.found, self.plans, self.tell = options, cluster, found, plans, tell
        self.folder = self._folder()
        self.parts: list[Part] = []

    def _folder(self) -> Path | None:
        """The parent of the kinds' folders; None for one kind, whose folder is an ordinary run."""
        if len(self.plans) == 1:
            return None
        named = self.options.resume or self.options.out
        if self.options.resume == "" and not named:
            raise resume.CannotResume("resume: found several GPUs and no folder, allowed --resume DIR")
        if self.options.resume and not Path(named).is_dir():
            raise resume.absent(Path(named))
        folder = Path(named) if named else run_folder.make(None, "fleet")
        run_folder.ensure_writable(folder)
        return folder

    def _run(self, kind: str | None, plan: Plan, accepted: Sequence[Mapping[str, str]]) -> Run:
        """The run of one kind in its own folder."""
        options = replace(self.options, where=plan.where)
        if self.folder is not None:
            named = str(self.folder / (kind or CPU))
            options = replace(options, out=named, resume=None if options.resume is None else "")
        return Run(plan, options, accepted)

    def execute(self) -> int:
        """Time all present kinds in parallel, with absent kinds on idle nodes' cores; then the other absent kinds."""
        timed = {kind: plan for kind, plan in self.plans.items() if kind in self.found.of}
        absent = {kind: plan for kind, plan in self.plans.items() if kind not in self.found.of}
        busy = [seat.node for seats in self.found.of.values() for seat in seats]
        free = [node for node in self.cluster.nodes() if node.id not in {node.id for node in busy} and node.cores]
        later = [{kind: plan} for kind, plan in absent.items()]  # one at a time: each uses all cores
        groups = [timed | (later.pop(0) if free and later else {}), *later] if timed else later
        codes = []
        for group in groups:
            codes.append(self._at_once(group, busy if set(group) & set(timed) else ()))
            if codes[-1] == INTERRUPTED:
                break
        if self.folder is not None:
            self._merge()
        return max(codes)

    def _at_once(self, plans: Mapping[str | None, Plan], busy: Sequence[Node]) -> int:
        parts = [self._part(kind, plan, busy) for kind, plan in plans.items()]
        self.parts += parts
        shown, total, whole = self.options.shown, sum(part.run.left for part in parts), False
        with (
            contextlib.ExitStack() as stack,
            progress.Bars(total, quiet=shown.quiet) as show,
            contextlib.suppress(KeyboardInterrupt),
        ):
            for part in parts:
                stack.callback(part.end)
                for seat in part.seats:
                    show.seat(seat.name, part.run.plan.records // len(part.seats))
            kept = {part.kind: stack.enter_context(part.run.keeping()) for part in parts}
            timed = [part for part in parts if part.drive.repeat]
            again = {part.kind: stack.enter_context(Store(part.run.folder / REPEATS)) for part in timed}
            for part, found in _together(parts):
                record = Record.from_json(found.what)
                if found.share is None:
                    again[part.kind].append(record)
                    continue
                kept[part.kind](record)
                part.rows[found.seat] += 1
                show.finished(record)
            whole = True
        return max(self._concluded(part, whole) for part in parts)

    def _part(self, kind: str | None, plan: Plan, busy: Sequence[Node]) -> Part:
        """Start a kind's run: open the work on its seats and cut its rows into shares."""
        ours = self.found.of.get(kind, []) or muster.cores(self.cluster, len(plan.jobs), self.tell, but=busy)
        plans = [replace(plan, software=seat.facts["software"]) for seat in ours]
        run = self._run(kind, plans[0] if plans else plan, [other.fingerprints for other in plans[1:]])
        left = [number for number, job in enumerate(plan.jobs) if not _is_done(run, job)]
        rows = [left[at] for at in shares.longest_first([_floor_us(plan, number) for number in left])]
        most = CHUNK_CELLS if kind in self.found.of else 1
        dealt = shares.cut([len(plan.jobs[number].cells) for number in rows], len(ours), most)
        dealt = [Share(tuple(rows[at] for at in share.rows)) for share in dealt]
        begun = []
        for seat, own in zip(ours, plans, strict=True):
            try:
                seat.open(SeatedRows(own, run.options, run.run_id), plan.where.timeout_s + SLACK_S)
                begun.append(seat)
            except Lost as lost:
                self.tell(f"{seat.name} is left out: {lost}")
        return Part(run, begun, Drive(begun, dealt, self.tell, plan.situation.measure and len(begun) > 1))

    def _concluded(self, part: Part, whole: bool) -> int:
        """Move rows of lost shares aside, write the report, and return the exit code."""
        run, drive = part.run, part.drive
        run.settle()
        run.whole = whole
        run.manifest["fleet"] = self._told(part)
        code = run.conclude()
        if whole and drive.left:
            gone = f"{drive.left} of {len(drive.shares)} shares were not done"
            self.tell(f"{part.kind}: {gone}; --resume {run.folder} goes on")
            return max(code, NO_GPU)
        return code

    def _told(self, part: Part) -> dict[str, Any]:
        """The manifest's entry `fleet`: each seat with its rows, versions and noise, and what was lost."""
        folder, noise = part.run.folder, {}
        if (folder / REPEATS).exists():
            noise = seats.noise(load(folder / "cells.jsonl").records, load(folder / REPEATS).records)
        told = {
            seat.name: {
                "address": seat.facts.get("address", ""),
                "rows": part.rows[seat.name],
                "versions": seat.facts["software"],
                "noise": noise.get(seat.name),
            }
            for seat in part.seats
        }
        return {"seats": told, "losses": part.drive.losses, "unfit": dict(self.found.unfit)}

    def _merge(self) -> None:
        """Write one folder with the rows of all kinds, and its report."""
        from compare.report import report

        folder = self.folder / "merged"
        (folder / "cells.jsonl").unlink(missing_ok=True)  # from before a --resume
        done = [part.run.folder for part in self.parts if (part.run.folder / "cells.jsonl").stat().st_size]
        if len(done) > 1:
            print(report.write(merge.merge([runs.read(one) for one in done], folder)))


def _floor_us(plan: Plan, number: int) -> float:
    """The least microseconds that a row takes at the GPU's peaks; 0 without a GPU or known peaks."""
    gpu = plan.situation.target
    return (gpu and floor_us(plan.jobs[number].workload, gpu)) or 0.0


def _is_done(run: Run, job: Job) -> bool:
    return all((cell.id, p) in run.rows.done for cell in job.cells for p in range(run.plan.contract.processes))


def _together(parts: Sequence[Part]) -> Iterator[tuple[Part, Found]]:
    """Yield the results of all parts as they arrive."""

    def lane(part: Part) -> Callable[[Any], Iterator[tuple[Part, Found]]]:
        return lambda _: ((part, found) for found in part.drive.results())

    yield from Pool(map(lane, parts), Jobs(of=in_order)).results()
