"""Split (AMD's blog, phases 1 and 2): a prefill kernel and a decode kernel, both launched over the whole batch.

Prefill, sequences of several query tokens: Q Blocks x num_kv_heads programs. The step's own K and V are read from the
contiguous tensors that the model has just made, and only the context is gathered from pages.
Decode, sequences of one query token: num_seqs x num_kv_heads programs, the query heads padded to 16 rows, no segments.
The device decides which kernel serves a sequence; a program of the other class leaves at once.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import triton
import triton.language as tl

from common.spec import AttentionShape, Cdna, Gpu
from common.spec.kernel import SEAMS, Capacity, Precision, launches, packed_lanes
from dsl_triton.binding import as_tensor, block_m_of, fits, smallest_block_m
from dsl_triton.features import bundle, finished, narrow, new_tokens, query_operand, row_operands
from dsl_triton.masks import join_loops, kv_tile_range
from dsl_triton.primitives import (
    attend_range,
    head_and_block,
    load_rows,
    locate_q_block,
    normalise,
    q_block_rows,
    softmax_init,
    store_lse,
    store_rows,
)
from dsl_triton.tile_sources import attend_new_tile, attend_paged_tile

SUPPORTS = SEAMS | {"lse", "full_graph", "x_packed", "batch_invariant"}
CONTRACT = Precision()


@dataclass(frozen=True)
class Prefill(Cdna):
    """block_m: rows of a Q Block; raised to the GQA ratio's next power of two where that is larger."""

    new_kv: ClassVar[bool] = True  # the step's new K and V are read where they are given
    block_m: int = 64
    tile_size: int = 64
    num_warps: int = 4
    num_stages: int = 2


@dataclass(frozen=True)
class Decode(Cdna):
    """A program has the query heads of one KV head as rows: 16, or the next power of two of a larger GQA ratio."""

    tile_size: int = 64
    num_warps: int = 4
    num_stages: int = 2


@dataclass(frozen=True)
class Config:
    """prefill and decode: one part for each launch."""

    prefill: Prefill = Prefill()
    decode: Decode = Decode()


DEFAULT = Config()


def space(shape: AttentionShape, gpu: Gpu) -> Iterator[Config]:
    """Pairs of configs that fit, the prefill's axis after axis, each with every decode of the same tile."""
    axes = (16, 32, 64, 128), (16, 32, 64, 128), (2, 4, 8), (1, 2, 3, 4)
    rows = max(16, smallest_block_m(shape))
    for block_m, tile_size, num_warps, num_stages in itertools.product(*axes):
        if fits(block_m, tile_size, num_warps, num_stages, shape, gpu):
            for decode in itertools.product((32, 64, 128), (2, 4, 8), (1, 2, 3)):
                if fits(rows, *decode, shape, gpu):
                    yield Config(Prefill(block_m, tile_size, num_warps, num_stages), Decode(*decode))


@triton.jit(do_not_specialize=["num_seqs"])  # do not recompile for num_seqs == 1
def _prefill_kernel(
    query,  # [num_tokens, num_query_heads, HEAD_SIZE]
    key_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, HEAD_SIZE], or x-packed
    value_cache_ptr,  # the same
    block_table,  # i32 or i64 [num_seqs, max_blocks]
    query_start_loc_ptr,  # i32 [num_seqs + 1]
    seq_lens_ptr,  # i32 [num_seqs]
    key_ptr,  # [num_tokens, num_kv_heads, HEAD_SIZE] or None: every key is read from the pages
    value_ptr,  # the same
    out,  # [num_tokens, num_query_heads, VALUE_SIZE]
    lse,  # f32 [num_tokens, num_query_heads] or None
    num_seqs,
    softmax_scale,
    f,
    f_paged,
    key_strides, value_strides, new_strides,
    NUM_KV_HEADS: tl.constexpr, QUERIES_PER_KV: tl.constexpr, HEAD_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, X: tl.constexpr, BLOCK_M: tl.constexpr, TILE_SIZE: tl.constexpr,
):  # fmt: skip
    BLOCK_Q: tl.constexpr = BLOCK_M // QUERIES_PER_KV
    # One axis: others hold 65,535 programs at most. The last Q Blocks of a prefill see most keys and start first.
    kv_head, q_block_idx = head_and_block(f, NUM_KV_HEADS, LAST_FIRST=True)
    seq, query_start, query_len, seq_len, first = locate_q_block(
        q_block_idx, query_start_loc_ptr, seq_lens_ptr, num_seqs, BLOCK_Q
    )
    if (first < query_len) & (query_len > 1):
        context_len = seq_len - query_len
        token, head, live = q_block_rows(first, kv_head, query_len, QUERIES_PER_KV, BLOCK_M)
        last = tl.minimum(first + BLOCK_Q, query_len) - 1
        q = load_rows(query.ptr, query.strides, query_start + token, head, live, HEAD_SIZE)  # [BLOCK_M, HEAD_PADDED]
        r = row_operands(f, seq, kv_head, token, head, live, context_len)
        q, r = query_operand(q, r, key_cache_ptr)
        m, l, acc = softmax_init(f, head, live, 0, q, VALUE_SIZE)

        # the context, which every row sees unless a window hides it; all keys where no new K and V are given
        cached = seq_len
        if key_ptr is not None:
            cached = context_len
        first_key, end_key, lo, full_lo, full_hi, hi = kv_tile_range(
            seq, context_len + first, context_len + last, cached, f_paged, TILE_SIZE
        )
        table_ptr = block_table.ptr + seq.to(tl.int64) * block_table.strides[0]
        m, l, acc = attend_range(
            attend_paged_tile, lo, full_lo, full_hi, hi, q, m, l, acc, (
                context_len + token, cached, first_key, end_key, kv_head, softmax_scale, f_paged, r,
                key_cache_ptr, value_cache_ptr, table_ptr, key_strides, value_strides,
                HEAD_SIZE, VALUE_SIZE, BLOCK_SIZE, TILE_SIZE, X,
            ), TILE_SIZE,
        )  # fmt: skip

        if key_ptr is not None:  # the new tokens, counted from the first that has a key
            new_len = tl.minimum(query_len, seq_len)
            new_start = query_start + query_len - new_len
            new_pos = token + new_len - query_len
            first_key, end_key, lo, full_lo, full_hi, hi = kv_tile_range(
                seq, first + new_len - query_len, last + new_len - query_len, new_len, f, TILE_SIZE
            )
            m, l, acc = attend_range(
                attend_new_tile, lo, full_lo, full_hi, hi, q, m, l, acc, (
                    new_pos, new_len, first_key, end_key, kv_head, softmax_scale, f, r,
                    key_ptr, value_ptr, new_start, new_strides, HEAD_SIZE, TILE_SIZE,
                ), TILE_SIZE,
            )  # fmt: skip
        acc = finished(narrow(acc, VALUE_SIZE), value_cache_ptr, f, r)
        store_rows(out.ptr, out.strides, query_start + token, head, live, normalise(acc, l, kv_head, f), VALUE_SIZE)
        store_lse(lse.ptr, lse.strides, query_start + token, head, live, m, l)


@triton.jit
def _decode_kernel(
    query,  # [num_tokens, num_query_heads, HEAD_SIZE]
    key_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, HEAD_SIZE], or x-packed
    value_cache_ptr,  # the same
    block_table,  # i32 or i64 [num_seqs, max_blocks]
    query_start_loc_ptr,  # i32 [num_seqs + 1]
    seq_lens_ptr,  # i32 [num_seqs]
    out,  # [num_tokens, num_query_heads, VALUE_SIZE]
    lse,  # f32 [num_tokens, num_query_heads] or None
    softmax_scale,
    f,
    key_strides, value_strides,
    NUM_KV_HEADS: tl.constexpr, QUERIES_PER_KV: tl.constexpr, HEAD_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, X: tl.constexpr, BLOCK_M: tl.constexpr, TILE_SIZE: tl.constexpr,
):  # fmt: skip
    kv_head, seq = head_and_block(f, NUM_KV_HEADS)
    query_start = tl.load(query_start_loc_ptr + seq)
    seq_len = tl.load(seq_lens_ptr + seq)
    if tl.load(query_start_loc_ptr + seq + 1) - query_start == 1:
        token, head, live = q_block_rows(0, kv_head, 1, QUERIES_PER_KV, BLOCK_M)
        query_pos = seq_len - 1 + token
        q = load_rows(query.ptr, query.strides, query_start + token, head, live, HEAD_SIZE)  # [BLOCK_M, HEAD_PADDED]
        r = row_operands(f, seq, kv_head, token, head, live, seq_len - 1)
        q, r = query_operand(q, r, key_cache_ptr)
        m, l, acc = softmax_init(f, head, live, 0, q, VALUE_SIZE)
        first_key, end_key, lo, full_lo, full_hi, hi = kv_tile_range(
            seq, seq_len - 1, seq_len - 1, seq_len, f, TILE_SIZE
        )
        full_lo, full_hi = join_loops(full_lo, full_hi, hi, key_cache_ptr, f, BLOCK_M)
        table_ptr = block_table.ptr + seq.to(tl.int64) * block_table.strides[0]
        m, l, acc = attend_range(
            attend_paged_tile, lo, full_lo, full_hi, hi, q, m, l, acc, (
                query_pos, seq_len, first_key, end_key, kv_head, softmax_scale, f, r,
                key_cache_ptr, value_cache_ptr, table_ptr, key_strides, value_strides,
                HEAD_SIZE, VALUE_SIZE, BLOCK_SIZE, TILE_SIZE, X,
            ), TILE_SIZE,
        )  # fmt: skip
        acc = finished(narrow(acc, VALUE_SIZE), value_cache_ptr, f, r)
        store_rows(out.ptr, out.strides, query_start + token, head, live, normalise(acc, l, kv_head, f), VALUE_SIZE)
        store_lse(lse.ptr, lse.strides, query_start + token, head, live, m, l)


def workspace(shape: AttentionShape, capacity: Capacity, config: Config) -> None:
    """No scratch."""


@launches("triton/split", SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """Write out (and lse) of every query token."""
    _launch_prefill(batch, features, out, config.prefill, lse)
    _launch_decode(batch, features, out, config.decode, lse)


def _launch_prefill(batch, features, out, config, lse) -> None:
    shape = batch.shape
    block_m = block_m_of(config, shape)
    q_blocks = batch.num_q_blocks(block_m)
    # every context key precedes every new token, so the context needs no causal mask
    key, value = new_tokens(batch, features)
    paged = features if key is None else replace(features, causal=False)
    _prefill_kernel[(shape.num_kv_heads * q_blocks,)](
        as_tensor(batch.query), batch.key_cache, batch.value_cache, as_tensor(batch.block_table),
        batch.query_start_loc, batch.seq_lens, key, value, as_tensor(out), as_tensor(lse), batch.num_seqs,
        batch.softmax_scale, bundle(features, config), bundle(paged, config),
        batch.key_cache.stride(), batch.value_cache.stride(), None if key is None else (0, *key.stride()),
        NUM_KV_HEADS=shape.num_kv_heads, QUERIES_PER_KV=shape.queries_per_kv, HEAD_SIZE=shape.head_size,
        VALUE_SIZE=shape.value_lanes, BLOCK_SIZE=shape.block_size, X=packed_lanes(batch), BLOCK_M=block_m,
        TILE_SIZE=config.tile_size, num_warps=config.num_warps, num_stages=config.num_stages, **config.options(),
    )  # fmt: skip


def _launch_decode(batch, features, out, config, lse) -> None:
    shape = batch.shape
    _decode_kernel[(shape.num_kv_heads * batch.num_seqs,)](
        as_tensor(batch.query), batch.key_cache, batch.value_cache, as_tensor(batch.block_table),
        batch.query_start_loc, batch.seq_lens, as_tensor(out), as_tensor(lse), batch.softmax_scale,
        bundle(features, config), batch.key_cache.stride(), batch.value_cache.stride(),
        NUM_KV_HEADS=shape.num_kv_heads, QUERIES_PER_KV=shape.queries_per_kv, HEAD_SIZE=shape.head_size,
        VALUE_SIZE=shape.value_lanes, BLOCK_SIZE=shape.block_size, X=packed_lanes(batch),
        BLOCK_M=max(16, smallest_block_m(shape)), TILE_SIZE=config.tile_size,
        num_warps=config.num_warps, num_stages=config.num_stages, **config.options(),
    )  # fmt: skip
