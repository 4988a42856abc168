"""The baseline (paper 4.3, Listing 3): one program per query token and query head; a tile is a page. The textbook.

Self-contained on purpose: the whole algorithm is in this file. Features that are not in SUPPORTS are refused by name.
Two launch grids, as in the paper: query tokens x query heads for prefill, sequences x query heads for decode (there a
program walks the query tokens of its sequence, so a batch that also holds prefills stays right, only slow).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import triton
import triton.language as tl

from common.spec import AttentionShape, Gpu
from common.spec.kernel import Capacity, Precision, launches
from common.spec.metadata import BatchStats

SUPPORTS = frozenset({"causal", "non_causal", "sliding_window", "lse", "full_graph"})
CONTRACT = Precision()


@dataclass(frozen=True)
class Config:
    """grid: what the first axis of the launch counts."""

    grid: Literal["tokens", "sequences"] = "tokens"
    num_warps: int = 4
    num_stages: int = 2


DEFAULT = Config()


def space(shape: AttentionShape, gpu: Gpu) -> Iterator[Config]:
    for grid in ("tokens", "sequences"):
        for num_warps in (1, 2, 4, 8):
            for num_stages in (1, 2, 3):
                yield Config(grid, num_warps, num_stages)


def default(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> Config:
    """One warp a program, four where a page of K is more than 4 KB: a page is one load."""
    grid = "sequences" if stats.max_query_len <= 1 else "tokens"
    return Config(grid, num_warps=1 if shape.block_size * shape.head_size <= 2048 else 4)


@triton.jit(do_not_specialize=["num_seqs"])  # do not recompile for num_seqs == 1
def _naive_kernel(
    query_ptr,  # [num_tokens, num_query_heads, HEAD_SIZE]
    key_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, HEAD_SIZE]
    value_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, HEAD_SIZE]
    block_table_ptr,  # i32 or i64 [num_seqs, max_blocks]
    query_start_loc_ptr,  # i32 [num_seqs + 1]
    seq_lens_ptr,  # i32 [num_seqs]
    out_ptr,  # [num_tokens, num_query_heads, HEAD_SIZE]
    lse_ptr,  # f32 [num_tokens, num_query_heads] or None
    num_seqs,
    softmax_scale,
    sliding_window,  # int or None
    query_strides, key_strides, value_strides, block_table_strides, out_strides, lse_strides,
    CAUSAL: tl.constexpr, TOKEN_GRID: tl.constexpr, NUM_QUERY_HEADS: tl.constexpr, QUERIES_PER_KV: tl.constexpr,
    HEAD_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0) % NUM_QUERY_HEADS
    kv_head = (head // QUERIES_PER_KV).to(tl.int64)
    item = tl.program_id(0) // NUM_QUERY_HEADS
    lane = tl.arange(0, triton.next_power_of_2(HEAD_SIZE))
    slot = tl.arange(0, triton.next_power_of_2(BLOCK_SIZE))

    if TOKEN_GRID:  # the last sequence that begins at or before this token
        left = 0
        right = num_seqs
        while right - left > 1:
            middle = (left + right) // 2
            if tl.load(query_start_loc_ptr + middle) <= item:
                left = middle
            else:
                right = middle
        seq = left
        row_begin = item.to(tl.int64)
        row_end = tl.minimum(item + 1, tl.load(query_start_loc_ptr + seq + 1))
    else:
        seq = item
        row_begin = tl.load(query_start_loc_ptr + seq).to(tl.int64)
        row_end = tl.load(query_start_loc_ptr + seq + 1)
    seq_len = tl.load(seq_lens_ptr + seq)
    first_pos = seq_len - tl.load(query_start_loc_ptr + seq + 1)  # position of query row 0, were it in this sequence

    for i in range(0, (row_end - row_begin).to(tl.int32)):
        row = row_begin + i
        query_pos = first_pos + row.to(tl.int32)
        begin = 0
        end = seq_len
        if CAUSAL:
            end = query_pos + 1
        if sliding_window is not None:
            begin = tl.maximum(query_pos - sliding_window + 1, 0)
            end = tl.minimum(end, query_pos + sliding_window)
        end = tl.maximum(end, 0)  # a sequence with fewer keys than queries has negative positions

        query_row = query_ptr + row * query_strides[0] + head.to(tl.int64) * query_strides[1]
        q = tl.load(query_row + lane, mask=lane < HEAD_SIZE, other=0.0).to(tl.float32)  # [HEAD_PADDED]
        m = float("-inf")
        l = 0.0
        acc = tl.zeros([triton.next_power_of_2(HEAD_SIZE)], tl.float32)
        for page_idx in range(begin // BLOCK_SIZE, tl.cdiv(end, BLOCK_SIZE)):
            page = tl.load(block_table_ptr + seq.to(tl.int64) * block_table_strides[0] + page_idx).to(tl.int64)
            key_pos = page_idx * BLOCK_SIZE + slot
            seen = (slot < BLOCK_SIZE) & (key_pos >= begin) & (key_pos < end)
            mask = seen[:, None] & (lane < HEAD_SIZE)[None, :]
            key_row = page * key_strides[0] + slot.to(tl.int64) * key_strides[1] + kv_head * key_strides[2]
            k = tl.load(key_cache_ptr + key_row[:, None] + lane[None, :], mask=mask, other=0.0).to(tl.float32)
            s = tl.sum(q[None, :] * k, 1) * softmax_scale  # [BLOCK_PADDED]
            s = tl.where(seen, s, float("-inf"))
            m_new = tl.maximum(m, tl.max(s, 0))  # finite, because every page of the range has a visible key
            p = tl.exp(s - m_new)
            alpha = tl.exp(m - m_new)
            value_row = page * value_strides[0] + slot.to(tl.int64) * value_strides[1] + kv_head * value_strides[2]
            v = tl.load(value_cache_ptr + value_row[:, None] + lane[None, :], mask=mask, other=0.0).to(tl.float32)
            l = l * alpha + tl.sum(p, 0)
            acc = acc * alpha + tl.sum(p[:, None] * v, 0)
            m = m_new

        acc = acc / tl.where(l > 0.0, l, 1.0)  # a row that saw nothing gives zeros
        out_row = out_ptr + row * out_strides[0] + head.to(tl.int64) * out_strides[1]
        tl.store(out_row + lane, acc.to(out_ptr.dtype.element_ty), mask=lane < HEAD_SIZE)
        if lse_ptr is not None:
            tl.store(lse_ptr + row * lse_strides[0] + head.to(tl.int64) * lse_strides[1], m + tl.log(l))


def workspace(shape: AttentionShape, capacity: Capacity, config: Config) -> None:
    """No scratch."""


@launches("triton/naive", SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """Write out (and lse) of every query token."""
    shape = batch.shape
    items = batch.num_tokens if config.grid == "tokens" else batch.num_seqs
    window = features.sliding_window
    window = None if window is None else min(window, 2**30)  # position + window fits int32
    _naive_kernel[(items * shape.num_query_heads,)](
        batch.query, batch.key_cache, batch.value_cache, batch.block_table, batch.query_start_loc, batch.seq_lens,
        out, lse, batch.num_seqs, batch.softmax_scale, window,
        batch.query.stride(), batch.key_cache.stride(), batch.value_cache.stride(), batch.block_table.stride(),
        out.stride(), None if lse is None else lse.stride(),
        CAUSAL=features.causal, TOKEN_GRID=config.grid == "tokens", NUM_QUERY_HEADS=shape.num_query_heads,
        QUERIES_PER_KV=shape.queries_per_kv, HEAD_SIZE=shape.head_size, BLOCK_SIZE=shape.block_size,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
