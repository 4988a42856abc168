"""The tables of a report: numbers as text, a row for each kernel, a row for each compiled function."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from compare.analysis import summary
from compare.analysis.markup import Made, cell
from compare.analysis.standing import KINDS
from compare.competitors.registry import BOUNDS
from compare.record.records import Record


def number(value: Any, digits: int = 4) -> str:
    return "" if pd.isna(value) else f"{value:,.{digits}g}" if value < 10**digits else f"{value:,.0f}"


def times(value: Any) -> str:
    return "" if pd.isna(value) else f"{value:.2f}×" if value >= 0.095 else f"{value:.2g}×"


def share(value: Any) -> str:
    return "" if pd.isna(value) else f"{100 * value:.0f}%" if value >= 0.1 else f"{100 * value:.1f}%"


@dataclass(frozen=True)
class Table:
    """A table. A column is (title, whether it holds numbers). Empty columns are left out."""

    columns: Sequence[tuple[str, bool]]
    body: Sequence[Sequence[Any]]
    kind: str = "table"

    @property
    def kept(self) -> list[int]:
        return [i for i in range(len(self.columns)) if any(str(row[i]) for row in self.body)]

    @property
    def head(self) -> list[tuple[str, bool]]:
        return [self.columns[i] for i in self.kept]

    @property
    def rows(self) -> list[list[tuple[Any, bool]]]:
        """(entry, whether its column holds numbers)"""
        return [[(row[i], self.columns[i][1]) for i in self.kept] for row in self.body]

    @property
    def markdown(self) -> Made:
        lines = ["| " + " | ".join(cell(title) for title, _ in self.head) + " |"]
        lines.append("|" + "|".join("---:" if right else "---" for _, right in self.head) + "|")
        lines += ["| " + " | ".join(cell(entry) for entry, _ in row) + " |" for row in self.rows]
        return Made("\n".join(lines))


def of_page(columns: Sequence[tuple[str, bool]], body: Sequence[Sequence[Any]]) -> Made:
    """The table of a committed page, whose entries are trusted markdown."""
    trusted = [[Made(entry) for entry in row] for row in body]
    return Table([(Made(title), right) for title, right in columns], trusted).markdown


_COLUMNS = (
    ("kernel", False), ("status", False), ("evidence", False), ("µs", True), ("spread", True), ("to best", True),
    ("× FA3", True), ("verdict, 99% interval", False), ("GB/s", True), ("TFLOP/s", True), ("of floor", True),
    ("check", True), ("registers", True), ("spills", True), ("shared KiB", True),
    ("bound .. estimate × spread, µs, not measured", True), ("limiter", False), ("config", False),
)  # fmt: skip


def _line(row: pd.Series, timed: bool) -> list[str]:
    name = f"`{row.kernel}`" + (" (bound)" if row.kernel in BOUNDS else "")
    memory_bound = row.kind in ("decode", "speculative")
    noisy = " noisy" if row.noisy is True else ""
    events = " events" if row.timer == "events" else ""
    return [
        name,
        row.status,
        row.evidence,
        number(row.us) + events,
        share(row.spread_frac) + noisy,
        times(row.ratio_to_best),
        times(row.speed_of_fa3),
        _verdict(row),
        number(row.gbps) if memory_bound else "",
        "" if memory_bound else number(row.tflops),
        share(row.floor_share),
        "" if timed else number(row.worst_check_ratio, 2),
        number(row.registers),
        number(row.spills),
        number(row.shared_bytes / 1024, 3) if not pd.isna(row.shared_bytes) else "",
        row.estimate,
        row.limiter,
        f"`{row.config}`" + (" default" if row.config_origin == "DEFAULT" else "") if row.config else "",
    ]


def interval(low: float | None, high: float | None) -> str:
    """`[0.98, 1.02]`; empty where there is no interval."""
    if pd.isna(low) or pd.isna(high) or not 0 < low <= high < math.inf:
        return ""
    digits = 3 if high < 10 else 1
    return f"[{low:.{digits}f}, {high:.{digits}f}]"


def _verdict(row: pd.Series) -> str:
    """The verdict of a cell, with the speed where the unit is not FA3; empty where there is none."""
    if pd.isna(row.get("verdict")):
        return ""
    speed = "" if row.against == summary.FA3 else f"{times(row.speed)} of `{row.against}`, "
    return f"{speed}{row.verdict} {interval(row.speed_low, row.speed_high)}".strip()


def _workload_text(record: Record) -> str:
    load = record.workload
    shape = f"{load.num_query_heads}:{load.num_kv_heads}:{load.head_size}, page {load.block_size}, {load.dtype}"
    parts = [
        f"{load.num_seqs} sequences, {load.num_tokens:,} query tokens, {load.num_decodes} decodes",
        f"{load.total_seq_len:,} KV tokens, longest {load.max_seq_len:,}",
        shape,
        *load.features,
        *([load.cache_style] if load.cache_style != "nhd" else []),
    ]
    if record.timing:
        timing = record.timing
        parts.append(f"{timing.page_sets} page sets, {timing.cycle_bytes / 1e6:,.0f} MB a cycle")
    return "; ".join(parts)


def classes(records: Sequence[Record], rows: pd.DataFrame) -> list[tuple[str, list[dict[str, Any]]]]:
    """Class -> its workloads, each with a description and a table of kernels, fastest first."""
    if rows.empty:
        return []
    timed = bool(rows.us.notna().any())
    found = []
    for kind in KINDS:
        workloads = []
        for label in dict.fromkeys(rows[rows.kind == kind].workload):
            mine = rows[(rows.kind == kind) & (rows.workload == label)].sort_values("us", kind="stable")
            first = next((r for r in records if r.workload.label == label and r.timing), None)
            first = first or next(r for r in records if r.workload.label == label)
            table = Table(_COLUMNS, [_line(row, timed) for _, row in mine.iterrows()])
            workloads.append({"label": label, "text": _workload_text(first), "table": table})
        if workloads:
            found.append((kind, workloads))
    return found


FACT_COLUMNS = (
    ("kernel", False), ("function", False), ("arch", False), ("heads", False), ("dtype", False), ("features", False),
    ("cache", False), ("warps", True), ("stages", True), ("registers", True), ("AGPRs", True), ("spills", True),
    ("scratch B", True), ("shared B", True), ("programs a unit", True), ("limited by", False),
    ("matrix work / asked for", True), ("matrix", False), ("loads, bits × count", False), ("code B", True),
    ("config", False), ("rows", False), ("sha256", False),
)  # fmt: skip


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} × {count}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))


def fact_line(fact: dict[str, Any]) -> list[Any]:
    held, redundant = fact.get("occupancy") or {}, fact.get("matrix_redundancy")
    return [
        f"`{fact['competitor']}`", f"`{fact['kernel']}`", fact["arch"], fact["shape"], fact["dtype"], fact["features"],
        fact["cache"], fact["num_warps"], fact["num_stages"], fact["registers"],
        "" if fact["agprs"] is None else fact["agprs"], fact["spills"], fact["scratch_bytes"], fact["shared_bytes"],
        held.get("programs", ""), held.get("limit", ""), f"{redundant:.2f}" if redundant else "",
        _counts(fact["matrix"]), _counts(fact["loads"]), fact["code_bytes"], f"`{fact['config']}`",
        ", ".join(fact["workloads"]),
        f"`{fact['sha256'][:12]}`",
    ]  # fmt: skip


def fact_table(facts: Sequence[dict[str, Any]]) -> Table:
    """The compiled functions, those of one dtype, head size and feature set together."""
    ordered = sorted(facts, key=lambda fact: (fact["dtype"], fact["features"], fact["head_size"]))
    return Table(FACT_COLUMNS, [fact_line(fact) for fact in ordered])
