"""What logs teach from: every candidate that a run timed or refused, as a point.

Runs of the tuner and of `study regret` (candidates.jsonl) and of `compare run` (cells.jsonl). Of a run's rows with
features only those are taken whose features a choice knows: a cache of 8 bits, and how many keys a token sees.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

from common.choice import columns
from common.choice.portfolio import SHORT
from common.gpus import Gpu, resolve
from common.serving.grid import decided_by
from common.spec import AttentionShape
from common.spec.metadata import EVERY_KEY, SHORT_QUERY, BatchStats
from compare.record import manifest, packed, plain
from compare.record.records import WorkloadInfo
from compare.record.store import load
from compare.tune import learned, records

CELLS, EIGHT_BITS = "cells.jsonl", "float8_e4m3fn"
TIMER = "graph"  # others add what a launch costs on the host
WINDOW, BITS = "sliding_window=", "scales=one"  # features that the columns tell (common/choice/columns.py)
PARTED = "2026-11-29T04:46", "2026-11-30T14:20"  # since when prompts, then all queries, multiply heads in parts
FALLBACK = "2idx"  # a gather that no candidate asks for any more; in older logs it takes 1.7 times as long
REFUSED = ("shared_memory", "hopeless", "raced")  # count as slow; a config that spills was not timed and may be fast


@dataclass(frozen=True)
class Point:
    """A candidate of a row. us: None where it was refused. rules: that `auto`'s rules of the day took it.
    whole_heads: how many of the times PARTED are later than the run."""

    dsl: str
    row: tuple[str, str, str]  # whose candidates took turns on it: a DSL, or all of a run; folder, label
    seed: int
    shape: AttentionShape
    stats: BatchStats
    gpu: Gpu
    kernel: str
    config: Mapping[str, Any]
    us: float | None
    rules: bool
    whole_heads: int

    @property
    def launched(self) -> tuple[str, Mapping[str, Any]]:
        """Kernel and config, as columns.configs counts what ran that day."""
        return self.kernel, {**self.config, "whole_heads": self.whole_heads}

    @property
    def native(self) -> bool:
        """Whether the kernel is for one GPU, and deals its tiles by a plan of its own."""
        return self.kernel.startswith("native")

    def of(self, dsl: str, gpu: Gpu) -> bool:
        return self.dsl == dsl and self.gpu == gpu


def points(folders: Sequence[Path], dsl: str) -> list[Point]:
    """Of these runs. Raises NotThisRun."""
    runs = [folder for folder in folders if packed.there(folder / CELLS)]
    logs = [folder for folder in folders if folder not in runs]
    return _of_logs(logs, dsl) + [point for folder in runs for point in _of_run(folder, dsl)]


def runs_in(folder: Path) -> list[Path]:
    """The folder itself, where it is a run; else every run below it. Raises NotThisRun where none had a GPU."""
    here = folder / "manifest.json"
    runs = [path.parent for path in ([here] if here.exists() else sorted(folder.rglob(here.name)))]
    runs = [one for one in runs if any(packed.there(one / log) for log in (CELLS, "candidates.jsonl")) and _timed(one)]
    if not runs:
        raise records.NotThisRun(f"fit: found {folder} without any run of a GPU that was there, allowed runs")
    return runs


def _timed(folder: Path) -> bool:
    """Whether the GPU of a run was there. Raises NotThisRun."""
    try:
        said = plain.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise records.NotThisRun(f"fit: found {folder} with {error}, allowed runs") from error
    gpu = said.get("gpu") if isinstance(said, dict) else None
    return gpu.get("present", False) if isinstance(gpu, dict) else gpu is not None


def manifest_of(folder: Path) -> dict[str, Any]:
    """The manifest of a run of either kind, `gpu` as the name. Raises NotThisRun."""
    if not packed.there(folder / CELLS):
        return records.manifest(folder, ["gpu", "rows"])
    try:
        said = manifest.read(folder / "manifest.json")
    except (OSError, ValueError, RecursionError) as error:
        raise records.NotThisRun(f"{folder}: {error}") from error
    return said | {"gpu": said["gpu"]["name"]}


def _of_run(folder: Path, dsl: str) -> Iterator[Point]:
    """The points of a run of `compare run`: each kernel with the config of its cell and the median over processes. The
    kernels of both DSLs on a row are compared with each other. All such runs are one fold, because suites repeat rows.
    """
    said, times = manifest_of(folder), defaultdict(list)
    gpu, whole_heads = resolve(said["gpu"]), _whole_heads(said)
    loaded = load(folder / CELLS)
    if loaded.note:
        print(f"{folder}: {loaded.note}", file=sys.stderr)
    for record in loaded.records:
        named = _named({"kernel": record.kernel, "config": record.config}, dsl)
        timed = record.timing and record.timing.timer == TIMER
        if named and timed and _is_told(record.workload) and record.gpu == gpu.name:
            times[record.workload, named[0], json.dumps(named[1], sort_keys=True)].append(record.timing.median_us)
    for (info, kernel, text), us in times.items():
        shape, stats = _asked(info)
        kernel, config = _launched(kernel, json.loads(text), stats)
        yield Point(
            dsl, ("all", str(folder), info.label), 0, shape, stats, gpu, kernel, config, median(us), False, whole_heads
        )


def _whole_heads(manifest: Mapping[str, Any]) -> int:
    return sum(manifest.get("started", "") < day for day in PARTED)


def _is_told(info: WorkloadInfo) -> bool:
    """Whether the columns tell all features of a row. Sinks add no key."""
    return all(one in (BITS, "sinks") or one.startswith(WINDOW) for one in info.features)


def _asked(info: WorkloadInfo) -> tuple[AttentionShape, BatchStats]:
    names = ("num_query_heads", "num_kv_heads", "head_size", "block_size", "dtype")
    of_shape = {name: getattr(info, name) for name in names}
    if BITS in info.features:
        of_shape["kv_dtype"] = EIGHT_BITS
    sizes = {field.name: getattr(info, field.name) for field in fields(BatchStats)}
    sees = next((int(one.removeprefix(WINDOW)) for one in info.features if one.startswith(WINDOW)), EVERY_KEY)
    return AttentionShape.from_dict(of_shape), decided_by(BatchStats(**sizes), sees)


def _launched(kernel: str, config: Mapping[str, Any], stats: BatchStats) -> tuple[str, Mapping[str, Any]]:
    """The kernel whose launch a batch gets, with its config: short queries alone have that of SHORT, unless the kernel
    takes them `together` with long ones."""
    apart = "decode" in config and not config.get("together")
    return (SHORT, config["decode"]) if apart and stats.max_query_len <= SHORT_QUERY else (kernel, config)


def _of_logs(folders: Sequence[Path], dsl: str) -> list[Point]:
    """The points of the tuner's logs. A config with several lines has its final time, or else the least."""
    found: dict[tuple[Any, ...], Point] = {}
    for folder in folders:
        said = manifest_of(folder)
        gpu, rows = resolve(said["gpu"]), {row.label: row for row in records.workloads(said)}
        whole_heads = _whole_heads(said)
        told = {label: learned.asked(row)[1] for label, row in rows.items() if row.shape.value_size is None}
        final: dict[tuple[Any, ...], bool] = {}
        for line in records.read(folder / "candidates.jsonl"):
            named = _named(line, dsl)
            if named is None or line["row"] not in told:
                continue
            kernel, config, chosen = named
            kernel, config = _launched(kernel, config, told[line["row"]])
            us = line.get("final_us", line.get("screen_us")) if line["status"] == "ok" else None
            if us is None and line["status"] not in REFUSED:
                continue
            at = (str(folder), line["row"], kernel, json.dumps(config, sort_keys=True))
            before, second = found.get(at), "final_us" in line
            if before and before.us is not None and us is not None:
                if final[at] and not second:
                    us = before.us
                elif final[at] == second:
                    us = min(us, before.us)
            chosen = chosen or bool(before and before.rules)
            final[at] = second or final.get(at, False)
            shape = rows[line["row"]].shape
            row, of = (dsl, str(folder), line["row"]), (shape, told[line["row"]], gpu)
            found[at] = Point(dsl, row, said.get("seed", -1), *of, kernel, config, us, chosen, whole_heads)
    return list(found.values())


def _named(line: Mapping[str, Any], dsl: str) -> tuple[str, Mapping[str, Any], bool] | None:
    """Kernel, config, and whether `auto` took it; None for what the model does not know."""
    family, _, kernel = line["kernel"].partition("/")
    config, chosen = line.get("config"), kernel == "auto"
    if family != dsl or line.get("done") or config is None:
        return None
    if kernel.endswith("auto"):
        kernel, config = config["kernel"], config["config"]
    older = kernel.startswith("native") and "together" not in config  # whose launches are not known
    parts = (config, config.get("prefill"), config.get("decode"))
    left = older or any(isinstance(part, Mapping) and part.get("gather") == FALLBACK for part in parts)
    return (kernel, config, chosen) if kernel in columns.KERNELS and not left else None
