"""Decode and prefill in one kernel (the paper's negative result, 8): each program branches on the device.

A Q Block holds `block_m` rows. Where its sequence's whole query fits into `decode_block_m` rows, the program attends
with those and with `decode_tile_size` keys a tile, else with `block_m` and `tile_size`: each kind of sequence gets the
shapes that suit it, in one launch. Warps, stages, registers and shared memory are those of the kernel, hence of both.
A branch of up to 16 rows takes its tiles in one loop, as q_block does (masks.join_loops).
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import ModuleType

import triton
import triton.language as tl

from common.spec import AttentionShape, Gpu
from common.spec.kernel import launches
from common.spec.metadata import BatchStats
from dsl_triton.ablations import SUPPORTS
from dsl_triton.ablations.parts import attend_q_block
from dsl_triton.binding import fits, smallest_block_m, strides
from dsl_triton.features import bundle
from dsl_triton.primitives import locate_q_block
from dsl_triton.q_block import CONTRACT, workspace

__all__ = ["CONTRACT", "SUPPORTS", "workspace"]


@dataclass(frozen=True)
class Config:
    """Rows and keys of either branch; rows are raised to the GQA ratio's next power of two where that is larger."""

    block_m: int = 32
    tile_size: int = 32
    decode_block_m: int = 16
    decode_tile_size: int = 64
    num_warps: int = 4
    num_stages: int = 2


DEFAULT = Config()


def default(heuristics: ModuleType, shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> Config:
    """The shapes that q_block has for a prompt and for a decode; warps and stages of the prompt."""
    prefill = heuristics.q_block(shape, replace(stats, max_query_len=512), gpu)
    decode = heuristics.q_block(shape, replace(stats, max_query_len=1), gpu)
    return Config(
        prefill.block_m, prefill.tile_size, decode.block_m, decode.tile_size, prefill.num_warps, prefill.num_stages
    )


def space(shape: AttentionShape, gpu: Gpu) -> Iterator[Config]:
    """Configs of which either branch fits."""
    axes = (32, 64, 128), (32, 64, 128), (16,), (32, 64, 128), (4, 8), (1, 2, 3)
    for block_m, tile_size, decode_m, decode_tile, num_warps, num_stages in itertools.product(*axes):
        branches = (block_m, tile_size), (decode_m, decode_tile)
        if all(fits(rows, keys, num_warps, num_stages, shape, gpu) for rows, keys in branches):
            yield Config(block_m, tile_size, decode_m, decode_tile, num_warps, num_stages)


@triton.jit(do_not_specialize=["num_seqs"])
def _fused_kernel(
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
    f,
    query_strides, key_strides, value_strides, block_table_strides, out_strides, lse_strides,
    NUM_KV_HEADS: tl.constexpr, QUERIES_PER_KV: tl.constexpr, HEAD_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, TILE_SIZE: tl.constexpr, DECODE_BLOCK_M: tl.constexpr, DECODE_TILE_SIZE: tl.constexpr,
):  # fmt: skip
    BLOCK_Q: tl.constexpr = BLOCK_M // QUERIES_PER_KV
    kv_head = tl.program_id(0) % NUM_KV_HEADS
    q_block_idx = (tl.num_programs(0) - 1 - tl.program_id(0)) // NUM_KV_HEADS
    seq, query_start, query_len, seq_len, first = locate_q_block(
        q_block_idx, query_start_loc_ptr, seq_lens_ptr, num_seqs, BLOCK_Q
    )
    if first < query_len:
        if query_len <= DECODE_BLOCK_M // QUERIES_PER_KV:
            attend_q_block(
                seq, query_start, query_len, seq_len, first, kv_head, query_ptr, key_cache_ptr, value_cache_ptr,
                block_table_ptr, out_ptr, lse_ptr, softmax_scale, f,
                query_strides, key_strides, value_strides, block_table_strides, out_strides, lse_strides,
                QUERIES_PER_KV, HEAD_SIZE, BLOCK_SIZE, DECODE_BLOCK_M, DECODE_TILE_SIZE,
            )  # fmt: skip
        else:
            attend_q_block(
                seq, query_start, query_len, seq_len, first, kv_head, query_ptr, key_cache_ptr, value_cache_ptr,
                block_table_ptr, out_ptr, lse_ptr, softmax_scale, f,
                query_strides, key_strides, value_strides, block_table_strides, out_strides, lse_strides,
                QUERIES_PER_KV, HEAD_SIZE, BLOCK_SIZE, BLOCK_M, TILE_SIZE,
            )  # fmt: skip


@launches("triton/ablations.fused", SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """Write out (and lse) of every query token."""
    shape = batch.shape
    decode_m = max(config.decode_block_m, smallest_block_m(shape))
    block_m = max(config.block_m, decode_m)
    q_blocks = batch.num_q_blocks(block_m)
    _fused_kernel[(shape.num_kv_heads * q_blocks,)](
        batch.query, batch.key_cache, batch.value_cache, batch.block_table, batch.query_start_loc, batch.seq_lens,
        out, lse, batch.num_seqs, batch.softmax_scale, bundle(features),
        batch.query.stride(), batch.key_cache.stride(), batch.value_cache.stride(), batch.block_table.stride(),
        out.stride(), strides(lse),
        NUM_KV_HEADS=shape.num_kv_heads, QUERIES_PER_KV=shape.queries_per_kv, HEAD_SIZE=shape.head_size,
        BLOCK_SIZE=shape.block_size, BLOCK_M=block_m, TILE_SIZE=config.tile_size, DECODE_BLOCK_M=decode_m,
        DECODE_TILE_SIZE=config.decode_tile_size, num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
