"""The cumulative Q-Block tensor of the paper (6.1) in place of arithmetic: where each sequence's Q Blocks begin.

`prepare` builds the exact prefix sum of ceil(query_len / BLOCK_Q) on the device, once a step, for all layers. The grid
keeps q_block.py's bound, as the exact number of Q Blocks is known to the device alone; surplus programs lie together
at its end, where arithmetic scatters one behind each sequence.
"""

from types import ModuleType

import torch
import triton
import triton.language as tl

from common.spec import AttentionShape, Features, Gpu, PagedBatch
from common.spec.kernel import Capacity, launches
from common.spec.metadata import BatchStats
from dsl_triton.ablations import SUPPORTS
from dsl_triton.ablations.parts import attend_q_block
from dsl_triton.binding import smallest_block_m, strides
from dsl_triton.features import bundle
from dsl_triton.primitives import search_sequence
from dsl_triton.q_block import CONTRACT, DEFAULT, Config, space

__all__ = ["CONTRACT", "DEFAULT", "SUPPORTS", "Config", "space"]


def default(heuristics: ModuleType, shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> Config:
    return heuristics.q_block(shape, stats, gpu)


@triton.jit(do_not_specialize=["num_seqs"])
def _cumulative_kernel(
    query_ptr,  # [num_tokens, num_query_heads, HEAD_SIZE]
    key_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, HEAD_SIZE]
    value_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, HEAD_SIZE]
    block_table_ptr,  # i32 or i64 [num_seqs, max_blocks]
    query_start_loc_ptr,  # i32 [num_seqs + 1]
    q_block_starts_ptr,  # i32 [num_seqs + 1]
    seq_lens_ptr,  # i32 [num_seqs]
    out_ptr,  # [num_tokens, num_query_heads, HEAD_SIZE]
    lse_ptr,  # f32 [num_tokens, num_query_heads] or None
    num_seqs,
    softmax_scale,
    f,
    query_strides, key_strides, value_strides, block_table_strides, out_strides, lse_strides,
    NUM_KV_HEADS: tl.constexpr, QUERIES_PER_KV: tl.constexpr, HEAD_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, TILE_SIZE: tl.constexpr,
):  # fmt: skip
    kv_head = tl.program_id(0) % NUM_KV_HEADS
    q_block_idx = (tl.num_programs(0) - 1 - tl.program_id(0)) // NUM_KV_HEADS
    if q_block_idx < tl.load(q_block_starts_ptr + num_seqs):
        # The first guess is exact where every query has one token, as in q_block.py.
        guess = tl.minimum(q_block_idx, num_seqs - 1)
        begins = tl.load(q_block_starts_ptr + guess) <= q_block_idx
        ends = tl.load(q_block_starts_ptr + guess + 1) > q_block_idx
        left = tl.where(begins, guess, 0)
        right = tl.where(begins & ends, guess + 1, tl.where(begins, num_seqs, guess))
        seq = search_sequence(q_block_idx, left, right, q_block_starts_ptr, None)
        query_start = tl.load(query_start_loc_ptr + seq)
        query_len = tl.load(query_start_loc_ptr + seq + 1) - query_start
        seq_len = tl.load(seq_lens_ptr + seq)
        first = (q_block_idx - tl.load(q_block_starts_ptr + seq)) * (BLOCK_M // QUERIES_PER_KV)
        attend_q_block(
            seq, query_start, query_len, seq_len, first, kv_head, query_ptr, key_cache_ptr, value_cache_ptr,
            block_table_ptr, out_ptr, lse_ptr, softmax_scale, f,
            query_strides, key_strides, value_strides, block_table_strides, out_strides, lse_strides,
            QUERIES_PER_KV, HEAD_SIZE, BLOCK_SIZE, BLOCK_M, TILE_SIZE,
        )  # fmt: skip


def workspace(shape: AttentionShape, capacity: Capacity, config: Config) -> torch.Tensor:
    """int32 [num_seqs + 1], which `prepare` fills; zeros name no Q Block."""
    return torch.zeros(capacity.num_seqs + 1, dtype=torch.int32, device=capacity.device)


def prepare(batch: PagedBatch, features: Features, config: Config, workspace: torch.Tensor) -> torch.Tensor:
    """Where each sequence's Q Blocks begin, and behind the last their number; no sync."""
    block_q = max(config.block_m, smallest_block_m(batch.shape)) // batch.shape.queries_per_kv
    needed = (torch.diff(batch.query_start_loc) + block_q - 1) // block_q
    torch.cumsum(needed, 0, dtype=torch.int32, out=workspace[1 : batch.num_seqs + 1])
    return workspace


@launches("triton/ablations.cumulative", SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """Write out (and lse) of every query token."""
    shape = batch.shape
    block_m = max(config.block_m, smallest_block_m(shape))
    q_blocks = batch.num_q_blocks(block_m)
    _cumulative_kernel[(shape.num_kv_heads * q_blocks,)](
        batch.query, batch.key_cache, batch.value_cache, batch.block_table, batch.query_start_loc, workspace,
        batch.seq_lens, out, lse, batch.num_seqs, batch.softmax_scale, bundle(features),
        batch.query.stride(), batch.key_cache.stride(), batch.value_cache.stride(), batch.block_table.stride(),
        out.stride(), strides(lse),
        NUM_KV_HEADS=shape.num_kv_heads, QUERIES_PER_KV=shape.queries_per_kv, HEAD_SIZE=shape.head_size,
        BLOCK_SIZE=shape.block_size, BLOCK_M=block_m, TILE_SIZE=config.tile_size,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
