"""A static grid over the pieces of a step's plan (ours): static_grid.py with its schedule made once for all layers.

Grid: Config's programs, whatever the batch. A program reads its list (step_pieces.py) and searches nothing, so what a
Q Block needs is all that its registers hold. Launches as there: long queries, short ones, and the merge.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from common.spec import AttentionShape, Features, PagedBatch
from common.spec.kernel import Capacity
from common.spec.metadata import ANY_QUERY, SHORT_QUERY
from dsl_triton.binding import smallest_block_m, strides
from dsl_triton.features import bundle, finished, narrow, query_operand, row_operands
from dsl_triton.masks import clip_range, join_loops, kv_tile_range
from dsl_triton.merge_parts import RECORD, merge_parts
from dsl_triton.page_runs import attend_runs, run_length, value_strides
from dsl_triton.primitives import load_rows, normalise, q_block_rows, softmax_init, store_lse, store_rows
from dsl_triton.step_pieces import PIECE, make_pieces


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


@triton.jit
def _attend_pieces_kernel(
    query_ptr,  # [num_tokens, num_query_heads, HEAD_SIZE]
    key_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, HEAD_SIZE]
    value_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, VALUE_SIZE]
    block_table_ptr,  # i32 or i64 [num_seqs, max_blocks]
    out_ptr,  # [num_tokens, num_query_heads, VALUE_SIZE]
    lse_ptr,  # f32 [num_tokens, num_query_heads] or None
    acc_ptr,  # f32 [rows, 1, VALUE_SIZE]
    m_ptr,  # f32 [rows]
    l_ptr,  # f32 [rows]
    pieces_ptr,  # i32 [pieces, PIECE]
    shares_ptr,  # i32 [programs, 2]
    softmax_scale,
    f,
    query_strides, key_strides, value_strides, block_table_strides, out_strides, lse_strides, acc_strides,
    QUERIES_PER_KV: tl.constexpr, HEAD_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, TILE_SIZE: tl.constexpr, RUN: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    BLOCK_Q: tl.constexpr = BLOCK_M // QUERIES_PER_KV
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    at = tl.load(shares_ptr + 2 * tl.program_id(0))
    stop_at = tl.load(shares_ptr + 2 * tl.program_id(0) + 1)
    while at < stop_at:
        piece_ptr = pieces_ptr + at * PIECE
        seq = tl.load(piece_ptr)
        kv_head = tl.load(piece_ptr + 1)
        first = tl.load(piece_ptr + 2)
        query_start = tl.load(piece_ptr + 3)
        query_len = tl.load(piece_ptr + 4)
        seq_len = tl.load(piece_ptr + 5)
        start = tl.load(piece_ptr + 6)
        stop = tl.load(piece_ptr + 7)
        begins = tl.load(piece_ptr + 8)
        context_len = seq_len - query_len
        last_pos = context_len + tl.minimum(first + BLOCK_Q, query_len) - 1
        first_key, end_key, _, full_lo, full_hi, _ = kv_tile_range(
            seq, context_len + first, last_pos, seq_len, f, TILE_SIZE
        )
        full_start, full_stop = clip_range(start, stop, full_lo, full_hi, f)
        token, head, live = q_block_rows(first, kv_head, query_len, QUERIES_PER_KV, BLOCK_M)
        query_pos = context_len + token
        row = query_start + token
        q = load_rows(query_ptr, query_strides, row, head, live, HEAD_SIZE)  # [BLOCK_M, HEAD_PADDED]
        r = row_operands(f, seq, kv_head, token, head, live, context_len)
        full_start, full_stop = join_loops(full_start, full_stop, stop, key_cache_ptr, f, BLOCK_M)
        q, r = query_operand(q, r, key_cache_ptr)
        m, l, acc = softmax_init(f, head, live, 1 - begins, q, VALUE_SIZE)
        table_ptr = block_table_ptr + seq.to(tl.int64) * block_table_strides[0]
        for j in range(start, full_start):
            m, l, acc = attend_runs(
                j, q, m, l, acc, query_pos, seq_len, first_key, end_key, kv_head, softmax_scale, f, r,
                key_cache_ptr, value_cache_ptr, table_ptr, key_strides, value_strides,
                HEAD_SIZE, VALUE_SIZE, BLOCK_SIZE, TILE_SIZE, RUN, MASKED=True,
            )  # fmt: skip
        for j in range(full_start, full_stop):
            m, l, acc = attend_runs(
                j, q, m, l, acc, query_pos, seq_len, first_key, end_key, kv_head, softmax_scale, f, r,
                key_cache_ptr, value_cache_ptr, table_ptr, key_strides, value_strides,
                HEAD_SIZE, VALUE_SIZE, BLOCK_SIZE, TILE_SIZE, RUN, MASKED=False,
            )  # fmt: skip
        for j in range(full_stop, stop):
            m, l, acc = attend_runs(
                j, q, m, l, acc, query_pos, seq_len, first_key, end_key, kv_head, softmax_scale, f, r,
                key_cache_ptr, value_cache_ptr, table_ptr, key_strides, value_strides,
                HEAD_SIZE, VALUE_SIZE, BLOCK_SIZE, TILE_SIZE, RUN, MASKED=True,
            )  # fmt: skip
        acc = finished(narrow(acc, VALUE_SIZE), value_cache_ptr, f, r)
        # read again what the loops then need not hold: 255 registers of 128 rows
        kv_head = tl.load(piece_ptr + 1)
        query_start = tl.load(piece_ptr + 3)
        query_len = tl.load(piece_ptr + 4)
        token, head, live = q_block_rows(tl.load(piece_ptr + 2), kv_head, query_len, QUERIES_PER_KV, BLOCK_M)
        row = query_start + token
        part = tl.load(piece_ptr + 9)
        refused = tl.load(piece_ptr + 10)
        if part < 0:
            unserved = tl.where(refused != 0, float("nan"), 0.0)
            store_rows(out_ptr, out_strides, row, head, live, normalise(acc, l, kv_head, f) + unserved, VALUE_SIZE)
            store_lse(lse_ptr, lse_strides, row, head, live, m + unserved, l)
        else:
            place = part + tl.arange(0, BLOCK_M)
            store_rows(acc_ptr, acc_strides, place, tl.zeros_like(place), live, acc, VALUE_SIZE)
            tl.store(m_ptr + place, m, mask=live)
            tl.store(l_ptr + place, l, mask=live)
        at += 1
    if OVERLAP:
        tl.extra.cuda.gdc_wait()  # so that this launch ends after the one before it, and the merge after them all


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
        torch.zeros((last.first_piece + last.most, PIECE.value), **ints),
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
    for number, kind in enumerate(reversed(met)):
        _attend_kind(batch, features, out, config, workspace, lse, kind, number > 0)
    programs = met[-1].first_record + met[-1].part.programs
    merge_parts(batch, features, out, workspace, programs, lse, config.overlap)


def _met(batch: PagedBatch, config: Any, workspace: Any) -> list[Kind]:
    """The kinds that a batch of so many tokens may have."""
    return [
        kind
        for kind in kinds(batch.shape, config, workspace.num_tokens, workspace.num_seqs)
        if batch.num_tokens >= kind.shortest
    ]


def _attend_kind(batch, features, out, config, workspace, lse, kind, behind) -> None:
    shape, part, plan = batch.shape, kind.part, workspace.plan
    _attend_pieces_kernel[(part.programs,)](
        batch.query, batch.key_cache, batch.value_cache, batch.block_table, out, lse,
        workspace.acc, workspace.m, workspace.l, plan.pieces[kind.first_piece :], plan.shares[kind.first_record :],
        batch.softmax_scale, bundle(features), batch.query.stride(), batch.key_cache.stride(), value_strides(batch),
        batch.block_table.stride(), out.stride(), strides(lse), workspace.acc.stride(),
        QUERIES_PER_KV=shape.queries_per_kv, HEAD_SIZE=shape.head_size, VALUE_SIZE=shape.value_lanes,
        BLOCK_SIZE=shape.block_size, BLOCK_M=kind.block_m, TILE_SIZE=part.tile_size,
        RUN=run_length(part.gather, batch, part.tile_size), OVERLAP=config.overlap,
        num_warps=part.num_warps, num_stages=part.num_stages,
        **({"launch_pdl": True} if config.overlap and behind else {}),
        **({"maxnreg": part.registers} if part.registers else {}),
        **({"matrix_instr_nonkdim": part.matrix_instr} if part.matrix_instr else {}),
    )  # fmt: skip
