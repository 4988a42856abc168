"""q_block as Helion is usually written: `hl.tile` over a Q Block's tokens and heads and over its keys, in plain torch.

Helion masks what a tile reads and writes beyond its end, so no lane is masked by hand, and one loop over all keys does
for the three of q_block.py. A program counts its way to its sequence in tiles of sequences, where q_block.py searches.
All block sizes and what else a helion.Config has are free to Helion's autotuner (compare/tune/helion.py).
"""

from collections.abc import Iterator
from dataclasses import replace

import helion
import helion.language as hl
import torch

from common.spec import AttentionShape, Gpu
from common.spec.features import WIDEST
from common.spec.kernel import Capacity
from dsl_helion import q_block
from dsl_helion.binding import gather_form, kernel, launches, loop_order, operands, run, smallest_block_m
from dsl_helion.q_block import CONTRACT, Config

__all__ = ["CONTRACT", "Config"]

DEFAULT = Config(gather="flat")
# Nothing serves with it, so it has what the evidence needs.
SUPPORTS = frozenset({"causal", "non_causal", "sliding_window", "softcap", "sinks", "lse", "full_graph"})
SEQUENCES = 128  # in a tile of those that a program counts
LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453


def of_rung(config: Config) -> Config:
    """q_block's config with one index for each key, as a tile of keys has."""
    return replace(config, gather="flat")


def space(shape: AttentionShape, gpu: Gpu) -> Iterator[Config]:
    """q_block's, without whole pages."""
    return (config for config in q_block.space(shape, gpu) if config.gather != "page")


def _idiomatic_kernel(
    query: torch.Tensor,  # [num_tokens, num_query_heads, head_size]
    key_cache: torch.Tensor,  # [num_blocks, block_size, num_kv_heads, head_size], flat: [rows, num_kv_heads, head_size]
    value_cache: torch.Tensor,  # the same
    block_table: torch.Tensor,  # i32 or i64 [num_seqs, max_blocks]
    query_start_loc: torch.Tensor,  # i32 [num_seqs + 1]
    seq_lens: torch.Tensor,  # i32 [num_seqs]
    out: torch.Tensor,  # [num_tokens, num_query_heads, head_size]
    lse: torch.Tensor | None,  # f32 [num_tokens, num_query_heads]
    sinks: torch.Tensor | None,  # float [num_query_heads]
    softmax_scale: float,
    softcap: float | None,
    sliding_window: int | None,
    causal: hl.constexpr,
    num_kv_heads: hl.constexpr,
    block_size: hl.constexpr,
    page_rows: int,
    gather: hl.constexpr,
) -> None:
    num_seqs = seq_lens.size(0)
    head_size = hl.specialize(query.size(2))
    hl.specialize((key_cache.size(-1), value_cache.size(-1), key_cache.size(-2), value_cache.size(-2), out.size(2)))
    queries_per_kv = hl.specialize(query.size(1)) // num_kv_heads
    block_h = helion.next_power_of_2(queries_per_kv)
    block_q = hl.register_block_size(1, 256)
    tile_size = hl.register_block_size(16, 256)
    q_blocks = query.size(0) // block_q + num_seqs
    for number, kv_head in hl.grid([q_blocks, num_kv_heads]):
        seq = hl.full([], -1, dtype=torch.int32)
        for tile_s in hl.tile(num_seqs):  # sequence i begins at Q Block query_start_loc[i] // block_q + i
            seq = seq + (query_start_loc[tile_s] // block_q + tile_s.index <= number).sum().to(torch.int32)
        query_start = query_start_loc[seq]
        query_end = query_start_loc[seq + 1]
        seq_len = seq_lens[seq]
        first = query_start + (number - query_start // block_q - seq) * block_q
        last = torch.minimum(first + block_q, query_end)
        head = kv_head * queries_per_kv
        offset = seq_len - query_end  # from a token to its position
        begin, end = hl.zeros([], dtype=torch.int32), seq_len
        if causal:
            end = offset + last
        if sliding_window is not None:
            begin = torch.clamp(offset + first - sliding_window + 1, min=0)
            end = torch.minimum(end, offset + last + sliding_window - 1)
        for tile_q, tile_h in hl.tile([first, head], [last, head + queries_per_kv], block_size=[block_q, block_h]):
            q_tile = query[tile_q, tile_h, :]  # [block_q, block_h, head_size]
            q = q_tile.flatten(0, 1)
            rows, tokens, heads = q.size(0), tile_q.block_size, tile_h.block_size
            position = (offset + tile_q.index)[:, None].expand(tokens, heads).reshape(rows, 1)
            m = hl.full([rows], float("-inf"), dtype=torch.float32)  # in base 2, as `scale` makes of a score
            l = hl.zeros([rows], dtype=torch.float32)
            acc = hl.zeros([rows, head_size], dtype=torch.float32)
            scale = softmax_scale * LOG2E
            if softcap is not None:
                scale = softcap * LOG2E
            if sinks is not None:  # a key with this score and value zero
                m = sinks[tile_h].to(torch.float32)[None, :].expand(tokens, heads).reshape(rows) * LOG2E
                l = l + 1.0
            for tile_k in hl.tile(begin, end, block_size=tile_size):
                page = block_table[seq, tile_k.index // block_size].to(torch.int64)
                slot = tile_k.index % block_size
                if gather == "flat":
                    k = key_cache[page * page_rows + slot, kv_head, :]
                    v = value_cache[page * page_rows + slot, kv_head, :]
                else:
                    k = key_cache[page[:, None], slot[:, None], kv_head, :].squeeze(1)
                    v = value_cache[page[:, None], slot[:, None], kv_head, :].squeeze(1)
                s = hl.dot(q, k.T, out_dtype=torch.float32)
                if softcap is not None:
                    s = torch.tanh(s * (softmax_scale / softcap))
                ahead = tile_k.index[None, :] - position
                if causal:
                    s = torch.where(ahead <= 0, s, float("-inf"))
                if sliding_window is not None:
                    s = torch.where(torch.abs(ahead) < sliding_window, s, float("-inf"))
                m_new = torch.maximum(m, s.amax(1) * scale)
                shift = torch.where(m_new == float("-inf"), 0.0, m_new)  # no key yet: -inf - -inf is NaN
                p = torch.exp2(s * scale - shift[:, None])
                alpha = torch.exp2(m - shift)
                l = l * alpha + p.sum(1)
                acc = hl.dot(p.to(v.dtype), v, acc=acc * alpha[:, None])
                m = m_new
            x = acc / torch.where(l > 0.0, l, 1.0)[:, None]
            out[tile_q, tile_h, :] = x.to(out.dtype).view_as(q_tile)
            if lse is not None:
                lse[tile_q, tile_h] = ((m + torch.log2(l)) * LN2).reshape(tokens, heads)


_idiomatic = kernel(_idiomatic_kernel, "num_seqs", "q_blocks", "block_q")


def workspace(shape: AttentionShape, capacity: Capacity, config: Config) -> None:
    """No scratch."""


@launches("helion/ablations.idiomatic", SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """Write out (and lse) of every query token."""
    shape, window = batch.shape, features.sliding_window
    gather, page_rows = gather_form(config.gather, batch, 0)  # a tile of keys is never whole pages
    block_q = max(config.block_m, smallest_block_m(shape)) // helion.next_power_of_2(shape.queries_per_kv)
    args = (
        *operands(batch, gather, page_rows), batch.block_table, batch.query_start_loc, batch.seq_lens, out, lse,
        features.sinks, batch.softmax_scale, features.softcap, window and min(window, WIDEST), features.causal,
        shape.num_kv_heads, shape.block_size, page_rows, gather,
    )  # fmt: skip
    orders = [loop_order(config, 2), [0, 1]]
    run(_idiomatic, config, args, block_sizes=[block_q, config.tile_size, SEQUENCES], loop_orders=orders)
