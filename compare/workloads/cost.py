"""The least bytes and FLOPs of a workload, from its real lengths, and the time that no GPU can beat.

Causal triangles are exact, a window trims both, a page shared by several sequences counts once.
"""

from dataclasses import dataclass

import torch

from common.gpus import Gpu
from compare.record.records import Derived, WorkloadInfo
from compare.workloads.workload import Ask, Workload


@dataclass(frozen=True)
class Cost:
    """kv_bytes: distinct K and V bytes read; io_bytes: query and out; flops: 2 per multiply-add, two products."""

    kv_bytes: int
    io_bytes: int
    flops: int

    @property
    def bytes(self) -> int:
        return self.kv_bytes + self.io_bytes


def _sum_capped(first: int, last: int, cap: int | None) -> int:
    """The sum of min(n, cap) over n = first .. last."""
    if last < first:
        return 0
    top = last if cap is None else min(last, cap)
    rising = (first + top) * (top - first + 1) // 2 if top >= first else 0
    flat = 0 if cap is None else cap * (last - max(first - 1, min(top, last)))
    return rising + max(flat, 0)


def visible_keys(query_len: int, seq_len: int, ask: Ask) -> int:
    """Visible (query, key) pairs of one sequence. For features of only some sequences or tokens (`non_causal`, `spans`)
    and draft trees, a lower bound for every kernel: the causal pairs, less those that a tree hides."""
    if query_len == 0 or seq_len == 0:
        return 0
    if ask.cross:
        return query_len * seq_len
    context = seq_len - query_len
    if ask.chunk is not None:
        return sum(touched_keys(1, end, ask) for end in range(context + 1, seq_len + 1))
    if ask.tree is not None and query_len >= len(ask.parents):
        return _sum_capped(context + 1, seq_len, ask.sliding_window) - ask.hidden()
    window = ask.sliding_window
    left = _sum_capped(context + 1, seq_len, window)  # up to the query's own key
    if ask.causal:
        return left
    return left + _sum_capped(0, query_len - 1, None if window is None else window - 1)  # behind it


def touched_keys(query_len: int, seq_len: int, ask: Ask) -> int:
    """Keys of one sequence that at least one query sees."""
    if query_len == 0 or seq_len == 0:
        return 0
    if ask.chunk is not None:
        return seq_len - max((seq_len - query_len) // ask.chunk - ask.chunk_lookback, 0) * ask.chunk
    if ask.sliding_window is None or ask.spans is not None:
        return seq_len
    return seq_len - max(seq_len - query_len - ask.sliding_window + 1, 0)


def scale_bytes(workload: Workload) -> int:
    """Bytes of the float32 scales of one key and its value, where every token and KV head has its own; else 0."""
    return 2 * 4 if workload.ask.scales == "tokens" else 0


def key_bytes(workload: Workload) -> int:
    """Bytes of one key of a KV head and its value in the caches, with their scales."""
    shape = workload.shape
    return (shape.head_size + shape.value_lanes) * shape.cache_dtype.itemsize + scale_bytes(workload)


def cost(workload: Workload) -> Cost:
    """What any kernel must read, write and multiply."""
    shape, ask = workload.shape, workload.ask
    pairs = sum(visible_keys(q, s, ask) for q, s in workload.lens)
    keys = sum(touched_keys(q, s, ask) for q, s in workload.lens) - _shared_keys(workload)
    lanes = shape.head_size + shape.value_lanes
    rows = workload.stats.num_tokens * shape.num_query_heads
    return Cost(
        kv_bytes=keys * shape.num_kv_heads * key_bytes(workload),
        io_bytes=rows * (shape.head_size * shape.dtype.itemsize + shape.value_lanes * workload.out_dtype.itemsize),
        flops=2 * pairs * shape.num_query_heads * lanes,
    )


def _shared_keys(workload: Workload) -> int:
    """Keys counted twice because their page is shared. A window touches few leading pages: then 0."""
    if not workload.shared_pages or workload.ask.sliding_window is not None:
        return 0
    page = workload.shape.block_size
    shared = [min(workload.shared_pages, (s - q) // page) * page for q, s in workload.lens if q]
    return sum(shared) - max(shared, default=0)


def floor_us(workload: Workload, gpu: Gpu, cold: bool = True) -> float | None:
    """The larger of bytes and FLOPs over the GPU's stated peaks, in microseconds; None where no peak is stated.

    cold: the bytes come from HBM; where they may lie in a cache, only FLOPs bound the time.
    """
    needed = cost(workload)
    peak = gpu.fp32_tflops if workload.shape.dtype is torch.float32 else gpu.bf16_tflops
    times = [needed.bytes / gpu.bytes_per_us] if gpu.hbm_gbps and cold else []
    times += [needed.flops / peak / 1e6] if peak else []
    return max(times, default=None)


def derived(workload: Workload, gpu: Gpu, median_us: float, cold: bool = True) -> Derived:
    """GB/s, TFLOP/s and the share of the floor of a time."""
    needed, floor = cost(workload), floor_us(workload, gpu, cold) or 0.0
    return Derived(
        gbps=needed.bytes / median_us / 1e3,
        tflops=needed.flops / median_us / 1e6,
        floor_us=floor,
        floor_share=floor / median_us,
    )


def info(workload: Workload) -> WorkloadInfo:
    """The workload as a record holds it."""
    stats, shape, needed = workload.stats, workload.shape, cost(workload)
    return WorkloadInfo(
        id=workload.id,
        label=workload.label,
        kind=workload.kind,
        num_seqs=stats.num_seqs,
        num_tokens=stats.num_tokens,
        num_decodes=stats.num_decodes,
        max_query_len=stats.max_query_len,
        max_seq_len=stats.max_seq_len,
        total_seq_len=stats.total_seq_len,
        num_query_heads=shape.num_query_heads,
        num_kv_heads=shape.num_kv_heads,
        head_size=shape.head_size,
        block_size=shape.block_size,
        dtype=str(shape.dtype).removeprefix("torch."),
        features=workload.asked,
        cache_style=workload.style,
        kv_bytes=needed.kv_bytes,
        flops=needed.flops,
        prompt_seq_len=stats.prompt_seq_len,
    )
