"""A static grid (paper 4.7): a fixed number of programs, which take the items of the step's plan in turn.

Grids: Config's programs, whatever the batch. New over parallel_softmax.py: no axis follows the batch, so one captured
graph serves every batch up to its capacity, and a large capacity costs a small batch nothing. The plan (step_plan.py)
is made once for all layers of a step: Q Blocks of few rows for short queries, of many rows for long ones, cut into
segments where programs would wait for the longest. Each class has a launch of its own, with its own registers; the
programs of a launch claim items:
    "short"   queries of up to SHORT_QUERY tokens, through pages, as parallel_softmax.py reads them
    "copied"  longer ones, out of a copy of their keys, as unpaged.py reads them
    "paged"   longer ones whose copy has no room, or in captures of few tokens, as adjustable_tile.py reads them
A capture whose hints have no long query has the first alone, which then takes all queries. Segments leave their sums
for `merge_parts`.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import triton
import triton.language as tl

from common.choice.legal import fitted_part, programs_at_once, spills_by_run, staged_rows
from common.serving.static_grid import READ, StaticGrid, short_rows
from common.spec import AttentionShape, Cdna, Gpu
from common.spec.kernel import SEAMS, Precision, copied_scales, count_parts, launches
from common.spec.metadata import BatchStats, cdiv
from common.spec.step_plan import LISTS, ensure_served
from dsl_triton.binding import as_tensor, block_m_of, cache_strides, fits, smallest_block_m
from dsl_triton.copy_pages import copied_lanes, copy_pages
from dsl_triton.dense_tiles import attend_block, masked_tile, tile_sources
from dsl_triton.features import bundle, row_operands
from dsl_triton.head_parts import (
    attend_parts,
    finished_parts,
    first_part,
    init_parts,
    load_parts,
    load_query,
    narrow_parts,
    store_sums,
)
from dsl_triton.masks import clip_range, join_loops, kv_tile_range
from dsl_triton.merge_parts import merge_parts
from dsl_triton.page_runs import Gather, run_length
from dsl_triton.primitives import attend_range, q_block_rows, store_lse, store_rows
from dsl_triton.step_plan import HOLE, ITEMS, NOWHERE, SHORT_ITEMS, SIZE, item_at, make_plan

SUPPORTS = SEAMS | {"lse", "full_graph"}
CONTRACT = Precision()


@dataclass(frozen=True)
class Part:
    """The Q Blocks and tiles of one class of queries that is read through pages.

    block_m: rows of a Q Block; raised to the GQA ratio's next power of two where that is larger.
    gather: how K and V are addressed through the block table (page_runs.Gather); "key" where "run" does not apply.
    programs, num_stages: 0: those of the Config.
    registers: NVIDIA alone: the most of a thread; 0: the compiler's choice.
    """

    block_m: int
    tile_size: int
    gather: Gather = "key"
    programs: int = 0
    num_stages: int = 0
    registers: int = 0


@dataclass(frozen=True)
class Copied(Cdna):
    """Long queries whose keys are copied first. copy_programs: of the copy, over all its tiles.

    least_tokens: captures of fewer query tokens copy nothing, because some programs would get no Q Block. 0: no copies.
    least_query_len: captures whose longest query is shorter copy nothing, because each copied key is read too seldom.
    descriptors: as of unpaged.Prefill.
    """

    block_m: int = 32
    tile_size: int = 32
    programs: int = 4
    num_warps: int = 4
    num_stages: int = 2
    copy_programs: int = 4
    least_tokens: int = 0
    least_query_len: int = 0
    overlap: bool = False
    descriptors: bool = True


@dataclass(frozen=True)
class Config(Cdna):
    """decode: queries of up to SHORT_QUERY tokens; prefill: the others, through pages; copied: the others, where there
    is a copy.

    programs: of a launch that reads pages, as many as the GPU holds at once; fewer leave SMs idle, more run in turns.
    overlap: without a copy a launch begins while the one before runs (programmatic dependent launch: NVIDIA from sm_90
        on).
    """

    BY_SIZE: ClassVar = True
    decode: Part = Part(16, 32)
    prefill: Part = Part(32, 32, "run")
    copied: Copied = Copied()
    programs: int = 4
    num_warps: int = 4
    num_stages: int = 2
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
                yield replace(how, **{name: part}, overlap=gpu.tma)


def default(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> Config:
    """One config for all batches with the hints of a capture: as many programs as the GPU holds at once."""
    wide = max(shape.head_size, shape.value_lanes) > 128
    keys, rows = (32, 32 if wide else 64) if gpu.mfma else (64, 64)  # of a decode, of a prompt
    held = 1 if wide and not gpu.mfma else 2  # programs a unit, of a prompt
    tile = 16 if wide and gpu.mfma else keys  # of a prompt: with more, LDS holds one program
    how = fitted_part({"tile_size": tile, "num_stages": 2, "block_m": rows, "num_warps": 4}, shape, gpu)
    five = gpu.tma and fits(how["block_m"], how["tile_size"], 4, 5, shape, gpu)
    stages = 5 if five and how["block_m"] == 64 else 0  # page ids and keys are two tiles ahead, in two programs per SM
    least = short_rows(shape, stats, gpu)
    how["num_warps"] = 8 if least > 64 else 4
    decode = fitted_part(how | {"tile_size": keys, "block_m": block_m_of(Part(least, keys), shape)}, shape, gpu)
    keys, most, bound = decode["tile_size"], held, 0
    if gpu.vendor == "nvidia":
        most, bound = programs_at_once(decode["block_m"], keys, how["num_warps"], how["num_stages"], shape, gpu)
    spill = spills_by_run(how["block_m"], shape.cache_dtype.itemsize, staged_rows(gpu))
    gather = "key" if spill else "run"
    matrix, units, overlap = 16 if gpu.mfma else 0, max(gpu.units, 1), gpu.tma
    least = min(least, decode["block_m"])
    decode = Part(least, keys, gather if least >= 64 else "key", registers=bound)
    prefill = Part(how.pop("block_m"), how.pop("tile_size"), gather, held * units, stages)
    warps = 8 if wide else 4  # of prompts out of a copy
    dense = fitted_part({"tile_size": 64, "num_stages": 2, "block_m": 128, "num_warps": warps}, shape, gpu)
    copied = Copied(**dense, programs=held * units, copy_programs=8 * units, overlap=overlap, descriptors=gpu.tma)
    # products that read a tile from shared memory hold one stage more than those through pages
    of_tile = 128, dense["tile_size"], warps, dense["num_stages"]
    if gpu.tma and dense["block_m"] == 128 and fits(*of_tile, shape, gpu, dense=True):
        rows = copied.programs * copied.block_m, READ * shape.cache_dtype.itemsize * copied.block_m
        least_tokens, least_query_len = cdiv(rows[0], shape.num_query_heads), cdiv(rows[1], shape.queries_per_kv)
        copied = replace(copied, least_tokens=least_tokens, least_query_len=least_query_len)
    return Config(decode, prefill, copied, most * units, **how, matrix_instr=matrix, overlap=overlap)


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
def store_item(
    item_ptr, kv_head, m, l, acc, out, lse, partial, f,
    NUM_KV_HEADS: tl.constexpr, QUERIES_PER_KV: tl.constexpr, VALUE_SIZE: tl.constexpr, BLOCK_M: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """The output of a whole Q Block, or the sums of its segment into rows of `partial`. acc: as many PARTS.

    The item is read again: its fields would take registers in the loop over tiles.
    """
    _, item = item_at(item_ptr)
    query_row, left, _, seq_len, _, _, part, _, scratch, _, first, _ = item
    token, head, live = q_block_rows(first, kv_head, first + left, QUERIES_PER_KV, BLOCK_M)
    row = query_row - first + token
    if part < 0:
        unserved = tl.where(seq_len < 0, float("nan"), 0.0)
        acc = (acc[0] + unserved,) if PARTS == 1 else (acc[0] + unserved, acc[1] + unserved)
        store_sums(out.ptr, out.strides, row, head, live, acc, l, kv_head, f, VALUE_SIZE, PARTS)
        store_lse(lse.ptr, lse.strides, row, head, live, m + unserved, l)
    else:
        to_acc, to_m, to_l = partial
        at = scratch + part * (BLOCK_M // QUERIES_PER_KV * QUERIES_PER_KV) + tl.arange(0, BLOCK_M)
        acc_strides = (NUM_KV_HEADS * VALUE_SIZE, VALUE_SIZE)  # contiguous
        FIRST: tl.constexpr = VALUE_SIZE if PARTS == 1 else first_part(VALUE_SIZE)
        store_rows(to_acc, acc_strides, at, kv_head + at * 0, live, acc[0], FIRST)
        if PARTS == 2:
            store_rows(to_acc + FIRST, acc_strides, at, kv_head + at * 0, live, acc[1], VALUE_SIZE - FIRST)
        tl.store(to_m + at * NUM_KV_HEADS + kv_head, m, mask=live)
        tl.store(to_l + at * NUM_KV_HEADS + kv_head, l, mask=live)


@triton.jit
def list_of(counters_ptr, WHICH: tl.constexpr, NUM_KV_HEADS: tl.constexpr):
    """The first item of a launch's list, and its number of places: items x KV heads. Items of short queries come first.
    Read it again where it is needed: a value that lives across the loop over tiles takes a register."""
    shorts = tl.load(counters_ptr + SHORT_ITEMS)
    if WHICH == 0:
        return 0, shorts * NUM_KV_HEADS
    else:
        return shorts, (tl.load(counters_ptr + ITEMS) - shorts) * NUM_KV_HEADS


@triton.jit
def item_of(plan_ptr, counters_ptr, place, WHICH: tl.constexpr, NUM_KV_HEADS: tl.constexpr):
    """The address of a place's item. The KV heads of an item have neighbouring places."""
    first, _ = list_of(counters_ptr, WHICH, NUM_KV_HEADS)
    return plan_ptr + (first + place // NUM_KV_HEADS) * SIZE


@triton.jit
def first_item(plan_ptr, counters_ptr, WHICH: tl.constexpr, NUM_KV_HEADS: tl.constexpr):
    """This program's first place, whether it exists, the item's seq and its other fields."""
    place = tl.program_id(0)
    first, total = list_of(counters_ptr, WHICH, NUM_KV_HEADS)
    there = place < total
    if WHICH == 0:  # the plan has an entry for each program: no need to wait for the counters
        seq, item = item_at(plan_ptr + place // NUM_KV_HEADS * SIZE)
    else:
        seq, item = item_at(plan_ptr + (first + place // NUM_KV_HEADS) * SIZE, there)
    return place, there, seq, item


@triton.jit
def next_item(plan_ptr, counters_ptr, WHICH: tl.constexpr, NUM_KV_HEADS: tl.constexpr):
    """Claim the next place; returns what `first_item` does. No place is left if each has a program of its own.

    Each program claims until it finds no place, so there are as many claims as places. The last of all claims resets
    the counter for the next layer.
    """
    first, total = list_of(counters_ptr, WHICH, NUM_KV_HEADS)
    place = total
    if total > tl.num_programs(0):
        claimed = tl.atomic_add(counters_ptr + 2 * WHICH, 1, sem="relaxed")
        tl.store(counters_ptr + 2 * WHICH, 0, mask=claimed == total - 1)
        place = tl.num_programs(0) + claimed
    there = place < total
    seq, item = item_at(plan_ptr + (first + place // NUM_KV_HEADS) * SIZE, there)
    return place, there, seq, item


@triton.jit
def _attend_items_kernel(
    query,  # [num_tokens, num_query_heads, HEAD_SIZE]
    key_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, HEAD_SIZE]
    value_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, VALUE_SIZE]
    block_table,  # i32 or i64 [num_seqs, max_blocks]
    out,  # [num_tokens, num_query_heads, VALUE_SIZE]
    lse,  # f32 [num_tokens, num_query_heads] or None
    plan_ptr,  # i32 [items, SIZE]
    counters_ptr,  # i32 [COUNTERS]
    partial,  # acc, m, l: f32 [rows, num_kv_heads, VALUE_SIZE], [rows, num_kv_heads] twice
    softmax_scale,
    f,
    key_strides, value_strides,  # None: of V, those of K
    NUM_KV_HEADS: tl.constexpr, QUERIES_PER_KV: tl.constexpr, HEAD_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, FORM: tl.constexpr, WHICH: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    BLOCK_M: tl.constexpr = FORM[0]
    TILE_SIZE: tl.constexpr = FORM[1]
    RUN: tl.constexpr = FORM[2]
    PARTS: tl.constexpr = FORM[3]
    BLOCK_Q: tl.constexpr = BLOCK_M // QUERIES_PER_KV
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    place, there, seq, item = first_item(plan_ptr, counters_ptr, WHICH, NUM_KV_HEADS)
    while there:
        kv_head = place % NUM_KV_HEADS
        query_row, left, position, seq_len, start, stop, part, _, _, _, first, region = item
        mine = seq != HOLE
        if WHICH != 0:
            mine = mine & (region == NOWHERE)
        if mine:
            context_len = position - first
            first_key, end_key, start, full_start, full_stop, stop = item_range(
                seq, left, position, seq_len, start, stop, key_cache_ptr, f, BLOCK_Q, TILE_SIZE, BLOCK_M
            )
            token, head, live = q_block_rows(first, kv_head, first + left, QUERIES_PER_KV, BLOCK_M)
            row = query_row - first + token
            r = row_operands(f, seq, kv_head, token, head, live, context_len)
            q, r = load_query(query.ptr, query.strides, row, head, live, r, key_cache_ptr, HEAD_SIZE, PARTS)
            m, l, acc = init_parts(f, head, live, tl.maximum(part, 0), q, VALUE_SIZE, PARTS)
            table_ptr = block_table.ptr + seq.to(tl.int64) * block_table.strides[0]
            m, l, acc = attend_range(
                attend_parts, start, full_start, full_stop, stop, q, m, l, acc, (
                    context_len + token, seq_len, first_key, end_key, kv_head, softmax_scale, f, r,
                    key_cache_ptr, value_cache_ptr, table_ptr, key_strides, value_strides,
                    HEAD_SIZE, VALUE_SIZE, BLOCK_SIZE, TILE_SIZE, RUN, PARTS,
                ), TILE_SIZE,
            )  # fmt: skip
            acc = finished_parts(acc, value_cache_ptr, f, r, VALUE_SIZE, PARTS)
            done = place
            place, there, seq, item = next_item(plan_ptr, counters_ptr, WHICH, NUM_KV_HEADS)
            store_item(
                item_of(plan_ptr, counters_ptr, done, WHICH, NUM_KV_HEADS), done % NUM_KV_HEADS, m, l, acc, out,
                lse, partial, f, NUM_KV_HEADS, QUERIES_PER_KV, VALUE_SIZE, BLOCK_M, PARTS,
            )  # fmt: skip
        else:
            place, there, seq, item = next_item(plan_ptr, counters_ptr, WHICH, NUM_KV_HEADS)
    if OVERLAP and WHICH != 0:
        tl.extra.cuda.gdc_wait()  # this launch ends after that of the short queries, beside which it ran


@triton.jit(do_not_specialize=["tiles"])  # do not recompile for another scratch
def _attend_copied_kernel(
    query,  # [num_tokens, num_query_heads, HEAD_SIZE]
    keys,  # dense_tiles.Block of [num_kv_heads * tiles * TILE_SIZE, lanes]
    values,  # the same of V
    key_rest,  # Block of K's lanes behind the first part, or None
    value_rest,  # the same of V
    scales,  # of keys, of values: f32 [num_kv_heads * tiles * TILE_SIZE] or None
    out,  # [num_tokens, num_query_heads, VALUE_SIZE]
    lse,  # f32 [num_tokens, num_query_heads] or None
    plan_ptr,  # i32 [items, SIZE]
    counters_ptr,  # i32 [COUNTERS]
    partial,  # as of _attend_items_kernel
    tiles,  # of one KV head, in the scratch
    softmax_scale,
    f,
    NUM_KV_HEADS: tl.constexpr, QUERIES_PER_KV: tl.constexpr, HEAD_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, TILE_SIZE: tl.constexpr, WHICH: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    BLOCK_Q: tl.constexpr = BLOCK_M // QUERIES_PER_KV
    PARTS: tl.constexpr = 1 if key_rest is None else 2
    if OVERLAP:
        tl.extra.cuda.gdc_wait()  # wait for the copy; the plan is older
    place, there, seq, item = first_item(plan_ptr, counters_ptr, WHICH, NUM_KV_HEADS)
    while there:
        kv_head = place % NUM_KV_HEADS
        query_row, left, position, seq_len, start, stop, part, _, _, _, first, region = item
        if (seq != HOLE) & (region != NOWHERE):
            context_len = position - first
            last_pos = position + tl.minimum(left, BLOCK_Q) - 1
            _, _, _, full_lo, full_hi, hi = kv_tile_range(seq, position, last_pos, seq_len, f, TILE_SIZE)
            stop = tl.minimum(stop, hi)
            start = tl.minimum(start, stop)
            full_start, full_stop = clip_range(start, stop, full_lo, full_hi, f)
            token, head, live = q_block_rows(first, kv_head, first + left, QUERIES_PER_KV, BLOCK_M)
            row = query_row - first + token
            q = load_parts(query.ptr, query.strides, row, head, live, HEAD_SIZE, PARTS)
            r = row_operands(f, seq, kv_head, token, head, live, context_len)
            m, l, acc = init_parts(f, head, live, tl.maximum(part, 0), q, VALUE_SIZE, PARTS)
            at = (kv_head * tiles + region) * TILE_SIZE
            for j in range(full_start, full_stop):
                m, l, acc = attend_block(
                    j, q, m, l, acc, context_len + token, seq_len, softmax_scale, f, r,
                    keys, values, key_rest, value_rest, scales[0], scales[1], at + j * TILE_SIZE, 0,
                    TILE_SIZE, VALUE_SIZE, MASKED=False, FOREIGN=False,
                )  # fmt: skip
            for i in range(0, full_start - start + stop - full_stop):
                j = masked_tile(i, full_start - start, start, full_stop)
                m, l, acc = attend_block(
                    j, q, m, l, acc, context_len + token, seq_len, softmax_scale, f, r,
                    keys, values, key_rest, value_rest, scales[0], scales[1], at + j * TILE_SIZE, 0,
                    TILE_SIZE, VALUE_SIZE, MASKED=True, FOREIGN=False,
                )  # fmt: skip
            done = place
            place, there, seq, item = next_item(plan_ptr, counters_ptr, WHICH, NUM_KV_HEADS)
            store_item(
                item_of(plan_ptr, counters_ptr, done, WHICH, NUM_KV_HEADS), done % NUM_KV_HEADS, m, l,
                narrow_parts(acc, VALUE_SIZE, PARTS), out, lse, partial, f,
                NUM_KV_HEADS, QUERIES_PER_KV, VALUE_SIZE, BLOCK_M, PARTS,
            )  # fmt: skip
        else:
            place, there, seq, item = next_item(plan_ptr, counters_ptr, WHICH, NUM_KV_HEADS)


def _attend_pages(batch, features, out, config, workspace, lse, cut, name) -> None:
    """Items of a list, through pages."""
    shape, short, overlap = batch.shape, name == "short", config.overlap and not cut.copied
    part, (block_q, tile_size) = (config.decode, cut.short) if short else (config.prefill, cut.long)
    rows = max(triton.next_power_of_2(block_q * shape.queries_per_kv), smallest_block_m(shape))
    run = run_length(part.gather, batch, tile_size)
    form = rows, tile_size, run, count_parts(batch, features)
    programs = part.programs or config.programs
    warps = config.copied.num_warps if cut.copied and not short else config.num_warps  # for Q Blocks of its rows
    _attend_items_kernel[(min(programs, cut.most_places(batch)),)](
        as_tensor(batch.query), batch.key_cache, batch.value_cache, as_tensor(batch.block_table), as_tensor(out),
        as_tensor(lse), workspace.plan, workspace.counters, (workspace.acc, workspace.m, workspace.l),
        batch.softmax_scale, bundle(features, config), *cache_strides(batch, run),
        NUM_KV_HEADS=shape.num_kv_heads, QUERIES_PER_KV=shape.queries_per_kv, HEAD_SIZE=shape.head_size,
        VALUE_SIZE=shape.value_lanes, BLOCK_SIZE=shape.block_size, FORM=form, WHICH=LISTS.index(name), OVERLAP=overlap,
        num_warps=warps, num_stages=part.num_stages or config.num_stages,
        **({"maxnreg": part.registers} if part.registers else {}), **config.options(),
        **({"launch_pdl": True} if overlap and not short else {}),
    )  # fmt: skip


def _attend_copied(batch, features, out, config, workspace, lse, cut) -> None:
    """The copy, and the items whose keys are in it."""
    shape, how, copy = batch.shape, config, workspace.copy
    sources, tiles = tile_sources(batch, features, copy.key, copy.value, how.tile_size, False, how.descriptors)
    scales = copied_scales(features, copy.scales)
    limits = batch.num_tokens, batch.block_table.shape[1] * shape.block_size
    copy_pages(batch, features, copy.key, copy.value, scales, tiles, how, limits)
    _attend_copied_kernel[(min(how.programs, cut.most_places(batch)),)](
        as_tensor(batch.query), *sources["copied"], scales, as_tensor(out), as_tensor(lse), workspace.plan,
        workspace.counters, (workspace.acc, workspace.m, workspace.l), tiles, batch.softmax_scale,
        bundle(features, how),
        NUM_KV_HEADS=shape.num_kv_heads, QUERIES_PER_KV=shape.queries_per_kv, HEAD_SIZE=shape.head_size,
        VALUE_SIZE=shape.value_lanes, BLOCK_M=block_m_of(how, shape), TILE_SIZE=how.tile_size,
        WHICH=LISTS.index("copied"), OVERLAP=how.overlap, num_warps=how.num_warps, num_stages=how.num_stages,
        **how.options(), **({"launch_pdl": True} if how.overlap else {}),
    )  # fmt: skip


def _sized(part: Part | Copied, shape: AttentionShape) -> tuple[int, int]:
    """Rows of a Q Block, keys of a tile."""
    return block_m_of(part, shape), part.tile_size


_grid = StaticGrid(_sized, copied_lanes, make_plan, _attend_pages, _attend_copied, merge_parts)
workspace, prepare, check = _grid.workspace, _grid.prepare, ensure_served


@launches("triton/static_grid", SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """Write out (and lse) of every query token."""
    _grid.launch(batch, features, out, config, workspace, lse)
