"""The rows of a run as one table, and what follows from it: ratios, coverage, distinct static facts."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from compare.analysis.cells import combined
from compare.analysis.verdict import Verdict
from compare.competitors.registry import BOUNDS, KERNELS, base, in_order
from compare.record.contract import UNIT as FA3
from compare.record.records import Record, Status, Timing


def family(kernel: str) -> str:
    """triton, helion, baseline, or `other` for a kernel from outside."""
    head = kernel.split("/")[0]
    return head if base(kernel) in KERNELS else "other"


def config_text(config: dict[str, Any] | None) -> str:
    """`block_m=64 tile_size=32`, with parts in brackets: `prefill(block_m=64)`; without its origin."""
    shown = {name: value for name, value in (config or {}).items() if name not in ("path", "provenance")}
    return " ".join(
        f"{name}({config_text(value)})" if isinstance(value, dict) else f"{name}={value}"
        for name, value in shown.items()
    )


def _code(record: Record) -> dict[str, Any]:
    """The worst over a launch's kernels: most registers and shared memory, and the sum of spills."""
    if not record.facts:
        return {"registers": None, "spills": None, "shared_bytes": None, "arch": None}
    return {
        "registers": max(f["registers"] for f in record.facts),
        "spills": sum(f["spills"] for f in record.facts),
        "shared_bytes": max(f["shared_bytes"] for f in record.facts),
        "arch": record.facts[0]["arch"],
    }


_TIMED = (
    "us", "low_us", "high_us", "processes", "p05_us", "p95_us", "spread_frac", "noisy", "timer", "cache",
)  # fmt: skip


def _time(timing: Timing | None) -> dict[str, Any]:
    if timing is None:
        return dict.fromkeys(_TIMED) | {"timer": "", "cache": ""}
    found = {name: getattr(timing, name, None) for name in _TIMED}
    return found | {"us": timing.median_us, "spread_frac": (timing.p95_us - timing.p05_us) / timing.median_us}


def _row(record: Record) -> dict[str, Any]:
    derived, load, gate = record.derived, record.workload, record.gate
    return {
        "kind": load.kind,
        "workload": load.label,
        "kernel": record.kernel,
        "status": str(record.status),
        "evidence": " ".join(map(str, record.evidence)),
        **_time(record.timing),
        **{name: getattr(derived, name, None) for name in ("gbps", "tflops", "floor_us", "floor_share", "joules")},
        **_code(record),
        "config": config_text(record.config),
        "config_origin": record.config_origin,
        "estimate": record.estimate["text"] if record.estimate else "",
        "limiter": (record.estimate["limiter"] or "unknown") if record.estimate else "",
        "worst_check_ratio": max(gate.worst.values(), default=None) if gate else None,
        "dtype": load.dtype,
        "query_heads": load.num_query_heads,
        "kv_heads": load.num_kv_heads,
        "head_size": load.head_size,
        "block_size": load.block_size,
        "features": " ".join(load.features),
        "num_seqs": load.num_seqs,
        "num_tokens": load.num_tokens,
        "num_decodes": load.num_decodes,
        "kv_tokens": load.total_seq_len,
        "gpu": record.gpu or "",
        "reason": record.reason,
        "cell_id": record.cell_id,
    }


def table(records: Sequence[Record], judged: Sequence[Verdict] = ()) -> pd.DataFrame:
    """One row a cell, its processes combined. judged: the cells against FA3, where it was timed.

    `ratio_to_best`: time over the workload's best time. `speed_of_fa3`: FA3's time over the cell's, paired by rounds as
    verdicts are: separate medians drift apart on prompts. `low_us`, `high_us`: the 99% interval where several processes
    measured. Bounds (registry.BOUNDS) have both ratios, but are never the best.
    """
    cells = combined(records)
    rows = pd.DataFrame([_row(record) for record in cells])
    if rows.empty:
        return rows
    speeds = {(one.workload.id, one.kernel): one.speed.ratio for one in judged if one.against == FA3}
    speeds |= {(cell.workload.id, FA3): 1.0 for cell in cells if cell.kernel == FA3}
    ranked = rows[~rows.kernel.isin(BOUNDS)]
    best = ranked.groupby("workload").us.min()
    rows.insert(6, "ratio_to_best", pd.to_numeric(rows.us) / pd.to_numeric(rows.workload.map(best)))
    of_fa3 = [speeds.get((cell.workload.id, cell.kernel)) if cell.timing else None for cell in cells]
    rows.insert(7, "speed_of_fa3", pd.to_numeric(of_fa3))
    return rows


def coverage(rows: pd.DataFrame) -> tuple[list[str], list[tuple[str, list[int]]]]:
    """The statuses that occur, and for each kernel how many cells have each."""
    statuses = [str(status) for status in Status if (rows.status == str(status)).any()]
    kernels = in_order(rows.kernel)  # cells come in the order in which processes finish
    return statuses, [(k, [int(((rows.kernel == k) & (rows.status == s)).sum()) for s in statuses]) for k in kernels]


def distinct_facts(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Each compiled kernel once: its static facts, competitor, shape, config, and the workloads that use it."""
    found: dict[tuple, dict[str, Any]] = {}
    for record in records:
        load = record.workload
        for fact in record.facts:
            key = (record.kernel, fact["kernel"], fact["sha256"])
            entry = found.setdefault(
                key,
                fact
                | {
                    "competitor": record.kernel,
                    "shape": f"{load.num_query_heads}:{load.num_kv_heads}:{load.head_size} page {load.block_size}",
                    "head_size": load.head_size,
                    "dtype": load.dtype,
                    "features": " ".join(load.features),
                    "config": config_text(record.config),
                    "workloads": [],
                },
            )
            if load.label not in entry["workloads"]:
                entry["workloads"].append(load.label)
    return list(found.values())
