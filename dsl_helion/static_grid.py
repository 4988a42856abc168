"""A static grid (paper 4.7): a fixed number of programs, which share the batch's tiles evenly.

Grid: Config's programs, whatever the batch. New over parallel_softmax.py: no axis follows the batch, so one captured
graph serves every batch up to its capacity, and a large capacity costs a small batch nothing. Every program finds its
share itself (tile_schedule.py) and walks the items in it. It writes the outputs of items that lie inside its share, and
leaves parts of the others for `merge_parts`.

Three launches: long queries (more than SHORT_QUERY tokens) in Q Blocks of many rows, short ones in Q Blocks of few, and
the merge. Long queries go first: a batch without them passes that launch while the next one begins.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import helion
import helion.language as hl
import torch

from common.spec import AttentionShape, Gpu
from common.spec.cdna import Cdna
from common.spec.kernel import SEAMS, Capacity, Precision
from common.spec.metadata import ANY_QUERY, SHORT_QUERY
from common.spec.workspaces import PartScratch, ensure_capacity, ensure_served
from dsl_helion.binding import (
    Gather,
    fits,
    gather_form,
    kernel,
    launches,
    operands,
    run,
    smallest_block_m,
)
from dsl_helion.features import bundle, finished, narrow, query_operand, row_operands
from dsl_helion.masks import clip_range, join_loops
from dsl_helion.merge_parts import merge_parts, write_record
from dsl_helion.primitives import attend_tile, load_rows, normalise, q_block_rows, softmax_init, store_lse, store_rows
from dsl_helion.tile_schedule import interval, item_at, line_of, piece_of, q_block_range, sequence_at

SUPPORTS = SEAMS | {"lse", "full_graph"}
CONTRACT = Precision()


@dataclass(frozen=True)
class Part(Cdna):
    """How one class of queries is served.

    block_m: rows of a Q Block; raised to the GQA ratio's next power of two where that is larger.
    programs: as many as the GPU holds at once; fewer leave SMs idle, more run in turns.
    snap: a cut between two programs moves by up to so many tiles to spare the merge of an item.
    gather: how K and V are read through the block table (binding.Gather); the next form where it does not apply.
    whole: items with a program each are not cut if the longest has at most so many tiles more than a program's share
    (tile_schedule.line_of).
    """

    block_m: int
    tile_size: int
    programs: int
    snap: int = 1
    gather: Gather = "page"
    num_warps: int = 4
    num_stages: int = 2
    whole: int = 0


@dataclass(frozen=True)
class Config:
    """decode: queries of up to SHORT_QUERY tokens; prefill: the others."""

    decode: Part = Part(16, 32, 4)
    prefill: Part = Part(32, 32, 3)


DEFAULT = Config()


def space(shape: AttentionShape, gpu: Gpu) -> Iterator[Config]:
    """Configs whose operands fit, each part's axes beside the other part's first that fits."""
    axes = (32, 64, 128), (1, 2, 3, 4), (0, 1, 2, 4), ("page", "flat", "2idx"), (2, 4, 8), (1, 2, 3)
    first: Config | None = None
    for name, rows in (("decode", (16,)), ("prefill", (32, 64, 128))):
        for block_m, tile_size, waves, *others in product(rows, *axes):
            if fits(part := Part(block_m, tile_size, waves * gpu.units, *others), shape, gpu):
                first = first or Config(part, part)
                yield replace(first, **{name: part})


def _attend_items_kernel(
    query: torch.Tensor,  # [num_tokens, num_query_heads, head_size]
    key_cache: torch.Tensor,  # [num_blocks, block_size, num_kv_heads, head_size], flat: [rows, num_kv_heads, head_size]
    value_cache: torch.Tensor,  # the same, value_size in place of head_size
    block_table: torch.Tensor,  # i32 or i64 [num_seqs, max_blocks]
    query_start_loc: torch.Tensor,  # i32 [num_seqs + 1]
    seq_lens: torch.Tensor,  # i32 [num_seqs]
    out: torch.Tensor,  # [num_tokens, num_query_heads, value_size]
    lse: torch.Tensor | None,  # f32 [num_tokens, num_query_heads]
    partial_acc: torch.Tensor,  # f32 [rows, 1, value_size]
    partial_m: torch.Tensor,  # f32 [rows]
    partial_l: torch.Tensor,  # f32 [rows]
    records: torch.Tensor,  # i32 [programs, RECORD]
    overflow: torch.Tensor,  # i32 [1]
    softmax_scale: float,
    f: dict,
    num_kv_heads: hl.constexpr,
    block_size: hl.constexpr,
    page_rows: int,
    gather: hl.constexpr,
    min_block_m: hl.constexpr,
    few_rows: hl.constexpr,
    seqs: hl.constexpr,
    shortest: hl.constexpr,
    longest: hl.constexpr,
    programs: hl.constexpr,
    max_snap: hl.constexpr,
    whole: hl.constexpr,
    partial_row: hl.constexpr,
    first_record: hl.constexpr,
) -> None:
    hl.pdl_wait()  # the next line makes this a dependent launch as well, so it must wait for what ran before it
    hl.pdl_launch_dependents()  # the next launch begins while this one runs (NVIDIA from sm_90 on)
    num_seqs = seq_lens.size(0)
    num_tokens = query.size(0)
    max_keys = block_table.size(1) * block_size
    hl.specialize((query.size(2), partial_acc.size(2)))
    value_size = hl.specialize(out.size(2))
    hl.specialize((key_cache.size(-1), value_cache.size(-1), key_cache.size(-2), value_cache.size(-2)))
    queries_per_kv = hl.specialize(query.size(1)) // num_kv_heads
    block_m = hl.register_block_size(min_block_m, 256)
    tile_size = hl.register_block_size(16, 256)
    block_q = block_m // queries_per_kv
    for program in hl.grid(programs):
        ends, length, uncut, refused_any = line_of(
            query_start_loc, seq_lens, num_seqs, num_tokens, max_keys, f, num_kv_heads, shortest, longest, block_q,
            tile_size, seqs, programs, whole,
        )  # fmt: skip
        slot, stop, per_program, snap = interval(program, length, programs, max_snap)
        part_rows = hl.full([], block_m, dtype=torch.int32)
        records[first_record + program, 0] = 0
        if program == 0:
            overflow[0] = refused_any

        while slot < stop:
            seq, kv_head, q_block, begin, end = item_at(
                slot, ends, uncut, query_start_loc, seq_lens, num_tokens, max_keys, f, block_q, tile_size
            )
            from_slot, to_slot = piece_of(slot, stop, begin, end, snap)
            if from_slot < to_slot:
                query_start, query_len, seq_len, refused = sequence_at(
                    seq, None, query_start_loc, seq_lens, num_tokens, max_keys
                )
                first_key, end_key, lo, full_lo, full_hi, hi = q_block_range(
                    seq, q_block, query_len, seq_len, f, block_q, tile_size
                )
                start_tile = torch.minimum(lo + from_slot - begin, hi)
                stop_tile = torch.where(to_slot < end, torch.minimum(lo + to_slot - begin, hi), hi)  # the rest, at last
                full_start, full_stop = clip_range(start_tile, stop_tile, full_lo, full_hi, f)
                full_start, full_stop = join_loops(full_start, full_stop, stop_tile, key_cache, f, few_rows)
                token, head, live = q_block_rows(q_block * block_q, kv_head, query_len, queries_per_kv, block_m)
                context_len = seq_len - query_len
                query_pos = context_len + token
                row = query_start + token
                part_row = hl.arange(block_m)
                q = load_rows(query, row, head, live)  # [block_m, head_size]
                r = row_operands(f, seq, kv_head, token, head, live, context_len)
                q, r = query_operand(q, r, key_cache)
                m, l, acc = softmax_init(f, head, live, from_slot - begin, q, value_size)
                for j_left in hl.grid(start_tile, full_start):
                    m, l, acc = attend_tile(
                        j_left, q, m, l, acc, query_pos, seq, seq_len, first_key, end_key, kv_head, softmax_scale, f,
                        r, key_cache, value_cache, block_table, block_size, page_rows, gather, tile_size, True,
                    )  # fmt: skip
                for j_full in hl.grid(full_start, full_stop):
                    m, l, acc = attend_tile(
                        j_full, q, m, l, acc, query_pos, seq, seq_len, first_key, end_key, kv_head, softmax_scale, f,
                        r, key_cache, value_cache, block_table, block_size, page_rows, gather, tile_size, False,
                    )  # fmt: skip
                for j_right in hl.grid(full_stop, stop_tile):
                    m, l, acc = attend_tile(
                        j_right, q, m, l, acc, query_pos, seq, seq_len, first_key, end_key, kv_head, softmax_scale, f,
                        r, key_cache, value_cache, block_table, block_size, page_rows, gather, tile_size, True,
                    )  # fmt: skip
                total = finished(narrow(acc, value_size), value_cache, f, r)
                if (from_slot == begin) & (to_slot == end):
                    unserved = torch.where(refused, float("nan"), 0.0)
                    store_rows(out, row, head, live, normalise(total, l, kv_head, f) + unserved)
                    store_lse(lse, row, head, live, m + unserved, l)
                else:
                    at = partial_row + (2 * program + (from_slot == begin).to(torch.int32)) * part_rows + part_row
                    store_rows(partial_acc, at, torch.zeros_like(at), live, total)
                    hl.store(partial_m, [at], m, extra_mask=live)
                    hl.store(partial_l, [at], l, extra_mask=live)
                    if to_slot < end:
                        write_record(
                            records, first_record + program, program, begin, end, snap, per_program, query_start,
                            query_len, q_block, kv_head, partial_row, block_m, queries_per_kv,
                        )  # fmt: skip
            slot = end


_attend_items = kernel(_attend_items_kernel)


def workspace(shape: AttentionShape, capacity: Capacity, config: Config) -> PartScratch:
    """Scratch of two parts a program, of the same size for every capacity."""
    grids = ((part.programs, _block_m(shape, part)) for part in (config.decode, config.prefill))
    return PartScratch.up_to(capacity, shape, grids)


check = ensure_served


@launches("helion/static_grid", SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """Write out (and lse) of every query token."""
    parts = (config.decode, config.prefill)
    ensure_capacity(batch, workspace, ((p.programs, _block_m(batch.shape, p), p.tile_size) for p in parts))
    programs = config.decode.programs
    if batch.num_tokens > SHORT_QUERY:  # otherwise every query is short
        _launch_items(batch, features, out, config, workspace, lse, prefill=True)
        programs += config.prefill.programs
    _launch_items(batch, features, out, config, workspace, lse, prefill=False)
    merge_parts(batch, features, out, workspace, programs, lse)


def _launch_items(batch, features, out, config, workspace, lse, prefill) -> None:
    shape, part = batch.shape, config.prefill if prefill else config.decode
    gather, page_rows = gather_form(part.gather, batch, part.tile_size)
    block_m = _block_m(shape, part)
    args = (
        *operands(batch, gather, page_rows), batch.block_table, batch.query_start_loc, batch.seq_lens,
        out, lse, workspace.acc, workspace.m, workspace.l,
        workspace.records, workspace.overflow, batch.softmax_scale,
        bundle(features, part, shape.head_size), shape.num_kv_heads, shape.block_size, page_rows, gather,
        smallest_block_m(shape), block_m <= 16,
        helion.next_power_of_2(workspace.num_seqs),
        SHORT_QUERY + 1 if prefill else 1, ANY_QUERY if prefill else SHORT_QUERY, part.programs, part.snap,
        part.whole,
        2 * config.decode.programs * _block_m(shape, config.decode) if prefill else 0,
        config.decode.programs if prefill else 0,
    )  # fmt: skip
    run(_attend_items, part, args, block_sizes=[block_m, part.tile_size])


def _block_m(shape: AttentionShape, part: Part) -> int:
    return max(part.block_m, smallest_block_m(shape))
