"""Adjustable tiles (paper 4.6): the tile size is independent of the page size, and prefill and decode have their own.

Two launches over one batch: sequences of at most SHORT_QUERY query tokens go to parallel_softmax.py, the others to the
Q Blocks of this file. Each launch has its own rows, tile, warps and stages; the device decides who goes where. New over
parallel_softmax.py: a tile is loaded in runs of keys that cannot leave a page (page_runs.py). A tile larger than the
page is whole pages [pages, page, head], a tile inside a page has one page id, and a tile that straddles pages is cut
into blocks that both are multiples of.

Grid of the prefill: Q Blocks x num_kv_heads, one axis. It is not launched for a batch of at most SHORT_QUERY tokens,
which has no long query. The decode is always launched: tokens may be padding, so no shape proves that a batch has no
short query.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import helion.language as hl
import torch

from common.spec import AttentionShape, Cdna, Gpu
from common.spec.kernel import SEAMS, Capacity, Precision, count_parts
from common.spec.metadata import SHORT_QUERY
from common.spec.workspaces import SegmentScratch, ensure_room, partials
from dsl_helion import parallel_softmax
from dsl_helion.arithmetic import div, int32
from dsl_helion.binding import (
    block_m_of,
    constant_axis,
    fewest_rows,
    fits,
    held,
    kernel,
    launches,
    loop_order,
    operands,
    run,
)
from dsl_helion.features import bundle, row_operands
from dsl_helion.head_parts import attend_parts, in_parts, init_parts, load_query, store_parts
from dsl_helion.masks import kv_tile_range
from dsl_helion.page_runs import Gather, gather_form
from dsl_helion.primitives import is_other, join_sums, other_half, q_block_rows, sequence_at, store_lse

SUPPORTS = SEAMS | {"lse", "full_graph", "batch_invariant"}
CONTRACT = Precision()


@dataclass(frozen=True)
class Prefill(Cdna):
    """How queries of more than SHORT_QUERY tokens are served.

    block_m: rows of a Q Block; raised to the GQA ratio's next power of two where that is larger.
    gather: how K and V are addressed through the block table (page_runs.Gather); the next form where it does not apply.
    heads_fastest: programs that start together work on the KV heads of one Q Block, not on Q Blocks of one KV head.
    """

    block_m: int = 64
    tile_size: int = 64
    gather: Gather = "run"
    heads_fastest: bool = True
    num_warps: int = 4
    num_stages: int = 2


@dataclass(frozen=True)
class Config:
    """prefill: sequences of more than SHORT_QUERY query tokens; decode: the others."""

    prefill: Prefill = Prefill()
    decode: parallel_softmax.Config = parallel_softmax.DEFAULT


DEFAULT = Config()


def space(shape: AttentionShape, gpu: Gpu) -> Iterator[Config]:
    """Every prefill that fits beside every decode that fits, each at least once.

    Not their product: the launches do not interact, so one pass over the longer list is enough.
    """
    axes = (
        (16, 32, 64, 128),
        (16, 32, 64, 128, 256),
        ("page", "flat", "run"),
        (True, False),
        (2, 4, 8),
        (1, 2, 3, 4),
    )
    prefills = [prefill for values in product(*axes) if fits(prefill := Prefill(*values), shape, gpu)]
    decodes = list(parallel_softmax.space(shape, gpu))
    for i in range(max(len(prefills), len(decodes)) if prefills and decodes else 0):
        yield Config(prefills[i % len(prefills)], decodes[i % len(decodes)])


def _long_queries_kernel(
    query: torch.Tensor,  # [num_tokens, num_query_heads, head_size]
    key_cache: torch.Tensor,  # [num_blocks, block_size, num_kv_heads, head_size], flat: [rows, num_kv_heads, head_size]
    value_cache: torch.Tensor,  # the same, value_size in place of head_size
    block_table: torch.Tensor,  # i32 or i64 [num_seqs, max_blocks]
    query_start_loc: torch.Tensor,  # i32 [num_seqs + 1]
    seq_lens: torch.Tensor,  # i32 [num_seqs]
    out: torch.Tensor,  # [num_tokens, num_query_heads, value_size]
    lse: torch.Tensor | None,  # f32 [num_tokens, num_query_heads]
    query_rest: torch.Tensor,  # of two parts the lanes behind the first (head_parts.py), else as above and not read
    key_rest: torch.Tensor,
    value_rest: torch.Tensor,
    out_rest: torch.Tensor,
    softmax_scale: float,
    f: dict,
    num_kv_heads: hl.constexpr,
    block_size: hl.constexpr,
    number: hl.constexpr,
    gather: hl.constexpr,
    parts: hl.constexpr,
    longest_short: hl.constexpr,
) -> None:
    num_seqs = seq_lens.size(0)
    hl.specialize(query.size(2))
    value_size = hl.specialize(out.size(2))
    hl.specialize((key_cache.size(-1), value_cache.size(-1), key_cache.size(-2), value_cache.size(-2)))
    hl.specialize((key_cache.size(1), value_cache.size(1)))  # whole pages need no mask
    hl.specialize((key_cache.stride(0), value_cache.stride(0)))  # K and V share what is computed of a page
    axis = constant_axis(num_kv_heads, gather)
    hl.specialize((key_cache.stride(axis), value_cache.stride(axis)))
    hl.specialize((query_rest.size(2), key_rest.size(-1), value_rest.size(-1), out_rest.size(2)))
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
        if (first < query_len) & (query_len > longest_short):
            context_len = seq_len - query_len
            token, head, live = q_block_rows(first, kv_head, query_len, queries_per_kv, block_m)
            query_pos = context_len + token
            last_pos = context_len + torch.minimum(first + int32(block_q), query_len) - 1
            row = query_start + token
            r = row_operands(f, seq, kv_head, token, head, live, context_len)
            q, r = load_query(query, query_rest, row, head, live, r, key_cache, parts)
            m, l, acc, acc_rest = init_parts(f, head, live, 0, q, value_size, out_rest, parts)
            first_key, end_key, lo, full_lo, full_hi, hi = kv_tile_range(
                seq, context_len + first, last_pos, seq_len, f, tile_size
            )
            for j_left in hl.grid(lo, full_lo):
                m, l, acc, acc_rest = attend_parts(
                    j_left, q, m, l, acc, acc_rest, query_pos, seq, seq_len, first_key, end_key, kv_head,
                    softmax_scale, f, r, (key_cache, value_cache, key_rest, value_rest), block_table, block_size,
                    number, gather, tile_size, parts, True,
                )  # fmt: skip
            for j_full in hl.grid(full_lo, full_hi):
                m, l, acc, acc_rest = attend_parts(
                    j_full, q, m, l, acc, acc_rest, query_pos, seq, seq_len, first_key, end_key, kv_head,
                    softmax_scale, f, r, (key_cache, value_cache, key_rest, value_rest), block_table, block_size,
                    number, gather, tile_size, parts, False,
                )  # fmt: skip
            for j_right in hl.grid(full_hi, hi):
                m, l, acc, acc_rest = attend_parts(
                    j_right, q, m, l, acc, acc_rest, query_pos, seq, seq_len, first_key, end_key, kv_head,
                    softmax_scale, f, r, (key_cache, value_cache, key_rest, value_rest), block_table, block_size,
                    number, gather, tile_size, parts, True,
                )  # fmt: skip
            sums = join_sums(l, f)
            store_parts(out, out_rest, row, head, live, acc, acc_rest, sums, value_cache, kv_head, f, r, parts)
            store_lse(lse, row, head, live, m, sums)


_long_queries = kernel(_long_queries_kernel, "num_seqs", "q_blocks", "block_q")


def workspace(shape: AttentionShape, capacity: Capacity, config: Config) -> SegmentScratch | None:
    """Scratch of the decode's segments for any batch up to `capacity`; None with one segment."""
    return parallel_softmax.workspace(shape, capacity, config.decode, SHORT_QUERY)


@launches("helion/adjustable_tile", SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """Write out (and lse) of every query token."""
    ensure_room(partials(workspace)[0], batch, config.decode.num_segments, SHORT_QUERY)  # before the long queries too
    if batch.num_tokens > SHORT_QUERY:
        attend_long_queries(batch, features, out, config.prefill, lse)
    parallel_softmax.attend_segments(batch, features, out, config.decode, workspace, lse, SHORT_QUERY)


def attend_long_queries(batch, features, out, config, lse) -> None:
    """One launch for the sequences of more than SHORT_QUERY query tokens; no other row is written."""
    shape, config = batch.shape, held(config, batch.shape)
    gather, number = gather_form(config.gather, batch, config.tile_size)
    parts = count_parts(batch, features)
    query, key_cache, value_cache, out, *rest = in_parts((*operands(batch, gather, number), out), parts)
    block_m = block_m_of(config, shape)
    args = (
        query, key_cache, value_cache, batch.block_table, batch.query_start_loc, batch.seq_lens, out, lse, *rest,
        batch.softmax_scale, bundle(features, config, shape.head_size, block_m),
        shape.num_kv_heads, shape.block_size, number, gather, parts, SHORT_QUERY,
    )  # fmt: skip
    run(_long_queries, config, args, block_sizes=[block_m, config.tile_size], loop_orders=[loop_order(config, 2)])
