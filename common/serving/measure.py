"""Time the candidates for likely batches and keep the fastest as a winner.

In: a plan, points (common/serving/points.py), the candidates of its family. Out: times, and winners
(common/serving/winners.py). It compiles and waits for the device, so call it in a warm-up only.
"""

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from common.gpus import Gpu, gpu_of
from common.serving.grid import decided_by
from common.serving.points import Point
from common.serving.prepared import Prepared
from common.serving.winners import Timed
from common.spec import AttentionShape, PagedBatch
from common.spec.features import of_seqs
from common.spec.metadata import BatchStats, cdiv, query_start_loc, seq_lens
from common.spec.paged_batch import E4M3
from common.spec.refusals import expect, expect_integer

AGREE = 0.05  # largest difference of two outputs, as a share of the largest value; reordered sums differ by less
DEVICE_MS = 20  # timing of one candidate
OF_MEMORY = 4  # a cache made for timing takes at most 1 / OF_MEMORY of the free memory


def measure(
    plan: Any,
    count: int,
    points: Iterable[Point],
    seconds: float | None,
    caches: tuple[torch.Tensor | None, ...],
    out_dtype: torch.dtype | None,
    progress: Callable[[int, int, BatchStats, list[Timed]], None] | None,
) -> int:
    """Implement Plan.measure: time each cell without a winner and keep the fastest. Returns how many were timed."""
    count, gpu = expect_integer(count, "count", 1), gpu_of(plan.device)
    expect(gpu is not None, "measure", f"{plan.device} to time on", "a GPU")
    expect(plan.kernel is None, "measure", f"a plan of kernel={plan.kernel!r}", "one whose kernel is chosen")
    expect("batch_invariant" not in plan.reach.needs, "measure", "batch_invariant", "choices that follow from a batch")
    capturing = plan.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    expect(not capturing, "measure", "a capture of a graph", "a call outside of captures")
    limits, sees = (plan.max_tokens, plan.max_seqs, plan.max_seq_len), plan.features.sees
    cells = list(dict.fromkeys(_within(point.cell(*limits), *limits) for point in points))
    began, done = time.monotonic(), 0
    for number, stats in enumerate(cells):
        if seconds is not None and time.monotonic() - began > seconds:
            break
        timed: list[Timed] = []
        if not plan.family.is_measured(plan.shape, stats, gpu, sees):
            batch = batch_of(plan.shape, stats, plan.device, caches)
            timed = times(plan, stats, batch, count, gpu, out_dtype)
            row = f"{stats.num_seqs} sequences of {stats.max_seq_len} keys, {stats.num_decodes} decodes, "
            row += f"{stats.num_tokens} tokens"
            plan.family.keep_times(plan.shape, decided_by(stats, sees), gpu, timed, row)
            done += 1
        if progress:
            progress(number + 1, len(cells), stats, timed)
    return done


def _within(stats: BatchStats, max_tokens: int, max_seqs: int, max_seq_len: int) -> BatchStats:
    """Clip a point of the grid, which is rounded up, to a capacity."""
    seqs, keys = min(stats.num_seqs, max_seqs), min(stats.max_seq_len, max_seq_len)
    longest = min(stats.max_query_len, keys)
    decodes = seqs if longest == 1 else min(stats.num_decodes, seqs - 1)
    tokens = min(decodes + (seqs - decodes) * longest, max_tokens)
    return BatchStats(seqs, tokens, decodes, longest, keys, seqs * keys)


def graph_us(launch: Callable[[], None]) -> float:
    """Median microseconds of a launch captured in a graph, with an empty last-level cache."""
    from triton.testing import do_bench

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    return 1e3 * do_bench(graph.replay, warmup=5, rep=DEVICE_MS, return_mode="median")


def batch_of(
    shape: AttentionShape, stats: BatchStats, device: torch.device, caches: tuple[torch.Tensor | None, ...] = ()
) -> PagedBatch:
    """Make a batch with these stats: prompts share the tokens evenly, decodes and prompts have their mean lengths.

    caches: K and V, as for Plan.warmup. None makes new ones; if they exceed a share of the free memory, sequences share
    pages.
    """
    seqs, prompts, decodes = stats.num_seqs, stats.prompts, stats.num_decodes
    keys = max(stats.keys_of_prompts // prompts, stats.max_query_len) if prompts else 0
    left = stats.num_tokens - decodes
    lens = [(1, max(stats.keys_of_decodes // max(decodes, 1), 1))] * decodes
    lens += [(min(left // prompts + (i < left % prompts), keys), keys) for i in range(prompts)]
    told = BatchStats.of(lens)
    pages = cdiv(told.max_seq_len, shape.block_size)
    given = [cache for cache in caches if cache is not None]
    held = len(given[0]) if given else _pages_that_fit(shape, seqs * pages, device)
    made = [
        _filled((held, shape.block_size, shape.num_kv_heads, lanes), shape.cache_dtype, device)
        for lanes in (shape.head_size, shape.value_lanes)
    ] if not given else list(caches)  # fmt: skip
    table = torch.arange(seqs * pages, dtype=torch.int32, device=device).remainder(held).view(seqs, pages)
    query = _filled((told.num_tokens, shape.num_query_heads, shape.head_size), shape.dtype, device)
    starts, lengths = query_start_loc(lens).to(device), seq_lens(lens).to(device)
    return PagedBatch(query, *made, table, starts, lengths, shape.head_size**-0.5, told)


def _filled(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if dtype == torch.int8:
        return torch.randint(-127, 128, size, dtype=dtype, device=device)
    made = torch.randn(size, dtype=torch.float32 if dtype.itemsize == 1 else dtype, device=device)
    return made.to(dtype)


def _pages_that_fit(shape: AttentionShape, wanted: int, device: torch.device) -> int:
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 2**28
    page = shape.block_size * shape.num_kv_heads * (shape.head_size + shape.value_lanes)
    size = shape.cache_dtype.itemsize
    filling = size + 4 * (size == 1)  # 8-bit numbers are drawn in fp32
    return max(min(wanted, free // OF_MEMORY // (page * filling)), 1)


def times(
    plan: Any, stats: BatchStats, batch: PagedBatch, count: int, gpu: Gpu, out_dtype: torch.dtype | None = None
) -> list[Timed]:
    """Time each candidate whose scratch fits into the plan's workspace.

    The first candidate is the choice without a measurement; the outputs of the others must agree with its output.
    """
    shape, features = plan.shape, of_seqs(plan.features, stats.num_seqs)
    dtype = out_dtype or (torch.bfloat16 if shape.dtype in E4M3 else shape.dtype)
    first, found = None, []
    for choice in plan.family.candidates(shape, stats, gpu, plan.reach.needs, features.sees, count):
        layout = plan.reach.layout_at(choice, stats)
        if layout.num_bytes > plan.workspace.numel():
            found.append(Timed(choice, None, f"{layout.num_bytes} bytes of scratch"))
            continue
        out = torch.zeros(batch.num_tokens, shape.num_query_heads, shape.value_lanes, dtype=dtype, device=batch.device)
        memory = torch.zeros(layout.step_bytes, dtype=torch.uint8, device=batch.device) if layout.step_bytes else None
        one = Prepared(plan.family, choice, layout, memory)
        launch = partial(one.launch, batch, features, out, None, plan.workspace, memory)
        try:
            launch()
            if first is not None and not _agree(out, first):
                found.append(Timed(choice, None, "another answer"))
                continue
            found.append(Timed(choice, graph_us(launch)))
        except Exception as error:  # out of shared memory, or a compiler error
            found.append(Timed(choice, None, f"{type(error).__name__}: {str(error)[:120]}"))
            continue
        first = out if first is None else first
    return found


def _agree(out: torch.Tensor, first: torch.Tensor) -> bool:
    a, b = (one.float().nan_to_num() for one in (out, first))
    return bool((a - b).abs().max() <= AGREE * b.abs().max() + 1e-6) if a.numel() else True
