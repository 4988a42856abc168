"""One launch of parallel_softmax.py: the segment of a Q Block that ends last merges what the others left.

Every segment with tiles counts itself in once its part is written. The atomic releases that part and acquires the
parts of all before it; a barrier ahead of it joins the program's threads to its release. Who counts last merges, and
sets the counter back to zero, so that a graph replays without a memset.
"""

from dataclasses import dataclass, replace
from types import ModuleType

import torch
import triton
import triton.language as tl

from common.spec import AttentionShape, Gpu
from common.spec.kernel import Capacity, launches
from common.spec.metadata import BatchStats, num_q_blocks
from common.spec.workspaces import SegmentScratch, ensure_room, partials
from dsl_triton import parallel_softmax
from dsl_triton.ablations import SUPPORTS
from dsl_triton.binding import smallest_block_m, strides
from dsl_triton.features import bundle
from dsl_triton.masks import kv_tile_range, segment_range
from dsl_triton.page_runs import run_length
from dsl_triton.parallel_softmax import ANY_QUERY, CONTRACT, DEFAULT, Config, _segments_kernel, space
from dsl_triton.primitives import locate_q_block
from dsl_triton.reduce_segments import merge_row

__all__ = ["CONTRACT", "DEFAULT", "SUPPORTS", "Config", "space"]


@dataclass(frozen=True)
class Workspace:
    """parts: see reduce_segments.py. arrived: int32, one counter a Q Block and KV head, zero between launches."""

    parts: SegmentScratch
    arrived: torch.Tensor


def default(heuristics: ModuleType, shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> Config:
    return replace(heuristics.parallel_softmax(shape, stats, gpu), overlap=False)  # no launch that could overlap


@triton.jit(do_not_specialize=["num_seqs"])
def _last_arriver_kernel(
    query_ptr,  # [num_tokens, num_query_heads, HEAD_SIZE]
    key_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, HEAD_SIZE]
    value_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, HEAD_SIZE]
    block_table_ptr,  # i32 or i64 [num_seqs, max_blocks]
    query_start_loc_ptr,  # i32 [num_seqs + 1]
    seq_lens_ptr,  # i32 [num_seqs]
    out_ptr,  # [num_tokens, num_query_heads, HEAD_SIZE]
    lse_ptr,  # f32 [num_tokens, num_query_heads] or None
    acc_ptr,  # f32 [NUM_SEGMENTS, num_tokens, num_query_heads, HEAD_SIZE]
    m_ptr,  # f32 [NUM_SEGMENTS, num_tokens, num_query_heads]
    l_ptr,  # f32 [NUM_SEGMENTS, num_tokens, num_query_heads]
    arrived_ptr,  # i32 [Q Blocks, num_kv_heads]
    num_seqs,
    softmax_scale,
    f,
    query_strides, key_strides, value_strides, block_table_strides, out_strides, lse_strides, acc_strides, m_strides,
    NUM_KV_HEADS: tl.constexpr, QUERIES_PER_KV: tl.constexpr, HEAD_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, TILE_SIZE: tl.constexpr, RUN: tl.constexpr, NUM_SEGMENTS: tl.constexpr,
    LONGEST_QUERY: tl.constexpr,
):  # fmt: skip
    _segments_kernel(
        query_ptr, key_cache_ptr, value_cache_ptr, block_table_ptr, query_start_loc_ptr, seq_lens_ptr,
        out_ptr, lse_ptr, acc_ptr, m_ptr, l_ptr, num_seqs, NUM_SEGMENTS, softmax_scale, f,
        query_strides, key_strides, value_strides, block_table_strides, out_strides, lse_strides, acc_strides,
        m_strides, NUM_KV_HEADS, QUERIES_PER_KV, HEAD_SIZE, HEAD_SIZE, BLOCK_SIZE, BLOCK_M, TILE_SIZE, RUN,
        OVERLAP=False, LONGEST_QUERY=LONGEST_QUERY, BY_SEQUENCE=False,
    )  # fmt: skip
    if NUM_SEGMENTS > 1:
        BLOCK_Q: tl.constexpr = BLOCK_M // QUERIES_PER_KV
        kv_head = tl.program_id(0) % NUM_KV_HEADS
        segment = tl.program_id(0) // NUM_KV_HEADS % NUM_SEGMENTS
        q_block_idx = tl.program_id(0) // (NUM_KV_HEADS * NUM_SEGMENTS)
        seq, query_start, query_len, seq_len, first = locate_q_block(
            q_block_idx, query_start_loc_ptr, seq_lens_ptr, num_seqs, BLOCK_Q
        )
        if first < query_len:
            end = tl.minimum(first + BLOCK_Q, query_len)
            context_len = seq_len - query_len
            _, _, lo, full_lo, full_hi, hi = kv_tile_range(
                seq, context_len + first, context_len + end - 1, seq_len, f, TILE_SIZE
            )
            _, _, _, _, used = segment_range(segment, lo, full_lo, full_hi, hi, f, NUM_SEGMENTS)
            if (used > 1) & (segment < used):
                arrived_ptr += q_block_idx * NUM_KV_HEADS + kv_head
                tl.debug_barrier()  # the part was written by all threads, the atomic is one thread's
                if tl.atomic_add(arrived_ptr, 1, sem="acq_rel") == used - 1:
                    tl.store(arrived_ptr, 0)
                    for r in range((end - first) * QUERIES_PER_KV):
                        row = query_start + first + r // QUERIES_PER_KV
                        head = kv_head * QUERIES_PER_KV + r % QUERIES_PER_KV
                        merge_row(
                            row, row, kv_head, head, used, acc_ptr, m_ptr, l_ptr, out_ptr, lse_ptr, f,
                            acc_strides, m_strides, out_strides, lse_strides, HEAD_SIZE,
                            triton.next_power_of_2(NUM_SEGMENTS),
                        )  # fmt: skip


def workspace(shape: AttentionShape, capacity: Capacity, config: Config) -> Workspace | None:
    """Scratch for any batch up to `capacity`; None with one segment, which needs no reduction."""
    parts = parallel_softmax.workspace(shape, capacity, config)
    if parts is None:
        return None
    q_blocks = num_q_blocks(capacity.num_tokens, capacity.num_seqs, _block_m(shape, config) // shape.queries_per_kv)
    return Workspace(parts, torch.zeros(q_blocks * shape.num_kv_heads, dtype=torch.int32, device=capacity.device))


@launches("triton/ablations.last_arriver", SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """Write out (and lse) of every query token."""
    shape = batch.shape
    parts = partials(workspace.parts if workspace else None)
    block_m = _block_m(shape, config)
    q_blocks = batch.num_q_blocks(block_m)
    ensure_room(parts[0], batch, config.num_segments)
    _last_arriver_kernel[(shape.num_kv_heads * config.num_segments * q_blocks,)](
        batch.query, batch.key_cache, batch.value_cache, batch.block_table, batch.query_start_loc, batch.seq_lens,
        out, lse, *parts, workspace.arrived if workspace else None, batch.num_seqs, batch.softmax_scale,
        bundle(features), batch.query.stride(), batch.key_cache.stride(), batch.value_cache.stride(),
        batch.block_table.stride(), out.stride(), strides(lse), *map(strides, parts[:2]),
        NUM_KV_HEADS=shape.num_kv_heads, QUERIES_PER_KV=shape.queries_per_kv, HEAD_SIZE=shape.head_size,
        BLOCK_SIZE=shape.block_size, BLOCK_M=block_m, TILE_SIZE=config.tile_size,
        RUN=run_length(config.gather, batch, config.tile_size),
        NUM_SEGMENTS=config.num_segments, LONGEST_QUERY=ANY_QUERY,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip


def _block_m(shape: AttentionShape, config: Config) -> int:
    return max(config.block_m, smallest_block_m(shape))
