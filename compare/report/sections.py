"""The sections of a report on one run, each from its rows only; empty sections are left out.

To add a section, write a function `RunData -> Section | None` and list it in SECTIONS.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from common.oracle.tolerance import RULES
from compare.analysis import summary, tables
from compare.analysis.markup import said
from compare.analysis.runs import RunData
from compare.analysis.tables import Table
from compare.record.records import Evidence, Record, Status
from compare.report import features as report_features
from compare.report import glance, seats, verdicts
from compare.report import paper as report_paper
from compare.report.absent import absent
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
    found = report_features.costs([run]) if run.suite == "features" else {}
    words = (
        "Time over that of the plain row, the same kernel. A window or a chunk leaves keys out, and a smaller cache is"
    )
    words += " fewer bytes: those may cost less than nothing."
    table = report_features.table(found)
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


Builder = Callable[[RunData], Section | list[Section] | None]
SECTIONS: tuple[Builder, ...] = (
    glance.section, glance.elsewhere, coverage, absent, seats.section, verdicts.sections, paper, features, load,
    workloads, checker, facts, failures, others, reading,
)  # fmt: skip


def build(run: RunData) -> list[Section]:
    """The non-empty sections of this run, in order."""
    made: list[Section] = []
    for builder in SECTIONS:
        found = builder(run)
        made += found if isinstance(found, list) else [found] if found else []
    return made
