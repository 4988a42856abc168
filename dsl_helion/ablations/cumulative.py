"""The cumulative Q-Block tensor of the paper (6.1) in place of arithmetic: where each sequence's Q Blocks begin.

`prepare` builds the exact prefix sum of ceil(query_len / block_q) on the device, once a step, for all layers. The grid
keeps q_block.py's bound, as the exact number of Q Blocks is known to the device alone; surplus programs lie together
at its end, where arithmetic scatters one behind each sequence. But for the search the lines are those of q_block.py.
"""

from types import ModuleType

import helion.language as hl
import torch

from common.spec import AttentionShape, Features, Gpu, PagedBatch
from common.spec.kernel import Capacity, launches
from common.spec.metadata import BatchStats
from dsl_helion.ablations import SUPPORTS
from dsl_helion.arithmetic import div
from dsl_helion.binding import cache_view, gather_form, kernel, run, smallest_block_m
from dsl_helion.features import bundle, row_operands
from dsl_helion.masks import join_loops, kv_tile_range
from dsl_helion.primitives import attend_tile, load_rows, normalise, q_block_rows, softmax_init, store_lse, store_rows
from dsl_helion.q_block import CONTRACT, DEFAULT, Config, space

__all__ = ["CONTRACT", "DEFAULT", "SUPPORTS", "Config", "space"]


def default(heuristics: ModuleType, shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> Config:
    return heuristics.q_block(shape, stats, gpu)


def _cumulative_kernel(
    query: torch.Tensor,  # [num_tokens, num_query_heads, head_size]
    key_cache: torch.Tensor,  # [num_blocks, block_size, num_kv_heads, head_size], flat: [rows, num_kv_heads, head_size]
    value_cache: torch.Tensor,  # the same
    block_table: torch.Tensor,  # i32 or i64 [num_seqs, max_blocks]
    query_start_loc: torch.Tensor,  # i32 [num_seqs + 1]
    q_block_starts: torch.Tensor,  # i32 [num_seqs + 1]
    seq_lens: torch.Tensor,  # i32 [num_seqs]
    out: torch.Tensor,  # [num_tokens, num_query_heads, head_size]
    lse: torch.Tensor | None,  # f32 [num_tokens, num_query_heads]
    softmax_scale: float,
    f: dict,
    num_kv_heads: hl.constexpr,
    block_size: hl.constexpr,
    page_rows: int,
    gather: hl.constexpr,
    min_block_m: hl.constexpr,
    few_rows: hl.constexpr,
) -> None:
    num_seqs = seq_lens.size(0)
    head_size = hl.specialize(query.size(2))
    hl.specialize((key_cache.size(-1), value_cache.size(-1), key_cache.size(-2), value_cache.size(-2), out.size(2)))
    queries_per_kv = hl.specialize(query.size(1)) // num_kv_heads
    block_m = hl.register_block_size(min_block_m, 256)
    tile_size = hl.register_block_size(16, 256)
    block_q = block_m // queries_per_kv
    q_blocks = query.size(0) // block_q + num_seqs
    for program, kv_head in hl.grid([q_blocks, num_kv_heads]):
        q_block_idx = q_blocks - 1 - program  # the last Q Blocks of a prefill see most keys and start first

        if q_block_idx < q_block_starts[num_seqs]:
            # The first guess is exact where every query has one token, as in q_block.py.
            guess = hl.full([], q_block_idx, dtype=torch.int32)
            guess = torch.minimum(guess, hl.full([], num_seqs - 1, dtype=torch.int32))
            begins = q_block_starts[guess] <= q_block_idx
            ends = q_block_starts[guess + 1] > q_block_idx
            left = torch.where(begins, guess, 0)
            right = torch.where(begins & ends, guess + 1, torch.where(begins, num_seqs, guess))
            while right - left > 1:
                middle = div(left + right, 2)
                if q_block_starts[middle] <= q_block_idx:
                    left = middle
                else:
                    right = middle
            seq = left

            query_start = query_start_loc[seq]
            query_len = query_start_loc[seq + 1] - query_start
            first = (q_block_idx - q_block_starts[seq]) * block_q
            seq_len = seq_lens[seq]
            context_len = seq_len - query_len
            token, head, live = q_block_rows(first, kv_head, query_len, queries_per_kv, block_m)
            query_pos = context_len + token
            last_pos = context_len + torch.minimum(first + block_q, query_len) - 1
            q = load_rows(query, query_start + token, head, live)  # [block_m, head_size]
            r = row_operands(f, seq, kv_head, token, head, live, context_len)
            m, l, acc = softmax_init(f, head, live, 0, q, head_size)
            first_key, end_key, lo, full_lo, full_hi, hi = kv_tile_range(
                seq, context_len + first, last_pos, seq_len, f, tile_size
            )
            full_lo, full_hi = join_loops(full_lo, full_hi, hi, key_cache, f, few_rows)
            for j_left in hl.grid(lo, full_lo):
                m, l, acc = attend_tile(
                    j_left, q, m, l, acc, query_pos, seq, seq_len, first_key, end_key, kv_head, softmax_scale, f,
                    r, key_cache, value_cache, block_table, block_size, page_rows, gather, tile_size, True,
                )  # fmt: skip
            for j_full in hl.grid(full_lo, full_hi):
                m, l, acc = attend_tile(
                    j_full, q, m, l, acc, query_pos, seq, seq_len, first_key, end_key, kv_head, softmax_scale, f,
                    r, key_cache, value_cache, block_table, block_size, page_rows, gather, tile_size, False,
                )  # fmt: skip
            for j_right in hl.grid(full_hi, hi):
                m, l, acc = attend_tile(
                    j_right, q, m, l, acc, query_pos, seq, seq_len, first_key, end_key, kv_head, softmax_scale, f,
                    r, key_cache, value_cache, block_table, block_size, page_rows, gather, tile_size, True,
                )  # fmt: skip
            store_rows(out, query_start + token, head, live, normalise(acc, l, kv_head, f))
            store_lse(lse, query_start + token, head, live, m, l)


_cumulative = kernel(_cumulative_kernel)


def workspace(shape: AttentionShape, capacity: Capacity, config: Config) -> torch.Tensor:
    """int32 [num_seqs + 1], which `prepare` fills; zeros name no Q Block."""
    return torch.zeros(capacity.num_seqs + 1, dtype=torch.int32, device=capacity.device)


def prepare(batch: PagedBatch, features: Features, config: Config, workspace: torch.Tensor) -> torch.Tensor:
    """Where each sequence's Q Blocks begin, and behind the last their number; no sync."""
    block_q = max(config.block_m, smallest_block_m(batch.shape)) // batch.shape.queries_per_kv
    needed = (torch.diff(batch.query_start_loc) + block_q - 1) // block_q
    torch.cumsum(needed, 0, dtype=torch.int32, out=workspace[1 : batch.num_seqs + 1])
    return workspace


@launches("helion/ablations.cumulative", SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """Write out (and lse) of every query token."""
    shape = batch.shape
    gather, page_rows = gather_form(config.gather, batch, config.tile_size)
    block_m = max(config.block_m, smallest_block_m(shape))
    args = (
        batch.query, cache_view(batch.key_cache, gather, page_rows), cache_view(batch.value_cache, gather, page_rows),
        batch.block_table, batch.query_start_loc, workspace, batch.seq_lens, out, lse, batch.softmax_scale,
        bundle(features), shape.num_kv_heads, shape.block_size, page_rows, gather, smallest_block_m(shape),
        block_m <= 16,
    )  # fmt: skip
    order = [1, 0] if config.heads_fastest else [0, 1]
    run(_cumulative, config, args, block_sizes=[block_m, config.tile_size], loop_orders=[order])
