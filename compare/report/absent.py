"""The report's section on an absent GPU: what was compiled for it, executed in the model, and bounded.

It has no time of a run. Estimates have their own columns, labelled so, and no measured column beside them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from compare.analysis.runs import RunData
from compare.analysis.tables import Table
from compare.competitors.registry import in_order
from compare.record.records import Evidence, Record, Status
from compare.report.blocks import Bullets, Code, Fold, Section, Text

_LOAD_BYTES = {"tma": 0}  # a descriptor's load has no width per lane


def absent(run: RunData) -> Section | None:
    """What is known without the GPU, by which evidence; None where the GPU was here or none was asked for."""
    if not run.absent:
        return None
    blocks: list[Any] = [Text(f"No {run.gpu_title} took part in this run. **No figure here is a time of it.**")]
    blocks.append(Bullets(tuple(_proofs(run))))
    if executed := _executed(run.records):
        blocks.append(Fold("Executed in the model of the ISA", (executed,), open=True))
    if facts := _compiled(run.facts):
        blocks.append(Fold("Compiled: what a program needs and issues", (facts,), open=True))
    blocks.append(Text("Who has this GPU fills the measured column with one command (docs/absent-gpus.md):"))
    blocks.append(Code(f"python -m compare.run --gpu {run.gpu} --require-gpu"))
    return Section("absent", f"{run.gpu_title} is not here", tuple(blocks))


def _proofs(run: RunData) -> Iterator[str]:
    having = {kind: sum(kind in record.evidence for record in run.ok) for kind in Evidence}
    if count := having[Evidence.EXECUTED_IN_MODEL]:
        yield (
            f"`executed-in-model`, {count} cells: the machine code for {_arches(run)} ran on a CPU, in a functional"
            " model of the ISA, and what it wrote passed the checker. It says nothing of time, of races between"
            " programs, or of errata of the hardware."
        )
    if count := having[Evidence.INTERPRETED]:
        yield f"`interpreted`, {count} cells: the algorithm ran on a CPU; the compiled code did not."
    if count := having[Evidence.COMPILED]:
        yield f"`compiled`, {count} cells: the code exists and fits; registers, spills and shared memory are exact."
    if any(record.estimate for record in run.records):
        yield (
            "`bound .. estimate × spread`: a bound under the vendor's stated peaks, and a model's estimate with the"
            " spread of measured over estimated times on the vendor's page. Not measured."
        )
    unknown = sorted({record.reason for record in run.records if record.status is Status.NOT_EXECUTABLE})
    if unknown:
        yield f"`not_executable`: the model lacks an instruction, no verdict on the kernel: {'; '.join(unknown)}."


def _arches(run: RunData) -> str:
    return ", ".join(sorted({fact["arch"] for fact in run.facts}))


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


def _compiled(facts: Sequence[dict[str, Any]]) -> Table | None:
    """Compiled functions with matrix products, the largest head size first."""
    columns = (
        ("kernel", False), ("function", False), ("heads", False), ("variant", False), ("registers", True),
        ("spills", True), ("shared KiB", True), ("programs a unit", True), ("limited by", False), ("matrix", False),
        ("matrix work / asked for", True), ("load bytes of 128 bits", True), ("barriers, waits a pass", False),
        ("code KiB", True), ("rows", False), ("code", False),
    )  # fmt: skip
    wanted = [fact for fact in facts if fact["matrix"] and fact.get("loops")]
    ordered = sorted(wanted, key=lambda fact: (-fact["head_size"], fact["kernel"].removeprefix("_helion_")))
    return Table(columns, [_function(fact) for fact in ordered]) if wanted else None


def _function(fact: dict[str, Any]) -> list[Any]:
    held, redundant = fact.get("occupancy") or {}, fact.get("matrix_redundancy")
    loop = fact["loops"][0]
    return [
        f"`{fact['competitor']}`",
        f"`{fact['kernel']}`",
        fact["shape"],
        variant(fact),
        fact["registers"],
        fact["spills"],
        f"{fact['shared_bytes'] / 1024:.4g}",
        held.get("programs", ""),
        held.get("limit", ""),
        ", ".join(loop["matrix"]),
        f"{redundant:.2f}" if redundant else "",
        _wide(loop["loads"]),
        f"{loop['barriers']}, {loop['waits']}",
        f"{fact['code_bytes'] / 1024:.1f}",
        ", ".join(fact["workloads"]),
        f"`{fact['sha256'][:8]}`",
    ]


def variant(fact: dict[str, Any]) -> str:
    """What distinguishes two compilations of one function: dtype, features, warps and stages, config."""
    parts = [fact["dtype"], fact["features"], f"{fact['num_warps']} warps", f"{fact['num_stages']} stages"]
    return ", ".join(filter(None, parts)) + (f"; `{fact['config']}`" if fact["config"] else "")


def _wide(loads: dict[str, int]) -> str:
    """The share of the loop's loaded bytes that arrive in loads of 16 bytes."""
    sizes = {bits: count * int(_LOAD_BYTES.get(bits, bits)) for bits, count in loads.items()}
    total = sum(sizes.values())
    return f"{sizes.get('128', 0) / total:.0%}" if total else "by descriptor" if loads else ""
