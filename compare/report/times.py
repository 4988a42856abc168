"""Times of every row and kernel: `report RUN... --print times`, with what a kernel without a time said in its place."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from compare.analysis import tables
from compare.analysis.means import ensure_alike
from compare.analysis.runs import RunData, read
from compare.competitors.registry import in_order
from compare.record.records import Record

BY_FLOPS = ("prefill", "mixed")  # classes whose rate is TFLOP/s; that of the others is GB/s


def _entry(record: Record | None, notes: dict[str, int]) -> str:
    """Time and rate; else the number of the note that says why there is none."""
    if record is None:
        return ""
    if record.timing is None:
        said = f"`{record.kernel}`, {record.status.value}: {record.reason}"
        return f"[{notes.setdefault(said, len(notes) + 1)}]"
    rate = record.derived.tflops if record.workload.kind in BY_FLOPS else record.derived.gbps
    unit = "TFLOP/s" if record.workload.kind in BY_FLOPS else "GB/s"
    us = record.timing.median_us
    return f"{us:.1f}, {rate:,.0f} {unit}" if us < 1000 else f"{us:,.0f}, {rate:,.0f} {unit}"


def table(runs: Iterable[RunData]) -> tuple[tables.Table, list[str]]:
    """Rows in the order of the runs, kernels in the registry's, and the notes; of two runs the later counts."""
    found = {(one.workload.label, one.kernel): one for run in runs for one in run.records}
    rows, kernels = dict.fromkeys(row for row, _ in found), in_order(kernel for _, kernel in found)
    notes: dict[str, int] = {}
    body = [[row, *(_entry(found.get((row, kernel)), notes) for kernel in kernels)] for row in rows]
    return tables.Table([("us and rate", False), *((f"`{kernel}`", True) for kernel in kernels)], body), list(notes)


def text(folders: Sequence[Path]) -> str:
    """The table of several runs as markdown, and its notes; empty where nothing is timed.

    Raises NotARun, Incomparable.
    """
    runs = [read(folder) for folder in folders]
    ensure_alike(runs)
    if not any(run.timed for run in runs):
        return ""
    made, notes = table(runs)
    return "\n".join([made.markdown, "", *(f"- [{number}] {note}" for number, note in enumerate(notes, 1))]).rstrip()
