"""Parallel tiled softmax (paper 4.5): segments share the tiles of a Q Block's sequence and run in parallel.

Grid: Q Blocks x segments x num_kv_heads, one axis, then reduce_segments.py over query tokens x query heads. New over
q_block.py: a decode batch has too few Q Blocks to fill a GPU. Segments follow each sequence's real length, so a ragged
batch stays balanced. A Q Block whose tiles fit into one segment writes its output itself, and the reduction skips it.
The number of segments is a run-time value: a server meets a dozen, and Helion takes a second and a half to generate
code.

Beside a kernel for long queries it serves the short ones alone (`longest_query`). If most tokens belong to long
queries, Q Blocks are counted by sequence, so that long prompts cost no programs (by_sequence).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

import helion.language as hl
import torch

from common.spec import AttentionShape, Cdna, Gpu
from common.spec.kernel import SEAMS, Capacity, Precision, count_parts
from common.spec.metadata import ANY_QUERY
from common.spec.workspaces import SegmentScratch, ensure_room, partials
from dsl_helion.arithmetic import div, int32, mod
from dsl_helion.binding import (
    Eviction,
    Gather,
    block_m_of,
    constant_axis,
    fewest_rows,
    fits,
    gather_form,
    held,
    kernel,
    launches,
    loop_order,
    operands,
    run,
)
from dsl_helion.features import bundle, finished, narrow, row_operands
from dsl_helion.head_parts import attend_parts, in_parts, init_sums, load_query, store_partial_sums, store_sums
from dsl_helion.masks import join_loops, kv_tile_range, segment_range
from dsl_helion.primitives import (
    is_other,
    join_sums,
    other_half,
    q_block_rows,
    sequence_at,
    store_lse,
)
from dsl_helion.reduce_segments import reduce_segments

SUPPORTS = SEAMS | {"lse", "full_graph", "batch_invariant"}
CONTRACT = Precision()


@dataclass(frozen=True)
class Config(Cdna):
    """block_m: rows of a Q Block; raised to the GQA ratio's next power of two where that is larger.

    num_segments: at most that many programs share the tiles of one Q Block.
    gather: how K and V are read through the block table (binding.Gather); the next form where it does not apply.
    registers: NVIDIA alone: the most of a thread; the programs that then fit on the GPU take Q Blocks in turns. 0: the
    compiler's choice, and a program for each Q Block. eviction: of the keys' cache lines (binding.Eviction).
    """

    RUN_TIME: ClassVar = ("num_segments",)

    block_m: int = 16
    tile_size: int = 32
    num_segments: int = 4
    gather: Gather = "page"
    num_warps: int = 4
    num_stages: int = 2
    registers: int = 0
    eviction: Eviction = ""


DEFAULT = Config()


def space(shape: AttentionShape, gpu: Gpu) -> Iterator[Config]:
    """Configs whose operands fit into shared memory; Q Blocks stay small, for the rows here are few."""
    segments = (1, 2, 4, 6, 8, 16, 32, 48, 64)
    axes = (16, 32, 64), (16, 32, 64, 128), segments, ("page", "flat"), (1, 2, 4, 8), (1, 2, 3, 4, 5)
    for values in product(*axes):
        if fits(config := Config(*values), shape, gpu):
            yield config
            if gpu.vendor == "nvidia":  # what Helion searches and Triton's kernels lack
                yield replace(config, eviction="first")
                yield from (replace(config, registers=most) for most in (128, 168) if config.num_warps == 4)


def _segments_kernel(
    query: torch.Tensor,  # [num_tokens, num_query_heads, head_size]
    key_cache: torch.Tensor,  # [num_blocks, block_size, num_kv_heads, head_size], flat: [rows, num_kv_heads, head_size]
    value_cache: torch.Tensor,  # the same, value_size in place of head_size
    block_table: torch.Tensor,  # i32 or i64 [num_seqs, max_blocks]
    query_start_loc: torch.Tensor,  # i32 [num_seqs + 1]
    seq_lens: torch.Tensor,  # i32 [num_seqs]
    out: torch.Tensor,  # [num_tokens, num_query_heads, value_size]
    lse: torch.Tensor | None,  # f32 [num_tokens, num_query_heads]
    partial_acc: torch.Tensor | None,  # f32 [num_segments, rows, num_query_heads, value_size]
    partial_m: torch.Tensor | None,  # f32 [num_segments, rows, num_query_heads]
    partial_l: torch.Tensor | None,  # f32 [num_segments, rows, num_query_heads]
    query_rest: torch.Tensor,  # of two parts the lanes behind the first (head_parts.py), else as above and not read
    key_rest: torch.Tensor,
    value_rest: torch.Tensor,
    softmax_scale: float,
    f: dict,
    num_kv_heads: hl.constexpr,
    block_size: hl.constexpr,
    page_rows: int,
    gather: hl.constexpr,
    parts: hl.constexpr,
    block_q: hl.constexpr,
    num_segments: int,
    longest_query: int,
    by_sequence: hl.constexpr,
) -> None:
    hl.pdl_wait()  # the next line makes this a dependent launch as well, so it must wait for what ran before it
    hl.pdl_launch_dependents()  # the reduction's launch begins while the segments run (NVIDIA from sm_90 on)
    num_seqs = seq_lens.size(0)
    hl.specialize(query.size(2))
    value_size = hl.specialize(out.size(2))
    hl.specialize((key_cache.size(-1), value_cache.size(-1), key_cache.size(-2), value_cache.size(-2)))
    hl.specialize((key_cache.size(1), value_cache.size(1)))  # whole pages need no mask
    hl.specialize((key_cache.stride(0), value_cache.stride(0)))  # K and V share what is computed of a page
    axis = constant_axis(num_kv_heads, gather, block_q * query.size(1) // num_kv_heads)
    hl.specialize((key_cache.stride(axis), value_cache.stride(axis)))
    hl.specialize((query_rest.size(2), key_rest.size(-1), value_rest.size(-1)))
    queries_per_kv = hl.specialize(query.size(1)) // num_kv_heads
    block_m = hl.register_block_size(fewest_rows(queries_per_kv), 256)
    tile_size = hl.register_block_size(16, 256)
    few_rows = block_q * queries_per_kv <= 16
    per_sequence = (longest_query + block_q - 1) // block_q
    q_blocks = num_seqs * per_sequence if by_sequence else query.size(0) // block_q + num_seqs
    for q_block_idx, segment, kv_head in hl.grid([q_blocks, num_segments, num_kv_heads]):
        block = int32(q_block_idx)
        if by_sequence:
            seq = div(block, per_sequence)
            query_start = query_start_loc[seq]
            query_len = query_start_loc[seq + 1] - query_start
            seq_len = seq_lens[seq]
            first = mod(block, per_sequence) * block_q
        else:
            # The last sequence that begins at or before this Q Block; sequence i: at query_start_loc[i] // block_q + i.
            # The first guess is exact where every query has one token. A sequence's three numbers are loaded at once.
            left = hl.zeros([], dtype=torch.int32)
            right = hl.full([], num_seqs, dtype=torch.int32)
            seq = torch.minimum(block - div(block + 1, block_q + 1), right - 1)
            query_start, query_end, seq_len = sequence_at(query_start_loc, seq_lens, seq)
            while is_other(block, query_start, query_end, seq, left, right, block_q):
                left, right, seq = other_half(block, query_start, seq, left, right, block_q)
                query_start, query_end, seq_len = sequence_at(query_start_loc, seq_lens, seq)
            query_len = query_end - query_start
            first = (block - (div(query_start, block_q) + seq)) * block_q

        if (first < query_len) & (query_len <= int32(longest_query)):
            context_len = seq_len - query_len
            last_pos = context_len + torch.minimum(first + block_q, query_len) - 1
            first_key, end_key, lo, full_lo, full_hi, hi = kv_tile_range(
                seq, context_len + first, last_pos, seq_len, f, tile_size
            )
            start, full_start, full_stop, stop, used = segment_range(segment, lo, full_lo, full_hi, hi, f, num_segments)
            full_start, full_stop = join_loops(full_start, full_stop, stop, key_cache, f, few_rows)
            if (start < stop) | (segment == 0):
                token, head, live = q_block_rows(first, kv_head, query_len, queries_per_kv, block_m)
                query_pos = context_len + token
                row = query_start + token
                r = row_operands(f, seq, kv_head, token, head, live, context_len)
                q, r = load_query(query, query_rest, row, head, live, r, key_cache, parts)
                m, l, acc, rest = init_sums(f, head, live, segment, q, value_size, parts)
                for j_left in hl.grid(start, full_start):
                    m, l, acc, rest = attend_parts(
                        j_left, q, m, l, acc, rest, query_pos, seq, seq_len, first_key, end_key, kv_head,
                        softmax_scale, f, r, (key_cache, value_cache, key_rest, value_rest), block_table, block_size,
                        page_rows, gather, tile_size, parts, True,
                    )  # fmt: skip
                for j_full in hl.grid(full_start, full_stop):
                    m, l, acc, rest = attend_parts(
                        j_full, q, m, l, acc, rest, query_pos, seq, seq_len, first_key, end_key, kv_head,
                        softmax_scale, f, r, (key_cache, value_cache, key_rest, value_rest), block_table, block_size,
                        page_rows, gather, tile_size, parts, False,
                    )  # fmt: skip
                for j_right in hl.grid(full_stop, stop):
                    m, l, acc, rest = attend_parts(
                        j_right, q, m, l, acc, rest, query_pos, seq, seq_len, first_key, end_key, kv_head,
                        softmax_scale, f, r, (key_cache, value_cache, key_rest, value_rest), block_table, block_size,
                        page_rows, gather, tile_size, parts, True,
                    )  # fmt: skip
                total = finished(narrow(acc, value_size), value_cache, f, r)
                sums = join_sums(l, f)
                if partial_acc is None or used <= 1:
                    store_sums(out, row, head, live, total, rest, sums, kv_head, f, parts)
                    store_lse(lse, row, head, live, m, sums)
                else:
                    place = seq * int32(longest_query) + token if by_sequence else row
                    at = segment, place, head, live
                    store_partial_sums((partial_acc, partial_m, partial_l), *at, m, sums, total, rest, parts)


_segments = kernel(_segments_kernel, "num_seqs", "num_segments", "longest_query", "per_sequence", "q_blocks")


def workspace(
    shape: AttentionShape, capacity: Capacity, config: Config, longest_query: int = ANY_QUERY
) -> SegmentScratch | None:
    """Scratch for any batch up to `capacity`; None with one segment, which needs no reduction."""
    return SegmentScratch.up_to(capacity, shape, config.num_segments, longest_query)


@launches("helion/parallel_softmax", SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """Write out (and lse) of every query token."""
    attend_segments(batch, features, out, config, workspace, lse)


def attend_segments(batch, features, out, config, workspace, lse, longest_query=ANY_QUERY) -> None:
    """Both launches, for the sequences of at most `longest_query` query tokens; no other row is written."""
    shape, config = batch.shape, held(config, batch.shape)
    block_m = block_m_of(config, shape)
    block_q = block_m // shape.queries_per_kv
    ensure_room(partials(workspace)[0], batch, config.num_segments, longest_query)
    by_sequence = batch.num_seqs * longest_query < batch.num_tokens
    gather, page_rows = gather_form(config.gather, batch, config.tile_size)
    parts = count_parts(batch, features)
    query, key_cache, value_cache, *rest = in_parts(operands(batch, gather, page_rows), parts)
    args = (
        query, key_cache, value_cache, batch.block_table, batch.query_start_loc, batch.seq_lens,
        out, lse, *partials(workspace), *rest, batch.softmax_scale,
        bundle(features, config, shape.head_size, block_m), shape.num_kv_heads, shape.block_size, page_rows, gather,
        parts, block_q, config.num_segments, longest_query, by_sequence,
    )  # fmt: skip
    run(_segments, config, args, block_sizes=[block_m, config.tile_size], loop_orders=[loop_order(config, 3)])
    if config.num_segments > 1:
        reduce_segments(batch, features, out, config, workspace, lse, block_q, longest_query, by_sequence)
