"""Decode and prefill in one kernel (the paper's negative result, 8): each program branches on the device.

A Q Block holds `block_m` rows. Where its sequence's whole query fits into `decode_block_m` rows, the program attends
with those and with `decode_tile_size` keys a tile, else with `block_m` and `tile_size`: each kind of sequence gets the
shapes that suit it, in one launch. Warps, stages, registers and shared memory are those of the kernel, hence of both.
A branch of up to 16 rows takes its tiles in one loop, as q_block does (masks.join_loops).

Either branch has the lines of q_block.py, for loops do not lower in a helper; and names of its own, loops' bounds too.
A name that has another shape in the other branch does not compile (it does interpret). Names that hold one value in one
branch alone became one variable in both: with `full_lo` and `hi` shared, all six loops ran from `hi` to `hi`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from types import ModuleType

import helion.language as hl
import torch

from common.spec import AttentionShape, Gpu
from common.spec.kernel import launches
from common.spec.metadata import BatchStats
from dsl_helion.ablations import SUPPORTS
from dsl_helion.arithmetic import div
from dsl_helion.binding import Gather, cache_view, fits, gather_form, kernel, run, smallest_block_m
from dsl_helion.features import bundle
from dsl_helion.masks import join_loops, kv_tile_range
from dsl_helion.primitives import attend_tile, load_rows, normalise, q_block_rows, softmax_init, store_lse, store_rows
from dsl_helion.q_block import CONTRACT, workspace

__all__ = ["CONTRACT", "SUPPORTS", "workspace"]


@dataclass(frozen=True)
class Config:
    """Rows and keys of either branch; rows are raised to the GQA ratio's next power of two where that is larger."""

    block_m: int = 32
    tile_size: int = 32
    decode_block_m: int = 16
    decode_tile_size: int = 64
    gather: Gather = "page"
    num_warps: int = 4
    num_stages: int = 2


DEFAULT = Config()


def default(heuristics: ModuleType, shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> Config:
    """The shapes that q_block has for a prompt and for a decode; gather, warps and stages of the prompt."""
    prefill = heuristics.q_block(shape, replace(stats, max_query_len=512), gpu)
    decode = heuristics.q_block(shape, replace(stats, max_query_len=1), gpu)
    shared = prefill.gather, prefill.num_warps, prefill.num_stages
    return Config(prefill.block_m, prefill.tile_size, decode.block_m, decode.tile_size, *shared)


def space(shape: AttentionShape, gpu: Gpu) -> Iterator[Config]:
    """Configs of which either branch fits."""
    axes = (32, 64, 128), (32, 64, 128), (16,), (32, 64, 128), ("page", "flat", "2idx"), (4, 8), (1, 2, 3)
    for config in (Config(*values) for values in product(*axes)):
        decode = replace(config, block_m=config.decode_block_m, tile_size=config.decode_tile_size)
        if fits(config, shape, gpu) and fits(decode, shape, gpu):
            yield config


def attend(j, q, m, l, acc, query_pos, seq, seq_len, first_key, end_key, kv_head, softmax_scale, f, *tile):
    """attend_tile without row operands, which nothing in SUPPORTS has: a dict that is made within an if with an else
    shifts the branch's other results in Helion 1.5."""
    r = {"logit_scale": None, "row_scale": None}
    return attend_tile(
        j, q, m, l, acc, query_pos, seq, seq_len, first_key, end_key, kv_head, softmax_scale, f, r, *tile
    )  # fmt: skip


def _fused_kernel(
    query: torch.Tensor,  # [num_tokens, num_query_heads, head_size]
    key_cache: torch.Tensor,  # [num_blocks, block_size, num_kv_heads, head_size], flat: [rows, num_kv_heads, head_size]
    value_cache: torch.Tensor,  # the same
    block_table: torch.Tensor,  # i32 or i64 [num_seqs, max_blocks]
    query_start_loc: torch.Tensor,  # i32 [num_seqs + 1]
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
    few_decode_rows: hl.constexpr,
) -> None:
    num_seqs = seq_lens.size(0)
    head_size = hl.specialize(query.size(2))
    hl.specialize((key_cache.size(-1), value_cache.size(-1), key_cache.size(-2), value_cache.size(-2), out.size(2)))
    queries_per_kv = hl.specialize(query.size(1)) // num_kv_heads
    block_m = hl.register_block_size(min_block_m, 256)
    tile_size = hl.register_block_size(16, 256)
    decode_m = hl.register_block_size(min_block_m, 256)
    decode_tile = hl.register_block_size(16, 256)
    block_q = block_m // queries_per_kv
    q_blocks = query.size(0) // block_q + num_seqs
    for program, kv_head in hl.grid([q_blocks, num_kv_heads]):
        q_block_idx = q_blocks - 1 - program  # the last Q Blocks of a prefill see most keys and start first

        # The last sequence that begins at or before this Q Block; sequence i does at query_start_loc[i] // block_q + i.
        # The first guess is exact where every query has one token: then decode skips log2(num_seqs) dependent loads.
        guess = hl.full([], q_block_idx - (q_block_idx + 1) // (block_q + 1), dtype=torch.int32)
        guess = torch.minimum(guess, hl.full([], num_seqs - 1, dtype=torch.int32))
        begins = div(query_start_loc[guess], block_q) + guess <= q_block_idx
        ends = div(query_start_loc[guess + 1], block_q) + guess + 1 > q_block_idx
        left = torch.where(begins, guess, 0)
        right = torch.where(begins & ends, guess + 1, torch.where(begins, num_seqs, guess))
        while right - left > 1:
            middle = div(left + right, 2)
            if div(query_start_loc[middle], block_q) + middle <= q_block_idx:
                left = middle
            else:
                right = middle
        seq = left

        query_start = query_start_loc[seq]
        query_len = query_start_loc[seq + 1] - query_start
        first = (q_block_idx - (div(query_start, block_q) + seq)) * block_q
        if first < query_len:
            seq_len = seq_lens[seq]
            context_len = seq_len - query_len
            if query_len <= decode_m // queries_per_kv:
                token_d, head_d, live_d = q_block_rows(first, kv_head, query_len, queries_per_kv, decode_m)
                query_pos_d = context_len + token_d
                last_pos_d = context_len + torch.minimum(first + (decode_m // queries_per_kv), query_len) - 1
                q_d = load_rows(query, query_start + token_d, head_d, live_d)  # [decode_m, head_size]
                m_d, l_d, acc_d = softmax_init(f, head_d, live_d, 0, q_d, head_size)
                first_key_d, end_key_d, lo_d, full_lo_d, full_hi_d, hi_d = kv_tile_range(
                    seq, context_len + first, last_pos_d, seq_len, f, decode_tile
                )
                full_lo_d, full_hi_d = join_loops(full_lo_d, full_hi_d, hi_d, key_cache, f, few_decode_rows)
                for j_left_d in hl.grid(lo_d, full_lo_d):
                    m_d, l_d, acc_d = attend(
                        j_left_d, q_d, m_d, l_d, acc_d, query_pos_d, seq, seq_len, first_key_d, end_key_d, kv_head,
                        softmax_scale, f, key_cache, value_cache, block_table, block_size, page_rows, gather,
                        decode_tile, True,
                    )  # fmt: skip
                for j_full_d in hl.grid(full_lo_d, full_hi_d):
                    m_d, l_d, acc_d = attend(
                        j_full_d, q_d, m_d, l_d, acc_d, query_pos_d, seq, seq_len, first_key_d, end_key_d, kv_head,
                        softmax_scale, f, key_cache, value_cache, block_table, block_size, page_rows, gather,
                        decode_tile, False,
                    )  # fmt: skip
                for j_right_d in hl.grid(full_hi_d, hi_d):
                    m_d, l_d, acc_d = attend(
                        j_right_d, q_d, m_d, l_d, acc_d, query_pos_d, seq, seq_len, first_key_d, end_key_d, kv_head,
                        softmax_scale, f, key_cache, value_cache, block_table, block_size, page_rows, gather,
                        decode_tile, True,
                    )  # fmt: skip
                store_rows(out, query_start + token_d, head_d, live_d, normalise(acc_d, l_d, kv_head, f))
                store_lse(lse, query_start + token_d, head_d, live_d, m_d, l_d)
            else:
                token, head, live = q_block_rows(first, kv_head, query_len, queries_per_kv, block_m)
                query_pos = context_len + token
                last_pos = context_len + torch.minimum(first + block_q, query_len) - 1
                q = load_rows(query, query_start + token, head, live)  # [block_m, head_size]
                m, l, acc = softmax_init(f, head, live, 0, q, head_size)
                first_key, end_key, lo, full_lo, full_hi, hi = kv_tile_range(
                    seq, context_len + first, last_pos, seq_len, f, tile_size
                )
                full_lo, full_hi = join_loops(full_lo, full_hi, hi, key_cache, f, few_rows)
                for j_left in hl.grid(lo, full_lo):
                    m, l, acc = attend(
                        j_left, q, m, l, acc, query_pos, seq, seq_len, first_key, end_key, kv_head, softmax_scale, f,
                        key_cache, value_cache, block_table, block_size, page_rows, gather, tile_size, True,
                    )  # fmt: skip
                for j_full in hl.grid(full_lo, full_hi):
                    m, l, acc = attend(
                        j_full, q, m, l, acc, query_pos, seq, seq_len, first_key, end_key, kv_head, softmax_scale, f,
                        key_cache, value_cache, block_table, block_size, page_rows, gather, tile_size, False,
                    )  # fmt: skip
                for j_right in hl.grid(full_hi, hi):
                    m, l, acc = attend(
                        j_right, q, m, l, acc, query_pos, seq, seq_len, first_key, end_key, kv_head, softmax_scale, f,
                        key_cache, value_cache, block_table, block_size, page_rows, gather, tile_size, True,
                    )  # fmt: skip
                store_rows(out, query_start + token, head, live, normalise(acc, l, kv_head, f))
                store_lse(lse, query_start + token, head, live, m, l)


_fused = kernel(_fused_kernel)


@launches("helion/ablations.fused", SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """Write out (and lse) of every query token."""
    shape = batch.shape
    gather, page_rows = gather_form(config.gather, batch, min(config.tile_size, config.decode_tile_size))
    decode_m = max(config.decode_block_m, smallest_block_m(shape))
    block_m = max(config.block_m, decode_m)
    args = (
        batch.query, cache_view(batch.key_cache, gather, page_rows), cache_view(batch.value_cache, gather, page_rows),
        batch.block_table, batch.query_start_loc, batch.seq_lens, out, lse, batch.softmax_scale, bundle(features),
        shape.num_kv_heads, shape.block_size, page_rows, gather, smallest_block_m(shape),
        block_m <= 16, decode_m <= 16,
    )  # fmt: skip
    blocks = [block_m, config.tile_size, decode_m, config.decode_tile_size]
    run(_fused, config, args, block_sizes=blocks, loop_orders=[[1, 0]])
