"""Q Blocks (paper 4.4): a program takes several query tokens under all query heads of one KV head.

Grid: Q Blocks x num_kv_heads, one axis. New over naive.py: K and V of a KV head are read once for its block_m rows,
which makes the products matrix products. Each program finds its sequence by binary search over the cumulative Q Blocks,
so the grid needs no lengths. Tiles that every row sees run in a loop without masks; the causal diagonal, a window's
left edge and the sequence's end in masked ones; of few rows all in one (masks.join_loops).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import helion.language as hl
import torch

from common.spec import AttentionShape, Cdna, Gpu
from common.spec.kernel import SEAMS, Capacity, Precision
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
)
from dsl_helion.features import bundle, finished, narrow, query_operand, row_operands
from dsl_helion.masks import join_loops, kv_tile_range
from dsl_helion.primitives import (
    attend_tile,
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

SUPPORTS = SEAMS | {"lse", "full_graph", "batch_invariant"}
CONTRACT = Precision()


@dataclass(frozen=True)
class Config(Cdna):
    """block_m: rows of a Q Block; raised to the GQA ratio's next power of two where that is larger.

    gather: how K and V are read through the block table (binding.Gather); the next form where it does not apply.
    heads_fastest: programs that start together work on the KV heads of one Q Block, not on Q Blocks of one KV head.
    """

    block_m: int = 16
    tile_size: int = 32
    gather: Gather = "page"
    heads_fastest: bool = True
    num_warps: int = 4
    num_stages: int = 2


DEFAULT = Config()


def space(shape: AttentionShape, gpu: Gpu) -> Iterator[Config]:
    """Configs whose operands fit into shared memory and whose accumulator fits into registers."""
    axes = (
        (16, 32, 64, 128),
        (16, 32, 64, 128),
        ("page", "flat"),
        (True, False),
        (2, 4, 8),
        (1, 2, 3, 4),
    )
    for values in product(*axes):
        if fits(config := Config(*values), shape, gpu):
            yield config


def _q_block_kernel(
    query: torch.Tensor,  # [num_tokens, num_query_heads, head_size]
    key_cache: torch.Tensor,  # [num_blocks, block_size, num_kv_heads, head_size], flat: [rows, num_kv_heads, head_size]
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
    rows: hl.constexpr,
) -> None:
    num_seqs = seq_lens.size(0)
    hl.specialize(query.size(2))
    value_size = hl.specialize(out.size(2))
    hl.specialize((key_cache.size(-1), value_cache.size(-1), key_cache.size(-2), value_cache.size(-2)))
    hl.specialize((key_cache.size(1), value_cache.size(1)))  # whole pages need no mask
    hl.specialize((key_cache.stride(0), value_cache.stride(0)))  # K and V share what is computed of a page
    axis = constant_axis(num_kv_heads, gather, rows)
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
        if first < query_len:
            context_len = seq_len - query_len
            token, head, live = q_block_rows(first, kv_head, query_len, queries_per_kv, block_m)
            query_pos = context_len + token
            last_pos = context_len + torch.minimum(first + int32(block_q), query_len) - 1
            q = load_rows(query, query_start + token, head, live)  # [block_m, head_size]
            r = row_operands(f, seq, kv_head, token, head, live, context_len)
            q, r = query_operand(q, r, key_cache)
            m, l, acc = softmax_init(f, head, live, 0, q, value_size)
            first_key, end_key, lo, full_lo, full_hi, hi = kv_tile_range(
                seq, context_len + first, last_pos, seq_len, f, tile_size
            )
            full_lo, full_hi = join_loops(full_lo, full_hi, hi, key_cache, f, rows <= 16)
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
            total = finished(narrow(acc, value_size), value_cache, f, r)
            sums = join_sums(l, f)
            store_rows(out, query_start + token, head, live, normalise(total, sums, kv_head, f))
            store_lse(lse, query_start + token, head, live, m, sums)


_q_block = kernel(_q_block_kernel, "num_seqs", "q_blocks", "block_q")


def workspace(shape: AttentionShape, capacity: Capacity, config: Config) -> None:
    """No scratch."""


@launches("helion/q_block", SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """Write out (and lse) of every query token."""
    shape = batch.shape
    gather, page_rows = gather_form(config.gather, batch, config.tile_size)
    block_m = block_m_of(config, shape)
    args = (
        *operands(batch, gather, page_rows), batch.block_table, batch.query_start_loc, batch.seq_lens,
        out, lse, batch.softmax_scale, bundle(features, config, shape.head_size, block_m),
        shape.num_kv_heads, shape.block_size, page_rows, gather, block_m,
    )  # fmt: skip
    run(_q_block, config, args, block_sizes=[block_m, config.tile_size], loop_orders=[loop_order(config, 2)])
