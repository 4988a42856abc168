"""The report's section on an absent GPU: what executed in the model of its ISA, without a time."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from compare.analysis.runs import RunData
from compare.analysis.tables import Table
from compare.competitors.registry import in_order
from compare.record.records import Record, Status
from compare.report.blocks import Code, Fold, Section, Text


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
        _ratio(total("load lines"), total("loads"), ".1f"),
        _ratio(total("wide bytes"), total("load bytes"), ".0%"),
        _ratio(total("ahead"), total("waits"), ".1f"),
        _ratio(total("lds clocks"), total("lds fewest"), ".2f"),
        _ratio(total("fetched"), total("lines"), ".2f"),
    ]
    statuses = ", ".join(sorted({str(record.status) for record, _ in of}))
    return [f"{total('workgroups'):,}", f"{total('instructions'):,}", work, *ratios, statuses]


def _ratio(above: int, below: int, form: str) -> str:
    """Empty where nothing was counted, as in older runs."""
    return f"{above / below:{form}}" if above and below else ""
