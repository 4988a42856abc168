"""Merge the parts that several programs left of one item: the last launch of a static grid, itself of fixed size.

A cut between two programs that lies inside an item has a record; an item of n + 1 parts has n cuts, whose programs here
share its rows. A cut at an item's border has an empty record, and its programs leave.
"""

import triton
import triton.language as tl

from common.spec.workspaces import RECORD, PartScratch
from dsl_triton.binding import padded, strides
from dsl_triton.features import bundle
from dsl_triton.primitives import normalise, store_lse, store_rows

PARTS, ROWS, HELPERS = tl.constexpr(16), tl.constexpr(2), 4


@triton.jit
def write_record(
    record_ptr, program, begin, end, snap, per_program, query_start, query_len, q_block, kv_head,
    FIRST_ROW: tl.constexpr, BLOCK_M: tl.constexpr, QUERIES_PER_KV: tl.constexpr,
):  # fmt: skip
    """The record of the cut behind `program`, inside the item of slots [begin, end) (tile_schedule.interval)."""
    BLOCK_Q: tl.constexpr = BLOCK_M // QUERIES_PER_KV
    first_program = (begin + snap) // per_program
    tl.store(record_ptr, (end - snap - 1) // per_program - first_program)
    tl.store(record_ptr + 1, program - first_program)
    tl.store(record_ptr + 2, FIRST_ROW + (2 * first_program + 1) * BLOCK_M)
    tl.store(record_ptr + 3, BLOCK_M)
    tl.store(record_ptr + 4, query_start + q_block * BLOCK_Q)
    tl.store(record_ptr + 5, tl.minimum(query_len - q_block * BLOCK_Q, BLOCK_Q) * QUERIES_PER_KV)
    tl.store(record_ptr + 6, kv_head)


@triton.jit
def _merge_parts_kernel(
    acc_ptr,  # f32 [rows, 1, VALUE_SIZE]
    m_ptr,  # f32 [rows]
    l_ptr,  # f32 [rows]
    records_ptr,  # i32 [programs, RECORD]
    out_ptr,  # [num_tokens, num_query_heads, VALUE_SIZE]
    lse_ptr,  # f32 [num_tokens, num_query_heads] or None
    f,
    out_strides, lse_strides,
    QUERIES_PER_KV: tl.constexpr, VALUE_SIZE: tl.constexpr, RECORD: tl.constexpr, HELPERS: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    record_ptr = records_ptr + tl.program_id(0) // HELPERS * RECORD
    if OVERLAP:
        tl.extra.cuda.gdc_wait()  # wait for the parts
    cuts = tl.load(record_ptr)
    if cuts > 0:
        helper = tl.load(record_ptr + 1) * HELPERS + tl.program_id(0) % HELPERS
        first_row = tl.load(record_ptr + 2)
        part_rows = tl.load(record_ptr + 3)
        query_row = tl.load(record_ptr + 4)
        real_rows = tl.load(record_ptr + 5)
        kv_head = tl.load(record_ptr + 6)
        lane = tl.arange(0, padded(VALUE_SIZE))
        for begin in range(helper * ROWS, real_rows, cuts * HELPERS * ROWS):
            row = begin + tl.arange(0, ROWS)
            live = row < real_rows
            top = tl.full([ROWS], float("-inf"), tl.float32)
            total = tl.zeros([ROWS], tl.float32)
            x = tl.zeros([ROWS, padded(VALUE_SIZE)], tl.float32)
            for first_part in range(0, cuts + 1, PARTS):
                part = first_part + tl.arange(0, PARTS)
                # the item's first part is its program's second; the others are their programs' first
                at = first_row + (2 * part - (part > 0).to(tl.int32)) * part_rows
                at = tl.expand_dims(at, 1) + tl.expand_dims(row, 0)  # [PARTS, ROWS]
                there = tl.expand_dims(part <= cuts, 1) & tl.expand_dims(live, 0)
                m = tl.load(m_ptr + at, mask=there, other=float("-inf"))
                l = tl.load(l_ptr + at, mask=there, other=0.0)
                address = acc_ptr + tl.expand_dims(at.to(tl.int64) * VALUE_SIZE, 2) + lane
                acc = tl.load(address, mask=tl.expand_dims(there, 2) & (lane < VALUE_SIZE), other=0.0)
                new = tl.maximum(top, tl.max(m, 0))
                shift = tl.where(new == float("-inf"), 0.0, new)
                weight = tl.exp2(m - tl.expand_dims(shift, 0))
                alpha = tl.exp2(top - shift)
                total = total * alpha + tl.sum(l * weight, 0)
                x = x * tl.expand_dims(alpha, 1) + tl.sum(acc * tl.expand_dims(weight, 2), 0)
                top = new
            token, head = query_row + row // QUERIES_PER_KV, kv_head * QUERIES_PER_KV + row % QUERIES_PER_KV
            store_rows(out_ptr, out_strides, token, head, live, normalise(x, total, kv_head, f), VALUE_SIZE)
            store_lse(lse_ptr, lse_strides, token, head, live, top, total)


def merge_parts(batch, features, out, workspace: PartScratch, programs: int, lse, overlap: bool) -> None:
    """Write out (and lse) of every item that more than one of the first `programs` worked on."""
    shape = batch.shape
    _merge_parts_kernel[(programs * HELPERS,)](
        workspace.acc, workspace.m, workspace.l, workspace.records, out, lse, bundle(features),
        out.stride(), strides(lse), QUERIES_PER_KV=shape.queries_per_kv, VALUE_SIZE=shape.value_lanes, RECORD=RECORD,
        HELPERS=HELPERS, OVERLAP=overlap, num_warps=4, **({"launch_pdl": True} if overlap else {}),
    )  # fmt: skip
