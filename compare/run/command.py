"""`python -m compare.run`: check, time and compare paged-attention kernels.

One loop over the planned jobs: worker processes check each cell (and time it where the GPU is here), compilers read
static facts for the GPU that was named, every finished cell becomes a line of cells.jsonl, and the report is written
behind them. This process never imports triton: its children decide whether they interpret.
"""

import contextlib
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from common import versions
from common.gpus import UnknownGpu
from common.spec import SpecError
from compare.analysis import runs
from compare.analysis.cells import combined
from compare.competitors import registry
from compare.competitors.registry import UnknownKernel
from compare.exits import INTERRUPTED, NO_GPU, NOTHING, OK, WRONG, refusing, terminable
from compare.identity import StrangerPackage, ensure_own_packages
from compare.plan import duration, resume
from compare.plan.job import Cell
from compare.plan.plan import Plan
from compare.record import folder as run_folder
from compare.record.contract import Contract
from compare.record.records import Record, Status, latest, write_manifest
from compare.record.store import Store, load
from compare.run import progress
from compare.run.options import Options, parse
from compare.run.rows import Rows
from compare.workloads import GrammarError
from compare.workloads.suites import SUITES

HELP = "check kernels against one spec, time the right ones, and report"

_COULD_NOT_RUN = frozenset({Status.UNSUPPORTED, Status.UNAVAILABLE, Status.TOO_LARGE})


class Run:
    """One run: its plan, its options, and where results go."""

    def __init__(self, plan: Plan, options: Options, accepted: Sequence[Mapping[str, str]] = ()) -> None:
        """accepted: fingerprints by cell that count beside the plan's own, from nodes with other versions."""
        self.plan, self.options, self.accepted = plan, options, accepted
        named = options.resume or options.out
        former = resume.find(plan, named, begins=not options.resume) if options.resume is not None else None
        or_else = f"; --resume {shlex.quote(str(named))} goes on with it"
        self.folder = former.folder if former else run_folder.make(named, plan.situation.name, or_else)
        self.run_id = self.folder.name
        self.rows = Rows(plan, options, self.run_id)
        self.manifest = run_folder.manifest(list(options.given), self.run_id, self._facts())
        self.seconds = 0.0  # of all parts of a resumed run
        self.whole = False  # it was not interrupted
        if former:
            self._go_on(former)
        write_manifest(self.folder / "manifest.json", self.manifest)

    @property
    def left(self) -> int:
        """How many records are still to be made."""
        return self.plan.records - len(self.rows.done)

    def _go_on(self, former: resume.Former) -> None:
        """Keep the rows of a former run that still count, and print how many."""
        run_folder.ensure_writable(self.folder)
        kept = self.settle(retry=self.options.retry)
        self.rows.done = kept.done
        self.manifest["resumed"] = former.told(kept, self.manifest["started"])
        self.manifest["started"] = former.manifest.get("started", self.manifest["started"])
        self.seconds = self.manifest["seconds"] = round(former.seconds, 1)
        print(f"{self.folder}: {kept.line}", flush=True)

    def settle(self, *, retry: bool = False) -> resume.Kept:
        """Keep the rows that count in cells.jsonl; move the others to a file beside it."""
        jobs = [[cell.id for cell in job.cells] for job in self.plan.jobs]
        prints, of, also = self.plan.fingerprints, self.plan.contract.processes, self.accepted
        kept = resume.keep(resume.finished(self.folder), prints, jobs, of, retry=retry, also=also)
        resume.settle(kept)
        return kept

    def _facts(self) -> dict[str, Any]:
        plan, asked = self.plan, self.options
        now, chosen, gpu, trace = plan.situation, plan.selection, plan.situation.target, asked.rows.trace
        return {
            "headline": now.line,
            "gpu": {"asked": asked.where.gpu, "name": gpu.name, "title": gpu.title, "present": now.measure}
            if gpu
            else None,
            "suite": chosen.suite,
            "kernels": list(chosen.kernels),
            "heuristics": asked.where.heuristics,
            "trace": {"name": Path(trace).name, "assumptions": "; ".join(chosen.assumptions)} if trace else None,
            "timing_contract": plan.contract.name,
            "contract": plan.contract.to_dict(),
            "plan": plan.hash,
            "planned": len(plan.cells),
            "workloads": [row.to_dict() | {"id": row.id, "kind": row.kind} for row in chosen.workloads],
        }

    def execute(self) -> int:
        """Run every cell and return the exit code. Each finished cell is on the disk at once."""
        shown = self.options.shown
        with (
            self.keeping() as keep,
            progress.Show(self.left, quiet=shown.quiet) as show,
            contextlib.suppress(KeyboardInterrupt),
        ):
            for record in self.rows.records(show):
                keep(record)
                show.finished(record)
            self.whole = True
        return self.conclude()

    @contextlib.contextmanager
    def keeping(self) -> Iterator[Callable[[Record], None]]:
        """A function that appends a record to cells.jsonl; the run's time counts inside the context."""
        begin = time.perf_counter()
        try:
            with Store(self.folder / "cells.jsonl") as store:
                yield store.append
        finally:
            self.seconds = round(self.seconds + time.perf_counter() - begin, 1)

    def conclude(self) -> int:
        """Write the manifest and the report, print the last line, and return the exit code."""
        rows = latest(load(self.folder / "cells.jsonl").records)
        records = combined(rows)
        code = _exit_code(records) if self.whole else INTERRUPTED
        self.manifest |= self.rows.manifest | {"exit_code": code, "finished": len(records), "seconds": self.seconds}
        self.manifest["versions"] |= next((r.versions for r in records if r.versions), {})
        write_manifest(self.folder / "manifest.json", self.manifest)
        self._conclude(records, self.plan.records - len(rows))
        return code

    def _conclude(self, records: list[Record], missing: int) -> None:
        """Write the report, print the table and the last line. missing: records that were not made."""
        from compare.record import noise
        from compare.report import report

        if self.plan.situation.measure:
            noise.carry(self.folder, self.plan.situation.name, self.plan.contract.name)
        written = report.write(self.folder)
        if not self.options.shown.quiet and records:
            progress.show(records, self.plan.selection.kernels, console := Console())
            if found := runs.read(self.folder).elsewhere:
                progress.show_elsewhere(found, console)
        where = written if isinstance(written, Path) else self.folder
        print(f"{progress.count(records, len(self.plan.cells), missing)}; {where}", flush=True)


def _exit_code(records: Sequence[Record]) -> int:
    if any(record.status.is_failure for record in records):
        return WRONG
    if all(record.status in _COULD_NOT_RUN for record in records):
        return NOTHING
    return OK


def _version() -> str:
    import importlib.metadata

    try:
        own = importlib.metadata.version("diptych")
    except importlib.metadata.PackageNotFoundError:
        own = "from source"
    found = ", ".join(f"{name} {version}" for name, version in run_folder.versions().items())
    contract = f"spec {run_folder.spec_hash()}\ntiming contract {Contract().name}"
    return f"diptych {own} (commit {run_folder.commit()})\n{contract}\n{found}"


def listing(plan: Plan) -> Iterator[str]:
    """The lines that --list prints."""
    chosen = plan.selection
    yield f"suites     {', '.join(SUITES)}"
    yield f"kernels    {', '.join(chosen.kernels)}"
    yield f"rows of {chosen.suite}"
    for job in plan.jobs:
        row = job.workload
        stats, extra = row.stats, ", ".join(row.ask.names())
        counted = (stats.num_seqs, "sequence"), (stats.num_tokens, "query token"), (stats.total_seq_len, "key")
        size = ", ".join(f"{count} {what}{'s' * (count != 1)}" for count, what in counted)
        yield f"  {row.label:30} {row.kind:12} {size}{', ' + extra if extra else ''}"
        yield from (f"    {cell.id}  {cell.kernel}{_takes(plan, cell)}" for cell in job.cells)
    yield plan.situation.line
    yield duration.line(plan)


def _takes(plan: Plan, cell: Cell) -> str:
    """A cell's estimated time on this CPU, as text; empty where a GPU times it."""
    if plan.situation.measure:
        return ""
    return f"  ~{plan.seconds(cell):.0f} s" if plan.fits(cell, plan.where.cpu_budget_s) else "  too large here"


def execute(options: Options) -> int:
    """Run what the options select in child processes of this one; returns the exit code. Raises usage errors."""
    plan = Plan.of(options.rows, options.where, options.timing)
    now, chosen, quiet = plan.situation, plan.selection, options.shown.quiet
    if options.shown.list:
        print("\n".join(listing(plan)))
        return OK
    if now.target is None and any(registry.is_own(cell.kernel) for cell in plan.cells):
        versions.ensure("compare", interpreted=True)  # otherwise every cell would report it
    print(now.line, flush=True)
    if options.where.require_gpu and not now.measure:
        print(f"--require-gpu: {options.where.gpu or 'a GPU'} is not here, nothing was run", file=sys.stderr)
        return NO_GPU
    if not plan.cells:
        print("nothing selected", file=sys.stderr)
        return NOTHING
    run = Run(plan, options)
    if not quiet:
        print(duration.line(plan, run.rows.done), flush=True)
    for assumption in () if quiet else chosen.assumptions:
        print(f"assumed: {assumption}", flush=True)
    if now.measure and not quiet:
        print(f"timing contract {plan.contract.line}", flush=True)
    return run.execute()


@refusing(UnknownGpu, UnknownKernel, GrammarError, SpecError, StrangerPackage, resume.CannotResume, run_folder.NotARun)
def main(words: Sequence[str], execute: Callable[[Options], int] = execute) -> int:
    """The exit code of a command line. A SIGTERM ends a run as Ctrl-C does: workers are killed, finished cells kept.

    execute: what runs the options, where it is not this machine (compare.fleet.run).
    """
    with terminable():
        options = parse(words)
        ensure_own_packages()
        if options.shown.version:
            print(_version())
            return OK
        return execute(options)
