"""A static grid (paper 4.7): a fixed number of programs, which take the items of the step's plan in turn.

Grid: Config's programs, whatever the batch. New over parallel_softmax.py: no axis follows the batch, so one captured
graph serves every batch up to its capacity, and a large capacity costs a small batch nothing. The plan (step_plan.py)
is made once for all layers of a step: Q Blocks of few rows for short queries, of many rows for long ones, cut into
segments where programs would wait for the longest. A program claims an item, reads its keys through pages as
adjustable_tile.py does, and claims the next. Segments leave their sums for `merge_parts`, on the same grid.

Either class has lines and names of its own: Helion gives a name one type in a kernel.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from types import SimpleNamespace

import helion.language as hl
import torch

from common.choice.legal import fitted_part
from common.spec import AttentionShape, Gpu
from common.spec.cdna import Cdna
from common.spec.kernel import SEAMS, Capacity, Precision
from common.spec.metadata import SHORT_QUERY, BatchStats
from common.spec.step_plan import HOLE, Cut, PlannedScratch, ensure_capacity, ensure_served, scratch_rows
from dsl_helion.arithmetic import div, int32, mod
from dsl_helion.binding import (
    Gather,
    fits,
    gather_form,
    held,
    kernel,
    launches,
    operands,
    run,
    smallest_block_m,
)
from dsl_helion.features import bundle, finished, narrow, query_operand, row_operands
from dsl_helion.masks import clip_range, join_loops, kv_tile_range
from dsl_helion.merge_parts import merge_parts
from dsl_helion.primitives import attend_tile, load_rows, normalise, q_block_rows, softmax_init, store_lse, store_rows
from dsl_helion.step_plan import item_at, make_plan

SUPPORTS = SEAMS | {"lse", "full_graph"}
CONTRACT = Precision()


@dataclass(frozen=True)
class Part:
    """The Q Blocks and tiles of one class of queries.

    block_m: rows of a Q Block; raised to the GQA ratio's next power of two where that is larger.
    """

    block_m: int
    tile_size: int


@dataclass(frozen=True)
class Config(Cdna):
    """decode: queries of up to SHORT_QUERY tokens; prefill: the others. One launch takes the items of both.

    programs: as many as the GPU holds at once; fewer leave SMs idle, more run in turns.
    gather: how K and V are read through the block table (binding.Gather); the next form where it does not apply.
    """

    decode: Part = Part(16, 32)
    prefill: Part = Part(32, 32)
    programs: int = 4
    gather: Gather = "page"
    num_warps: int = 4
    num_stages: int = 2


DEFAULT = Config()


def space(shape: AttentionShape, gpu: Gpu) -> Iterator[Config]:
    """Configs whose operands fit, each part's axes beside the other part's first that fits."""
    axes = (1, 2, 3, 4), ("page", "flat", "2idx"), (2, 4, 8), (1, 2, 3)
    rows = {"decode": (16,), "prefill": (32, 64, 128)}
    for waves, *others in product(*axes):
        how = Config(Part(16, 32), Part(32, 32), waves * gpu.units, *others)
        parts = {
            name: [Part(*p) for p in product(block_ms, (32, 64, 128)) if fits(_alone(how, Part(*p)), shape, gpu)]
            for name, block_ms in rows.items()
        }
        if not all(parts.values()):
            continue
        how = replace(how, **{name: fitting[0] for name, fitting in parts.items()})
        for name, fitting in parts.items():
            yield from (replace(how, **{name: part}) for part in fitting)


def default(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> Config:
    """The same for every batch, as a captured graph is: as many programs as stay on the GPU together, with the warps
    and stages of prompts."""
    wide = max(shape.head_size, shape.value_lanes) > 128
    keys, rows = (32, 32 if wide else 64) if gpu.mfma else (128, 64)  # of a decode, of a prompt
    held = 1 if wide and not gpu.mfma else 2  # programs a unit: two tiles of a decode's wide keys fill shared memory
    how = fitted_part({"tile_size": min(keys, 64), "num_stages": 2, "block_m": rows, "num_warps": 4}, shape, gpu)
    keys = fitted_part(how | {"tile_size": keys, "block_m": 16}, shape, gpu)["tile_size"]
    decode, prefill = Part(16, keys), Part(how.pop("block_m"), how.pop("tile_size"))
    matrix = 16 if gpu.mfma else 0
    return Config(decode, prefill, held * max(gpu.units, 1), **how, matrix_instr=matrix, gather="flat")


def item_range(seq, left, position, seq_len, start, stop, key_cache, f, block_q, tile_size, few_rows):
    """First and end key of an item's Q Block, then its tiles as attend_range of Triton's primitives takes them."""
    last_pos = position + torch.minimum(left, int32(block_q)) - 1
    first_key, end_key, _, full_lo, full_hi, hi = kv_tile_range(seq, position, last_pos, seq_len, f, tile_size)
    stop = torch.minimum(stop, hi)  # a Q Block that sees no key has a tile in the plan
    start = torch.minimum(start, stop)
    full_start, full_stop = clip_range(start, stop, full_lo, full_hi, f)
    full_start, full_stop = join_loops(full_start, full_stop, stop, key_cache, f, few_rows)
    return first_key, end_key, start, full_start, full_stop, stop


def store_part(partial, at, kv_head, live, m, l, acc):
    """The sums of a segment, into rows `at` of (acc, m, l)."""
    to_acc, to_m, to_l = partial
    store_rows(to_acc, at, kv_head + torch.zeros_like(at), live, acc)
    hl.store(to_m, [at, kv_head], m, extra_mask=live)
    hl.store(to_l, [at, kv_head], l, extra_mask=live)


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
    softmax_scale: float,
    f: dict,
    num_kv_heads: hl.constexpr,
    block_size: hl.constexpr,
    page_rows: int,
    gather: hl.constexpr,
    min_block_m: hl.constexpr,
    few_rows: hl.constexpr,
    few_long_rows: hl.constexpr,
    programs: hl.constexpr,
) -> None:
    hl.pdl_wait()  # the next line makes this a dependent launch as well, so it must wait for what ran before it
    hl.pdl_launch_dependents()  # the next launch begins while this one runs (NVIDIA from sm_90 on)
    hl.specialize((query.size(2), plan.size(1), counters.size(0), partial_acc.size(1), partial_acc.size(2)))
    value_size = hl.specialize(out.size(2))
    hl.specialize((key_cache.size(-1), value_cache.size(-1), key_cache.size(-2), value_cache.size(-2)))
    queries_per_kv = hl.specialize(query.size(1)) // num_kv_heads
    block_m = hl.register_block_size(min_block_m, 256)
    tile_size = hl.register_block_size(16, 256)
    decode_m = hl.register_block_size(min_block_m, 256)
    decode_tile = hl.register_block_size(16, 256)
    block_q = block_m // queries_per_kv
    decode_q = decode_m // queries_per_kv
    for program in hl.grid(programs):
        num_items = counters[2] * num_kv_heads
        place = int32(program)  # of an item under a KV head; the heads of an item are neighbours
        while place < num_items:
            kv_head = mod(place, num_kv_heads)
            seq, item = item_at(plan, div(place, num_kv_heads))
            query_row, left, position, seq_len, start_tile, stop_tile, part, _, scratch, short, first = item
            context_len = position - first
            unserved = torch.where(seq_len < 0, float("nan"), 0.0)
            if (seq != HOLE) & (short != 0):
                begin_d, end_d, start_d, full_start_d, full_stop_d, stop_d = item_range(
                    seq, left, position, seq_len, start_tile, stop_tile, key_cache, f, decode_q, decode_tile, few_rows
                )  # fmt: skip
                token_d, head_d, live_d = q_block_rows(first, kv_head, first + left, queries_per_kv, decode_m)
                pos_d = context_len + token_d
                row_d = query_row - first + token_d
                part_row_d = hl.arange(decode_m)
                r_d = row_operands(f, seq, kv_head, token_d, head_d, live_d, context_len)
                q_d, r_d = query_operand(load_rows(query, row_d, head_d, live_d), r_d, key_cache)
                m_d, l_d, acc_d = softmax_init(f, head_d, live_d, torch.maximum(part, int32(0)), q_d, value_size)
                for j_left_d in hl.grid(start_d, full_start_d):
                    m_d, l_d, acc_d = attend_tile(
                        j_left_d, q_d, m_d, l_d, acc_d, pos_d, seq, seq_len, begin_d, end_d, kv_head, softmax_scale, f,
                        r_d, key_cache, value_cache, block_table, block_size, page_rows, gather, decode_tile, True,
                    )  # fmt: skip
                for j_full_d in hl.grid(full_start_d, full_stop_d):
                    m_d, l_d, acc_d = attend_tile(
                        j_full_d, q_d, m_d, l_d, acc_d, pos_d, seq, seq_len, begin_d, end_d, kv_head, softmax_scale, f,
                        r_d, key_cache, value_cache, block_table, block_size, page_rows, gather, decode_tile, False,
                    )  # fmt: skip
                for j_right_d in hl.grid(full_stop_d, stop_d):
                    m_d, l_d, acc_d = attend_tile(
                        j_right_d, q_d, m_d, l_d, acc_d, pos_d, seq, seq_len, begin_d, end_d, kv_head, softmax_scale, f,
                        r_d, key_cache, value_cache, block_table, block_size, page_rows, gather, decode_tile, True,
                    )  # fmt: skip
                total_d = finished(narrow(acc_d, value_size), value_cache, f, r_d)
                if part < 0:
                    store_rows(out, row_d, head_d, live_d, normalise(total_d, l_d, kv_head, f) + unserved)
                    store_lse(lse, row_d, head_d, live_d, m_d + unserved, l_d)
                else:
                    at_d = scratch + part * (decode_q * queries_per_kv) + part_row_d
                    store_part((partial_acc, partial_m, partial_l), at_d, kv_head, live_d, m_d, l_d, total_d)
            if (seq != HOLE) & (short == 0):
                begin, end, start, full_start, full_stop, stop = item_range(
                    seq, left, position, seq_len, start_tile, stop_tile, key_cache, f, block_q, tile_size, few_long_rows
                )  # fmt: skip
                token, head, live = q_block_rows(first, kv_head, first + left, queries_per_kv, block_m)
                pos = context_len + token
                row = query_row - first + token
                part_row = hl.arange(block_m)
                r = row_operands(f, seq, kv_head, token, head, live, context_len)
                q, r = query_operand(load_rows(query, row, head, live), r, key_cache)
                m, l, acc = softmax_init(f, head, live, torch.maximum(part, int32(0)), q, value_size)
                for j_left in hl.grid(start, full_start):
                    m, l, acc = attend_tile(
                        j_left, q, m, l, acc, pos, seq, seq_len, begin, end, kv_head, softmax_scale, f,
                        r, key_cache, value_cache, block_table, block_size, page_rows, gather, tile_size, True,
                    )  # fmt: skip
                for j_full in hl.grid(full_start, full_stop):
                    m, l, acc = attend_tile(
                        j_full, q, m, l, acc, pos, seq, seq_len, begin, end, kv_head, softmax_scale, f,
                        r, key_cache, value_cache, block_table, block_size, page_rows, gather, tile_size, False,
                    )  # fmt: skip
                for j_right in hl.grid(full_stop, stop):
                    m, l, acc = attend_tile(
                        j_right, q, m, l, acc, pos, seq, seq_len, begin, end, kv_head, softmax_scale, f,
                        r, key_cache, value_cache, block_table, block_size, page_rows, gather, tile_size, True,
                    )  # fmt: skip
                total = finished(narrow(acc, value_size), value_cache, f, r)
                if part < 0:
                    store_rows(out, row, head, live, normalise(total, l, kv_head, f) + unserved)
                    store_lse(lse, row, head, live, m + unserved, l)
                else:
                    at = scratch + part * (block_q * queries_per_kv) + part_row
                    store_part((partial_acc, partial_m, partial_l), at, kv_head, live, m, l, total)
            place = programs + hl.atomic_add(counters, [0], 1, sem="relaxed")
        if hl.atomic_add(counters, [1], 1) == programs - 1:  # all have claimed their last: for the next layer
            counters[0] = 0
            counters[1] = 0


_attend_items = kernel(_attend_items_kernel)


def workspace(shape: AttentionShape, capacity: Capacity, config: Config) -> PlannedScratch:
    """The plan and its scratch, which does not grow with the lengths of sequences."""
    return PlannedScratch.up_to(capacity, shape, _cut(shape, config))


check = ensure_served


def prepare(batch, features, config, workspace: PlannedScratch) -> PlannedScratch:
    """The plan of a step, which all its layers may share. Raises SpecError for a batch beyond the capacity."""
    ensure_capacity(batch, workspace)
    make_plan(workspace.plan, workspace.counters, batch, features, _cut(batch.shape, config))
    return replace(workspace, planned=True)


@launches("helion/static_grid", SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """Write out (and lse) of every query token."""
    if not workspace.planned:
        prepare(batch, features, config, workspace)
    shape, (decode, prefill) = batch.shape, (held(part, batch.shape) for part in (config.decode, config.prefill))
    gather, page_rows = gather_form(config.gather, batch, min(decode.tile_size, prefill.tile_size))
    rows = [_block_m(shape, part) for part in (decode, prefill)]
    args = (
        *operands(batch, gather, page_rows), batch.block_table, out, lse, workspace.plan, workspace.counters,
        workspace.acc, workspace.m, workspace.l, batch.softmax_scale, bundle(features, config, shape.head_size),
        shape.num_kv_heads, shape.block_size, page_rows, gather, smallest_block_m(shape), *(m <= 16 for m in rows),
        config.programs,
    )  # fmt: skip
    sizes = [rows[1], prefill.tile_size, rows[0], decode.tile_size]
    run(_attend_items, config, args, block_sizes=sizes)
    merge_parts(batch, features, out, workspace, config.programs, _cut(shape, config), lse)


def _cut(shape: AttentionShape, config: Config) -> Cut:
    """How sequences become items. Rows of scratch are those of two Q Blocks a program."""
    rows = scratch_rows(shape, config.programs, _block_m(shape, config.prefill))
    short, long = (
        (_block_m(shape, part) // shape.queries_per_kv, held(part, shape).tile_size)
        for part in (config.decode, config.prefill)
    )
    return Cut(long, SHORT_QUERY, short, programs=config.programs, rows=rows)


def _block_m(shape: AttentionShape, part: Part) -> int:
    return max(part.block_m, smallest_block_m(shape))


def _alone(config: Config, part: Part) -> SimpleNamespace:
    """One part as binding.fits takes a config."""
    return SimpleNamespace(**vars(config) | vars(part))
