"""A static grid (paper 4.7): a fixed number of programs, which share the batch's tiles evenly.

Grid: Config's programs, whatever the batch. New over parallel_softmax.py: no axis follows the batch, so one captured
graph serves every batch up to its capacity, and a large capacity costs a small batch nothing. Every program finds its
share itself (tile_schedule.py) and walks the items in it. It writes the outputs of items that lie inside its share, and
leaves parts of the others for `merge_parts`.

Three launches: long queries (more than SHORT_QUERY tokens) in Q Blocks of many rows, short ones in Q Blocks of few, and
the merge. Long queries go first: a batch without them passes that launch while the next one begins.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import triton
import triton.language as tl

from common.spec import AttentionShape, Gpu
from common.spec.cdna import Cdna
from common.spec.kernel import SEAMS, Capacity, Precision, launches
from common.spec.metadata import ANY_QUERY, SHORT_QUERY
from common.spec.workspaces import RECORD, PartScratch, ensure_capacity, ensure_served
from dsl_triton.binding import can_overlap, fits, on_cdna, smallest_block_m, strides
from dsl_triton.features import bundle, finished, narrow, query_operand, row_operands
from dsl_triton.masks import clip_range, join_loops
from dsl_triton.merge_parts import merge_parts, write_record
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
from dsl_triton.tile_schedule import interval, item_at, line_of, piece_of, q_block_range, sequence_at

SUPPORTS = SEAMS | {"lse", "full_graph"}
CONTRACT = Precision()


@dataclass(frozen=True)
class Part(Cdna):
    """How one class of queries is served.

    block_m: rows of a Q Block; raised to the GQA ratio's next power of two where that is larger.
    programs: as many as the GPU holds at once; fewer leave SMs idle, more run in turns.
    snap: a cut between two programs moves by up to so many tiles to spare the merge of an item.
    gather: how K and V are addressed through the block table (page_runs.Gather); "key" where "run" does not apply.
    registers: NVIDIA alone: at most so many a thread; 0: the compiler's choice, which keeps what the next item needs in
    registers. 168 let three programs of 4 warps stay on an SM instead of two.
    whole: items with a program each are not cut if the longest has at most so many tiles more than a program's share
    (tile_schedule.line_of).
    """

    block_m: int
    tile_size: int
    programs: int
    snap: int = 1
    num_warps: int = 4
    num_stages: int = 2
    gather: Gather = "key"
    registers: int = 0
    whole: int = 0


@dataclass(frozen=True)
class Config:
    """decode: queries of up to SHORT_QUERY tokens; prefill: the others.

    overlap: a launch begins while the one before it runs (programmatic dependent launch: NVIDIA from sm_90 on).
    """

    decode: Part = Part(16, 32, 4)
    prefill: Part = Part(32, 32, 3, gather="run")
    overlap: bool = False


DEFAULT = Config()


def space(shape: AttentionShape, gpu: Gpu) -> Iterator[Config]:
    """Configs whose operands fit, each part's axes beside the other part's first that fits."""
    axes = (32, 64, 128), (1, 2, 3, 4), (0, 1, 2, 4), (2, 4, 8), (1, 2, 3), ("key", "run")
    first: Config | None = None
    for name, rows in (("decode", (16,)), ("prefill", (32, 64, 128))):
        for block_m, tile_size, waves, snap, num_warps, num_stages, gather in itertools.product(rows, *axes):
            if fits(block_m, tile_size, num_warps, num_stages, shape, gpu):
                part = Part(block_m, tile_size, waves * gpu.units, snap, num_warps, num_stages, gather)
                first = first or Config(part, part, can_overlap(gpu))
                yield replace(first, **{name: part})
                most = 65536 // (32 * num_warps * waves) // 8 * 8
                if gpu.vendor == "nvidia" and name == "decode" and 128 <= most <= 240:
                    yield replace(first, decode=replace(part, registers=most))


@triton.jit(do_not_specialize=["num_seqs", "num_tokens", "max_keys"])
def _attend_items_kernel(
    query_ptr,  # [num_tokens, num_query_heads, HEAD_SIZE]
    key_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, HEAD_SIZE]
    value_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, VALUE_SIZE]
    block_table_ptr,  # i32 or i64 [num_seqs, max_blocks]
    query_start_loc_ptr,  # i32 [num_seqs + 1]
    seq_lens_ptr,  # i32 [num_seqs]
    out_ptr,  # [num_tokens, num_query_heads, VALUE_SIZE]
    lse_ptr,  # f32 [num_tokens, num_query_heads] or None
    acc_ptr,  # f32 [rows, 1, VALUE_SIZE]
    m_ptr,  # f32 [rows]
    l_ptr,  # f32 [rows]
    records_ptr,  # i32 [programs, RECORD]
    overflow_ptr,  # i32 [1]
    num_seqs,
    num_tokens,
    max_keys,
    softmax_scale,
    f,
    query_strides, key_strides, value_strides, block_table_strides, out_strides, lse_strides, acc_strides,
    NUM_KV_HEADS: tl.constexpr, QUERIES_PER_KV: tl.constexpr, HEAD_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, TILE_SIZE: tl.constexpr, RUN: tl.constexpr, SEQS: tl.constexpr,
    SHORTEST: tl.constexpr, LONGEST: tl.constexpr, PROGRAMS: tl.constexpr, SNAP: tl.constexpr, WHOLE: tl.constexpr,
    FIRST_ROW: tl.constexpr, FIRST_RECORD: tl.constexpr, RECORD: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    BLOCK_Q: tl.constexpr = BLOCK_M // QUERIES_PER_KV
    program = tl.program_id(0)
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    ends, length, uncut, refused_any = line_of(
        query_start_loc_ptr, seq_lens_ptr, num_seqs, num_tokens, max_keys, f,
        NUM_KV_HEADS, SHORTEST, LONGEST, BLOCK_Q, TILE_SIZE, SEQS, PROGRAMS, WHOLE,
    )  # fmt: skip
    slot, stop, per_program, snap = interval(program, length, PROGRAMS, SNAP)
    record_ptr = records_ptr + (FIRST_RECORD + program) * RECORD
    tl.store(record_ptr, 0)
    if program == 0:
        tl.store(overflow_ptr, refused_any)

    while slot < stop:
        seq, kv_head, q_block, begin, end = item_at(
            slot, ends, uncut, query_start_loc_ptr, seq_lens_ptr, num_tokens, max_keys, f, BLOCK_Q, TILE_SIZE
        )
        from_slot, to_slot = piece_of(slot, stop, begin, end, snap)
        if from_slot < to_slot:
            query_start, query_len, seq_len, refused = sequence_at(
                seq, True, query_start_loc_ptr, seq_lens_ptr, num_tokens, max_keys
            )
            first_key, end_key, lo, full_lo, full_hi, hi = q_block_range(
                seq, q_block, query_len, seq_len, f, BLOCK_Q, TILE_SIZE
            )
            start_tile = tl.minimum(lo + from_slot - begin, hi)
            stop_tile = tl.where(
                to_slot < end, tl.minimum(lo + to_slot - begin, hi), hi
            )  # the item's last slot takes the rest
            full_start, full_stop = clip_range(start_tile, stop_tile, full_lo, full_hi, f)
            full_start, full_stop = join_loops(full_start, full_stop, stop_tile, key_cache_ptr, f, BLOCK_M)
            token, head, live = q_block_rows(q_block * BLOCK_Q, kv_head, query_len, QUERIES_PER_KV, BLOCK_M)
            query_pos = seq_len - query_len + token
            row = query_start + token
            q = load_rows(query_ptr, query_strides, row, head, live, HEAD_SIZE)  # [BLOCK_M, HEAD_PADDED]
            r = row_operands(f, seq, kv_head, token, head, live, seq_len - query_len)
            q, r = query_operand(q, r, key_cache_ptr)
            m, l, acc = softmax_init(f, head, live, from_slot - begin, q, VALUE_SIZE)
            table_ptr = block_table_ptr + seq.to(tl.int64) * block_table_strides[0]
            m, l, acc = attend_range(
                attend_runs, start_tile, full_start, full_stop, stop_tile, q, m, l, acc, (
                    query_pos, seq_len, first_key, end_key, kv_head, softmax_scale, f, r,
                    key_cache_ptr, value_cache_ptr, table_ptr, key_strides, value_strides,
                    HEAD_SIZE, VALUE_SIZE, BLOCK_SIZE, TILE_SIZE, RUN,
                ),
            )  # fmt: skip
            acc = finished(narrow(acc, VALUE_SIZE), value_cache_ptr, f, r)
            if (from_slot == begin) & (to_slot == end):
                unserved = tl.where(refused, float("nan"), 0.0)
                store_rows(out_ptr, out_strides, row, head, live, normalise(acc, l, kv_head, f) + unserved, VALUE_SIZE)
                store_lse(lse_ptr, lse_strides, row, head, live, m + unserved, l)
            else:
                at = FIRST_ROW + (2 * program + (from_slot == begin).to(tl.int32)) * BLOCK_M + tl.arange(0, BLOCK_M)
                store_rows(acc_ptr, acc_strides, at, tl.zeros_like(at), live, acc, VALUE_SIZE)
                tl.store(m_ptr + at, m, mask=live)
                tl.store(l_ptr + at, l, mask=live)
                if to_slot < end:
                    write_record(
                        record_ptr, program, begin, end, snap, per_program, query_start, query_len, q_block, kv_head,
                        FIRST_ROW, BLOCK_M, QUERIES_PER_KV,
                    )  # fmt: skip
        slot = end
    if OVERLAP:
        tl.extra.cuda.gdc_wait()  # so that this launch ends after the one before it, and the merge after both


def workspace(shape: AttentionShape, capacity: Capacity, config: Config) -> PartScratch:
    """Scratch of two parts a program, of the same size for every capacity."""
    grids = ((part.programs, _block_m(shape, part)) for part in (config.decode, config.prefill))
    return PartScratch.up_to(capacity, shape, grids)


check = ensure_served


@launches("triton/static_grid", SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """Write out (and lse) of every query token."""
    parts = (config.decode, config.prefill)
    ensure_capacity(batch, workspace, ((p.programs, _block_m(batch.shape, p), p.tile_size) for p in parts))
    programs = config.decode.programs
    if batch.num_tokens > SHORT_QUERY:  # otherwise every query is short
        _launch_items(batch, features, out, config, workspace, lse, prefill=True)
        programs += config.prefill.programs
    _launch_items(batch, features, out, config, workspace, lse, prefill=False)
    merge_parts(batch, features, out, workspace, programs, lse, config.overlap)


def _launch_items(batch, features, out, config, workspace, lse, prefill) -> None:
    shape, part = batch.shape, config.prefill if prefill else config.decode
    behind = not prefill and batch.num_tokens > SHORT_QUERY
    _attend_items_kernel[(part.programs,)](
        batch.query, batch.key_cache, batch.value_cache, batch.block_table, batch.query_start_loc, batch.seq_lens,
        out, lse, workspace.acc, workspace.m, workspace.l, workspace.records, workspace.overflow,
        batch.num_seqs, batch.num_tokens, batch.block_table.shape[1] * shape.block_size, batch.softmax_scale,
        bundle(features, part), batch.query.stride(), batch.key_cache.stride(), value_strides(batch),
        batch.block_table.stride(), out.stride(), strides(lse), workspace.acc.stride(),
        NUM_KV_HEADS=shape.num_kv_heads, QUERIES_PER_KV=shape.queries_per_kv, HEAD_SIZE=shape.head_size,
        VALUE_SIZE=shape.value_lanes, BLOCK_SIZE=shape.block_size, BLOCK_M=_block_m(shape, part),
        TILE_SIZE=part.tile_size, RUN=run_length(part.gather, batch, part.tile_size),
        SEQS=triton.next_power_of_2(workspace.num_seqs), SHORTEST=SHORT_QUERY + 1 if prefill else 1,
        LONGEST=ANY_QUERY if prefill else SHORT_QUERY, PROGRAMS=part.programs, SNAP=part.snap, WHOLE=part.whole,
        FIRST_ROW=2 * config.decode.programs * _block_m(shape, config.decode) if prefill else 0,
        FIRST_RECORD=config.decode.programs if prefill else 0, RECORD=RECORD, OVERLAP=config.overlap,
        num_warps=part.num_warps, num_stages=part.num_stages,
        **({"launch_pdl": True} if config.overlap and behind else {}),
        **({"maxnreg": part.registers} if part.registers else {}),
        **on_cdna(part),
    )  # fmt: skip


def _block_m(shape: AttentionShape, part: Part) -> int:
    return max(part.block_m, smallest_block_m(shape))
