"""The first few of a learned choice, timed on the batches that a server of one model has; the fastest are kept.

    python -m compare tune --model 32:8:128 --gpu auto --minutes 2

Of each DSL the public call's plan is measured (Plan.measure) at decodes, drafts, prompts and mixed steps, by turns,
until the minutes are over. What was measured before with the same code and versions is not timed again.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from common.choice.learned import COUNT
from common.gpus import gpu_of
from common.serving.choice import Timed
from common.serving.points import Point
from common.spec import AttentionShape
from common.spec.metadata import BatchStats
from compare.competitors import registry
from compare.exits import NOTHING, OK
from compare.workloads import parse_shape

MAX_TOKENS, MAX_SEQS, MAX_KEYS = 8192, 256, 32768  # of the plan
CALLS = {"triton": "triton/native.auto", "helion": "helion/auto"}  # what each package offers as `paged_attention`


def points() -> list[Point]:
    """Decodes, drafts, prompts and mixed steps by turns, of common sizes first."""
    lengths, sizes = (2048, 8192, 512, 32768), (1, 32, 128, 8, 64, 256, 4, 16)
    decodes = [Point(n, keys) for keys in lengths for n in sizes]
    drafts = [Point(n, keys, 4) for keys in lengths[:3] for n in sizes[:5]]
    prompts = [Point(n, keys, query) for query, keys in _chunks() for n in (1, 4) if n * query <= MAX_TOKENS]
    mixed = [Point(n, keys, query, n - 1) for query, keys in _chunks() for n in (32, 128)]
    turns = itertools.zip_longest(decodes, drafts, prompts, mixed)
    return [one for turn in turns for one in turn if one is not None]


def _chunks() -> Iterator[tuple[int, int]]:
    """(query tokens, keys) of a prompt, or of a chunk behind a context."""
    yield from ((2048, 2048), (512, 512), (8192, 8192), (512, 8192), (2048, 16384))


def measure(arguments: argparse.Namespace, kernels: Sequence[str], device: str = "cuda") -> int:
    """Measure each DSL of `kernels`; the exit code. Raises GrammarError for a shape that cannot be read."""
    shape = parse_shape(arguments.model, arguments.block_size, arguments.dtype)
    console, done = Console(), 0
    for dsl in filter(CALLS.get, registry.families(kernels)):
        try:
            call = registry.load(CALLS[dsl])
        except registry.Unavailable as reason:
            console.print(f"{dsl} is left out: {reason}")
            continue
        done += _measured(dsl, call, shape, device, arguments.minutes, console)
    return OK if done else NOTHING


def _measured(dsl: str, call: Any, shape: AttentionShape, device: str, minutes: float, console: Console) -> int:
    plan = call.plan_paged_attention(shape, MAX_TOKENS, MAX_SEQS, MAX_KEYS, device)
    table = Table("batch", "unmeasured", "us", "fastest", "us", "gain", title=f"{dsl}, {minutes:g} minutes at most")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    asked = [one for one in points() if _fits(one, shape, torch.device(device))]
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(dsl, total=len(asked))

        def told(number: int, total: int, stats: BatchStats, timed: list[Timed]) -> None:
            bar.update(task, completed=number, total=total)
            if timed:
                table.add_row(*_row(stats, timed))

        done = plan.measure(COUNT, asked, seconds=60 * minutes, progress=told)
    console.print(table)
    where = plan.family.winners(gpu_of(plan.device)).where
    console.print(f"{dsl}: {done} of {len(asked)} batches measured, kept in {where}")
    return done


def _fits(point: Point, shape: AttentionShape, device: torch.device) -> bool:
    """Whether a quarter of the memory holds K and V of the batch."""
    held = point.num_seqs * point.max_seq_len * shape.num_kv_heads * (shape.head_size + shape.value_lanes)
    memory = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 2**30
    return held * shape.cache_dtype.itemsize <= memory // 4


def _row(stats: BatchStats, timed: Sequence[Timed]) -> list[str]:
    first, done = timed[0], [one for one in timed if one.us is not None]
    what = f"{stats.num_seqs} of up to {stats.max_query_len} over {stats.max_seq_len} keys, {stats.num_decodes} decodes"
    if not done:
        return [what, first.choice.kernel, first.why, "", "", ""]
    least = min(done, key=lambda one: one.us)
    without = "" if first.us is None else f"{first.us:.1f}"
    gain = "" if first.us is None else f"{100 * (first.us / least.us - 1):.0f}%"
    return [what, first.choice.kernel, without, least.choice.kernel, f"{least.us:.1f}", gain]
