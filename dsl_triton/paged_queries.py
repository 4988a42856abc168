"""Attend through pages to the long queries that unpaged.py does not copy (ours). Almost no batch has any.

Which these are is decided on the device: without a copy (`CONTEXT`) those with a context, else those whose region does
not fit into the scratch. Grid: a fixed number of programs, which stride over Q Blocks x segments x num_kv_heads where
the batch has such a query, and leave at once where it has none. With a program for each Q Block the search alone would
keep SMs from the launch that runs beside.
"""

import triton
import triton.language as tl

from common.spec.metadata import SHORT_QUERY
from dsl_triton.binding import as_partial, as_tensor, block_m_of, cache_strides
from dsl_triton.copy_pages import SEQUENCES, region_tiles
from dsl_triton.features import bundle, finished, narrow, row_operands
from dsl_triton.masks import kv_tile_range, segment_range
from dsl_triton.primitives import (
    attend_tile,
    load_rows,
    normalise,
    q_block_rows,
    search_sequence,
    softmax_init,
    store_lse,
    store_partial,
    store_rows,
)


@triton.jit(do_not_specialize=["num_seqs", "tiles", "num_segments"])  # do not recompile for another batch or scratch
def _paged_queries_kernel(
    query,  # [num_tokens, num_query_heads, HEAD_SIZE]
    key_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, HEAD_SIZE]
    value_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, VALUE_SIZE]
    block_table,  # i32 or i64 [num_seqs, max_blocks]
    query_start_loc_ptr,  # i32 [num_seqs + 1]
    seq_lens_ptr,  # i32 [num_seqs]
    out,  # [num_tokens, num_query_heads, VALUE_SIZE]
    lse,  # f32 [num_tokens, num_query_heads] or None
    partial,  # binding.Partial; None with one segment
    num_seqs,
    tiles,
    num_segments,
    softmax_scale,
    f,
    key_strides, value_strides,
    NUM_KV_HEADS: tl.constexpr, QUERIES_PER_KV: tl.constexpr, HEAD_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, TILE_SIZE: tl.constexpr, SHORT: tl.constexpr,
    CONTEXT: tl.constexpr,
):  # fmt: skip
    BLOCK_Q: tl.constexpr = BLOCK_M // QUERIES_PER_KV
    segments = 1 if partial is None else num_segments
    found = 0  # tiles of contexts, or of all regions
    for before in range(0, num_seqs, SEQUENCES):
        index = before + tl.arange(0, SEQUENCES)
        live = index < num_seqs
        _, _, count = region_tiles(query_start_loc_ptr, seq_lens_ptr, index, live, f, TILE_SIZE, SHORT)
        if CONTEXT:
            query_len = tl.load(query_start_loc_ptr + index + 1, mask=live, other=0)
            query_len -= tl.load(query_start_loc_ptr + index, mask=live, other=0)
            count = tl.where(tl.load(seq_lens_ptr + index, mask=live, other=0) > query_len, count, 0)
        found += tl.sum(count, 0)
    blocks = tl.load(query_start_loc_ptr + num_seqs) // BLOCK_Q + num_seqs
    items = tl.where(found > (0 if CONTEXT else tiles), blocks * segments * NUM_KV_HEADS, 0)
    for item in range(tl.program_id(0), items, tl.num_programs(0)):
        kv_head = item % NUM_KV_HEADS
        segment = item // NUM_KV_HEADS % segments
        q_block_idx = blocks - 1 - item // NUM_KV_HEADS // segments
        seq = search_sequence(q_block_idx, 0, num_seqs, query_start_loc_ptr, BLOCK_Q)
        query_start = tl.load(query_start_loc_ptr + seq)
        query_len = tl.load(query_start_loc_ptr + seq + 1) - query_start
        first = (q_block_idx - (query_start // BLOCK_Q + seq)) * BLOCK_Q
        seq_len = tl.load(seq_lens_ptr + seq)
        context_len = seq_len - query_len
        mine = (first < query_len) & (query_len > SHORT)
        if CONTEXT:
            mine = mine & (context_len > 0)
        else:
            end = 0  # of the sequence's region, in tiles
            for before in range(0, seq + 1, SEQUENCES):
                index = before + tl.arange(0, SEQUENCES)
                _, _, count = region_tiles(query_start_loc_ptr, seq_lens_ptr, index, index <= seq, f, TILE_SIZE, SHORT)
                end += tl.sum(count, 0)
            mine = mine & (end > tiles)
        if mine:
            token, head, live = q_block_rows(first, kv_head, query_len, QUERIES_PER_KV, BLOCK_M)
            place = query_start + token
            q = load_rows(query.ptr, query.strides, place, head, live, HEAD_SIZE)  # [BLOCK_M, HEAD_PADDED]
            query_pos = context_len + token
            last_pos = context_len + tl.minimum(first + BLOCK_Q, query_len) - 1
            r = row_operands(f, seq, kv_head, token, head, live, context_len)
            m, l, acc = softmax_init(f, head, live, segment, q, VALUE_SIZE)
            first_key, end_key, lo, full_lo, full_hi, hi = kv_tile_range(
                seq, context_len + first, last_pos, seq_len, f, TILE_SIZE
            )
            start, _, _, stop, used = segment_range(segment, lo, full_lo, full_hi, hi, f, segments)
            table_ptr = block_table.ptr + seq.to(tl.int64) * block_table.strides[0]
            for j in range(start, stop):
                m, l, acc = attend_tile(
                    j, q, m, l, acc, query_pos, seq_len, first_key, end_key, kv_head, softmax_scale, f, r,
                    key_cache_ptr, value_cache_ptr, table_ptr, key_strides, value_strides,
                    HEAD_SIZE, VALUE_SIZE, BLOCK_SIZE, TILE_SIZE, MASKED=True,
                )  # fmt: skip
            acc = finished(narrow(acc, VALUE_SIZE), value_cache_ptr, f, r)
            if partial is None or used <= 1:
                if segment == 0:
                    store_rows(out.ptr, out.strides, place, head, live, normalise(acc, l, kv_head, f), VALUE_SIZE)
                    store_lse(lse.ptr, lse.strides, place, head, live, m, l)
            else:
                store_partial(partial, segment, place, head, live, m, l, acc, VALUE_SIZE)


def attend_paged_queries(batch, features, out, config, workspace, lse, segments, tiles, context) -> None:
    """One launch for the long queries that have a context (`context`), or whose region ends beyond `tiles` tiles."""
    shape = batch.shape
    block_m = block_m_of(config, shape)
    programs = min(shape.num_kv_heads * batch.num_q_blocks(block_m) * segments, max(config.copy_programs // 4, 1))
    _paged_queries_kernel[(programs,)](
        as_tensor(batch.query), batch.key_cache, batch.value_cache, as_tensor(batch.block_table),
        batch.query_start_loc, batch.seq_lens, as_tensor(out), as_tensor(lse),
        as_partial(workspace.parts if segments > 1 else None), batch.num_seqs, tiles, segments, batch.softmax_scale,
        bundle(features, config), *cache_strides(batch),
        NUM_KV_HEADS=shape.num_kv_heads, QUERIES_PER_KV=shape.queries_per_kv, HEAD_SIZE=shape.head_size,
        VALUE_SIZE=shape.value_lanes, BLOCK_SIZE=shape.block_size, BLOCK_M=block_m, TILE_SIZE=config.tile_size,
        SHORT=SHORT_QUERY, CONTEXT=context,
        num_warps=config.num_warps, num_stages=config.num_stages, **config.options(),
    )  # fmt: skip
