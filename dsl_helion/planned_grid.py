"""A static grid over the pieces of a step's plan (ours): static_grid.py with its schedule made once for all layers.

Grid: Config's programs, whatever the batch. A program reads its list (step_pieces.py) and searches nothing, so what a
Q Block needs is all that its registers hold. Launches as there: long queries, short ones, and the merge.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import helion.language as hl
import torch

from common.spec import AttentionShape, Features, PagedBatch
from common.spec.kernel import Capacity
from common.spec.metadata import ANY_QUERY, SHORT_QUERY
from dsl_helion.arithmetic import int32
from dsl_helion.binding import gather_form, kernel, operands, run, smallest_block_m
from dsl_helion.features import bundle, finished, narrow, query_operand, row_operands
from dsl_helion.masks import clip_range, join_loops, kv_tile_range
from dsl_helion.merge_parts import RECORD, merge_parts
from dsl_helion.primitives import (
    attend_tile,
    load_rows,
    normalise,
    q_block_rows,
    softmax_init,
    store_lse,
    store_rows,
)
from dsl_helion.step_pieces import PIECE, make_pieces


@dataclass(frozen=True)
class Plan:
    """What a step's plan says, int32. Zeros: no other call's scratch lies over them.

    shares: the first piece of a program, and the one behind its last.
    """

    pieces: torch.Tensor  # [pieces, PIECE]
    shares: torch.Tensor  # [programs, 2]
    records: torch.Tensor  # [programs, RECORD]


class Kind(NamedTuple):
    """A class of sequences, of shortest .. longest query tokens, and what is its own in a plan.

    most: pieces that there is room for. The first_ ones: in pieces, in shares and records, in the rows of parts.
    """

    part: Any
    shortest: int
    longest: int
    block_m: int
    most: int
    first_piece: int
    first_record: int
    first_row: int


def _attend_pieces_kernel(
    query: torch.Tensor,  # [num_tokens, num_query_heads, head_size]
    key_cache: torch.Tensor,  # [num_blocks, block_size, num_kv_heads, head_size], flat: [rows, num_kv_heads, head_size]
    value_cache: torch.Tensor,  # the same, value_size in place of head_size
    block_table: torch.Tensor,  # i32 or i64 [num_seqs, max_blocks]
    out: torch.Tensor,  # [num_tokens, num_query_heads, value_size]
    lse: torch.Tensor | None,  # f32 [num_tokens, num_query_heads]
    partial_acc: torch.Tensor,  # f32 [rows, 1, value_size]
    partial_m: torch.Tensor,  # f32 [rows]
    partial_l: torch.Tensor,  # f32 [rows]
    pieces: torch.Tensor,  # i32 [pieces, PIECE]
    shares: torch.Tensor,  # i32 [programs, 2]
    softmax_scale: float,
    f: dict,
    num_kv_heads: hl.constexpr,
    block_size: hl.constexpr,
    page_rows: int,
    gather: hl.constexpr,
    min_block_m: hl.constexpr,
    few_rows: hl.constexpr,
    programs: hl.constexpr,
) -> None:
    hl.pdl_wait()  # the next line makes this a dependent launch as well, so it must wait for what ran before it
    hl.pdl_launch_dependents()  # the next launch begins while this one runs (NVIDIA from sm_90 on)
    hl.specialize((query.size(2), partial_acc.size(2)))
    value_size = hl.specialize(out.size(2))
    hl.specialize((key_cache.size(-1), value_cache.size(-1), key_cache.size(-2), value_cache.size(-2)))
    queries_per_kv = hl.specialize(query.size(1)) // num_kv_heads
    block_m = hl.register_block_size(min_block_m, 256)
    tile_size = hl.register_block_size(16, 256)
    block_q = block_m // queries_per_kv
    for program in hl.grid(programs):
        at = shares[program, 0]
        stop_at = shares[program, 1]
        while at < stop_at:
            seq = pieces[at, 0]
            kv_head = pieces[at, 1]
            first = pieces[at, 2]
            query_start = pieces[at, 3]
            query_len = pieces[at, 4]
            seq_len = pieces[at, 5]
            start = pieces[at, 6]
            stop = pieces[at, 7]
            begins = pieces[at, 8]
            context_len = seq_len - query_len
            last_pos = context_len + torch.minimum(first + int32(block_q), query_len) - 1
            first_key, end_key, _, full_lo, full_hi, _ = kv_tile_range(
                seq, context_len + first, last_pos, seq_len, f, tile_size
            )
            full_start, full_stop = clip_range(start, stop, full_lo, full_hi, f)
            token, head, live = q_block_rows(first, kv_head, query_len, queries_per_kv, block_m)
            query_pos = context_len + token
            row = query_start + token
            q = load_rows(query, row, head, live)  # [block_m, head_size]
            r = row_operands(f, seq, kv_head, token, head, live, context_len)
            full_start, full_stop = join_loops(full_start, full_stop, stop, key_cache, f, few_rows)
            q, r = query_operand(q, r, key_cache)
            m, l, acc = softmax_init(f, head, live, 1 - begins, q, value_size)
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
            total = finished(narrow(acc, value_size), value_cache, f, r)
            part = pieces[at, 9]
            if part < 0:
                unserved = torch.where(pieces[at, 10] != 0, float("nan"), 0.0)
                store_rows(out, row, head, live, normalise(total, l, kv_head, f) + unserved)
                store_lse(lse, row, head, live, m + unserved, l)
            else:
                place = part + hl.arange(block_m)
                store_rows(partial_acc, place, torch.zeros_like(place), live, total)
                hl.store(partial_m, [place], m, extra_mask=live)
                hl.store(partial_l, [place], l, extra_mask=live)
            at = at + 1


_attend_pieces = kernel(_attend_pieces_kernel)


def kinds(shape: AttentionShape, config: Any, num_tokens: int, num_seqs: int) -> list[Kind]:
    """The classes of a config (static_grid.Config) for a capacity, in the order of their query tokens: those of fewer
    tokens than a kind's shortest, and only those, have no such sequence."""
    classes = [(config.decode, 1, SHORT_QUERY), (config.prefill, SHORT_QUERY + 1, ANY_QUERY)]
    found, piece, record, row = [], 0, 0, 0
    for part, shortest, longest in classes:
        block_m = max(part.block_m, smallest_block_m(shape))
        blocks = num_tokens // (block_m // shape.queries_per_kv) + min(num_seqs, num_tokens // shortest)
        most = blocks * shape.num_kv_heads + part.programs
        found.append(Kind(part, shortest, longest, block_m, most, piece, record, row))
        piece, record, row = piece + most, record + part.programs, row + 2 * part.programs * block_m
    return found


def make_plan(shape: AttentionShape, capacity: Capacity, config: Any) -> tuple[Plan, int]:
    """Room for the plan of any batch up to a capacity; rows of all parts."""
    last = kinds(shape, config, capacity.num_tokens, capacity.num_seqs)[-1]
    programs, ints = last.first_record + last.part.programs, {"dtype": torch.int32, "device": capacity.device}
    plan = Plan(
        torch.zeros((last.first_piece + last.most, PIECE), **ints),
        torch.zeros((programs, 2), **ints),
        torch.zeros((programs, RECORD), **ints),
    )
    return plan, last.first_row + 2 * last.part.programs * last.block_m


def prepare(batch: PagedBatch, features: Features, config: Any, workspace: Any) -> None:
    """Fill the workspace's plan with the pieces of this step, a launch a kind of sequences that it may have."""
    for kind in _met(batch, config, workspace):
        make_pieces(workspace.plan, kind, batch, features, workspace.overflow, workspace.num_seqs)


def attend(batch, features, out, config, workspace, lse) -> None:
    """Write out (and lse) of every query token, by the plan of this step."""
    met = _met(batch, config, workspace)
    for kind in reversed(met):
        _attend_kind(batch, features, out, workspace, lse, kind)
    programs = met[-1].first_record + met[-1].part.programs
    merge_parts(batch, features, out, workspace, programs, lse)


def _met(batch: PagedBatch, config: Any, workspace: Any) -> list[Kind]:
    """The kinds that a batch of so many tokens may have."""
    return [
        kind
        for kind in kinds(batch.shape, config, workspace.num_tokens, workspace.num_seqs)
        if batch.num_tokens >= kind.shortest
    ]


def _attend_kind(batch, features, out, workspace, lse, kind) -> None:
    shape, part, plan = batch.shape, kind.part, workspace.plan
    gather, page_rows = gather_form(part.gather, batch, part.tile_size)
    args = (
        *operands(batch, gather, page_rows), batch.block_table, out, lse, workspace.acc, workspace.m, workspace.l,
        plan.pieces[kind.first_piece : kind.first_piece + kind.most],
        plan.shares[kind.first_record : kind.first_record + part.programs], batch.softmax_scale,
        bundle(features), shape.num_kv_heads, shape.block_size, page_rows, gather, smallest_block_m(shape),
        kind.block_m <= 16, part.programs,
    )  # fmt: skip
    run(_attend_pieces, part, args, block_sizes=[kind.block_m, part.tile_size])
