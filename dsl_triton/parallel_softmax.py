"""Parallel tiled softmax (paper 4.5): segments share the tiles of a Q Block's sequence and run in parallel.

Grid: Q Blocks x segments x num_kv_heads, one axis, then reduce_segments.py over query tokens x query heads. New over
q_block.py: a decode batch has too few Q Blocks to fill a GPU. Segments follow each sequence's real length, so a ragged
batch stays balanced. A Q Block whose tiles fit into one segment writes its output itself, and the reduction skips it.

Beside a kernel for long queries it serves the short ones alone (`longest_query`). If most tokens belong to long
queries, Q Blocks are counted by sequence, so that long prompts cost no programs (BY_SEQUENCE).

gather="run" reads whole pages, as adjustable_tile.py does.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import triton
import triton.language as tl

from common.choice.legal import register_bound
from common.spec import AttentionShape, Cdna, Gpu
from common.spec.kernel import SEAMS, Capacity, Precision, count_parts, launches
from common.spec.metadata import ANY_QUERY, cdiv, power_of_two
from common.spec.workspaces import SegmentScratch, ensure_room, partials
from dsl_triton.binding import as_partial, as_tensor, block_m_of, cache_strides, fits
from dsl_triton.features import bundle, row_operands
from dsl_triton.head_parts import attend_parts, finished_parts, init_parts, load_query, store_partial_sums, store_sums
from dsl_triton.masks import join_loops, kv_tile_range, segment_range
from dsl_triton.page_runs import Gather, run_length
from dsl_triton.primitives import (
    attend_range,
    head_and_block,
    locate_q_block,
    q_block_rows,
    store_lse,
)
from dsl_triton.reduce_segments import reduce_segments

SUPPORTS = SEAMS | {"lse", "full_graph", "batch_invariant"}
CONTRACT = Precision()


@dataclass(frozen=True)
class Config(Cdna):
    """block_m: rows of a Q Block; raised to the GQA ratio's next power of two where that is larger.

    num_segments: at most that many programs share the tiles of one Q Block.
    overlap: the reduction's launch begins while the segments run (programmatic dependent launch: NVIDIA from sm_90 on),
    which saves 1.3 us of one decode over 512 keys on an H200.
    gather: how K and V are addressed through the block table (page_runs.Gather); "key" where "run" does not apply.
    registers: NVIDIA alone: the most of a thread; 0: the compiler's choice. A ranking fills it in (common/choice).
    """

    RUN_TIME: ClassVar = ("num_segments",)

    block_m: int = 16
    tile_size: int = 32
    num_segments: int = 4
    num_warps: int = 4
    num_stages: int = 2
    overlap: bool = False
    gather: Gather = "key"
    registers: int = 0


DEFAULT = Config()


def space(shape: AttentionShape, gpu: Gpu) -> Iterator[Config]:
    """Configs whose operands fit into shared memory and whose accumulator fits into registers."""
    segments = (1, 2, 4, 6, 8, 16, 32, 48, 64)
    axes = (16, 32, 64), (16, 32, 64, 128), segments, (1, 2, 4, 8), (1, 2, 3, 4, 5), ("key", "run")
    for block_m, tile_size, num_segments, num_warps, num_stages, gather in itertools.product(*axes):
        if fits(block_m, tile_size, num_warps, num_stages, shape, gpu):
            config = Config(block_m, tile_size, num_segments, num_warps, num_stages, gpu.tma, gather)
            yield config
            if gpu.vendor == "nvidia" and num_warps > 1:
                sizes = power_of_two(shape.head_size), power_of_two(shape.value_lanes)
                bound, _ = register_bound(block_m_of(config, shape), tile_size, num_warps * gpu.warp_size, *sizes)
                yield from (replace(config, registers=most) for most in {int(bound)} - {0})


@triton.jit(do_not_specialize=["num_seqs", "num_segments"])  # do not recompile for another batch or segment count
def _segments_kernel(
    query,  # [num_tokens, num_query_heads, HEAD_SIZE]
    key_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, HEAD_SIZE]
    value_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, VALUE_SIZE]
    block_table,  # i32 or i64 [num_seqs, max_blocks]
    query_start_loc_ptr,  # i32 [num_seqs + 1]
    seq_lens_ptr,  # i32 [num_seqs]
    out,  # [num_tokens, num_query_heads, VALUE_SIZE]
    lse,  # f32 [num_tokens, num_query_heads] or None
    partial,  # binding.Partial; None with one segment
    num_seqs,
    num_segments,
    softmax_scale,
    f,
    key_strides, value_strides,
    NUM_KV_HEADS: tl.constexpr, QUERIES_PER_KV: tl.constexpr, HEAD_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr, LONGEST_QUERY: tl.constexpr,
    BY_SEQUENCE: tl.constexpr,
):  # fmt: skip
    BLOCK_M: tl.constexpr = FORM[0]
    TILE_SIZE: tl.constexpr = FORM[1]
    RUN: tl.constexpr = FORM[2]
    PARTS: tl.constexpr = FORM[3]
    BLOCK_Q: tl.constexpr = BLOCK_M // QUERIES_PER_KV
    kv_head, block = head_and_block(f, NUM_KV_HEADS)
    segments = 1 if partial is None else num_segments
    segment = block % segments
    q_block_idx = block // segments
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()

    if BY_SEQUENCE:
        PER_SEQUENCE: tl.constexpr = (LONGEST_QUERY + BLOCK_Q - 1) // BLOCK_Q
        seq = q_block_idx // PER_SEQUENCE
        query_start = tl.load(query_start_loc_ptr + seq)
        query_len = tl.load(query_start_loc_ptr + seq + 1) - query_start
        seq_len = tl.load(seq_lens_ptr + seq)
        first = q_block_idx % PER_SEQUENCE * BLOCK_Q
    else:
        seq, query_start, query_len, seq_len, first = locate_q_block(
            q_block_idx, query_start_loc_ptr, seq_lens_ptr, num_seqs, BLOCK_Q
        )

    if (first < query_len) & (query_len <= LONGEST_QUERY):
        context_len = seq_len - query_len
        last_pos = context_len + tl.minimum(first + BLOCK_Q, query_len) - 1
        first_key, end_key, lo, full_lo, full_hi, hi = kv_tile_range(
            seq, context_len + first, last_pos, seq_len, f, TILE_SIZE
        )
        start, full_start, full_stop, stop, used = segment_range(segment, lo, full_lo, full_hi, hi, f, segments)
        full_start, full_stop = join_loops(full_start, full_stop, stop, key_cache_ptr, f, BLOCK_M)
        if (start < stop) | (segment == 0):
            token, head, live = q_block_rows(first, kv_head, query_len, QUERIES_PER_KV, BLOCK_M)
            query_pos = context_len + token
            row = query_start + token
            r = row_operands(f, seq, kv_head, token, head, live, context_len)
            q, r = load_query(query.ptr, query.strides, row, head, live, r, key_cache_ptr, HEAD_SIZE, PARTS)
            m, l, acc = init_parts(f, head, live, segment, q, VALUE_SIZE, PARTS)
            table_ptr = block_table.ptr + seq.to(tl.int64) * block_table.strides[0]
            m, l, acc = attend_range(
                attend_parts, start, full_start, full_stop, stop, q, m, l, acc, (
                    query_pos, seq_len, first_key, end_key, kv_head, softmax_scale, f, r,
                    key_cache_ptr, value_cache_ptr, table_ptr, key_strides, value_strides,
                    HEAD_SIZE, VALUE_SIZE, BLOCK_SIZE, TILE_SIZE, RUN, PARTS,
                ), TILE_SIZE,
            )  # fmt: skip
            acc = finished_parts(acc, value_cache_ptr, f, r, VALUE_SIZE, PARTS)
            if partial is None or used <= 1:
                store_sums(out.ptr, out.strides, row, head, live, acc, l, kv_head, f, VALUE_SIZE, PARTS)
                store_lse(lse.ptr, lse.strides, row, head, live, m, l)
            else:
                place = seq * LONGEST_QUERY + token if BY_SEQUENCE else row
                store_partial_sums(partial, segment, place, head, live, m, l, acc, VALUE_SIZE, PARTS)


def workspace(
    shape: AttentionShape, capacity: Capacity, config: Config, longest_query: int = ANY_QUERY
) -> SegmentScratch | None:
    """Scratch for any batch up to `capacity`; None with one segment, which needs no reduction."""
    return SegmentScratch.up_to(capacity, shape, config.num_segments, longest_query)


@launches("triton/parallel_softmax", SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """Write out (and lse) of every query token."""
    attend_segments(batch, features, out, config, workspace, lse)


def attend_segments(batch, features, out, config, workspace, lse, longest_query=ANY_QUERY) -> None:
    """Both launches, for the sequences of at most `longest_query` query tokens; no other row is written."""
    shape = batch.shape
    block_m = block_m_of(config, shape)
    block_q = block_m // shape.queries_per_kv
    ensure_room(partials(workspace)[0], batch, config.num_segments, longest_query)
    by_sequence = batch.num_seqs * longest_query < batch.num_tokens
    q_blocks = batch.num_q_blocks(block_m)
    if by_sequence:
        q_blocks = batch.num_seqs * cdiv(longest_query, block_q)
    run = run_length(config.gather, batch, config.tile_size)
    _segments_kernel[(shape.num_kv_heads * config.num_segments * q_blocks,)](
        as_tensor(batch.query), batch.key_cache, batch.value_cache, as_tensor(batch.block_table),
        batch.query_start_loc, batch.seq_lens, as_tensor(out), as_tensor(lse), as_partial(workspace), batch.num_seqs,
        config.num_segments, batch.softmax_scale, bundle(features, config), *cache_strides(batch, run),
        NUM_KV_HEADS=shape.num_kv_heads, QUERIES_PER_KV=shape.queries_per_kv, HEAD_SIZE=shape.head_size,
        VALUE_SIZE=shape.value_lanes, BLOCK_SIZE=shape.block_size,
        FORM=(block_m, config.tile_size, run, count_parts(batch, features)), OVERLAP=config.overlap,
        LONGEST_QUERY=longest_query, BY_SEQUENCE=by_sequence,
        num_warps=config.num_warps, num_stages=config.num_stages,
        **({"maxnreg": config.registers} if config.registers else {}), **config.options(),
    )  # fmt: skip
    if config.num_segments > 1:
        reduce_segments(batch, features, out, config, workspace, lse, block_q, longest_query, by_sequence)
