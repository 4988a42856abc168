"""Turn planned jobs into records: chunk by chunk, first compile in all processes, then time in each process in turn.

Where cells are timed, nothing compiles beside them: all processes of the run compile a chunk ahead at once, and its
static facts are read, before its first round; then each process in turn times the chunk, and the next chunk follows.
With cores to spare the whole run is compiled before the first chunk, and its code left on the disk.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from common.process import cores
from compare.competitors.registry import base, is_own, keeps_code
from compare.plan.job import Cell, Job
from compare.plan.plan import Plan
from compare.process.crew import Crew, Outcome
from compare.process.pool import side_by_side
from compare.record import folder as run_folder
from compare.record.records import Record, Status
from compare.run.options import Options
from compare.run.progress import Show
from compare.static.estimate import column
from compare.static.facts import StaticFacts, with_facts
from compare.workloads import cost

MODEL_LANES = 8  # processes at most that compile and execute for an absent GPU; each takes about 700 MB
# Cells of own kernels that are compiled ahead before any of them is timed, a row at least. In the suite `features`,
# where Helion traces every row anew, an H200's host took 3.9 s for each: the first times are there after a minute.
CHUNK_CELLS = 16
CORES_A_HELPER = 4  # a process that lets Helion generate code for the others, and compilers of static facts
COMPILE_LIMIT_S = 120.0  # of one cell's static facts beside a measurement, where they are an addition


class Rows:
    """Makes the records of a run. manifest: facts that turn up meanwhile, for the run's manifest."""

    def __init__(self, plan: Plan, options: Options, run_id: str) -> None:
        self.plan, self.options, self.run_id = plan, options, run_id
        self.manifest: dict[str, Any] = {}
        self.done: set[tuple[str, int]] = set()  # (cell, process) of the rows that a resumed run keeps
        self.seat = ""
        self._spare = 0  # processes that let Helion generate code for the whole run
        self._asked: set[int] = set()  # rows whose static facts are wanted

    def _left(self, process: int, chunk: Sequence[int]) -> list[Job]:
        """The jobs of a process in these rows, without finished cells."""
        jobs = [self.plan.jobs[number] for number in chunk]
        jobs = [job.only(c.id for c in job.cells if (c.id, process) not in self.done) for job in jobs]
        return [job for job in jobs if job.cells]

    def _to_compile(self, process: int, chunk: Sequence[int]) -> list[Job]:
        """The cells of own kernels in these rows; only those compile ahead."""
        jobs = [job.only(c.id for c in job.cells if is_own(c.kernel)) for job in self._left(process, chunk)]
        return [job for job in jobs if job.cells]

    def _cells_to_compile(self, chunk: Sequence[int]) -> int:
        """How many cells of own kernels must be compiled by any process."""
        every = [self._to_compile(process, chunk) for process in range(self.plan.contract.processes)]
        return len({cell.id for jobs in every for job in jobs for cell in job.cells})

    def _chunks(self) -> Iterator[range]:
        """Row numbers of each chunk that is compiled ahead and then timed; one chunk if nothing is timed."""
        begin, cells = 0, 0
        for number in range(len(self.plan.jobs)) if self.plan.situation.measure else ():
            more = self._cells_to_compile(range(number, number + 1))
            if cells and cells + more > CHUNK_CELLS:
                yield range(begin, number)
                begin, cells = number, 0
            cells += more
        yield range(begin, len(self.plan.jobs))

    def records(self, show: Show) -> Iterator[Record]:
        """Yield the record of every cell and process. The processes end with the iteration."""
        self._spare = max(cores() // CORES_A_HELPER - 1, 0) if self.plan.situation.measure else 0
        with self.at_work(show, MODEL_LANES) as take:
            for chunk in self._chunks():
                yield from take(chunk, range(chunk.stop, len(self.plan.jobs)))

    @contextlib.contextmanager
    def at_work(self, show: Show, lanes: int) -> Iterator[Callable[[Sequence[int], Sequence[int]], Iterator[Record]]]:
        """Start processes and compilers for the context; gives a function (rows now, rows that may follow) -> records.

        lanes: processes at most that execute an absent GPU's code.
        """
        now, where, every = self.plan.situation, self.plan.where, range(len(self.plan.jobs))
        limit_s = min(where.timeout_s, COMPILE_LIMIT_S) if now.measure else where.timeout_s
        with contextlib.ExitStack() as stack:
            facts = StaticFacts([], now.target, limit_s, where.heuristics, alone=now.measure)
            stack.callback(facts.close)
            if self.plan.modelled:
                crews = [self._crew(0, show, "model") for _ in range(min(cores(), lanes))]
            else:
                crews = [self._crew(p, show) for p in range(self.plan.contract.processes) if self._left(p, every)]
            for crew in crews:
                stack.callback(crew.close)
            if self.plan.modelled:
                yield lambda chunk, later: self._in_model(chunk, crews, facts)
            else:
                yield lambda chunk, later: self._chunk(chunk, later, crews, facts, show)

    def _chunk(
        self, chunk: Sequence[int], later: Sequence[int], crews: Sequence[Crew], facts: StaticFacts, show: Show
    ) -> Iterator[Record]:
        """Yield the records of these rows, process after process. A process with later rows rests, the others end."""
        asked = [row for row in (*chunk, *(later if self._spare else ())) if row not in self._asked]
        self._asked.update(asked)
        facts.more(cell for job in self._left(0, asked) for cell in job.cells)  # they are stored with process 0
        if self.plan.situation.measure:
            self._compile_ahead(chunk, self._shares(asked), crews, facts, show)
        for crew in crews:
            show.process(crew.process, self.plan.contract.processes)
            for job in self._left(crew.process, chunk):
                yield from self._job(job, crew, facts)
            if self._left(crew.process, later):
                self.manifest["resting_bytes"] = max(self.manifest.get("resting_bytes", 0), crew.rest())
            else:
                crew.close()

    def _in_model(self, chunk: Sequence[int], crews: Sequence[Crew], facts: StaticFacts) -> Iterator[Record]:
        """Compile every cell and execute it in the functional model, one process per core."""
        left = self._left(0, chunk)
        too_large = [cell for job in left for cell in job.cells if not self._fits(cell)]
        facts.more(too_large)  # the others are compiled by the process that executes them
        for outcome in side_by_side(crews, [job.only(c.id for c in job.cells if self._fits(c)) for job in left]):
            yield self._record(outcome, facts, 0)
        for cell in too_large:
            yield self._record(self._too_large(cell), facts, 0)

    def _crew(self, process: int, show: Show, mode: str = "") -> Crew:
        now, where = self.plan.situation, self.plan.where
        return Crew(
            mode=mode or ("measure" if now.measure else "check"),
            gpu=self.plan.gpu,
            device=now.device,
            limit_s=where.timeout_s,
            contract=self.plan.contract,
            process=process,
            heuristics=where.heuristics,
            on_start=show.begin,
        )

    def _compile_ahead(
        self, chunk: Sequence[int], shares: Sequence[list[Job]], crews: Sequence[Crew], facts: StaticFacts, show: Show
    ) -> None:
        """Let all processes compile these rows in parallel, another process each share, and wait for static facts."""
        wanted = {crew.process: self._to_compile(crew.process, chunk) for crew in crews}
        crews = [crew for crew in crews if wanted[crew.process]]
        if not crews:
            return
        show.say(f"compiling ahead {self._named(chunk)}")
        begin = time.perf_counter()
        with contextlib.ExitStack() as stack:
            helpers = [stack.enter_context(contextlib.closing(self._crew(0, show))) for _ in shares]
            compiling = [*((crew, wanted[crew.process]) for crew in crews), *zip(helpers, shares, strict=True)]
            for crew, _ in compiling:
                crew.start()  # start all before writing to any: a long line blocks until it is read
            for crew, jobs in compiling:
                crew.compile_ahead(jobs)
            for crew, _ in compiling:
                crew.ready()
            facts.wait()
        took = time.perf_counter() - begin
        self.manifest["compile_ahead_s"] = round(self.manifest.get("compile_ahead_s", 0.0) + took, 1)
        show.say(f"compiled ahead in {took:.0f} s")

    def _shares(self, rows: Sequence[int]) -> list[list[Job]]:
        """The cells of these rows whose code a process with the GPU keeps, dealt out to processes on cores that the run
        does not need. Binaries of others are there from the compilers of static facts, which take all rows at once too.
        """
        cells = [cell for job in self._to_compile(0, rows) for cell in job.cells if keeps_code(cell.kernel)]
        many = min(self._spare, len(cells))
        dealt = [{cell.id for cell in cells[number::many]} for number in range(many)]
        return [[job for job in (job.only(share) for job in self._left(0, rows)) if job.cells] for share in dealt]

    def _named(self, chunk: Sequence[int]) -> str:
        """The rows that have something to compile, as text: `rows 9 to 16 of 42`."""
        rows = [number + 1 for number in chunk if self._cells_to_compile(range(number, number + 1))]
        which = f"row {rows[0]}" if len(rows) == 1 else f"rows {rows[0]} to {rows[-1]}"
        return f"{which} of {len(self.plan.jobs)}"

    def _job(self, job: Job, crew: Crew, facts: StaticFacts) -> Iterator[Record]:
        runnable = [cell for cell in job.cells if self._fits(cell)]
        for cell in job.cells:
            if cell not in runnable:
                yield self._record(self._too_large(cell), facts, crew.process)
        for outcome in crew.run(job.only(cell.id for cell in runnable)):
            yield self._record(outcome, facts, crew.process)

    def _fits(self, cell: Cell) -> bool:
        return self.plan.fits(cell, self.plan.where.cpu_budget_s)

    def _too_large(self, cell: Cell) -> Outcome:
        where = "functional model" if self.plan.modelled else "interpreter"
        budget = f"--set cpu-budget={self.plan.where.cpu_budget_s:g}"
        reason = f"about {self.plan.seconds(cell):.0f} s in the {where}, above {budget}"
        return Outcome(cell, {"status": Status.TOO_LARGE, "reason": reason}, {})

    def _record(self, outcome: Outcome, facts: StaticFacts, process: int) -> Record:
        """The record of a finished cell: the worker's outcome, and with process 0 the static facts."""
        cell = outcome.cell
        fields = dict(outcome.fields)
        compiled = facts.of(cell) if process == 0 else None
        if compiled is not None:
            fields = with_facts(fields, compiled, must_compile=self.plan.situation.absent)
        if self.plan.situation.absent and fields.get("facts"):
            target = self.plan.situation.target
            fields["estimate"] = column(cell.workload, base(cell.kernel), fields["config"], fields["facts"], target)
        return Record.from_plain(
            {
                "run_id": self.run_id,
                "cell_id": cell.id,
                "workload": asdict(cost.info(cell.workload)),
                "kernel": cell.kernel,
                "command": run_folder.command(self.options.words(cell, self.plan.selection.suite)),
                "gpu": self.plan.gpu if self.plan.situation.measure else None,
                "versions": outcome.versions,
                "process": process,
                "fingerprint": self.plan.fingerprints[cell.id],
                "seat": self.seat,
            }
            | fields
        )
