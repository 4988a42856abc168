"""Merge the sums that the segments of a Q Block left: the last launch of a static grid, itself of fixed size.

A program takes rows of Q Blocks by stride. The plan names the first item of each Q Block that has several.
"""

import triton
import triton.language as tl

from common.spec.step_plan import Cut, PlannedScratch
from dsl_triton.binding import as_tensor, padded
from dsl_triton.features import bundle
from dsl_triton.primitives import normalise, store_lse, store_rows
from dsl_triton.step_plan import FIRST_ITEM, MERGES, SIZE, item_at


@triton.jit(do_not_specialize=["helpers"])  # do not recompile for another number of Q Blocks
def _merge_parts_kernel(
    acc_ptr,  # f32 [rows, NUM_KV_HEADS, VALUE_SIZE]
    m_ptr,  # f32 [rows, NUM_KV_HEADS]
    l_ptr,  # f32 [rows, NUM_KV_HEADS]
    plan_ptr,  # i32 [items, SIZE]
    counters_ptr,  # i32 [COUNTERS]
    out,  # [num_tokens, num_query_heads, VALUE_SIZE]
    lse,  # f32 [num_tokens, num_query_heads] or None
    f,
    helpers,  # programs of a Q Block under a KV head
    NUM_KV_HEADS: tl.constexpr, QUERIES_PER_KV: tl.constexpr, VALUE_SIZE: tl.constexpr, SHORT_Q: tl.constexpr,
    LONG_Q: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) // helpers  # of a Q Block under a KV head
    item = tl.load(plan_ptr + place // NUM_KV_HEADS * SIZE + FIRST_ITEM)  # the plan has that many entries
    total = tl.load(counters_ptr + MERGES) * NUM_KV_HEADS
    item = tl.where(place < total, item, -1)
    _, fields = item_at(plan_ptr + tl.maximum(item, 0) * SIZE)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()  # wait for the parts; the plan is older
    lane = tl.arange(0, padded(VALUE_SIZE))
    while place < total:
        if item >= 0:
            query_row, left, _, _, _, _, _, parts, first_row, short, _, _ = fields
            kv_head = place % NUM_KV_HEADS
            block_q = tl.where(short != 0, SHORT_Q, LONG_Q)
            real_rows = tl.minimum(left, block_q) * QUERIES_PER_KV
            for begin in range(tl.program_id(0) % helpers * ROWS, real_rows, helpers * ROWS):
                row = begin + tl.arange(0, ROWS)
                live = row < real_rows
                top = tl.full([ROWS], float("-inf"), tl.float32)
                sums = tl.zeros([ROWS], tl.float32)
                x = tl.zeros([ROWS, padded(VALUE_SIZE)], tl.float32)
                for first_part in range(0, parts, PARTS):
                    some = first_part + tl.arange(0, PARTS)
                    at = first_row + tl.expand_dims(some * block_q * QUERIES_PER_KV, 1) + tl.expand_dims(row, 0)
                    at = at.to(tl.int64) * NUM_KV_HEADS + kv_head  # [PARTS, ROWS]
                    there = tl.expand_dims(some < parts, 1) & tl.expand_dims(live, 0)
                    m = tl.load(m_ptr + at, mask=there, other=float("-inf"))
                    l = tl.load(l_ptr + at, mask=there, other=0.0)
                    address = acc_ptr + tl.expand_dims(at * VALUE_SIZE, 2) + lane
                    acc = tl.load(address, mask=tl.expand_dims(there, 2) & (lane < VALUE_SIZE), other=0.0)
                    new = tl.maximum(top, tl.max(m, 0))
                    shift = tl.where(new == float("-inf"), 0.0, new)
                    weight = tl.exp2(m - tl.expand_dims(shift, 0))
                    alpha = tl.exp2(top - shift)
                    sums = sums * alpha + tl.sum(l * weight, 0)
                    x = x * tl.expand_dims(alpha, 1) + tl.sum(acc * tl.expand_dims(weight, 2), 0)
                    top = new
                token, head = query_row + row // QUERIES_PER_KV, kv_head * QUERIES_PER_KV + row % QUERIES_PER_KV
                store_rows(out.ptr, out.strides, token, head, live, normalise(x, sums, kv_head, f), VALUE_SIZE)
                store_lse(lse.ptr, lse.strides, token, head, live, top, sums)
        place += tl.num_programs(0) // helpers
        item = tl.load(plan_ptr + place // NUM_KV_HEADS * SIZE + FIRST_ITEM, mask=place < total, other=-1)
        _, fields = item_at(plan_ptr + tl.maximum(item, 0) * SIZE)


def merge_parts(batch, features, out, workspace: PlannedScratch, cut: Cut, lse, overlap: bool) -> None:
    """Write out (and lse) of every Q Block that is several items. cut: of the plan.

    overlap: begin while the launch before runs, which takes the items of short queries; there are no others.
    """
    shape = batch.shape
    parts, rows, helpers, blocks, warps = cut.merge_form(batch)
    _merge_parts_kernel[(blocks * helpers,)](
        workspace.acc, workspace.m, workspace.l, workspace.plan, workspace.counters, as_tensor(out), as_tensor(lse),
        bundle(features), helpers, NUM_KV_HEADS=shape.num_kv_heads, QUERIES_PER_KV=shape.queries_per_kv,
        VALUE_SIZE=shape.value_lanes, SHORT_Q=cut.short[0], LONG_Q=cut.long[0], PARTS=parts, ROWS=rows,
        OVERLAP=overlap, num_warps=warps, **({"launch_pdl": True} if overlap else {}),
    )  # fmt: skip
