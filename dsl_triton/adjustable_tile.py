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

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import triton
import triton.language as tl

from common.spec import AttentionShape, Cdna, Gpu
from common.spec.kernel import SEAMS, Capacity, Precision, count_parts, launches
from common.spec.metadata import SHORT_QUERY
from common.spec.workspaces import SegmentScratch, ensure_room, partials
from dsl_triton import parallel_softmax
from dsl_triton.binding import as_tensor, block_m_of, cache_strides, fits
from dsl_triton.features import bundle, row_operands
from dsl_triton.head_parts import attend_parts, init_parts, load_query, store_parts
from dsl_triton.masks import kv_tile_range
from dsl_triton.page_runs import Gather, run_length
from dsl_triton.primitives import (
    attend_range,
    head_and_block,
    locate_q_block,
    q_block_rows,
    store_lse,
)

SUPPORTS = SEAMS | {"lse", "full_graph", "batch_invariant"}
CONTRACT = Precision()


@dataclass(frozen=True)
class Prefill(Cdna):
    """How queries of more than SHORT_QUERY tokens are served.

    block_m: rows of a Q Block; raised to the GQA ratio's next power of two where that is larger.
    gather: how K and V are addressed through the block table (page_runs.Gather); "key" where "run" does not apply.
    """

    block_m: int = 64
    tile_size: int = 64
    gather: Gather = "run"
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
    axes = (16, 32, 64, 128), (16, 32, 64, 128, 256), ("run", "key"), (2, 4, 8), (1, 2, 3, 4)
    prefills = [Prefill(*values) for values in itertools.product(*axes)]
    prefills = [p for p in prefills if fits(p.block_m, p.tile_size, p.num_warps, p.num_stages, shape, gpu)]
    decodes = list(parallel_softmax.space(shape, gpu))
    for i in range(max(len(prefills), len(decodes)) if prefills and decodes else 0):
        yield Config(prefills[i % len(prefills)], decodes[i % len(decodes)])


@triton.jit(do_not_specialize=["num_seqs"])  # do not recompile for num_seqs == 1
def _long_queries_kernel(
    query,  # [num_tokens, num_query_heads, HEAD_SIZE]
    key_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, HEAD_SIZE]
    value_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, VALUE_SIZE]
    block_table,  # i32 or i64 [num_seqs, max_blocks]
    query_start_loc_ptr,  # i32 [num_seqs + 1]
    seq_lens_ptr,  # i32 [num_seqs]
    out,  # [num_tokens, num_query_heads, VALUE_SIZE]
    lse,  # f32 [num_tokens, num_query_heads] or None
    num_seqs,
    softmax_scale,
    f,
    key_strides, value_strides,
    NUM_KV_HEADS: tl.constexpr, QUERIES_PER_KV: tl.constexpr, HEAD_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, FORM: tl.constexpr, LONGEST_SHORT: tl.constexpr,
):  # fmt: skip
    BLOCK_M: tl.constexpr = FORM[0]
    TILE_SIZE: tl.constexpr = FORM[1]
    RUN: tl.constexpr = FORM[2]
    PARTS: tl.constexpr = FORM[3]
    BLOCK_Q: tl.constexpr = BLOCK_M // QUERIES_PER_KV
    # One axis: others hold 65,535 programs at most. The last Q Blocks of a prefill see most keys and start first.
    kv_head, q_block_idx = head_and_block(f, NUM_KV_HEADS, LAST_FIRST=True)
    seq, query_start, query_len, seq_len, first = locate_q_block(
        q_block_idx, query_start_loc_ptr, seq_lens_ptr, num_seqs, BLOCK_Q
    )
    if (first < query_len) & (query_len > LONGEST_SHORT):
        context_len = seq_len - query_len
        token, head, live = q_block_rows(first, kv_head, query_len, QUERIES_PER_KV, BLOCK_M)
        query_pos = context_len + token
        last_pos = context_len + tl.minimum(first + BLOCK_Q, query_len) - 1
        row = query_start + token
        r = row_operands(f, seq, kv_head, token, head, live, context_len)
        q, r = load_query(query.ptr, query.strides, row, head, live, r, key_cache_ptr, HEAD_SIZE, PARTS)
        m, l, acc = init_parts(f, head, live, 0, q, VALUE_SIZE, PARTS)
        first_key, end_key, lo, full_lo, full_hi, hi = kv_tile_range(
            seq, context_len + first, last_pos, seq_len, f, TILE_SIZE
        )
        table_ptr = block_table.ptr + seq.to(tl.int64) * block_table.strides[0]
        m, l, acc = attend_range(
            attend_parts, lo, full_lo, full_hi, hi, q, m, l, acc, (
                query_pos, seq_len, first_key, end_key, kv_head, softmax_scale, f, r,
                key_cache_ptr, value_cache_ptr, table_ptr, key_strides, value_strides,
                HEAD_SIZE, VALUE_SIZE, BLOCK_SIZE, TILE_SIZE, RUN, PARTS,
            ), TILE_SIZE,
        )  # fmt: skip
        store_parts(out.ptr, out.strides, row, head, live, acc, l, value_cache_ptr, kv_head, f, r, VALUE_SIZE, PARTS)
        store_lse(lse.ptr, lse.strides, row, head, live, m, l)


def workspace(shape: AttentionShape, capacity: Capacity, config: Config) -> SegmentScratch | None:
    """Scratch of the decode's segments for any batch up to `capacity`; None with one segment."""
    return parallel_softmax.workspace(shape, capacity, config.decode, SHORT_QUERY)


@launches("triton/adjustable_tile", SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """Write out (and lse) of every query token."""
    ensure_room(partials(workspace)[0], batch, config.decode.num_segments, SHORT_QUERY)  # before the long queries too
    if batch.num_tokens > SHORT_QUERY:
        attend_long_queries(batch, features, out, config.prefill, lse)
    parallel_softmax.attend_segments(batch, features, out, config.decode, workspace, lse, SHORT_QUERY)


def attend_long_queries(batch, features, out, config, lse) -> None:
    """One launch for the sequences of more than SHORT_QUERY query tokens; no other row is written."""
    shape = batch.shape
    block_m = block_m_of(config, shape)
    q_blocks = batch.num_q_blocks(block_m)
    run = run_length(config.gather, batch, config.tile_size)
    _long_queries_kernel[(shape.num_kv_heads * q_blocks,)](
        as_tensor(batch.query), batch.key_cache, batch.value_cache, as_tensor(batch.block_table),
        batch.query_start_loc, batch.seq_lens, as_tensor(out), as_tensor(lse), batch.num_seqs, batch.softmax_scale,
        bundle(features, config), *cache_strides(batch, run),
        NUM_KV_HEADS=shape.num_kv_heads, QUERIES_PER_KV=shape.queries_per_kv, HEAD_SIZE=shape.head_size,
        VALUE_SIZE=shape.value_lanes, BLOCK_SIZE=shape.block_size,
        FORM=(block_m, config.tile_size, run, count_parts(batch, features)), LONGEST_SHORT=SHORT_QUERY,
        num_warps=config.num_warps, num_stages=config.num_stages, **config.options(),
    )  # fmt: skip
