"""The sections of a report on one run, each from its rows only; empty sections are left out.

To add a section, write a function `RunData -> Section | None` and list it in SECTIONS.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from common.oracle.tolerance import RULES
from compare.analysis import summary, tables
from compare.analysis.markup import said
from compare.analysis.runs import RunData
from compare.analysis.tables import Table
from compare.competitors.registry import in_order
from compare.record.records import Evidence, Record, Status
from compare.report import glance, printed, verdicts
from compare.report import paper as report_paper
from compare.report.blocks import Bullets, Code, Fold, Picture, Section, Text, pictures
from compare.report.guide import guide


def checker_table(records: Sequence[Record]) -> tables.Table | None:
    """Worst error/budget by kernel, dtype and rule; above 1 rejects. None where nothing was checked."""
    worst: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    cells: dict[tuple[str, str], int] = defaultdict(int)
    for record in records:
        if record.gate:
            key = record.kernel, record.workload.dtype
            cells[key] += 1
            for rule, ratio in record.gate.worst.items():
                worst[key][rule] = max(ratio, worst[key].get(rule, 0.0))
    body = [
        [f"`{kernel}`", dtype, cells[kernel, dtype], *(_ratio(of.get(rule)) for rule in RULES)]
        for (kernel, dtype), of in worst.items()
    ]
    columns = [("kernel", False), ("dtype", False), ("cells", True), *((label, True) for label in RULES.values())]
    return tables.Table(columns, body) if body else None


def _ratio(value: float | None) -> str:
    return f"{value:.3f}" if value else ""  # 0: the rule had nothing to judge


LOG_LINES = 25  # of a failure's log; cells.jsonl has the whole tail


def coverage(run: RunData) -> Section:
    """How many cells ended how, by kernel."""
    done, planned, ok = len(run.records), run.manifest.get("planned", len(run.records)), run.ok
    seen = Counter(str(kind) for record in ok for kind in record.evidence)
    counted = ", ".join(f"{seen[str(kind)]} {kind}" for kind in Evidence if seen[str(kind)])
    words = f"{done} of {planned} planned cells finished, {len(ok)} ok" + (f" ({counted})." if counted else ".")
    blocks: list = [Text(words)] + ([Text(f"**{run.note}**")] if run.note else [])
    if weaker := _weaker(run.records):
        blocks.append(Text(weaker))
    if not run.rows.empty:
        statuses, counts = summary.coverage(run.rows)
        columns = [("kernel", False), *((status, True) for status in statuses)]
        body = [[f"`{kernel}`", *(count or "" for count in of)] for kernel, of in counts]
        blocks.append(Table(columns, body))
    return Section("coverage", "Coverage", tuple(blocks))


def _weaker(records: Sequence[Record]) -> str:
    """Which kernels declare a contract weaker than the default; empty where none does."""
    found = {record.kernel: record.gate.contract for record in records if record.gate and record.gate.contract}
    told = "; ".join(f"`{kernel}`: {contract}" for kernel, contract in found.items())
    return f"Declared a weaker precision than the default, and were judged by it: {told}." if told else ""


def paper(run: RunData) -> Section | None:
    """The paper's figures, where the suite is one of them."""
    names = [name for name in report_paper.CAPTIONS if name in run.figures]
    if not names:
        return None
    words = "How these rows differ from the paper's, and what the paper reports: docs/paper.md."
    pictures = [Picture(name, report_paper.CAPTIONS[name]) for name in names]
    return Section("paper", "The paper's figure", (*pictures, Text(words)))


def features(run: RunData) -> Section | None:
    """What each feature costs, where the suite is about that."""
    found = printed.costs([run]) if run.suite == "features" else {}
    words = (
        "Time over that of the plain row, the same kernel. A window or a chunk leaves keys out, and a smaller cache is"
    )
    words += " fewer bytes: those may cost less than nothing."
    table = printed.of_costs(found)
    return Section("features", "What features cost", (Text(words), table)) if found else None


def load(run: RunData) -> Section | None:
    """The load of a trace."""
    trace = run.manifest.get("trace") or {}
    words = ". ".join(str(trace[k]).rstrip(".") for k in ("name", "assumptions") if trace.get(k))
    if not words:
        return None
    shown = Picture("load", "The kept steps of the trace: KV tokens, sequences and query tokens")
    return Section("load", "The load", (Text(words), *([shown] if "load" in run.figures else [])))


def workloads(run: RunData) -> list[Section]:
    """One section for each class: its figure, and a folded table for each workload."""
    found = []
    for kind, of in tables.classes(run.records, verdicts.rows(run)):
        blocks: list = []
        blocks += pictures(kind, run.figures, f"{kind}: speed and latency per workload")
        blocks += [Fold(load["label"], (Text(load["text"]), load["table"])) for load in of]
        found.append(Section(kind, kind, tuple(blocks)))
    return found


def checker(run: RunData) -> Section | None:
    """How near every kernel came to the checker's limits."""
    table = checker_table(run.ok)
    if table is None:
        return None
    words = (
        "Largest error as a part of its budget, over all cells of a kernel, page sets and value sets; above 1 a cell is"
        " rejected."
    )
    return Section("checker", "What the checker saw", (Text(words), table))


def facts(run: RunData) -> Section | None:
    """The compiler's facts, where nothing was timed."""
    if not run.facts or run.timed:
        return None
    arches = ", ".join(sorted({fact["arch"] for fact in run.facts}))
    words = Text(f"Read from the code that was compiled for {arches}. {_spills(run)}")
    return Section("facts", "Static facts", (words, Fold("Every compiled function", (tables.fact_table(run.facts),))))


def _spills(run: RunData) -> str:
    spilled = [f for f in run.facts if f["spills"] or f["scratch_bytes"]]
    if not spilled:
        return f"None of the {len(run.facts)} compiled kernels spills a register to memory."
    names = ", ".join(sorted({f"`{f['competitor']}` at head size {f['head_size']}" for f in spilled}))
    return f"**{len(spilled)} of the {len(run.facts)} compiled kernels spill to memory**: {names}."


def failures(run: RunData) -> Section | None:
    """Every failed cell: status, reason, the command that repeats it, the end of its log."""
    failed = [record for record in run.records if record.status.is_failure]
    folds = tuple(_failure(record) for record in failed)
    return Section("failures", "Failures", (Text(f"{len(failed)} cells failed."), *folds)) if folds else None


def _failure(record: Record) -> Fold:
    blocks: list = [Text(said(record.reason))]
    if record.command:
        blocks.append(Code(record.command, "Repeat this cell:"))
    log = "\n".join(record.log_tail.strip().splitlines()[-LOG_LINES:])
    if log:
        blocks.append(Code(log, "The end of its log:"))
    title = f"`{record.kernel}` on {record.workload.label}: {record.status}"
    return Fold(title, tuple(blocks), open=True)


def others(run: RunData) -> Section | None:
    """Cells that were not run, with the declared reason."""
    counted = Counter(
        (f"`{r.kernel}`", str(r.status), said(r.reason))
        for r in run.records
        if r.status is not Status.OK and not r.status.is_failure
    )
    columns = (("kernel", False), ("status", False), ("cells", True), ("reason", False))
    body = [[kernel, status, count, reason] for (kernel, status, reason), count in counted.items()]
    return Section("others", "Not run, and why", (Table(columns, body),)) if body else None


def reading(run: RunData) -> Section:
    """How to read the figures, by what this run did and under which contract."""
    return Section("reading", "How to read this, and its limits", (Bullets(tuple(guide(run))),))


def absent(run: RunData) -> Section | None:
    """What the model executed; None where the GPU was here or none was asked for."""
    if not run.absent:
        return None
    blocks: list[Any] = [Text(f"No {run.gpu_title} took part in this run. **No figure here is a time of it.**")]
    if executed := _executed(run.records):
        blocks.append(Fold("Executed in the model of the ISA", (executed,), open=True))
    if unknown := sorted({record.reason for record in run.records if record.status is Status.NOT_EXECUTABLE}):
        blocks.append(
            Text(f"`not_executable`: the model could not run these, which is no verdict on them: {'; '.join(unknown)}.")
        )
    blocks.append(Text("Who has this GPU fills the measured column with one command (docs/absent-gpus.md):"))
    blocks.append(Code(f"python -m compare.run --gpu {run.gpu} --require-gpu"))
    return Section("absent", f"{run.gpu_title} is not here", tuple(blocks))


def _executed(records: Sequence[Record]) -> Table | None:
    """What the model counted over all cells of each kernel."""
    seen: dict[str, list[tuple[Record, dict[str, Any]]]] = defaultdict(list)
    for record in records:
        counts = [fact["executed"] for fact in record.facts if fact.get("executed")]
        if counts:
            total = {name: sum(one.get(name, 0) for one in counts) for name in set().union(*counts)}
            seen[record.kernel].append((record, total))
    columns = (
        ("kernel", False), ("cells", True), ("programs", True), ("wave instructions", True),
        ("matrix work / useful", True), ("lines of 128 B a load", True), ("bytes 16 a lane", True),
        ("loads ahead at a wait", True), ("LDS clocks / fewest", True), ("fetched by the dies / distinct", True),
        ("status", False),
    )  # fmt: skip
    body = [[f"`{kernel}`", len(seen[kernel]), *_totals(seen[kernel])] for kernel in in_order(seen)]
    return Table(columns, body) if body else None


def _totals(of: Sequence[tuple[Record, dict[str, Any]]]) -> list[Any]:
    def total(name: str) -> int:
        return sum(counts.get(name, 0) for _, counts in of)

    useful = sum(record.workload.flops for record, counts in of if counts.get("matrix flops"))
    work = f"{total('matrix flops') / useful:.1f}" if useful else ""
    ratios = [
        _share(total("load lines"), total("loads"), ".1f"),
        _share(total("wide bytes"), total("load bytes"), ".0%"),
        _share(total("ahead"), total("waits"), ".1f"),
        _share(total("lds clocks"), total("lds fewest"), ".2f"),
        _share(total("fetched"), total("lines"), ".2f"),
    ]
    statuses = ", ".join(sorted({str(record.status) for record, _ in of}))
    return [f"{total('workgroups'):,}", f"{total('instructions'):,}", work, *ratios, statuses]


def _share(above: int, below: int, form: str) -> str:
    """Empty where nothing was counted, as in older runs."""
    return f"{above / below:{form}}" if above and below else ""


def seats(run: RunData) -> Section | None:
    """Which GPU of a fleet timed what, how much equal GPUs differ, and what was lost; None for a run on one machine.

    It reads the manifest only, so a merged run shows its part's.
    """
    fleet = run.manifest.get("fleet")
    if not fleet:
        return None
    every = fleet["seats"]
    words = "The kernels of a row, and all processes of them, ran on one seat: no comparison is split over two."
    blocks: list = [Text(words)]
    columns = [("seat", False), ("GPU", False), ("records", True)]
    body = [[f"`{name}`", told.get("address") or "none", told["rows"]] for name, told in every.items()]
    noise = {name: told["noise"] for name, told in every.items() if told.get("noise")}
    if noise:
        columns += [("noise, mean", True), ("noise, largest", True), ("of cells", True)]
        for line, name in zip(body, every, strict=True):
            told = noise.get(name)
            line += [_signed(told["mean"]), _signed(told["most"]), told["cells"]] if told else ["", "", ""]
        blocks.append(
            Text(
                "Noise: one row was timed by every seat; a seat's times over the mean of all, geometric mean of its"
                " cells and the cell that deviates most. Above 0 is slower."
            )
        )
    blocks.append(Table(columns, body))
    lost = [f"Lost: {line}." for line in fleet.get("losses", ())]
    lost += [f"`{name}` was left out: {said(why)}." for name, why in fleet.get("unfit", {}).items()]
    return Section("seats", "Which GPU timed what", (*blocks, *([Bullets(tuple(lost))] if lost else [])))


def _signed(share: float) -> str:
    return f"{100 * share:+.2f}%"


Builder = Callable[[RunData], Section | list[Section] | None]
SECTIONS: tuple[Builder, ...] = (
    glance.section, glance.elsewhere, coverage, absent, seats, verdicts.sections, paper, features, load,
    workloads, checker, facts, failures, others, reading,
)  # fmt: skip


def build(run: RunData) -> list[Section]:
    """The non-empty sections of this run, in order."""
    made: list[Section] = []
    for builder in SECTIONS:
        found = builder(run)
        made += found if isinstance(found, list) else [found] if found else []
    return made
