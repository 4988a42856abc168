"""A static grid (paper 4.7): a fixed number of programs, which take the items of the step's plan in turn.

Grid: Config's programs, whatever the batch. New over parallel_softmax.py: no axis follows the batch, so one captured
graph serves every batch up to its capacity, and a large capacity costs a small batch nothing. The plan (step_plan.py)
is made once for all layers of a step: Q Blocks of few rows for short queries, of many rows for long ones, cut into
segments where programs would wait for the longest. A program claims an item, reads its keys through pages as
adjustable_tile.py does, and claims the next. Segments leave their sums for `merge_parts`, on the same grid.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import triton
import triton.language as tl

from common.choice.legal import fitted_part
from common.spec import AttentionShape, Gpu
from common.spec.cdna import Cdna
from common.spec.kernel import SEAMS, Capacity, Precision, launches
from common.spec.metadata import SHORT_QUERY, BatchStats
from common.spec.step_plan import Cut, PlannedScratch, ensure_capacity, ensure_served, scratch_rows
from dsl_triton.binding import can_overlap, fits, on_cdna, smallest_block_m, strides
from dsl_triton.features import bundle, finished, narrow, query_operand, row_operands
from dsl_triton.masks import clip_range, join_loops, kv_tile_range
from dsl_triton.merge_parts import merge_parts
from dsl_triton.page_runs import Gather, attend_runs, run_length, value_strides
from dsl_triton.primitives import (
    attend_range,
    load_rows,
    normalise,
    q_block_rows,
    softmax_init,
    store_lse,
    store_rows,
)
from dsl_triton.step_plan import HOLE, SIZE, item_at, make_plan

SUPPORTS = SEAMS | {"lse", "full_graph"}
CONTRACT = Precision()


@dataclass(frozen=True)
class Part:
    """The Q Blocks and tiles of one class of queries.

    block_m: rows of a Q Block; raised to the GQA ratio's next power of two where that is larger.
    gather: how K and V are addressed through the block table (page_runs.Gather); "key" where "run" does not apply.
    """

    block_m: int
    tile_size: int
    gather: Gather = "key"


@dataclass(frozen=True)
class Config(Cdna):
    """decode: queries of up to SHORT_QUERY tokens; prefill: the others. One launch takes the items of both.

    programs: as many as the GPU holds at once; fewer leave SMs idle, more run in turns.
    registers: NVIDIA alone: at most so many a thread; 0: the compiler's choice.
    overlap: the merge begins while the items run (programmatic dependent launch: NVIDIA from sm_90 on).
    """

    decode: Part = Part(16, 32)
    prefill: Part = Part(32, 32, "run")
    programs: int = 4
    num_warps: int = 4
    num_stages: int = 2
    registers: int = 0
    overlap: bool = False


DEFAULT = Config()


def space(shape: AttentionShape, gpu: Gpu) -> Iterator[Config]:
    """Configs whose operands fit, each part's axes beside the other part's first that fits."""
    axes = (1, 2, 3, 4), (2, 4, 8), (1, 2, 3)
    rows = {"decode": (16,), "prefill": (32, 64, 128)}
    for waves, num_warps, num_stages in itertools.product(*axes):
        parts = {
            name: [
                Part(block_m, tile_size, gather)
                for block_m, tile_size, gather in itertools.product(block_ms, (32, 64, 128), ("key", "run"))
                if fits(block_m, tile_size, num_warps, num_stages, shape, gpu)
            ]
            for name, block_ms in rows.items()
        }
        if not all(parts.values()):
            continue
        first = {name: fitting[0] for name, fitting in parts.items()}
        how = Config(**first, programs=waves * gpu.units, num_warps=num_warps, num_stages=num_stages)
        for name, fitting in parts.items():
            for part in fitting:
                yield replace(how, **{name: part}, overlap=can_overlap(gpu))


def default(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> Config:
    """The same for every batch, as a captured graph is: as many programs as stay on the GPU together, with the warps
    and stages of prompts."""
    wide = max(shape.head_size, shape.value_lanes) > 128
    keys, rows = (32, 32 if wide else 64) if gpu.mfma else (128, 64)  # of a decode, of a prompt
    held = 1 if wide and not gpu.mfma else 2  # programs a unit: two tiles of a decode's wide keys fill shared memory
    how = fitted_part({"tile_size": min(keys, 64), "num_stages": 2, "block_m": rows, "num_warps": 4}, shape, gpu)
    keys = fitted_part(how | {"tile_size": keys, "block_m": 16}, shape, gpu)["tile_size"]
    gather = "run" if shape.cache_dtype.itemsize > 1 else "key"  # 8 bits by runs spill on an A100
    decode, prefill = Part(16, keys), Part(how.pop("block_m"), how.pop("tile_size"), gather)
    matrix = 16 if gpu.mfma else 0
    return Config(decode, prefill, held * max(gpu.units, 1), **how, matrix_instr=matrix, overlap=can_overlap(gpu))


@triton.jit
def item_range(
    seq, left, position, seq_len, start, stop, key_cache_ptr, f,
    BLOCK_Q: tl.constexpr, TILE_SIZE: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """First and end key of an item's Q Block, then its tiles as attend_range takes them."""
    last_pos = position + tl.minimum(left, BLOCK_Q) - 1
    first_key, end_key, _, full_lo, full_hi, hi = kv_tile_range(seq, position, last_pos, seq_len, f, TILE_SIZE)
    stop = tl.minimum(stop, hi)  # a Q Block that sees no key has a tile in the plan
    start = tl.minimum(start, stop)
    full_start, full_stop = clip_range(start, stop, full_lo, full_hi, f)
    full_start, full_stop = join_loops(full_start, full_stop, stop, key_cache_ptr, f, BLOCK_M)
    return first_key, end_key, start, full_start, full_stop, stop


@triton.jit
def store_part(partial, acc_strides, m_strides, at, kv_head, live, m, l, acc, VALUE_SIZE: tl.constexpr):
    """The sums of a segment, into rows `at` of (acc, m, l)."""
    to_acc, to_m, to_l = partial
    store_rows(to_acc, acc_strides, at, kv_head + at * 0, live, acc, VALUE_SIZE)
    at = at * m_strides[0] + kv_head
    tl.store(to_m + at, m, mask=live)
    tl.store(to_l + at, l, mask=live)


@triton.jit
def _attend_item(
    seq, item, kv_head, tensors, parts, softmax_scale, f, query_strides, key_strides, value_strides,
    table_strides, out_strides, lse_strides, NUM_KV_HEADS: tl.constexpr, QUERIES_PER_KV: tl.constexpr,
    HEAD_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_M: tl.constexpr,
    TILE_SIZE: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """Write the output of an item's Q Block under one KV head, or the sums of its segment.

    item: what step_plan.item_at returns beside `seq`. Other arguments: as the kernel has them.
    """
    query_ptr, key_cache_ptr, value_cache_ptr, block_table_ptr, out_ptr, lse_ptr = tensors
    BLOCK_Q: tl.constexpr = BLOCK_M // QUERIES_PER_KV
    query_row, left, position, seq_len, start, stop, part, _, scratch, _, first = item
    context_len = position - first
    first_key, end_key, start, full_start, full_stop, stop = item_range(
        seq, left, position, seq_len, start, stop, key_cache_ptr, f, BLOCK_Q, TILE_SIZE, BLOCK_M
    )
    token, head, live = q_block_rows(first, kv_head, first + left, QUERIES_PER_KV, BLOCK_M)
    row = query_row - first + token
    q = load_rows(query_ptr, query_strides, row, head, live, HEAD_SIZE)  # [BLOCK_M, HEAD_PADDED]
    r = row_operands(f, seq, kv_head, token, head, live, context_len)
    q, r = query_operand(q, r, key_cache_ptr)
    m, l, acc = softmax_init(f, head, live, tl.maximum(part, 0), q, VALUE_SIZE)
    table_ptr = block_table_ptr + seq.to(tl.int64) * table_strides[0]
    m, l, acc = attend_range(
        attend_runs, start, full_start, full_stop, stop, q, m, l, acc, (
            context_len + token, seq_len, first_key, end_key, kv_head, softmax_scale, f, r,
            key_cache_ptr, value_cache_ptr, table_ptr, key_strides, value_strides,
            HEAD_SIZE, VALUE_SIZE, BLOCK_SIZE, TILE_SIZE, RUN,
        ), TILE_SIZE,
    )  # fmt: skip
    acc = finished(narrow(acc, VALUE_SIZE), value_cache_ptr, f, r)
    if part < 0:
        unserved = tl.where(seq_len < 0, float("nan"), 0.0)
        store_rows(out_ptr, out_strides, row, head, live, normalise(acc, l, kv_head, f) + unserved, VALUE_SIZE)
        store_lse(lse_ptr, lse_strides, row, head, live, m + unserved, l)
    else:
        ROWS: tl.constexpr = BLOCK_Q * QUERIES_PER_KV
        at = scratch + part * ROWS + tl.arange(0, BLOCK_M)
        acc_strides, m_strides = (NUM_KV_HEADS * VALUE_SIZE, VALUE_SIZE), (NUM_KV_HEADS,)  # contiguous
        store_part(parts, acc_strides, m_strides, at, kv_head, live, m, l, acc, VALUE_SIZE)


@triton.jit
def _attend_items_kernel(
    query_ptr,  # [num_tokens, num_query_heads, HEAD_SIZE]
    key_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, HEAD_SIZE]
    value_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, VALUE_SIZE]
    block_table_ptr,  # i32 or i64 [num_seqs, max_blocks]
    out_ptr,  # [num_tokens, num_query_heads, VALUE_SIZE]
    lse_ptr,  # f32 [num_tokens, num_query_heads] or None
    plan_ptr,  # i32 [items, SIZE]
    counters_ptr,  # i32 [COUNTERS]
    parts,  # acc, m, l: f32 [rows, num_kv_heads, VALUE_SIZE], [rows, num_kv_heads] twice
    softmax_scale,
    f,
    query_strides, key_strides, value_strides, table_strides, out_strides, lse_strides,  # None: of V, those of K
    NUM_KV_HEADS: tl.constexpr, QUERIES_PER_KV: tl.constexpr, HEAD_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, DECODE: tl.constexpr, PREFILL: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    tensors = (query_ptr, key_cache_ptr, value_cache_ptr, block_table_ptr, out_ptr, lse_ptr)
    total = tl.load(counters_ptr + 2) * NUM_KV_HEADS
    place = tl.program_id(0)  # of an item under a KV head; the heads of an item are neighbours
    while place < total:
        item_ptr = plan_ptr + place // NUM_KV_HEADS * SIZE
        kv_head = place % NUM_KV_HEADS
        seq, item = item_at(item_ptr)
        if seq != HOLE:
            if item[9] != 0:
                _attend_item(
                    seq, item, kv_head, tensors, parts, softmax_scale, f, query_strides, key_strides, value_strides,
                    table_strides, out_strides, lse_strides, NUM_KV_HEADS, QUERIES_PER_KV, HEAD_SIZE, VALUE_SIZE,
                    BLOCK_SIZE, DECODE[0], DECODE[1], DECODE[2],
                )  # fmt: skip
            else:
                _attend_item(
                    seq, item, kv_head, tensors, parts, softmax_scale, f, query_strides, key_strides, value_strides,
                    table_strides, out_strides, lse_strides, NUM_KV_HEADS, QUERIES_PER_KV, HEAD_SIZE, VALUE_SIZE,
                    BLOCK_SIZE, PREFILL[0], PREFILL[1], PREFILL[2],
                )  # fmt: skip
        place = tl.num_programs(0) + tl.atomic_add(counters_ptr, 1, sem="relaxed")
    if tl.atomic_add(counters_ptr + 1, 1) == tl.num_programs(0) - 1:  # all have claimed their last: for the next layer
        tl.store(counters_ptr, 0)
        tl.store(counters_ptr + 1, 0)


def workspace(shape: AttentionShape, capacity: Capacity, config: Config) -> PlannedScratch:
    """The plan and its scratch, which does not grow with the lengths of sequences."""
    return PlannedScratch.up_to(capacity, shape, _cut(shape, config))


check = ensure_served


def prepare(batch, features, config, workspace: PlannedScratch) -> PlannedScratch:
    """The plan of a step, which all its layers may share. Raises SpecError for a batch beyond the capacity."""
    ensure_capacity(batch, workspace)
    make_plan(workspace.plan, workspace.counters, batch, features, _cut(batch.shape, config))
    return replace(workspace, planned=True)


@launches("triton/static_grid", SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """Write out (and lse) of every query token."""
    if not workspace.planned:
        prepare(batch, features, config, workspace)
    shape = batch.shape
    decode, prefill = (
        (_block_m(shape, part), part.tile_size, run_length(part.gather, batch, part.tile_size))
        for part in (config.decode, config.prefill)
    )
    _attend_items_kernel[(config.programs,)](
        batch.query, batch.key_cache, batch.value_cache, batch.block_table, out, lse, workspace.plan,
        workspace.counters, (workspace.acc, workspace.m, workspace.l), batch.softmax_scale, bundle(features, config),
        batch.query.stride(), batch.key_cache.stride(), value_strides(batch), batch.block_table.stride(), out.stride(),
        strides(lse),
        NUM_KV_HEADS=shape.num_kv_heads, QUERIES_PER_KV=shape.queries_per_kv, HEAD_SIZE=shape.head_size,
        VALUE_SIZE=shape.value_lanes, BLOCK_SIZE=shape.block_size, DECODE=decode, PREFILL=prefill,
        OVERLAP=config.overlap, num_warps=config.num_warps, num_stages=config.num_stages,
        **({"maxnreg": config.registers} if config.registers else {}), **on_cdna(config),
    )  # fmt: skip
    merge_parts(batch, features, out, workspace, config.programs, _cut(shape, config), lse, config.overlap)


def _cut(shape: AttentionShape, config: Config) -> Cut:
    """How sequences become items. Rows of scratch are those of two Q Blocks a program."""
    rows = scratch_rows(shape, config.programs, _block_m(shape, config.prefill))
    short, long = (
        (_block_m(shape, part) // shape.queries_per_kv, part.tile_size) for part in (config.decode, config.prefill)
    )
    return Cut(long, SHORT_QUERY, short, programs=config.programs, rows=rows)


def _block_m(shape: AttentionShape, part: Part) -> int:
    return max(part.block_m, smallest_block_m(shape))
