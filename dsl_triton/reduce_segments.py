"""Merge what several segments found for one query token (paper 4.5): the second launch of parallel_softmax.py.

Grid: rows x query heads. A row is a query token, or, where only short queries are served and most tokens belong to long
ones, one of LONGEST_QUERY places of a sequence (BY_SEQUENCE), so that long prompts cost no programs.
"""

import triton
import triton.language as tl

from common.gpus import warp_size
from dsl_triton.binding import as_partial, as_tensor, padded
from dsl_triton.features import bundle
from dsl_triton.masks import kv_tile_range, segment_range
from dsl_triton.primitives import cut, locate_q_block, rescale, store_lse


@triton.jit
def merge_row(
    place, row, kv_head, head, used, partial, out, lse, f, VALUE_SIZE: tl.constexpr, SLOTS: tl.constexpr
):  # fmt: skip
    """Write out (and lse) at `row`: what the first `used` segments left at `place`."""
    part = tl.arange(0, SLOTS)
    live = part < used
    stat = part.to(tl.int64) * partial.m_strides[0] + place.to(tl.int64) * partial.m_strides[1] + head
    m = tl.load(partial.m + stat, mask=live, other=float("-inf"))  # [SLOTS]
    l = tl.load(partial.l + stat, mask=live, other=0.0)
    top = tl.max(m, 0)
    weight = tl.exp2(m - tl.where(top == float("-inf"), 0.0, top))
    lane = tl.arange(0, padded(VALUE_SIZE))
    strides = partial.acc_strides
    offset = part.to(tl.int64) * strides[0] + place.to(tl.int64) * strides[1] + head * strides[2]
    mask = tl.expand_dims(live, 1) & tl.expand_dims(lane < VALUE_SIZE, 0)
    acc = tl.load(partial.acc + tl.expand_dims(offset, 1) + tl.expand_dims(lane, 0), mask=mask, other=0.0)
    total = tl.sum(l * weight, 0)
    x = tl.sum(acc * tl.expand_dims(weight, 1), 0) / tl.where(total > 0.0, total, 1.0)  # [VALUE_PADDED]
    x = cut(rescale(x, kv_head, f), out.ptr.dtype.element_ty)
    out_row = out.ptr + row.to(tl.int64) * out.strides[0] + head.to(tl.int64) * out.strides[1]
    tl.store(out_row + lane, x.to(out.ptr.dtype.element_ty), mask=lane < VALUE_SIZE)
    store_lse(lse.ptr, lse.strides, row, head, True, top, total)


# Do not recompile for another batch, segment count or config of the segments.
@triton.jit(do_not_specialize=["num_seqs", "num_segments", "block_q", "tile_size"])
def _reduce_segments_kernel(
    partial,  # binding.Partial
    query_start_loc_ptr,  # i32 [num_seqs + 1]
    seq_lens_ptr,  # i32 [num_seqs]
    out,  # [num_tokens, num_query_heads, VALUE_SIZE]
    lse,  # f32 [num_tokens, num_query_heads] or None
    num_seqs,
    num_segments,
    block_q,
    tile_size,
    f,
    NUM_QUERY_HEADS: tl.constexpr, QUERIES_PER_KV: tl.constexpr, VALUE_SIZE: tl.constexpr, SLOTS: tl.constexpr,
    OVERLAP: tl.constexpr, SHORTEST_QUERY: tl.constexpr, LONGEST_QUERY: tl.constexpr, BY_SEQUENCE: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0) % NUM_QUERY_HEADS
    place = tl.program_id(0) // NUM_QUERY_HEADS  # row of the scratch

    if BY_SEQUENCE:
        seq = place // LONGEST_QUERY
        query_start = tl.load(query_start_loc_ptr + seq)
        query_len = tl.load(query_start_loc_ptr + seq + 1) - query_start
        seq_len = tl.load(seq_lens_ptr + seq)
        token = place % LONGEST_QUERY
    else:
        seq, query_start, query_len, seq_len, token = locate_q_block(
            place, query_start_loc_ptr, seq_lens_ptr, num_seqs, None
        )

    first = token // block_q * block_q
    last_pos = seq_len - query_len + tl.minimum(first + block_q, query_len) - 1
    _, _, lo, full_lo, full_hi, hi = kv_tile_range(seq, seq_len - query_len + first, last_pos, seq_len, f, tile_size)
    _, _, _, _, used = segment_range(0, lo, full_lo, full_hi, hi, f, num_segments)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()  # Wait for the segments, in every program: this launch ends after theirs.
    if (token < query_len) & (query_len >= SHORTEST_QUERY) & (query_len <= LONGEST_QUERY) & (used > 1):
        merge_row(
            place, query_start + token, head // QUERIES_PER_KV, head, used, partial, out, lse, f, VALUE_SIZE, SLOTS
        )


def reduce_segments(
    batch, features, out, config, workspace, lse, block_q, longest_query, by_sequence, shortest_query=1
) -> None:
    """Write out (and lse) of every token that more than one segment worked on.

    config, block_q and what follows are those of the launch of the segments.
    """
    shape = batch.shape
    rows = batch.num_seqs * longest_query if by_sequence else batch.num_tokens
    slots = max(triton.next_power_of_2(config.num_segments), 8)  # fewer segments share this code, of one warp
    _reduce_segments_kernel[(rows * shape.num_query_heads,)](
        as_partial(workspace), batch.query_start_loc, batch.seq_lens, as_tensor(out), as_tensor(lse), batch.num_seqs,
        config.num_segments, block_q, config.tile_size, bundle(features),
        NUM_QUERY_HEADS=shape.num_query_heads, QUERIES_PER_KV=shape.queries_per_kv, VALUE_SIZE=shape.value_lanes,
        SLOTS=slots, OVERLAP=config.overlap,
        SHORTEST_QUERY=shortest_query, LONGEST_QUERY=longest_query, BY_SEQUENCE=by_sequence,
        # 32 lanes read 8 segments: four warps for as many cost 0.5 us on an H200
        num_warps=min(max(slots * 4 // warp_size(batch.device), 1), 4),
        **({"launch_pdl": True} if config.overlap else {}),
    )  # fmt: skip
