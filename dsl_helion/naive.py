"""The baseline (paper 4.3, Listing 3): one program per query token and query head; a tile is a page. The textbook.

Self-contained on purpose: the whole algorithm is in this file. Features that are not in SUPPORTS are refused by name.
Two launch grids, as in the paper: query tokens x query heads for prefill, sequences x query heads for decode (there a
program walks the query tokens of its sequence, so a batch that also holds prefills stays right, only slow).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import helion
import helion.language as hl
import torch

from common.spec import AttentionShape, Gpu
from common.spec.kernel import Capacity, Precision, launches
from common.spec.metadata import BatchStats
from dsl_helion.binding import kernel, run

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


def _naive_kernel(
    query: torch.Tensor,  # [num_tokens, num_query_heads, head_size]
    key_cache: torch.Tensor,  # [num_blocks, block_size, num_kv_heads, head_size]
    value_cache: torch.Tensor,  # [num_blocks, block_size, num_kv_heads, head_size]
    block_table: torch.Tensor,  # i32 or i64 [num_seqs, max_blocks]
    query_start_loc: torch.Tensor,  # i32 [num_seqs + 1]
    seq_lens: torch.Tensor,  # i32 [num_seqs]
    out: torch.Tensor,  # [num_tokens, num_query_heads, head_size]
    lse: torch.Tensor | None,  # f32 [num_tokens, num_query_heads]
    softmax_scale: float,
    sliding_window: int | None,
    causal: hl.constexpr,
    token_grid: hl.constexpr,
) -> None:
    num_seqs = seq_lens.size(0)
    head_size = hl.specialize(query.size(2))
    hl.specialize((key_cache.size(3), value_cache.size(3), value_cache.size(1), value_cache.size(2), out.size(2)))
    block_size = hl.specialize(key_cache.size(1))
    num_query_heads = hl.specialize(query.size(1))
    queries_per_kv = num_query_heads // hl.specialize(key_cache.size(2))
    if token_grid:
        items = query.size(0)
    else:
        items = num_seqs
    for item, head in hl.grid([items, num_query_heads]):
        kv_head = head // queries_per_kv
        slot = hl.arange(helion.next_power_of_2(block_size)).to(torch.int64)  # before a stride multiplies it

        if token_grid:  # the last sequence that begins at or before this token
            left = hl.zeros([], dtype=torch.int32)
            right = hl.full([], num_seqs, dtype=torch.int32)
            while right - left > 1:
                middle = (left + right) // 2
                if query_start_loc[middle] <= item:
                    left = middle
                else:
                    right = middle
            seq = left
            row_begin = hl.full([], item, dtype=torch.int32)
            row_end = torch.minimum(row_begin + 1, query_start_loc[seq + 1])
        else:
            seq = hl.full([], item, dtype=torch.int32)
            row_begin = query_start_loc[seq]
            row_end = query_start_loc[seq + 1]
        seq_len = seq_lens[seq]
        first_pos = seq_len - query_start_loc[seq + 1]  # position of query row 0, were it in this sequence

        for i in hl.grid(row_begin, row_end):
            row = hl.full([], i, dtype=torch.int64)
            query_pos = first_pos + i
            begin = hl.zeros([], dtype=torch.int32)
            end = seq_len
            if causal:
                end = query_pos + 1
            if sliding_window is not None:
                begin = torch.maximum(query_pos - sliding_window + 1, begin)
                end = torch.minimum(end, query_pos + sliding_window)
            end = torch.maximum(end, hl.zeros([], dtype=torch.int32))  # negative: a sequence without keys

            q = query[row, head, :].to(torch.float32)  # [head_size]
            m = hl.full([], float("-inf"), dtype=torch.float32)
            l = hl.zeros([], dtype=torch.float32)
            acc = hl.zeros([head_size], dtype=torch.float32)
            for page_idx in hl.grid(begin // block_size, (end + block_size - 1) // block_size):
                page = block_table[seq, page_idx].to(torch.int64).unsqueeze(0)  # of rank 1, as the slots are
                key_pos = page_idx * block_size + slot
                seen = (slot < block_size) & (key_pos >= begin) & (key_pos < end)
                k = hl.load(key_cache, [page, slot, kv_head, slice(None)], extra_mask=seen[None, :, None])
                k = k.squeeze(0).to(torch.float32)
                s = (q[None, :] * k).sum(1) * softmax_scale  # [block_padded]
                s = torch.where(seen, s, float("-inf"))
                m_new = torch.maximum(m, s.amax(0))  # finite, because every page of the range has a visible key
                p = torch.exp(s - m_new)
                alpha = torch.exp(m - m_new)
                v = hl.load(value_cache, [page, slot, kv_head, slice(None)], extra_mask=seen[None, :, None])
                v = v.squeeze(0).to(torch.float32)
                l = l * alpha + p.sum(0)
                acc = acc * alpha + (p[:, None] * v).sum(0)
                m = m_new

            acc = acc / torch.where(l > 0.0, l, 1.0)  # a row that saw nothing gives zeros
            out[row, head, :] = acc.to(out.dtype)
            if lse is not None:
                lse[row, head] = m + torch.log(l)


_naive = kernel(_naive_kernel, "num_seqs")


def workspace(shape: AttentionShape, capacity: Capacity, config: Config) -> None:
    """No scratch."""


@launches("helion/naive", SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """Write out (and lse) of every query token."""
    args = (
        batch.query,
        batch.key_cache,
        batch.value_cache,
        batch.block_table,
        batch.query_start_loc,
        batch.seq_lens,
        out,
        lse,
        batch.softmax_scale,
        None
        if features.sliding_window is None
        else min(features.sliding_window, 2**30),  # position + window fits int32
        features.causal,
        config.grid == "tokens",
    )
    run(_naive, config, args)
