"""Merge the sums that the segments of a Q Block left: the last launch of a static grid, itself of fixed size.

A program takes rows of Q Blocks by stride. The plan names the first item of each Q Block that has several.
"""

from dataclasses import dataclass

import helion.language as hl
import torch

from common.spec.step_plan import FIRST_ITEM, MERGES, Cut, PlannedScratch
from dsl_helion.arithmetic import cdiv, div, int32, mod
from dsl_helion.binding import kernel, run
from dsl_helion.features import bundle
from dsl_helion.primitives import normalise, store_lse, store_rows, wide_index
from dsl_helion.step_plan import item_at


@dataclass(frozen=True)
class _Merge:
    num_warps: int
    num_stages: int = 1


def _merge_parts_kernel(
    partial_acc: torch.Tensor,  # f32 [rows, num_kv_heads, value_size]
    partial_m: torch.Tensor,  # f32 [rows, num_kv_heads]
    partial_l: torch.Tensor,  # f32 [rows, num_kv_heads]
    plan: torch.Tensor,  # i32 [items, SIZE]
    counters: torch.Tensor,  # i32 [COUNTERS]
    out: torch.Tensor,  # [num_tokens, num_query_heads, value_size]
    lse: torch.Tensor | None,  # f32 [num_tokens, num_query_heads]
    f: dict,
    helpers: int,  # programs of a Q Block under a KV head
    num_kv_heads: hl.constexpr,
    queries_per_kv: hl.constexpr,
    short_q: hl.constexpr,
    long_q: hl.constexpr,
    programs: int,
    parts: hl.constexpr,
    rows: hl.constexpr,
) -> None:
    hl.pdl_wait()  # wait for the parts
    value_size = hl.specialize(out.size(2))
    hl.specialize((partial_acc.size(1), partial_acc.size(2), plan.size(1), counters.size(0)))
    for program, helper in hl.grid([programs, helpers]):
        total = counters[MERGES] * num_kv_heads
        first_item = hl.load(plan, [div(int32(program), num_kv_heads), FIRST_ITEM])  # the plan has that many entries
        for turn in hl.grid(0, div(total - int32(program) + int32(programs - 1), int32(programs))):
            place = int32(program) + turn * int32(programs)  # of a Q Block under a KV head
            kv_head = mod(place, num_kv_heads)
            if first_item >= 0:
                _, item = item_at(plan, first_item)
                query_row, left, _, _, _, _, _, several, first_row, short, _, _ = item
                block_q = torch.where(short != 0, int32(short_q), int32(long_q))
                real_rows = torch.minimum(left, block_q) * queries_per_kv
                groups = cdiv(real_rows, rows)  # of rows; dealt to the programs of the Q Block
                for number in hl.grid(0, div(groups - helper + helpers - 1, helpers)):
                    row = (helper + number * helpers) * rows + hl.arange(rows)
                    live = row < real_rows
                    top = hl.full([rows], float("-inf"), dtype=torch.float32)
                    sums = hl.zeros([rows], dtype=torch.float32)
                    x = hl.zeros([rows, value_size], dtype=torch.float32)
                    for first_part in hl.grid(0, several, parts):
                        some = first_part + hl.arange(parts)
                        at = first_row + (some * block_q * queries_per_kv)[:, None] + row[None, :]  # [parts, rows]
                        there = (some < several)[:, None] & live[None, :]
                        group = wide_index(kv_head)
                        m = torch.where(there, hl.load(partial_m, [at, group], extra_mask=there), float("-inf"))
                        l = hl.load(partial_l, [at, group], extra_mask=there)
                        acc = hl.load(partial_acc, [at, group, slice(None)], extra_mask=there[:, :, None])
                        new = torch.maximum(top, m.amax(0))
                        shift = torch.where(new == float("-inf"), 0.0, new)
                        weight = torch.exp2(m - shift[None, :])
                        alpha = torch.exp2(top - shift)
                        sums = sums * alpha + (l * weight).sum(0)
                        x = x * alpha[:, None] + (acc * weight[:, :, None]).sum(0)
                        top = new
                    token = query_row + div(row, queries_per_kv)
                    head = kv_head * queries_per_kv + mod(row, queries_per_kv)
                    store_rows(out, token, head, live, normalise(x, sums, kv_head, f))
                    store_lse(lse, token, head, live, top, sums)
            after = torch.minimum(place + int32(programs), total - 1)
            first_item = hl.load(plan, [div(after, num_kv_heads), FIRST_ITEM])


_merge_parts = kernel(_merge_parts_kernel, "programs", "helpers")


def merge_parts(batch, features, out, workspace: PlannedScratch, cut: Cut, lse) -> None:
    """Write out (and lse) of every Q Block that is several items. cut: of the plan."""
    parts, rows, helpers, blocks, warps = cut.merge_form(batch)
    args = (
        workspace.acc, workspace.m, workspace.l, workspace.plan, workspace.counters, out, lse, bundle(features),
        helpers, batch.shape.num_kv_heads, batch.shape.queries_per_kv, cut.short[0], cut.long[0], blocks, parts, rows,
    )  # fmt: skip
    run(_merge_parts, _Merge(warps), args, loop_orders=[[1, 0]])
