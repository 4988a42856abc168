"""A program a query row and head, 64 keys at a time, in Triton."""

import torch
import triton
import triton.language as tl

SUPPORTS = {"causal"}


@triton.jit
def attention(
    query, key, value, table, starts, lengths, out, q_stride, k_stride, v_stride, o_stride, table_stride, scale, group,
    size, page, LANES: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    token, head, seq = tl.program_id(0), tl.program_id(1), 0
    while tl.load(starts + seq + 1) <= token:
        seq += 1
    end = tl.load(lengths + seq) - tl.load(starts + seq + 1) + token + 1
    lane, slot = tl.arange(0, LANES), tl.arange(0, SLOTS)
    q = tl.load(query + token.to(tl.int64) * q_stride[0] + head * q_stride[1] + lane, mask=lane < size, other=0.0)
    m, total, acc = -float("inf"), 0.0, tl.zeros([LANES], tl.float32)
    for first in range(0, end, SLOTS):
        at = first + slot
        seen = at < end
        number = tl.load(table + seq * table_stride + at // page, mask=seen, other=0).to(tl.int64)
        both = seen[:, None] & (lane < size)[None, :]
        k_row = key + number * k_stride[0] + at % page * k_stride[1] + (head // group) * k_stride[2]
        v_row = value + number * v_stride[0] + at % page * v_stride[1] + (head // group) * v_stride[2]
        k = tl.load(k_row[:, None] + lane[None, :], mask=both, other=0.0).to(tl.float32)
        v = tl.load(v_row[:, None] + lane[None, :], mask=both, other=0.0).to(tl.float32)
        s = tl.where(seen, tl.sum(q.to(tl.float32)[None, :] * k, 1) * scale, -float("inf"))
        top = tl.maximum(m, tl.max(s, 0))
        p, fade = tl.exp(s - top), tl.exp(m - top)
        acc, total, m = acc * fade + tl.sum(p[:, None] * v, 0), total * fade + tl.sum(p, 0), top
    row = out + token.to(tl.int64) * o_stride[0] + head * o_stride[1]
    tl.store(row + lane, acc / tl.where(total > 0.0, total, 1.0), mask=lane < size)


def paged_attention(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, *, softmax_scale):
    out, heads, size, page = torch.zeros_like(query), query.shape[1], query.shape[2], key_cache.shape[1]
    if tokens := int(query_start_loc[-1]):
        attention[tokens, heads](
            query, key_cache, value_cache, block_table, query_start_loc, seq_lens, out, query.stride()[:2],
            key_cache.stride()[:3], value_cache.stride()[:3], out.stride()[:2], block_table.stride(0), softmax_scale,
            heads // key_cache.shape[2], size, page,
            LANES=triton.next_power_of_2(size), SLOTS=64,
        )  # fmt: skip
    return out
