"""Two tables over a whole run: how near the checker's limits every kernel came, and what the defaults cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from common.oracle.tolerance import RULES
from compare.analysis import tables
from compare.record.records import Record
from compare.stats import geomean


def checker_table(records: Sequence[Record]) -> tables.Table | None:
    """Worst error/budget by kernel, dtype and rule; 1 rejects. None where nothing was checked."""
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


def search_table(records: Sequence[Record]) -> tables.Table | None:
    """The default's speed as a share of the best of the random configs timed beside it. None without any."""
    by_kernel: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record.search:
            by_kernel[record.kernel].append(record)
    body = []
    for kernel, rows in by_kernel.items():
        shares = [row.search.default_share for row in rows]
        least = min(rows, key=lambda row: row.search.default_share)
        configs = [row.search.gated for row in rows]
        body.append(
            [f"`{kernel}`", len(rows), f"{min(configs)} to {max(configs)}", f"{geomean(shares):.2f}",
             f"{min(shares):.2f}", least.workload.label]
        )  # fmt: skip
    columns = [
        ("kernel", False), ("rows", True), ("random configs that passed", True),
        ("default / best, geometric mean", True), ("worst", True), ("worst row", False),
    ]  # fmt: skip
    return tables.Table(columns, body) if body else None
