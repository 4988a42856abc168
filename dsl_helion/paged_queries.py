"""Attend through pages to the long queries that unpaged.py does not copy (ours). Almost no batch has any.

Which these are is decided on the device: without a copy (`context`) those with a context, else those whose region does
not fit into the scratch. Grid: a fixed number of programs, which stride over Q Blocks x segments x num_kv_heads where
the batch has such a query, and leave at once where it has none. With a program for each Q Block the search alone would
keep SMs from the launch that runs beside.
"""

import helion.language as hl
import torch

from common.spec.metadata import SHORT_QUERY
from common.spec.workspaces import partials
from dsl_helion.arithmetic import div, int32
from dsl_helion.binding import block_m_of, constant_axis, fewest_rows, gather_form, kernel, operands, run
from dsl_helion.copy_pages import SEQUENCES, region_tiles
from dsl_helion.features import bundle, finished, narrow, row_operands
from dsl_helion.masks import kv_tile_range, segment_range
from dsl_helion.primitives import (
    attend_tile,
    begins,
    load_rows,
    normalise,
    q_block_rows,
    softmax_init,
    store_lse,
    store_partial,
    store_rows,
)


def _paged_queries_kernel(
    query: torch.Tensor,  # [num_tokens, num_query_heads, head_size]
    key_cache: torch.Tensor,  # [num_blocks, block_size, num_kv_heads, head_size], flat: [rows, num_kv_heads, head_size]
    value_cache: torch.Tensor,  # the same, value_size in place of head_size
    block_table: torch.Tensor,  # i32 or i64 [num_seqs, max_blocks]
    query_start_loc: torch.Tensor,  # i32 [num_seqs + 1]
    seq_lens: torch.Tensor,  # i32 [num_seqs]
    out: torch.Tensor,  # [num_tokens, num_query_heads, value_size]
    lse: torch.Tensor | None,  # f32 [num_tokens, num_query_heads]
    partial_acc: torch.Tensor | None,  # acc, m and l of segments, as unpaged.py has them
    partial_m: torch.Tensor | None,
    partial_l: torch.Tensor | None,
    tiles: int,
    softmax_scale: float,
    f: dict,
    num_kv_heads: hl.constexpr,
    block_size: hl.constexpr,
    page_rows: int,
    gather: hl.constexpr,
    short: hl.constexpr,
    sequences: hl.constexpr,
    context: hl.constexpr,
    programs: int,
    num_segments: int,
) -> None:
    num_seqs = seq_lens.size(0)
    hl.specialize(query.size(2))
    value_size = hl.specialize(out.size(2))
    hl.specialize((key_cache.size(-1), value_cache.size(-1), key_cache.size(-2), value_cache.size(-2)))
    hl.specialize((key_cache.size(1), value_cache.size(1)))  # whole pages need no mask
    hl.specialize((key_cache.stride(0), value_cache.stride(0)))  # K and V share what is computed of a page
    axis = constant_axis(num_kv_heads, gather)
    hl.specialize((key_cache.stride(axis), value_cache.stride(axis)))
    queries_per_kv = hl.specialize(query.size(1)) // num_kv_heads
    block_m = hl.register_block_size(fewest_rows(queries_per_kv), 256)
    tile_size = hl.register_block_size(16, 256)
    block_q = block_m // queries_per_kv
    for program in hl.grid(programs):
        found = hl.zeros([], dtype=torch.int32)  # tiles of contexts, or of all regions
        for chunk in hl.grid(0, num_seqs, sequences):
            index = chunk + hl.arange(sequences)
            live = index < num_seqs
            _, _, count = region_tiles(query_start_loc, seq_lens, index, live, f, tile_size, short)
            if context:
                new = hl.load(query_start_loc, [index + 1], extra_mask=live)
                new = new - hl.load(query_start_loc, [index], extra_mask=live)
                count = torch.where(hl.load(seq_lens, [index], extra_mask=live) > new, count, 0)
            found = found + count.sum(0, dtype=torch.int32)
        blocks = div(query_start_loc[num_seqs], block_q) + int32(num_seqs)
        left_to_pages = found > (0 if context else tiles)
        items = torch.where(left_to_pages, blocks * int32(num_segments) * num_kv_heads, 0)
        for item in hl.grid(program, items, programs):
            kv_head = item % num_kv_heads
            segment = item // num_kv_heads % num_segments
            q_block_idx = blocks - 1 - int32(item // num_kv_heads // num_segments)
            left = hl.zeros([], dtype=torch.int32)
            right = hl.full([], num_seqs, dtype=torch.int32)
            while right - left > 1:
                middle = div(left + right, 2)
                if begins(q_block_idx, query_start_loc[middle], middle, block_q):
                    left = middle
                else:
                    right = middle
            seq = left
            query_start = query_start_loc[seq]
            query_len = query_start_loc[seq + 1] - query_start
            first = (q_block_idx - (div(query_start, block_q) + seq)) * int32(block_q)
            seq_len = seq_lens[seq]
            context_len = seq_len - query_len
            mine = (first < query_len) & (query_len > short)
            if context:
                mine = mine & (context_len > 0)
            else:
                end = hl.zeros([], dtype=torch.int32)  # of the sequence's region, in tiles
                for before in hl.grid(0, seq + 1, sequences):
                    earlier = before + hl.arange(sequences)
                    _, _, held = region_tiles(query_start_loc, seq_lens, earlier, earlier <= seq, f, tile_size, short)
                    end = end + held.sum(0, dtype=torch.int32)
                mine = mine & (end > tiles)
            if mine:
                token, head, real = q_block_rows(first, kv_head, query_len, queries_per_kv, block_m)
                q = load_rows(query, query_start + token, head, real)  # [block_m, head_size]
                query_pos = context_len + token
                last_pos = context_len + torch.minimum(first + int32(block_q), query_len) - 1
                r = row_operands(f, seq, kv_head, token, head, real, context_len)
                m, l, acc = softmax_init(f, head, real, segment, q, value_size)
                first_key, end_key, lo, full_lo, full_hi, hi = kv_tile_range(
                    seq, context_len + first, last_pos, seq_len, f, tile_size
                )
                start, _, _, stop, used = segment_range(segment, lo, full_lo, full_hi, hi, f, num_segments)
                for j in hl.grid(start, stop):
                    m, l, acc = attend_tile(
                        j, q, m, l, acc, query_pos, seq, seq_len, first_key, end_key, kv_head, softmax_scale, f,
                        r, key_cache, value_cache, block_table, block_size, page_rows, gather, tile_size, True,
                    )  # fmt: skip
                total = finished(narrow(acc, value_size), value_cache, f, r)
                if partial_acc is None or used <= 1:
                    writes = real & (segment == 0)
                    store_rows(out, query_start + token, head, writes, normalise(total, l, kv_head, f))
                    store_lse(lse, query_start + token, head, writes, m, l)
                else:
                    at = segment, query_start + token, head, real
                    store_partial((partial_acc, partial_m, partial_l), *at, m, l, total)


_paged_queries = kernel(_paged_queries_kernel, "num_seqs", "num_segments", "tiles", "programs", "block_q")


def attend_paged_queries(batch, features, out, config, workspace, lse, segments, tiles, context) -> None:
    """One launch for the long queries that have a context (`context`), or whose region ends beyond `tiles` tiles."""
    shape = batch.shape
    gather, page_rows = gather_form(config.gather, batch, config.tile_size)
    block_m = block_m_of(config, shape)
    parts = partials(workspace.parts if segments > 1 else None)
    programs = min(shape.num_kv_heads * batch.num_q_blocks(block_m) * segments, max(config.copy_programs // 4, 1))
    args = (
        *operands(batch, gather, page_rows), batch.block_table, batch.query_start_loc, batch.seq_lens, out, lse, *parts,
        tiles, batch.softmax_scale, bundle(features, config, shape.head_size), shape.num_kv_heads, shape.block_size,
        page_rows, gather, SHORT_QUERY, SEQUENCES, context, programs, segments,
    )  # fmt: skip
    run(_paged_queries, config, args, block_sizes=[block_m, config.tile_size])
