"""Merge the parts that several programs left of one item: the last launch of a static grid, itself of fixed size.

A cut between two programs that lies inside an item has a record; an item of n + 1 parts has n cuts, whose programs here
share its rows. A cut at an item's border has an empty record, and its programs leave.
"""

from dataclasses import dataclass

import helion.language as hl
import torch

from common.spec.workspaces import PartScratch
from dsl_helion.arithmetic import cdiv, div, int32, mod
from dsl_helion.binding import kernel, run
from dsl_helion.features import bundle
from dsl_helion.primitives import normalise, store_lse, store_rows

PARTS, ROWS, HELPERS = 16, 2, 4


@dataclass(frozen=True)
class _Merge:
    num_warps: int = 4
    num_stages: int = 1


def write_record(
    records, record, program, begin, end, snap, per_program, query_start, query_len, q_block, kv_head, first_row,
    block_m, queries_per_kv,
):  # fmt: skip
    """The record of the cut behind `program`, inside the item of slots [begin, end) (tile_schedule.interval)."""
    block_q = block_m // queries_per_kv
    first_program = div(begin + snap, per_program)
    real_tokens = torch.minimum(query_len - q_block * block_q, int32(block_q))
    hl.store(records, [record, 0], div(end - snap - 1, per_program) - first_program)
    hl.store(records, [record, 1], program - first_program)
    hl.store(records, [record, 2], first_row + (2 * first_program + 1) * int32(block_m))
    hl.store(records, [record, 3], int32(block_m))
    hl.store(records, [record, 4], query_start + q_block * block_q)
    hl.store(records, [record, 5], real_tokens * queries_per_kv)
    hl.store(records, [record, 6], kv_head)


def _merge_parts_kernel(
    partial_acc: torch.Tensor,  # f32 [rows, 1, value_size]
    partial_m: torch.Tensor,  # f32 [rows]
    partial_l: torch.Tensor,  # f32 [rows]
    records: torch.Tensor,  # i32 [programs, RECORD]
    out: torch.Tensor,  # [num_tokens, num_query_heads, value_size]
    lse: torch.Tensor | None,  # f32 [num_tokens, num_query_heads]
    f: dict,
    queries_per_kv: hl.constexpr,
    parts: hl.constexpr,
    rows: hl.constexpr,
    helpers: hl.constexpr,
) -> None:
    hl.pdl_wait()  # wait for the parts
    value_size = hl.specialize(out.size(2))
    hl.specialize(partial_acc.size(2))
    for record, helper in hl.grid([records.size(0), helpers]):
        cuts = records[record, 0]
        if cuts > 0:
            mine = records[record, 1] * helpers + helper
            first_row = records[record, 2]
            part_rows = records[record, 3]
            query_row = records[record, 4]
            real_rows = records[record, 5]
            kv_head = records[record, 6]
            groups = cdiv(real_rows, rows)  # of rows; dealt to the programs of the item's cuts
            for number in hl.grid(0, div(groups - mine + cuts * helpers - 1, cuts * helpers)):
                row = (mine + number * cuts * helpers) * rows + hl.arange(rows)
                live = row < real_rows
                top = hl.full([rows], float("-inf"), dtype=torch.float32)
                total = hl.zeros([rows], dtype=torch.float32)
                x = hl.zeros([rows, value_size], dtype=torch.float32)
                for first_part in hl.grid(0, cuts + 1, parts):
                    part = first_part + hl.arange(parts)
                    # the item's first part is its program's second; the others are their programs' first
                    at = first_row + (2 * part - (part > 0).to(torch.int32)) * part_rows
                    at = at[:, None] + row[None, :]  # [parts, rows]
                    there = (part <= cuts)[:, None] & live[None, :]
                    m = torch.where(there, hl.load(partial_m, [at], extra_mask=there), float("-inf"))
                    l = hl.load(partial_l, [at], extra_mask=there)
                    acc = hl.load(partial_acc, [at, 0, slice(None)], extra_mask=there[:, :, None])
                    new = torch.maximum(top, m.amax(0))
                    shift = torch.where(new == float("-inf"), 0.0, new)
                    weight = torch.exp2(m - shift[None, :])
                    alpha = torch.exp2(top - shift)
                    total = total * alpha + (l * weight).sum(0)
                    x = x * alpha[:, None] + (acc * weight[:, :, None]).sum(0)
                    top = new
                token, head = query_row + div(row, queries_per_kv), kv_head * queries_per_kv + mod(row, queries_per_kv)
                store_rows(out, token, head, live, normalise(x, total, kv_head, f))
                store_lse(lse, token, head, live, top, total)


_merge_parts = kernel(_merge_parts_kernel)


def merge_parts(batch, features, out, workspace: PartScratch, programs: int, lse) -> None:
    """Write out (and lse) of every item that more than one of the first `programs` worked on."""
    args = (
        workspace.acc, workspace.m, workspace.l, workspace.records[:programs], out, lse, bundle(features),
        batch.shape.queries_per_kv, PARTS, ROWS, HELPERS,
    )  # fmt: skip
    run(_merge_parts, _Merge(), args, loop_orders=[[1, 0]])
