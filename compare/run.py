"""`python -m compare.run`: check, time and compare paged-attention kernels.

One loop over the planned jobs: a worker process checks each cell (and times it where the GPU is here), a compiler
process beside it reads static facts for the GPU that was named, every finished cell becomes a line of cells.jsonl, and
the report is written behind them. This process never imports triton: its children decide whether they interpret.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from common.gpus import UnknownGpu
from common.spec import SpecError
from compare import cli, cost, plan, precompile, progress, rundir
from compare.cli import Selection, Situation
from compare.crew import Crew, Outcome
from compare.identity import StrangerPackage, ensure_own_packages
from compare.plan import Cell
from compare.records import Record, Status, latest, write_manifest
from compare.registry import UnknownKernel, is_own
from compare.staticfacts import StaticFacts, with_facts
from compare.store import Store, load
from compare.suites import SUITES, UnknownSuite, UnknownWorkload
from compare.trace import TraceError
from compare.workloads import NEW_KV, GrammarError

OK, WRONG, USAGE, NO_GPU, NOTHING, INTERRUPTED = 0, 1, 2, 3, 5, 130
_USAGE_ERRORS = (
    UnknownGpu,
    UnknownKernel,
    UnknownSuite,
    UnknownWorkload,
    GrammarError,
    TraceError,
    SpecError,
    StrangerPackage,
    rundir.CannotWrite,
)
_COULD_NOT_RUN = frozenset({Status.UNSUPPORTED, Status.UNAVAILABLE, Status.TOO_LARGE})


class Run:
    """One run: what was asked, what is here, and where results go."""

    def __init__(self, arguments: Namespace, argv: list[str], now: Situation, chosen: Selection) -> None:
        self.arguments, self.argv, self.now, self.chosen = arguments, argv, now, chosen
        self.jobs = plan.jobs(chosen.workloads, chosen.kernels, now.target.name if now.target else None)
        self.cells = [cell for job in self.jobs for cell in job.cells]
        self.folder = rundir.make(arguments.out, now.name)
        self.run_id = self.folder.name
        self.manifest = rundir.manifest(argv, self.run_id, self._facts())
        write_manifest(self.folder / "manifest.json", self.manifest)

    def _facts(self) -> dict[str, Any]:
        now, gpu, trace = self.now, self.now.target, self.arguments.trace
        return {
            "headline": now.line,
            "gpu": {"asked": self.arguments.gpu, "name": gpu.name, "title": gpu.title, "present": now.measure}
            if gpu
            else None,
            "suite": self.chosen.suite,
            "kernels": list(self.chosen.kernels),
            "heuristics": self.arguments.heuristics,
            "trace": {"name": Path(trace).name, "assumptions": "; ".join(self.chosen.assumptions)} if trace else None,
            "plan": plan.plan_hash(self.jobs),
            "planned": len(self.cells),
            "workloads": [row.to_dict() | {"id": row.id, "kind": row.kind} for row in self.chosen.workloads],
        }

    def execute(self) -> int:
        """Run every cell; returns the exit code. Finished cells are on the disk whatever happens."""
        arguments, begin = self.arguments, time.perf_counter()
        code = None
        with (
            Store(self.folder / "cells.jsonl") as store,
            progress.Show(len(self.cells), quiet=arguments.quiet, verbose=arguments.verbose) as show,
        ):
            try:
                for record in self._records(show):
                    store.append(record)
                    show.finished(record)
            except KeyboardInterrupt:
                code = INTERRUPTED
        records = latest(load(self.folder / "cells.jsonl").records)
        code = code if code is not None else _exit_code(records)
        seconds = round(time.perf_counter() - begin, 1)
        self.manifest |= {"exit_code": code, "finished": len(records), "seconds": seconds}
        self.manifest["versions"] |= next((r.versions for r in records if r.versions), {})
        write_manifest(self.folder / "manifest.json", self.manifest)
        self._conclude(records)
        return code

    def _records(self, show: progress.Show) -> Iterator[Record]:
        arguments, now = self.arguments, self.now
        if arguments.configs and now.measure and now.target:
            own = [kernel for kernel in self.chosen.kernels if is_own(kernel)]
            args = (self.chosen.workloads, own, now.target.name, arguments.configs, arguments.seed)
            compiled, failed = precompile.ahead(*args)
            if not arguments.quiet:
                print(f"{compiled} random configs compiled ahead, {len(failed)} did not compile", flush=True)
            self.manifest["did_not_compile"] = failed
        # beside a measurement static facts are an addition: a compiler that hangs must not hold it up for long
        limit_s = min(arguments.timeout, 120.0) if now.measure else arguments.timeout
        facts = StaticFacts(self.cells, now.target, limit_s, arguments.heuristics)
        crew = Crew(
            mode="measure" if now.measure else "check",
            gpu=now.target.name if now.target else None,
            device=now.device,
            limit_s=arguments.timeout,
            max_time_s=arguments.max_time,
            configs=arguments.configs,
            seed=arguments.seed,
            heuristics=arguments.heuristics,
            on_start=show.begin,
        )
        with contextlib.closing(crew):
            for job in self.jobs:
                runnable = [cell for cell in job.cells if now.measure or self._fits(cell)]
                for cell in job.cells:
                    if cell not in runnable:
                        yield self._record(self._too_large(cell), facts)
                for outcome in crew.run(job.only(cell.id for cell in runnable)):
                    yield self._record(outcome, facts)

    def _fits(self, cell: Cell) -> bool:
        return plan.interpreter_seconds(cell.kernel, cell.workload) <= self.arguments.cpu_budget

    def _too_large(self, cell: Cell) -> Outcome:
        seconds = plan.interpreter_seconds(cell.kernel, cell.workload)
        reason = f"about {seconds:.0f} s in the interpreter, above --cpu-budget {self.arguments.cpu_budget:g}"
        return Outcome(cell, {"status": Status.TOO_LARGE, "reason": reason}, {})

    def _record(self, outcome: Outcome, facts: StaticFacts) -> Record:
        """The line of a finished cell: what the worker said, and the static facts where a GPU is meant."""
        cell = outcome.cell
        fields = dict(outcome.fields)
        compiled = facts.of(cell)
        if compiled is not None:
            fields = with_facts(fields, compiled, must_compile=self.now.absent)
        return Record.from_plain(
            {
                "run_id": self.run_id,
                "cell_id": cell.id,
                "workload": asdict(cost.info(cell.workload)),
                "kernel": cell.kernel,
                "command": self._command(cell),
                "gpu": self.now.target.name if self.now.measure and self.now.target else None,
                "versions": outcome.versions,
            }
            | fields
        )

    def _command(self, cell: Cell) -> str:
        """The command that repeats one cell."""
        arguments, words = self.arguments, []
        label = cell.workload.label.removesuffix(NEW_KV)
        for name in ("gpu", "trace", "device", "window"):
            words += _said(arguments, name)
        if self.chosen.suite in SUITES:
            suite = "static" if label in _labels("static") else self.chosen.suite
            words += ["--suite", suite]
        for name in ("shape", "block_size", "dtype", "batches", "step_ms", "token_us"):
            words += _said(arguments, name)
        words += _said(arguments, "seed") if arguments.seed else []
        words += _said(arguments, "heuristics") if arguments.heuristics != "tree" else []
        words += ["--new-kv"] if arguments.new_kv else []
        return rundir.command([*words, "--workload", label, "--kernels", cell.kernel])

    def _conclude(self, records: list[Record]) -> None:
        """The report, the table and the last line."""
        from compare import report

        written = report.write(self.folder)
        if not self.arguments.quiet and records:
            console = Console()
            # in a pipe rich takes 80 columns and cuts the figures off
            console.width = max(console.width, 112)
            console.print(progress.table(records, self.chosen.kernels))
        where = written if isinstance(written, Path) else self.folder
        print(f"{progress.count(records, len(self.cells))}; {where}", flush=True)


def _said(arguments: Namespace, name: str) -> list[str]:
    """An option as it was given; nothing where it was not."""
    value = getattr(arguments, name)
    return [] if value is None else [f"--{name.replace('_', '-')}", str(value)]


def _labels(suite: str) -> set[str]:
    return {row.label for row in SUITES[suite](0)}


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
    found = ", ".join(f"{name} {version}" for name, version in rundir.versions().items())
    contract = f"spec {rundir.spec_hash()}\ntiming contract {rundir.TIMING_CONTRACT}"
    return f"diptych {own} (commit {rundir.commit()})\n{contract}\n{found}"


def _listing(chosen: Selection) -> Iterator[str]:
    yield f"suites     {', '.join(SUITES)}"
    yield f"kernels    {', '.join(chosen.kernels)}"
    yield f"rows of {chosen.suite}"
    for row in chosen.workloads:
        stats, extra = row.stats, ", ".join(row.ask.names())
        size = f"{stats.num_seqs} sequences, {stats.num_tokens} query tokens, {stats.total_seq_len} keys"
        yield f"  {row.label:30} {row.kind:12} {size}{', ' + extra if extra else ''}"


def _dry_run(chosen: Selection, now: Situation) -> Iterator[str]:
    for job in plan.jobs(chosen.workloads, chosen.kernels, now.target.name if now.target else None):
        for cell in job.cells:
            seconds = plan.interpreter_seconds(cell.kernel, cell.workload)
            yield f"{cell.id}  {cell.kernel:26} {cell.workload.label}" + ("" if now.measure else f"  ~{seconds:.0f} s")


def _main(arguments: Namespace, argv: list[str]) -> int:
    ensure_own_packages()
    if arguments.version:
        print(_version())
        return OK
    now = cli.situation(arguments.gpu, arguments.device)
    chosen = cli.selection(arguments, now)
    if arguments.list or arguments.dry_run:
        print("\n".join(_listing(chosen) if arguments.list else [now.line, *_dry_run(chosen, now)]))
        return OK
    print(now.line, flush=True)
    if arguments.require_gpu and not now.measure:
        print(f"--require-gpu: {arguments.gpu or 'a GPU'} is not here, nothing was run", file=sys.stderr)
        return NO_GPU
    if not chosen.kernels or not chosen.workloads:
        print("nothing selected", file=sys.stderr)
        return NOTHING
    for assumption in () if arguments.quiet else chosen.assumptions:
        print(f"assumed: {assumption}", flush=True)
    return Run(arguments, argv, now, chosen).execute()


def _terminated(*_: object) -> None:
    raise KeyboardInterrupt


def main(argv: list[str] | None = None) -> int:
    """The exit code of a command line. A SIGTERM ends a run as Ctrl-C does: workers are killed, finished cells kept."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminated)
    argv = sys.argv[1:] if argv is None else argv
    arguments = cli.parser().parse_args(argv)
    try:
        return _main(arguments, argv)
    except _USAGE_ERRORS as error:
        print(error, file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
