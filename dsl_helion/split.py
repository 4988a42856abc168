"""Split (AMD's blog, phases 1 and 2): a prefill kernel and a decode kernel, both launched over the whole batch.

Prefill, sequences of several query tokens: Q Blocks x num_kv_heads programs. The step's own K and V are read from the
contiguous tensors that the model has just made, and only the context is gathered from pages.
Decode, sequences of one query token: num_seqs x num_kv_heads programs, the query heads padded to 16 rows, no segments.
The device decides which kernel serves a sequence; a program of the other class leaves at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

import helion.language as hl
import torch

from common.spec import AttentionShape, Cdna, Gpu, PagedBatch
from common.spec.kernel import SEAMS, Capacity, Precision, new_tokens, packed_lanes
from dsl_helion.arithmetic import div, int32
from dsl_helion.binding import (
    Gather,
    block_m_of,
    constant_axis,
    fewest_rows,
    fits,
    gather_form,
    kernel,
    launches,
    loop_order,
    operands,
    run,
    smallest_block_m,
)
from dsl_helion.features import bundle, finished, narrow, query_operand, row_operands
from dsl_helion.masks import join_loops, kv_tile_range
from dsl_helion.primitives import (
    is_other,
    join_sums,
    load_rows,
    normalise,
    other_half,
    q_block_rows,
    sequence_at,
    softmax_init,
    store_lse,
    store_rows,
)
from dsl_helion.tile_sources import attend_new_tile, attend_paged_tile, packed_operands

SUPPORTS = SEAMS | {"lse", "full_graph", "x_packed", "batch_invariant"}
CONTRACT = Precision()


@dataclass(frozen=True)
class Prefill(Cdna):
    """block_m: rows of a Q Block; raised to the GQA ratio's next power of two where that is larger.

    gather: how K and V are read through the block table (binding.Gather); the next form where it does not apply.
    """

    new_kv: ClassVar[bool] = True  # the step's new K and V are read where they are given
    block_m: int = 64
    tile_size: int = 64
    gather: Gather = "page"
    num_warps: int = 4
    num_stages: int = 2


@dataclass(frozen=True)
class Decode(Cdna):
    """A program has the query heads of one KV head as rows: 16, or the next power of two of a larger GQA ratio."""

    tile_size: int = 64
    gather: Gather = "flat"
    num_warps: int = 4
    num_stages: int = 2


@dataclass(frozen=True)
class Config:
    """prefill and decode: one part for each launch."""

    prefill: Prefill = Prefill()
    decode: Decode = Decode()


DEFAULT = Config()


def space(shape: AttentionShape, gpu: Gpu) -> Iterator[Config]:
    """Pairs of configs that fit, each prefill with every decode."""
    axes = ("page", "flat"), (2, 4, 8), (1, 2, 3)
    decodes = [Decode(*v) for v in product((64, 128), *axes) if fits(Prefill(16, *v), shape, gpu)]
    for values in product((16, 32, 64, 128), (16, 32, 64, 128), *axes):
        if fits(prefill := Prefill(*values), shape, gpu):
            for decode in decodes:
                yield Config(prefill, decode)


def _prefill_kernel(
    query: torch.Tensor,  # [num_tokens, num_query_heads, head_size]
    key_cache: torch.Tensor,  # [num_blocks, block_size, num_kv_heads, head_size], flat, or x-packed (tile_sources)
    value_cache: torch.Tensor,  # the same, value_size in place of head_size
    block_table: torch.Tensor,  # i32 or i64 [num_seqs, max_blocks]
    query_start_loc: torch.Tensor,  # i32 [num_seqs + 1]
    seq_lens: torch.Tensor,  # i32 [num_seqs]
    key: torch.Tensor | None,  # [num_tokens, num_kv_heads, head_size]; None: every key is read from the pages
    value: torch.Tensor | None,  # the same
    out: torch.Tensor,  # [num_tokens, num_query_heads, value_size]
    lse: torch.Tensor | None,  # f32 [num_tokens, num_query_heads]
    softmax_scale: float,
    f: dict,
    f_paged: dict,
    num_kv_heads: hl.constexpr,
    block_size: hl.constexpr,
    page_rows: int,
    gather: hl.constexpr,
    x: hl.constexpr,
) -> None:
    num_seqs = seq_lens.size(0)
    lanes = hl.specialize((query.size(2), out.size(2)))  # head size, value size
    hl.specialize((key_cache.size(-1), value_cache.size(-1), key_cache.size(-2), value_cache.size(-2)))
    hl.specialize((key_cache.size(1), value_cache.size(1)))  # whole pages need no mask
    hl.specialize((key_cache.stride(0), value_cache.stride(0)))  # K and V share what is computed of a page
    axis = constant_axis(num_kv_heads, gather)
    hl.specialize((key_cache.stride(axis), value_cache.stride(axis)))
    queries_per_kv = hl.specialize(query.size(1)) // num_kv_heads
    block_m = hl.register_block_size(fewest_rows(queries_per_kv), 256)
    tile_size = hl.register_block_size(16, 256)
    block_q = block_m // queries_per_kv
    q_blocks = query.size(0) // block_q + num_seqs
    for program, kv_head in hl.grid([q_blocks, num_kv_heads]):
        block = int32(q_blocks - 1 - program)  # the last Q Blocks of a prefill see most keys and start first

        # The last sequence that begins at or before this Q Block; sequence i does at query_start_loc[i] // block_q + i.
        # The first guess is exact where every query has one token. A sequence's three numbers are loaded at once.
        left = hl.zeros([], dtype=torch.int32)
        right = hl.full([], num_seqs, dtype=torch.int32)
        seq = torch.minimum(block - div(block + 1, int32(block_q + 1)), right - 1)
        query_start, query_end, seq_len = sequence_at(query_start_loc, seq_lens, seq)
        while is_other(block, query_start, query_end, seq, left, right, block_q):
            left, right, seq = other_half(block, query_start, seq, left, right, block_q)
            query_start, query_end, seq_len = sequence_at(query_start_loc, seq_lens, seq)
        query_len = query_end - query_start
        first = (block - (div(query_start, block_q) + seq)) * int32(block_q)
        if (first < query_len) & (query_len > 1):
            context_len = seq_len - query_len
            token, head, live = q_block_rows(first, kv_head, query_len, queries_per_kv, block_m)
            query_pos = context_len + token
            last = torch.minimum(first + int32(block_q), query_len) - 1
            q = load_rows(query, query_start + token, head, live)  # [block_m, head_size]
            r = row_operands(f, seq, kv_head, token, head, live, context_len)
            q, r = query_operand(q, r, key_cache)
            m, l, acc = softmax_init(f, head, live, 0, q, lanes[1])

            # the context, which every row sees unless a window hides it; all keys where no new K and V are given
            cached = seq_len
            if key is not None:
                cached = context_len
            first_key, end_key, lo, full_lo, full_hi, hi = kv_tile_range(
                seq, context_len + first, context_len + last, cached, f_paged, tile_size
            )
            for j_left in hl.grid(lo, full_lo):
                m, l, acc = attend_paged_tile(
                    j_left, q, m, l, acc, query_pos, seq, cached, first_key, end_key, kv_head, softmax_scale, f_paged,
                    r, key_cache, value_cache, block_table, lanes, block_size, page_rows, gather, tile_size, x, True,
                )  # fmt: skip
            for j_full in hl.grid(full_lo, full_hi):
                m, l, acc = attend_paged_tile(
                    j_full, q, m, l, acc, query_pos, seq, cached, first_key, end_key, kv_head, softmax_scale, f_paged,
                    r, key_cache, value_cache, block_table, lanes, block_size, page_rows, gather, tile_size, x, False,
                )  # fmt: skip
            for j_right in hl.grid(full_hi, hi):
                m, l, acc = attend_paged_tile(
                    j_right, q, m, l, acc, query_pos, seq, cached, first_key, end_key, kv_head, softmax_scale, f_paged,
                    r, key_cache, value_cache, block_table, lanes, block_size, page_rows, gather, tile_size, x, True,
                )  # fmt: skip

            if key is not None:  # the new tokens, counted from the first that has a key
                new_len = torch.minimum(query_len, seq_len)
                new_start = query_start + query_len - new_len
                new_pos = token + new_len - query_len
                new_key, new_end, new_lo, new_full_lo, new_full_hi, new_hi = kv_tile_range(
                    seq, first + new_len - query_len, last + new_len - query_len, new_len, f, tile_size
                )
                for n_left in hl.grid(new_lo, new_full_lo):
                    m, l, acc = attend_new_tile(
                        n_left, q, m, l, acc, new_pos, new_len, new_key, new_end, kv_head, softmax_scale, f, r,
                        key, value, new_start, lanes, tile_size, True,
                    )  # fmt: skip
                for n_full in hl.grid(new_full_lo, new_full_hi):
                    m, l, acc = attend_new_tile(
                        n_full, q, m, l, acc, new_pos, new_len, new_key, new_end, kv_head, softmax_scale, f, r,
                        key, value, new_start, lanes, tile_size, False,
                    )  # fmt: skip
                for n_right in hl.grid(new_full_hi, new_hi):
                    m, l, acc = attend_new_tile(
                        n_right, q, m, l, acc, new_pos, new_len, new_key, new_end, kv_head, softmax_scale, f, r,
                        key, value, new_start, lanes, tile_size, True,
                    )  # fmt: skip
            total = finished(narrow(acc, lanes[1]), value_cache, f, r)
            sums = join_sums(l, f)
            store_rows(out, query_start + token, head, live, normalise(total, sums, kv_head, f))
            store_lse(lse, query_start + token, head, live, m, sums)


def _decode_kernel(
    query: torch.Tensor,  # [num_tokens, num_query_heads, head_size]
    key_cache: torch.Tensor,  # [num_blocks, block_size, num_kv_heads, head_size], flat, or x-packed (tile_sources)
    value_cache: torch.Tensor,  # the same, value_size in place of head_size
    block_table: torch.Tensor,  # i32 or i64 [num_seqs, max_blocks]
    query_start_loc: torch.Tensor,  # i32 [num_seqs + 1]
    seq_lens: torch.Tensor,  # i32 [num_seqs]
    out: torch.Tensor,  # [num_tokens, num_query_heads, value_size]
    lse: torch.Tensor | None,  # f32 [num_tokens, num_query_heads]
    softmax_scale: float,
    f: dict,
    num_kv_heads: hl.constexpr,
    block_size: hl.constexpr,
    page_rows: int,
    gather: hl.constexpr,
    x: hl.constexpr,
    block_m: hl.constexpr,
) -> None:
    lanes = hl.specialize((query.size(2), out.size(2)))  # head size, value size
    hl.specialize((key_cache.size(-1), value_cache.size(-1), key_cache.size(-2), value_cache.size(-2)))
    hl.specialize((key_cache.size(1), value_cache.size(1)))  # whole pages need no mask
    hl.specialize((key_cache.stride(0), value_cache.stride(0)))  # K and V share what is computed of a page
    hl.specialize((key_cache.stride(-3), value_cache.stride(-3)))  # of slots: whole pages then add one offset a page
    queries_per_kv = hl.specialize(query.size(1)) // num_kv_heads
    tile_size = hl.register_block_size(16, 256)
    for program, kv_head in hl.grid([seq_lens.size(0), num_kv_heads]):
        seq = hl.full([], program, dtype=torch.int32)
        query_start = query_start_loc[seq]
        seq_len = seq_lens[seq]
        if query_start_loc[seq + 1] - query_start == 1:
            token, head, live = q_block_rows(0, kv_head, 1, queries_per_kv, block_m)
            context_len = seq_len - 1
            query_pos = context_len + token
            q = load_rows(query, query_start + token, head, live)  # [block_m, head_size]
            r = row_operands(f, seq, kv_head, token, head, live, context_len)
            q, r = query_operand(q, r, key_cache)
            m, l, acc = softmax_init(f, head, live, 0, q, lanes[1])
            first_key, end_key, lo, full_lo, full_hi, hi = kv_tile_range(
                seq, seq_len - 1, seq_len - 1, seq_len, f, tile_size
            )
            full_lo, full_hi = join_loops(full_lo, full_hi, hi, key_cache, f, block_m <= 16)
            for j_left in hl.grid(lo, full_lo):
                m, l, acc = attend_paged_tile(
                    j_left, q, m, l, acc, query_pos, seq, seq_len, first_key, end_key, kv_head, softmax_scale, f,
                    r, key_cache, value_cache, block_table, lanes, block_size, page_rows, gather, tile_size, x, True,
                )  # fmt: skip
            for j_full in hl.grid(full_lo, full_hi):
                m, l, acc = attend_paged_tile(
                    j_full, q, m, l, acc, query_pos, seq, seq_len, first_key, end_key, kv_head, softmax_scale, f,
                    r, key_cache, value_cache, block_table, lanes, block_size, page_rows, gather, tile_size, x, False,
                )  # fmt: skip
            for j_right in hl.grid(full_hi, hi):
                m, l, acc = attend_paged_tile(
                    j_right, q, m, l, acc, query_pos, seq, seq_len, first_key, end_key, kv_head, softmax_scale, f,
                    r, key_cache, value_cache, block_table, lanes, block_size, page_rows, gather, tile_size, x, True,
                )  # fmt: skip
            total = finished(narrow(acc, lanes[1]), value_cache, f, r)
            sums = join_sums(l, f)
            store_rows(out, query_start + token, head, live, normalise(total, sums, kv_head, f))
            store_lse(lse, query_start + token, head, live, m, sums)


_prefill = kernel(_prefill_kernel, "num_seqs", "q_blocks", "block_q")
_decode = kernel(_decode_kernel)


def workspace(shape: AttentionShape, capacity: Capacity, config: Config) -> None:
    """No scratch."""


@launches("helion/split", SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """Write out (and lse) of every query token."""
    _launch_prefill(batch, features, out, config.prefill, lse)
    _launch_decode(batch, features, out, config.decode, lse)


def _launch_prefill(batch, features, out, config, lse) -> None:
    # every context key precedes every new token, so the context needs no causal mask
    key, value = new_tokens(batch, features)
    paged = features if key is None else replace(features, causal=False)
    tensors, forms = _operands(batch, config)
    block_m = block_m_of(config, batch.shape)
    how = config, batch.shape.head_size, block_m
    args = (
        *tensors, batch.block_table, batch.query_start_loc, batch.seq_lens, key, value,
        out, lse, batch.softmax_scale, bundle(features, *how), bundle(replace(paged, sinks=None), *how), *forms,
    )  # fmt: skip
    run(_prefill, config, args, block_sizes=[block_m, config.tile_size], loop_orders=[loop_order(config, 2)])


def _launch_decode(batch, features, out, config, lse) -> None:
    tensors, forms = _operands(batch, config)
    block_m = smallest_block_m(batch.shape)
    args = (
        *tensors, batch.block_table, batch.query_start_loc, batch.seq_lens, out, lse, batch.softmax_scale,
        bundle(features, config, batch.shape.head_size, block_m), *forms, block_m,
    )  # fmt: skip
    run(_decode, config, args, block_sizes=[config.tile_size], loop_orders=[loop_order(config, 2)])


def _operands(batch: PagedBatch, config: Prefill | Decode) -> tuple[tuple, tuple]:
    """Both kernels' Q, K and V, and their constants from num_kv_heads on."""
    shape, x = batch.shape, packed_lanes(batch)
    gather, rows = ("2idx", 0) if x is not None else gather_form(config.gather, batch, config.tile_size)
    tensors = packed_operands(batch) if x is not None else operands(batch, gather, rows)
    return tensors, (shape.num_kv_heads, shape.block_size, rows, gather, x)
