"""A static grid over the pieces of a step's plan (ours): static_grid.py with its schedule made once for all layers.

Grid: Config's programs, whatever the batch. A program reads its list (step_pieces.py) and searches nothing, so what a
Q Block needs is all that its registers hold. That leaves room for classes of sequences with launches of their own:

    copied   long queries whose keys have room in a scratch: copied once, then read by descriptors as in unpaged.py
    prefill  the other long queries, through their pages
    drafts   short queries of more rows than a Q Block of decodes has
    decode   the other short ones, through their pages

and the merge of what items were cut into. Each launch begins while the one before it runs.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import helion.language as hl
import torch

from common.spec import AttentionShape, Features, PagedBatch
from common.spec.kernel import Capacity, copied_scales
from common.spec.metadata import ANY_QUERY, SHORT_QUERY, cdiv
from dsl_helion.arithmetic import int32
from dsl_helion.binding import gather_form, is_fp8, kernel, loadable, operands, run, smallest_block_m
from dsl_helion.copy_pages import copy_pages
from dsl_helion.dense_tiles import add_block, attend_block, block_scores, masked_tile
from dsl_helion.features import bundle, finished, narrow, query_operand, row_operands
from dsl_helion.masks import clip_range, join_loops, kv_tile_range
from dsl_helion.merge_parts import RECORD, merge_parts
from dsl_helion.primitives import (
    attend_tile,
    base2_scale,
    finish_here,
    load_rows,
    normalise,
    q_block_rows,
    raise_maxima,
    softmax_init,
    store_lse,
    store_rows,
)
from dsl_helion.step_pieces import PIECE, make_pieces


@dataclass(frozen=True)
class Plan:
    """What a step's plan says, int32, and the scratch of copied keys. Zeros: no other call's scratch lies over them.

    shares: the first piece of a program, and the one behind its last. lens: keys of the sequences that are copied.
    """

    pieces: torch.Tensor  # [pieces, PIECE]
    shares: torch.Tensor  # [programs, 2]
    records: torch.Tensor  # [programs, RECORD]
    lens: torch.Tensor  # [num_seqs]
    key: torch.Tensor  # [num_kv_heads * tiles * tile_size, head_size], the query's dtype
    value: torch.Tensor  # [num_kv_heads * tiles * tile_size, value_lanes]
    scales: torch.Tensor  # f32 [2, num_kv_heads * tiles * tile_size]: of K and of V; [2, 0] beside a cache of 16 bits


class Kind(NamedTuple):
    """A class of sequences, of shortest .. longest query tokens, and what is its own in a plan.

    most: pieces that there is room for. The first_ ones: in pieces, in shares and records, in the rows of parts.
    """

    part: Any
    copied: bool
    shortest: int
    longest: int
    block_m: int
    most: int
    first_piece: int
    first_record: int
    first_row: int


def _attend_pieces_kernel(
    query: torch.Tensor,  # [num_tokens, num_query_heads, head_size]
    keys: torch.Tensor,  # the cache as gather says; copied: [num_kv_heads * tiles * tile_size, head_size]
    values: torch.Tensor,  # the same of V
    key_scales: torch.Tensor | None,  # f32 [num_kv_heads * tiles * tile_size]; copied alone
    value_scales: torch.Tensor | None,  # the same of V
    block_table: torch.Tensor | None,  # i32 or i64 [num_seqs, max_blocks]; None where copied
    out: torch.Tensor,  # [num_tokens, num_query_heads, value_size]
    lse: torch.Tensor | None,  # f32 [num_tokens, num_query_heads]
    partial_acc: torch.Tensor,  # f32 [rows, 1, value_size]
    partial_m: torch.Tensor,  # f32 [rows]
    partial_l: torch.Tensor,  # f32 [rows]
    pieces: torch.Tensor,  # i32 [pieces, PIECE]
    shares: torch.Tensor,  # i32 [programs, 2]
    tiles: int,
    softmax_scale: float,
    f: dict,
    num_kv_heads: hl.constexpr,
    block_size: hl.constexpr,
    page_rows: int,
    gather: hl.constexpr,
    min_block_m: hl.constexpr,
    few_rows: hl.constexpr,
    programs: hl.constexpr,
    copied: hl.constexpr,
    slack: hl.constexpr,
) -> None:
    hl.pdl_wait()  # the next line makes this a dependent launch as well, so it must wait for what ran before it
    hl.pdl_launch_dependents()  # the next launch begins while this one runs (NVIDIA from sm_90 on)
    hl.specialize((query.size(2), partial_acc.size(2)))
    value_size = hl.specialize(out.size(2))
    hl.specialize((keys.size(-1), values.size(-1), keys.size(-2), values.size(-2)))
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
            if copied:
                m, l, acc = softmax_init(f, head, live, 1 - begins, seq_len, q, value_size)
                base = (kv_head * tiles + pieces[at, 11]) * tile_size
                for j_block in hl.grid(full_start, full_stop):
                    if slack == 0:
                        m, l, acc = attend_block(
                            j_block, q, m, l, acc, query_pos, seq_len, softmax_scale, f, r, keys, values, key_scales,
                            value_scales, base, kv_head, tile_size, False, False,
                        )  # fmt: skip
                    else:
                        tile = base, kv_head, tile_size, False, False
                        s = block_scores(j_block, q, query_pos, seq_len, softmax_scale, f, r, keys, key_scales, *tile)
                        m, alpha, grown = raise_maxima(s, m, base2_scale(softmax_scale, f, r), slack)
                        if grown > 0:
                            acc = acc * alpha.unsqueeze(1)
                        l, acc = add_block(
                            j_block, q, s, m, l, acc, alpha, seq, seq_len, softmax_scale, f, r, keys, values,
                            value_scales, *tile,
                        )  # fmt: skip
                for i_edge in hl.grid(0, full_start - start + stop - full_stop):
                    j_edge = masked_tile(i_edge, full_start - start, start, full_stop)
                    m, l, acc = attend_block(
                        j_edge, q, m, l, acc, query_pos, seq_len, softmax_scale, f, r, keys, values, key_scales,
                        value_scales, base, kv_head, tile_size, True, False,
                    )  # fmt: skip
                    acc = finish_here(acc, seq) if slack > 0 else acc
                total = narrow(acc, value_size)
            else:
                full_start, full_stop = join_loops(full_start, full_stop, stop, keys, f, few_rows)
                q, r = query_operand(q, r, keys)
                m, l, acc = softmax_init(f, head, live, 1 - begins, seq_len, q, value_size)
                for j_left in hl.grid(start, full_start):
                    m, l, acc = attend_tile(
                        j_left, q, m, l, acc, query_pos, seq, seq_len, first_key, end_key, kv_head, softmax_scale, f,
                        r, keys, values, block_table, block_size, page_rows, gather, tile_size, True,
                    )  # fmt: skip
                for j_full in hl.grid(full_start, full_stop):
                    m, l, acc = attend_tile(
                        j_full, q, m, l, acc, query_pos, seq, seq_len, first_key, end_key, kv_head, softmax_scale, f,
                        r, keys, values, block_table, block_size, page_rows, gather, tile_size, False,
                    )  # fmt: skip
                for j_right in hl.grid(full_stop, stop):
                    m, l, acc = attend_tile(
                        j_right, q, m, l, acc, query_pos, seq, seq_len, first_key, end_key, kv_head, softmax_scale, f,
                        r, keys, values, block_table, block_size, page_rows, gather, tile_size, True,
                    )  # fmt: skip
                total = finished(narrow(acc, value_size), values, f, r)
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
    short = SHORT_QUERY
    if config.drafts.programs:
        short = min(_block_m(shape, config.decode) // shape.queries_per_kv, SHORT_QUERY)
    classes = [
        (config.decode, 1, short),
        (config.drafts, short + 1, SHORT_QUERY),
        (config.prefill, SHORT_QUERY + 1, ANY_QUERY),
        (config.copied, config.copied.longer + 1, ANY_QUERY),
    ]
    found, piece, record, row = [], 0, 0, 0
    for part, shortest, longest in classes:
        if part.programs and shortest <= longest:
            block_m = _block_m(shape, part)
            blocks = num_tokens // (block_m // shape.queries_per_kv) + min(num_seqs, num_tokens // shortest)
            most = blocks * shape.num_kv_heads + part.programs
            found.append(Kind(part, part is config.copied, shortest, longest, block_m, most, piece, record, row))
            piece, record, row = piece + most, record + part.programs, row + 2 * part.programs * block_m
    return found


def make_plan(shape: AttentionShape, capacity: Capacity, config: Any) -> tuple[Plan, int]:
    """Room for the plan of any batch up to a capacity, and for the keys that config.copied says; rows of all parts."""
    last = kinds(shape, config, capacity.num_tokens, capacity.num_seqs)[-1]
    programs, tiles = last.first_record + last.part.programs, 0
    if config.copied.programs:
        longest = min(capacity.num_seqs, capacity.num_tokens // (config.copied.longer + 1))
        tiles = cdiv(min(config.copied.keys, capacity.num_keys), config.copied.tile_size) + longest
    rows, device = max(shape.num_kv_heads * tiles * config.copied.tile_size, 1), capacity.device
    scales = rows if shape.cache_dtype.itemsize == 1 else 0
    ints = {"dtype": torch.int32, "device": device}
    plan = Plan(
        torch.zeros((last.first_piece + last.most, PIECE), **ints),
        torch.zeros((programs, 2), **ints),
        torch.zeros((programs, RECORD), **ints),
        torch.zeros(max(capacity.num_seqs, 1), **ints),
        torch.empty((rows, shape.head_size), dtype=shape.dtype, device=device),
        torch.empty((rows, shape.value_lanes), dtype=shape.dtype, device=device),
        torch.empty((2, scales), dtype=torch.float32, device=device),
    )
    return plan, last.first_row + 2 * last.part.programs * last.block_m


def prepare(batch: PagedBatch, features: Features, config: Any, workspace: Any) -> None:
    """Fill the workspace's plan with the pieces of this step, a launch a kind of sequences that it may have."""
    copied, tiles = config.copied, _tiles(batch.shape, config, workspace.plan)
    longer = copied.longer if copied.programs else 0
    for kind in _met(batch, config, workspace):
        seqs = workspace.num_seqs
        make_pieces(workspace.plan, kind, batch, features, tiles, workspace.overflow, seqs, longer, copied.tile_size)


def attend(batch, features, out, config, workspace, lse) -> None:
    """Write out (and lse) of every query token, by the plan of this step."""
    plan, met = workspace.plan, _met(batch, config, workspace)
    scales, tiles = copied_scales(features, plan.scales), _tiles(batch.shape, config, plan)
    if met[-1].copied:
        lens = plan.lens[: batch.num_seqs]
        copy_pages(batch, features, plan.key, plan.value, scales, tiles, config.copied, lens)
    for kind in reversed(met):
        _attend_kind(batch, features, out, workspace, lse, kind, scales, tiles)
    programs = met[-1].first_record + met[-1].part.programs
    merge_parts(batch, features, out, workspace, programs, lse)


def _met(batch: PagedBatch, config: Any, workspace: Any) -> list[Kind]:
    """The kinds that a batch of so many tokens may have."""
    return [
        kind
        for kind in kinds(batch.shape, config, workspace.num_tokens, workspace.num_seqs)
        if batch.num_tokens >= kind.shortest
    ]


def _tiles(shape: AttentionShape, config: Any, plan: Plan) -> int:
    return plan.key.shape[0] // (shape.num_kv_heads * config.copied.tile_size)


def _attend_kind(batch, features, out, workspace, lse, kind, scales, tiles) -> None:
    shape, part, plan = batch.shape, kind.part, workspace.plan
    gather, page_rows = gather_form(part.gather, batch, part.tile_size)
    read = (*operands(batch, gather, page_rows), None, None, batch.block_table)
    slack = 0
    if kind.copied:
        read = (loadable(batch.query), loadable(plan.key), loadable(plan.value), *scales, None)
        slack = 0 if is_fp8(shape.dtype) else part.slack  # P in fp8 has a range of its own
    args = (
        *read, out, lse, workspace.acc, workspace.m, workspace.l,
        plan.pieces[kind.first_piece : kind.first_piece + kind.most],
        plan.shares[kind.first_record : kind.first_record + part.programs], tiles, batch.softmax_scale,
        bundle(features), shape.num_kv_heads, shape.block_size, page_rows, gather, smallest_block_m(shape),
        kind.block_m <= 16, part.programs, kind.copied, slack,
    )  # fmt: skip
    run(_attend_pieces, part, args, block_sizes=[kind.block_m, part.tile_size], descriptors=kind.copied)


def _block_m(shape: AttentionShape, part: Any) -> int:
    return max(part.block_m, smallest_block_m(shape))
