"""One launch of parallel_softmax.py: segments, a barrier of the whole grid, reduction.

The grid is persistent and launched cooperatively: PROGRAMS programs a unit, all resident. Each owns a contiguous slice
of the programs of both phases together, so the second phase is coarse (a query token and KV head a program): what it
takes of the slices, the first phase runs without. Triton has no barrier of a grid, so this file has no twin. Helion
zeroes a semaphore at every launch: one small fill more in a graph.
"""

from types import ModuleType

import helion
import helion.language as hl
import torch

from common.spec import AttentionShape, Gpu
from common.spec.kernel import launches
from common.spec.metadata import BatchStats
from common.spec.workspaces import ensure_room, partials
from dsl_helion import parallel_softmax
from dsl_helion.ablations import SUPPORTS
from dsl_helion.arithmetic import div
from dsl_helion.binding import cache_view, gather_form, kernel, run, smallest_block_m
from dsl_helion.features import bundle, row_operands
from dsl_helion.masks import join_loops, kv_tile_range, segment_range
from dsl_helion.parallel_softmax import CONTRACT, DEFAULT, Config, space, workspace
from dsl_helion.primitives import (
    attend_tile,
    load_rows,
    normalise,
    q_block_rows,
    softmax_init,
    store_lse,
    store_partial,
    store_rows,
)
from dsl_helion.reduce_segments import merge_row

__all__ = ["CONTRACT", "DEFAULT", "SUPPORTS", "Config", "space", "workspace"]

PROGRAMS = 2  # a unit: with one an H200 took 1.5 times as long


def default(heuristics: ModuleType, shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> Config:
    return heuristics.parallel_softmax(shape, stats, gpu)


def _barrier_kernel(
    query: torch.Tensor,  # [num_tokens, num_query_heads, head_size]
    key_cache: torch.Tensor,  # [num_blocks, block_size, num_kv_heads, head_size], flat: [rows, num_kv_heads, head_size]
    value_cache: torch.Tensor,  # the same
    block_table: torch.Tensor,  # i32 or i64 [num_seqs, max_blocks]
    query_start_loc: torch.Tensor,  # i32 [num_seqs + 1]
    seq_lens: torch.Tensor,  # i32 [num_seqs]
    out: torch.Tensor,  # [num_tokens, num_query_heads, head_size]
    lse: torch.Tensor | None,  # f32 [num_tokens, num_query_heads]
    partial_acc: torch.Tensor,  # f32 [num_segments, num_tokens, num_query_heads, head_size]
    partial_m: torch.Tensor,  # f32 [num_segments, num_tokens, num_query_heads]
    partial_l: torch.Tensor,  # f32 [num_segments, num_tokens, num_query_heads]
    softmax_scale: float,
    f: dict,
    num_kv_heads: hl.constexpr,
    block_size: hl.constexpr,
    page_rows: int,
    gather: hl.constexpr,
    min_block_m: hl.constexpr,
    few_rows: hl.constexpr,
    num_segments: hl.constexpr,
) -> None:
    num_seqs = seq_lens.size(0)
    hl.specialize((key_cache.size(-1), value_cache.size(-1), key_cache.size(-2), value_cache.size(-2)))
    head_size = hl.specialize((query.size(2), partial_acc.size(3), out.size(2)))[0]
    queries_per_kv = hl.specialize(query.size(1)) // num_kv_heads
    block_m = hl.register_block_size(min_block_m, 256)
    tile_size = hl.register_block_size(16, 256)
    block_q = block_m // queries_per_kv
    q_blocks = query.size(0) // block_q + num_seqs
    for q_block_idx, segment, kv_head in hl.grid([q_blocks, num_segments, num_kv_heads]):
        # The last sequence that begins at or before this Q Block; sequence i: at query_start_loc[i] // block_q + i.
        guess = hl.full([], q_block_idx - (q_block_idx + 1) // (block_q + 1), dtype=torch.int32)
        guess = torch.minimum(guess, hl.full([], num_seqs - 1, dtype=torch.int32))
        begins = div(query_start_loc[guess], block_q) + guess <= q_block_idx
        ends = div(query_start_loc[guess + 1], block_q) + guess + 1 > q_block_idx
        left = torch.where(begins, guess, 0)
        right = torch.where(begins & ends, guess + 1, torch.where(begins, num_seqs, guess))
        while right - left > 1:
            middle = div(left + right, 2)
            if div(query_start_loc[middle], block_q) + middle <= q_block_idx:
                left = middle
            else:
                right = middle
        seq = left
        query_start = query_start_loc[seq]
        first = (q_block_idx - (div(query_start, block_q) + seq)) * block_q
        query_len = query_start_loc[seq + 1] - query_start
        if first < query_len:
            seq_len = seq_lens[seq]
            context_len = seq_len - query_len
            low_pos = context_len + first
            top_pos = context_len + torch.minimum(first + block_q, query_len) - 1
            first_key, end_key, lo, full_lo, full_hi, hi = kv_tile_range(seq, low_pos, top_pos, seq_len, f, tile_size)
            start, full_start, full_stop, stop, used = segment_range(segment, lo, full_lo, full_hi, hi, f, num_segments)
            full_start, full_stop = join_loops(full_start, full_stop, stop, key_cache, f, few_rows)
            if (start < stop) | (segment == 0):
                token, head, live = q_block_rows(first, kv_head, query_len, queries_per_kv, block_m)
                query_pos = context_len + token
                row = query_start + token
                q = load_rows(query, row, head, live)  # [block_m, head_size]
                r = row_operands(f, seq, kv_head, token, head, live, context_len)
                m, l, acc = softmax_init(f, head, live, segment, q, head_size)
                for j_left in hl.grid(start, full_start):
                    m, l, acc = attend_tile(
                        j_left, q, m, l, acc, query_pos, seq, seq_len, first_key, end_key, kv_head, softmax_scale, f,
                        r, key_cache, value_cache, block_table, block_size, page_rows, gather, tile_size, True,
                    )  # fmt: skip
                for j_full in hl.grid(full_start, full_stop):
                    m, l, acc = attend_tile(
                        j_full, q, m, l, acc, query_pos, seq, seq_len, first_key, end_key, kv_head, softmax_scale, f,
                        r, key_cache, value_cache, block_table, block_size, page_rows, gather, tile_size, False,
                    )  # fmt: skip
                for j_right in hl.grid(full_stop, stop):
                    m, l, acc = attend_tile(
                        j_right, q, m, l, acc, query_pos, seq, seq_len, first_key, end_key, kv_head, softmax_scale, f,
                        r, key_cache, value_cache, block_table, block_size, page_rows, gather, tile_size, True,
                    )  # fmt: skip
                if used <= 1:
                    store_rows(out, row, head, live, normalise(acc, l, kv_head, f))
                    store_lse(lse, row, head, live, m, l)
                else:
                    store_partial((partial_acc, partial_m, partial_l), segment, row, head, live, m, l, acc)

    hl.barrier()

    for to_row, to_kv_head in hl.grid([query.size(0), num_kv_heads]):
        # The last sequence that begins at or before this token.
        nearest = torch.minimum(hl.full([], to_row, dtype=torch.int32), hl.full([], num_seqs - 1, dtype=torch.int32))
        from_it = query_start_loc[nearest] <= to_row
        until_it = query_start_loc[nearest + 1] > to_row
        low = torch.where(from_it, nearest, 0)
        high = torch.where(from_it & until_it, nearest + 1, torch.where(from_it, num_seqs, nearest))
        while high - low > 1:
            half = div(low + high, 2)
            if query_start_loc[half] <= to_row:
                low = half
            else:
                high = half
        to_start = query_start_loc[low]
        to_len = query_start_loc[low + 1] - to_start
        if to_row - to_start < to_len:
            to_first = div(to_row - to_start, block_q) * block_q
            begin = seq_lens[low] - to_len + to_first
            end = seq_lens[low] - to_len + torch.minimum(to_first + block_q, to_len) - 1
            _, _, of_lo, of_full_lo, of_full_hi, of_hi = kv_tile_range(low, begin, end, seq_lens[low], f, tile_size)
            _, _, _, _, parts = segment_range(0, of_lo, of_full_lo, of_full_hi, of_hi, f, num_segments)
            if parts > 1:
                for one in hl.grid(queries_per_kv):
                    at = hl.full([], to_row, dtype=torch.int64)
                    to_head = to_kv_head * queries_per_kv + one
                    merge_row(
                        (partial_acc, partial_m, partial_l), out, lse, to_row, at, to_kv_head, to_head, parts, f,
                        helion.next_power_of_2(num_segments),
                    )  # fmt: skip


_barrier = kernel(_barrier_kernel)


@launches("helion/ablations.barrier", SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """Write out (and lse) of every query token."""
    if config.num_segments == 1:  # nothing to merge
        parallel_softmax.attend_segments(batch, features, out, config, None, lse)
        return
    shape, parts = batch.shape, partials(workspace)
    ensure_room(parts[0], batch, config.num_segments)
    gather, page_rows = gather_form(config.gather, batch, config.tile_size)
    blocks = [max(config.block_m, smallest_block_m(shape)), config.tile_size]
    args = (
        batch.query, cache_view(batch.key_cache, gather, page_rows), cache_view(batch.value_cache, gather, page_rows),
        batch.block_table, batch.query_start_loc, batch.seq_lens, out, lse, *parts,
        batch.softmax_scale, bundle(features), shape.num_kv_heads, shape.block_size, page_rows, gather,
        smallest_block_m(shape), blocks[0] <= 16, config.num_segments,
    )  # fmt: skip
    # an interpreter has one unit and runs programs one after another: two would wait for each other
    programs = PROGRAMS if helion.runtime.get_num_sm(batch.device) > 1 else 1
    run(_barrier, config, args, block_sizes=blocks, loop_orders=[[2, 1, 0], [1, 0]], num_sm_multiplier=programs)
