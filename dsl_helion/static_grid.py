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

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from types import SimpleNamespace
from typing import ClassVar

import helion.language as hl
import torch

from common.choice.legal import fits_one, fitted_part, programs_at_once, spills_by_run, staged_rows
from common.serving.static_grid import READ, StaticGrid, short_rows
from common.spec import AttentionShape, Cdna, Gpu
from common.spec.kernel import SEAMS, Precision, copied_scales, count_parts, parts_of
from common.spec.metadata import BatchStats, cdiv, power_of_two
from common.spec.step_plan import (
    HOLE,
    ITEMS,
    LISTS,
    NOWHERE,
    PART,
    SHORT_ITEMS,
    ensure_served,
)
from dsl_helion.arithmetic import div, int32, mod
from dsl_helion.binding import (
    Gather,
    block_m_of,
    constant_axis,
    fewest_rows,
    fits,
    gather_form,
    held,
    kernel,
    launches,
    loadable,
    operands,
    run,
    smallest_block_m,
)
from dsl_helion.copy_pages import copy_pages
from dsl_helion.dense_tiles import attend_block, masked_tile, tile_sources
from dsl_helion.features import bundle, finished, narrow, row_operands
from dsl_helion.head_parts import attend_parts, first_lanes, in_parts, init_sums, load_parts, load_query, store_sums
from dsl_helion.masks import clip_range, join_loops, kv_tile_range
from dsl_helion.merge_parts import merge_parts
from dsl_helion.primitives import join_sums, q_block_rows, store_lse, store_rows
from dsl_helion.step_plan import item_at, make_plan

SUPPORTS = SEAMS | {"lse", "full_graph"}
CONTRACT = Precision()


@dataclass(frozen=True)
class Part:
    """The Q Blocks and tiles of one class of queries that is read through pages.

    block_m: rows of a Q Block; raised to the GQA ratio's next power of two where that is larger.
    gather: how K and V are read through the block table (binding.Gather); the next form where it does not apply.
    programs, num_stages: 0: those of the Config.
    registers: NVIDIA alone: the most of a thread; 0: the compiler's choice.
    """

    block_m: int
    tile_size: int
    gather: Gather = "page"
    programs: int = 0
    num_stages: int = 0
    registers: int = 0


@dataclass(frozen=True)
class Copied(Cdna):
    """Long queries whose keys are copied first. copy_programs: of the copy, over all its tiles.

    least_tokens: captures of fewer query tokens copy nothing, because some programs would get no Q Block. 0: no copies.
    least_query_len: captures whose longest query is shorter copy nothing, because each copied key is read too seldom.
    gather: how the copy reads the pages, as of unpaged.Prefill.
    """

    block_m: int = 32
    tile_size: int = 32
    programs: int = 4
    num_warps: int = 4
    num_stages: int = 2
    copy_programs: int = 4
    least_tokens: int = 0
    least_query_len: int = 0
    gather: Gather = "page"


@dataclass(frozen=True)
class Config(Cdna):
    """decode: queries of up to SHORT_QUERY tokens; prefill: the others, through pages; copied: the others, where there
    is a copy.

    programs: of a launch that reads pages, as many as the GPU holds at once; fewer leave SMs idle, more run in turns.
    """

    BY_SIZE: ClassVar = True
    decode: Part = Part(16, 32)
    prefill: Part = Part(32, 32)
    copied: Copied = Copied()
    programs: int = 4
    num_warps: int = 4
    num_stages: int = 2


DEFAULT = Config()


def space(shape: AttentionShape, gpu: Gpu) -> Iterator[Config]:
    """Configs whose operands fit, each part's axes beside the other part's first that fits."""
    axes = (1, 2, 3, 4), (2, 4, 8), (1, 2, 3)
    rows = {"decode": (16,), "prefill": (32, 64, 128)}
    for waves, *others in product(*axes):
        how = Config(Part(16, 32), Part(32, 32), Copied(), waves * gpu.units, *others)
        parts = {
            name: [
                Part(*part)
                for part in product(block_ms, (32, 64, 128), ("page", "flat"))
                if fits(_alone(how, Part(*part)), shape, gpu)
            ]
            for name, block_ms in rows.items()
        }
        if not all(parts.values()):
            continue
        how = replace(how, **{name: fitting[0] for name, fitting in parts.items()})
        for name, fitting in parts.items():
            yield from (replace(how, **{name: part}) for part in fitting)


def default(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> Config:
    """One config for all batches with the hints of a capture: as many programs as the GPU holds at once."""
    wide = max(shape.head_size, shape.value_lanes) > 128
    keys, rows = (32, 32 if wide else 64) if gpu.mfma else (64, 64)  # of a decode, of a prompt
    held = 1 if wide and not gpu.mfma else 2  # programs a unit, of a prompt
    tile = 16 if wide and gpu.mfma else keys  # of a prompt: with more, LDS holds one program
    how = fitted_part({"tile_size": tile, "num_stages": 2, "block_m": rows, "num_warps": 4}, shape, gpu)
    five = gpu.tma and fits_one(how["block_m"], how["tile_size"], 4, 5, shape, gpu)
    stages = 5 if five and how["block_m"] == 64 else 0  # page ids and keys are two tiles ahead, in two programs per SM
    least = short_rows(shape, stats, gpu)
    how["num_warps"] = 8 if least > 64 else 4
    decode = fitted_part(how | {"tile_size": keys, "block_m": block_m_of(Part(least, keys), shape)}, shape, gpu)
    keys, most, bound = decode["tile_size"], held, 0
    if gpu.vendor == "nvidia":
        most, bound = programs_at_once(decode["block_m"], keys, how["num_warps"], how["num_stages"], shape, gpu)
    spill = spills_by_run(how["block_m"], shape.cache_dtype.itemsize, staged_rows(gpu))
    gather = "flat" if spill else "page"
    matrix, units = 16 if gpu.mfma else 0, max(gpu.units, 1)
    least = min(least, decode["block_m"])
    decode = Part(least, keys, gather if least >= 64 else "flat", registers=bound)
    prefill = Part(how.pop("block_m"), how.pop("tile_size"), gather, held * units, stages)
    warps = 8 if wide else 4  # of prompts out of a copy
    dense = fitted_part({"tile_size": 64, "num_stages": 2, "block_m": 128, "num_warps": warps}, shape, gpu)
    copied = Copied(**dense, programs=held * units, copy_programs=8 * units)
    # products that read a tile from shared memory hold one stage more than those through pages
    of_tile = 128, dense["tile_size"], warps, dense["num_stages"]
    if gpu.tma and dense["block_m"] == 128 and fits_one(*of_tile, shape, gpu, dense=True):
        rows = copied.programs * copied.block_m, READ * shape.cache_dtype.itemsize * copied.block_m
        least_tokens, least_query_len = cdiv(rows[0], shape.num_query_heads), cdiv(rows[1], shape.queries_per_kv)
        copied = replace(copied, least_tokens=least_tokens, least_query_len=least_query_len)
    return Config(decode, prefill, copied, most * units, **how, matrix_instr=matrix)


def item_range(seq, left, position, seq_len, start, stop, key_cache, f, block_q, tile_size, few_rows):
    """First and end key of an item's Q Block, then its tiles as attend_range of Triton's primitives takes them."""
    last_pos = position + torch.minimum(left, int32(block_q)) - 1
    first_key, end_key, _, full_lo, full_hi, hi = kv_tile_range(seq, position, last_pos, seq_len, f, tile_size)
    stop = torch.minimum(stop, hi)  # a Q Block that sees no key has a tile in the plan
    start = torch.minimum(start, stop)
    full_start, full_stop = clip_range(start, stop, full_lo, full_hi, f)
    full_start, full_stop = join_loops(full_start, full_stop, stop, key_cache, f, few_rows)
    return first_key, end_key, start, full_start, full_stop, stop


def store_item(plan, at, kv_head, m, l, acc, acc_rest, out, lse, partial, f, queries_per_kv, block_m, parts):
    """The output of a whole Q Block, or the sums of its segment into rows of `partial`; where `out` or `partial` is
    None, the other alone, without a mask for it. acc_rest: not read where the head is one of `parts`."""
    _, item = item_at(plan, at)
    query_row, left, _, seq_len, _, _, part, _, scratch, _, first, _ = item
    token, head, live = q_block_rows(first, kv_head, first + left, queries_per_kv, block_m)
    if out is not None:
        row = query_row - first + token
        unserved = torch.where(seq_len < 0, float("nan"), 0.0)
        whole = live if partial is None else live & (part < 0)
        store_sums(out, row, head, whole, acc + unserved, acc_rest + unserved, l, kv_head, f, parts)
        store_lse(lse, row, head, whole, m + unserved, l)
    if partial is not None:
        to_acc, to_m, to_l = partial
        to = scratch + part * (block_m // queries_per_kv * queries_per_kv) + hl.arange(block_m)
        some = live if out is None else live & (part >= 0)
        group = kv_head + torch.zeros_like(to)
        if parts == 1:
            store_rows(to_acc, to, group, some, acc)
        else:
            store_rows(to_acc, to, group, some, acc, slice(0, acc.size(1)))
            store_rows(to_acc, to, group, some, acc_rest, slice(acc.size(1), to_acc.size(2)))
        hl.store(to_m, [to, kv_head], m, extra_mask=some)
        hl.store(to_l, [to, kv_head], l, extra_mask=some)


def places(counters, which, num_kv_heads):
    """The number of places of a launch's list: items x KV heads."""
    shorts = hl.load(counters, [SHORT_ITEMS])
    if which == 0:
        return shorts * num_kv_heads
    return (hl.load(counters, [ITEMS]) - shorts) * num_kv_heads


def item_of(counters, place, which, num_kv_heads):
    """The number of a place's item. The KV heads of an item have neighbouring places."""
    item = div(place, num_kv_heads)
    if which != 0:  # behind those of short queries
        item = item + hl.load(counters, [SHORT_ITEMS])
    return item


def _attend_items_kernel(
    query: torch.Tensor,  # [num_tokens, num_query_heads, head_size]
    key_cache: torch.Tensor,  # [num_blocks, block_size, num_kv_heads, head_size], flat: [rows, num_kv_heads, head_size]
    value_cache: torch.Tensor,  # the same, value_size in place of head_size
    block_table: torch.Tensor,  # i32 or i64 [num_seqs, max_blocks]
    out: torch.Tensor,  # [num_tokens, num_query_heads, value_size]
    lse: torch.Tensor | None,  # f32 [num_tokens, num_query_heads]
    plan: torch.Tensor,  # i32 [items, SIZE]
    counters: torch.Tensor,  # i32 [COUNTERS]
    partial_acc: torch.Tensor,  # f32 [rows, num_kv_heads, value_size]
    partial_m: torch.Tensor,  # f32 [rows, num_kv_heads]
    partial_l: torch.Tensor,  # f32 [rows, num_kv_heads]
    query_rest: torch.Tensor,  # of two parts the lanes behind the first (head_parts.py), else as above and not read
    key_rest: torch.Tensor,
    value_rest: torch.Tensor,
    softmax_scale: float,
    f: dict,
    num_kv_heads: hl.constexpr,
    block_size: hl.constexpr,
    page_rows: int,
    gather: hl.constexpr,
    rows: hl.constexpr,
    parts: hl.constexpr,
    which: hl.constexpr,
    programs: int,
) -> None:
    hl.pdl_wait()  # the next line makes this a dependent launch as well, so it must wait for what ran before it
    hl.pdl_launch_dependents()  # the next launch begins while this one runs (NVIDIA from sm_90 on)
    hl.specialize((query.size(2), plan.size(1), counters.size(0), partial_acc.size(1), partial_acc.size(2)))
    value_size = hl.specialize(out.size(2))
    hl.specialize((key_cache.size(-1), value_cache.size(-1), key_cache.size(-2), value_cache.size(-2)))
    hl.specialize((key_cache.size(1), value_cache.size(1)))  # whole pages need no mask
    hl.specialize((key_cache.stride(0), value_cache.stride(0)))  # K and V share what is computed of a page
    axis = constant_axis(num_kv_heads, gather, rows)
    hl.specialize((key_cache.stride(axis), value_cache.stride(axis)))
    hl.specialize((query_rest.size(2), key_rest.size(-1), value_rest.size(-1)))
    queries_per_kv = hl.specialize(query.size(1)) // num_kv_heads
    block_m = hl.register_block_size(fewest_rows(queries_per_kv), 256)
    tile_size = hl.register_block_size(16, 256)
    block_q = block_m // queries_per_kv
    for program in hl.grid(programs):
        end_place = places(counters, which, num_kv_heads)
        place = int32(program)
        # the plan has an entry for each program of short queries: look it up beside the counters
        busy = place < end_place if which != 0 else place >= 0
        while busy:
            kv_head = mod(place, num_kv_heads)
            seq, item = item_at(plan, item_of(counters, place, which, num_kv_heads))
            query_row, left, position, seq_len, start_tile, stop_tile, part, _, _, _, first, region = item
            mine = (place < end_place) & (seq != HOLE)
            if which != 0:
                mine = mine & (region == NOWHERE)
            if mine:
                context_len = position - first
                begin, end, start, full_start, full_stop, stop = item_range(
                    seq, left, position, seq_len, start_tile, stop_tile, key_cache, f, block_q, tile_size, rows <= 16
                )  # fmt: skip
                token, head, live = q_block_rows(first, kv_head, first + left, queries_per_kv, block_m)
                pos = context_len + token
                r = row_operands(f, seq, kv_head, token, head, live, context_len)
                q, r = load_query(query, query_rest, query_row - first + token, head, live, r, key_cache, parts)
                m, l, acc, rest = init_sums(f, head, live, torch.maximum(part, int32(0)), q, value_size, parts)
                for j_left in hl.grid(start, full_start):
                    m, l, acc, rest = attend_parts(
                        j_left, q, m, l, acc, rest, pos, seq, seq_len, begin, end, kv_head, softmax_scale, f, r,
                        (key_cache, value_cache, key_rest, value_rest), block_table, block_size, page_rows, gather,
                        tile_size, parts, True,
                    )  # fmt: skip
                for j_full in hl.grid(full_start, full_stop):
                    m, l, acc, rest = attend_parts(
                        j_full, q, m, l, acc, rest, pos, seq, seq_len, begin, end, kv_head, softmax_scale, f, r,
                        (key_cache, value_cache, key_rest, value_rest), block_table, block_size, page_rows, gather,
                        tile_size, parts, False,
                    )  # fmt: skip
                for j_right in hl.grid(full_stop, stop):
                    m, l, acc, rest = attend_parts(
                        j_right, q, m, l, acc, rest, pos, seq, seq_len, begin, end, kv_head, softmax_scale, f, r,
                        (key_cache, value_cache, key_rest, value_rest), block_table, block_size, page_rows, gather,
                        tile_size, parts, True,
                    )  # fmt: skip
                total = finished(narrow(acc, value_size), value_cache, f, r)
                sums = join_sums(l, f)
                at = item_of(counters, place, which, num_kv_heads)
                store_item(
                    plan, at, kv_head, m, sums, total, rest, out, lse, (partial_acc, partial_m, partial_l), f,
                    queries_per_kv, block_m, parts,
                )  # fmt: skip
            if end_place > int32(programs):  # else every place has a program of its own
                place = int32(programs) + hl.atomic_add(counters, [2 * which], 1, sem="relaxed")
            else:
                place = end_place
            busy = place < end_place
        if place == end_place + int32(programs - 1):  # the last claim resets the counter for the next layer
            counters[2 * which] = 0


def _attend_copied_kernel(
    query: torch.Tensor,  # [num_tokens, num_query_heads, head_size]
    keys: torch.Tensor,  # [num_kv_heads * tiles * tile_size, head_size]
    values: torch.Tensor,  # the same of V
    key_scales: torch.Tensor | None,  # f32 [num_kv_heads * tiles * tile_size]
    value_scales: torch.Tensor | None,  # the same of V
    out: torch.Tensor,  # [num_tokens, num_query_heads, value_size]
    lse: torch.Tensor | None,  # f32 [num_tokens, num_query_heads]
    plan: torch.Tensor,  # i32 [items, SIZE]
    counters: torch.Tensor,  # i32 [COUNTERS]
    partial_acc: torch.Tensor,  # as of _attend_items_kernel
    partial_m: torch.Tensor,
    partial_l: torch.Tensor,
    tiles: int,  # of one KV head, in the scratch
    softmax_scale: float,
    f: dict,
    num_kv_heads: hl.constexpr,
    first_part: hl.constexpr,
    parts: hl.constexpr,
    which: hl.constexpr,
    programs: int,
) -> None:
    hl.pdl_wait()  # wait for the copy
    hl.specialize((query.size(2), plan.size(1), counters.size(0), partial_acc.size(1), partial_acc.size(2)))
    value_size = hl.specialize(out.size(2))
    hl.specialize((keys.size(-1), values.size(-1)))
    queries_per_kv = hl.specialize(query.size(1)) // num_kv_heads
    block_m = hl.register_block_size(fewest_rows(queries_per_kv), 256)
    tile_size = hl.register_block_size(16, 256)
    block_q = block_m // queries_per_kv
    for program in hl.grid(programs):
        place = int32(program)
        busy = place < places(counters, which, num_kv_heads)
        while busy:
            kv_head = mod(place, num_kv_heads)
            seq, item = item_at(plan, item_of(counters, place, which, num_kv_heads))
            query_row, left, position, seq_len, start, stop, part, _, _, _, first, region = item
            if (seq != HOLE) & (region != NOWHERE):
                context_len = position - first
                last_pos = position + torch.minimum(left, int32(block_q)) - 1
                _, _, _, full_lo, full_hi, hi = kv_tile_range(seq, position, last_pos, seq_len, f, tile_size)
                last = torch.minimum(stop, hi)
                lowest = torch.minimum(start, last)
                full_start, full_stop = clip_range(lowest, last, full_lo, full_hi, f)
                token, head, live = q_block_rows(first, kv_head, first + left, queries_per_kv, block_m)
                pos = context_len + token
                q = load_parts(query, query_row - first + token, head, live, first_part)
                r = row_operands(f, seq, kv_head, token, head, live, context_len)
                m, l, acc, rest = init_sums(f, head, live, torch.maximum(part, int32(0)), q, value_size, parts)
                row = (kv_head * tiles + region) * tile_size
                for j_full in hl.grid(full_start, full_stop):
                    m, l, acc, rest = attend_block(
                        j_full, q, m, l, acc, rest, pos, seq_len, softmax_scale, f, r, keys, values, key_scales,
                        value_scales, row, kv_head, tile_size, first_part, parts, False, False,
                    )  # fmt: skip
                for i_edge in hl.grid(0, full_start - lowest + last - full_stop):
                    j_edge = masked_tile(i_edge, full_start - lowest, lowest, full_stop)
                    m, l, acc, rest = attend_block(
                        j_edge, q, m, l, acc, rest, pos, seq_len, softmax_scale, f, r, keys, values, key_scales,
                        value_scales, row, kv_head, tile_size, first_part, parts, True, False,
                    )  # fmt: skip
                total = narrow(acc, value_size)
                at = item_of(counters, place, which, num_kv_heads)
                if hl.load(plan, [at, PART]) < 0:  # 128 rows under a mask for each would spill their sums
                    store_item(plan, at, kv_head, m, l, total, rest, out, lse, None, f, queries_per_kv, block_m, parts)
                else:
                    store_item(
                        plan, at, kv_head, m, l, total, rest, None, None, (partial_acc, partial_m, partial_l), f,
                        queries_per_kv, block_m, parts,
                    )  # fmt: skip
            place = int32(programs) + hl.atomic_add(counters, [2 * which], 1, sem="relaxed")
            busy = place < places(counters, which, num_kv_heads)
        if place == places(counters, which, num_kv_heads) + int32(programs - 1):
            counters[2 * which] = 0


_attend_items = kernel(_attend_items_kernel, "block_q", "programs")
_copied_items = kernel(_attend_copied_kernel, "tiles", "block_q", "programs")


def _attend_pages(batch, features, out, config, workspace, lse, cut, name) -> None:
    """Items of a list, through pages."""
    shape, short = batch.shape, name == "short"
    part, (block_q, tile_size) = (config.decode, cut.short) if short else (config.prefill, cut.long)
    programs = part.programs or config.programs
    warps = config.copied.num_warps if cut.copied and not short else config.num_warps  # for Q Blocks of its rows
    gather, page_rows = gather_form(part.gather, batch, tile_size)
    rows = max(power_of_two(block_q * shape.queries_per_kv), smallest_block_m(shape))
    alone = _alone(config, replace(part, tile_size=tile_size))
    parts = count_parts(batch, features)
    query, key_cache, value_cache, *rest = in_parts(operands(batch, gather, page_rows), parts)
    args = (
        query, key_cache, value_cache, batch.block_table, out, lse, workspace.plan, workspace.counters, workspace.acc,
        workspace.m, workspace.l, *rest, batch.softmax_scale, bundle(features, alone, shape.head_size, rows),
        shape.num_kv_heads, shape.block_size, page_rows, gather, rows, parts,
        LISTS.index(name), min(programs, cut.most_places(batch)),
    )  # fmt: skip
    how = replace(config, num_warps=warps, num_stages=part.num_stages or config.num_stages)
    run(_attend_items, how, args, part.registers, block_sizes=[rows, tile_size])


def _attend_copied(batch, features, out, config, workspace, lse, cut) -> None:
    """The copy, and the items whose keys are in it."""
    shape, how, copy = batch.shape, held(config, batch.shape), workspace.copy
    sources, tiles = tile_sources(batch, features, copy.key, copy.value, how.tile_size, False)
    keys, values = sources["copied"]
    scales = copied_scales(features, copy.scales)
    limits = batch.num_tokens, batch.block_table.shape[1] * shape.block_size
    copy_pages(batch, features, copy.key, copy.value, scales, tiles, how, limits)
    args = (
        loadable(batch.query), keys, values, *scales, out, lse, workspace.plan, workspace.counters, workspace.acc,
        workspace.m, workspace.l, tiles, batch.softmax_scale, bundle(features, how, shape.head_size),
        shape.num_kv_heads, first_lanes(shape, batch.device), parts_of(shape),
        LISTS.index("copied"), min(how.programs, cut.most_places(batch)),
    )  # fmt: skip
    run(_copied_items, how, args, block_sizes=[block_m_of(how, shape), how.tile_size], descriptors=True)


def _alone(config: Config, part: Part) -> SimpleNamespace:
    """One part as binding.fits and bundle take a config."""
    return SimpleNamespace(**vars(config) | vars(part))


def _sized(part: Part | Copied, shape: AttentionShape) -> tuple[int, int]:
    """Rows of a Q Block, keys of a tile."""
    return block_m_of(part, shape), held(part, shape).tile_size


def _copied_lanes(shape: AttentionShape) -> tuple[int, int]:
    """Of K and of V: Helion pads lanes itself."""
    return shape.head_size, shape.value_lanes


_grid = StaticGrid(_sized, _copied_lanes, make_plan, _attend_pages, _attend_copied, merge_parts)
workspace, prepare, check = _grid.workspace, _grid.prepare, ensure_served


@launches("helion/static_grid", SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """Write out (and lse) of every query token."""
    _grid.launch(batch, features, out, config, workspace, lse)
