"""Merge what several segments found for one query token (paper 4.5): the second launch of parallel_softmax.py.

Grid: rows x query heads. A row is a query token, or, where only short queries are served and most tokens belong to long
ones, one of LONGEST_QUERY places of a sequence (by_sequence), so that long prompts cost no programs.
"""

from dataclasses import dataclass

import helion
import helion.language as hl
import torch

from common.gpus import warp_size
from common.spec.workspaces import partials
from dsl_helion.arithmetic import div, int32, mod
from dsl_helion.binding import kernel, run
from dsl_helion.features import bundle
from dsl_helion.masks import kv_tile_range, tiles_of_segment
from dsl_helion.primitives import LN2, cut, is_other, other_half, rescale, sequence_at


@dataclass(frozen=True)
class _Reduce:
    """The merge's own config: its code does not depend on that of the segments."""

    num_warps: int
    num_stages: int = 1  # there is no loop over tiles


def load_parts(partial, place, head, num_segments, slots):
    """What the first num_segments segments, of at most `slots`, a power of two, left at `place` of (acc, m, l)."""
    of_acc, of_m, of_l = partial
    part = hl.arange(slots)
    there = part < int32(num_segments)
    m = hl.load(of_m, [part, place, head], extra_mask=there)  # [segments]
    l = hl.load(of_l, [part, place, head], extra_mask=there)
    acc = hl.load(of_acc, [part, place, head, slice(None)], extra_mask=there.unsqueeze(1))  # [segments, value_size]
    return acc, m, l


def merge_row(acc, m, l, out, lse, row, kv_head, head, live, f):
    """Write out (and lse) at `row` from what `live` segments left; the others hold garbage. row: int64, because a row
    may begin 2^31 elements into a tensor."""
    m = torch.where(live, m, float("-inf"))
    top = m.amax(0)
    weight = torch.exp2(m - torch.where(top == float("-inf"), 0.0, top))
    total = torch.where(live, l * weight, 0.0).sum(0)
    x = torch.where(live.unsqueeze(1), acc * weight.unsqueeze(1), 0.0).sum(0) / torch.where(total > 0.0, total, 1.0)
    x = cut(rescale(x, kv_head, f), out.dtype)
    hl.store(out, [row, head, slice(None)], x.to(out.dtype))
    if lse is not None:
        hl.store(lse, [row, head], (top + torch.log2(total)) * LN2)


def _reduce_segments_kernel(
    partial_acc: torch.Tensor,  # f32 [num_segments, rows, num_query_heads, value_size]
    partial_m: torch.Tensor,  # f32 [num_segments, rows, num_query_heads]
    partial_l: torch.Tensor,  # f32 [num_segments, rows, num_query_heads]
    query_start_loc: torch.Tensor,  # i32 [num_seqs + 1]
    seq_lens: torch.Tensor,  # i32 [num_seqs]
    out: torch.Tensor,  # [num_tokens, num_query_heads, value_size]
    lse: torch.Tensor | None,  # f32 [num_tokens, num_query_heads]
    f: dict,
    queries_per_kv: hl.constexpr,
    block_q: int,
    tile_bits: int,
    num_segments: int,
    slots: hl.constexpr,
    shortest_query: hl.constexpr,
    longest_query: int,
    by_sequence: hl.constexpr,
) -> None:
    hl.pdl_wait()  # Wait for the segments, in every program: this launch ends after theirs.
    num_seqs = seq_lens.size(0)
    num_query_heads = hl.specialize(out.size(1))
    hl.specialize((out.size(2), partial_acc.size(3), partial_acc.stride(1), partial_acc.stride(2)))
    hl.specialize((partial_m.stride(1), partial_l.stride(1)))
    places = num_seqs * longest_query if by_sequence else out.size(0)
    for row_of_scratch, head in hl.grid([places, num_query_heads]):
        place = int32(row_of_scratch)  # where the segments left what they found
        if by_sequence:
            seq = div(place, longest_query)
            query_start = query_start_loc[seq]
            query_len = query_start_loc[seq + 1] - query_start
            seq_len = seq_lens[seq]
            token = mod(place, longest_query)
        else:
            # The last sequence that begins at or before this token; with one token a query, it has the same number.
            left = hl.zeros([], dtype=torch.int32)
            right = hl.full([], num_seqs, dtype=torch.int32)
            seq = torch.minimum(place, right - 1)
            query_start, query_end, seq_len = sequence_at(query_start_loc, seq_lens, seq)
            while is_other(place, query_start, query_end, seq, left, right, None):
                left, right, seq = other_half(place, query_start, seq, left, right, None)
                query_start, query_end, seq_len = sequence_at(query_start_loc, seq_lens, seq)
            query_len = query_end - query_start
            token = place - query_start

        if (token < query_len) & (query_len >= shortest_query) & (query_len <= int32(longest_query)):
            # Loaded before it is known which parts have tiles: the loads hide the divisions that say so
            acc, m, l = load_parts((partial_acc, partial_m, partial_l), row_of_scratch, head, num_segments, slots)
            first = div(token, block_q) * int32(block_q)
            last_pos = seq_len - query_len + torch.minimum(first + int32(block_q), query_len) - 1
            first_key, end_key, _, _, _, _ = kv_tile_range(seq, seq_len - query_len + first, last_pos, seq_len, f, 1)
            hi = ((end_key - 1) >> int32(tile_bits)) + 1
            tiles = hi - torch.minimum(first_key >> int32(tile_bits), hi)
            per_segment = tiles_of_segment(tiles, num_segments)
            if tiles > per_segment:
                live = hl.arange(slots) * per_segment < tiles
                row = (query_start + token).to(torch.int64)
                merge_row(acc, m, l, out, lse, row, head // queries_per_kv, head, live, f)


_reduce_segments = kernel(_reduce_segments_kernel, "num_seqs", "num_segments", "longest_query", "block_q", "tile_bits")


def reduce_segments(
    batch, features, out, config, workspace, lse, block_q, longest_query, by_sequence, shortest_query=1
) -> None:
    """Write out (and lse) of every token that more than one segment worked on.

    config, block_q and what follows are those of the launch of the segments.
    """
    slots = max(helion.next_power_of_2(config.num_segments), 8)  # fewer segments share this code
    args = (
        *partials(workspace), batch.query_start_loc, batch.seq_lens, out, lse, bundle(features),
        batch.shape.queries_per_kv, block_q, config.tile_size.bit_length() - 1, config.num_segments, slots,
        shortest_query, longest_query, by_sequence,
    )  # fmt: skip
    # 32 lanes read 8 segments of 128 floats in 8 loads each; in Triton four warps cost 0.5 us more on an H200
    num_warps = min(max(slots * 4 // warp_size(batch.device), 1), 4)
    run(_reduce_segments, _Reduce(num_warps), args, loop_orders=[[1, 0]])
