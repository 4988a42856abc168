"""Where a tile of keys can come from besides pages of whole heads: x-packed pages, and the step's own K and V.

The rest of a step is primitives.attend_tile's; dsl_triton/tile_sources.py says the same in Triton.
"""

import helion.language as hl
import torch

from common.spec import PagedBatch
from dsl_helion.arithmetic import div, mod
from dsl_helion.binding import loadable, value_dtype
from dsl_helion.masks import not_before
from dsl_helion.primitives import (
    attend_tile,
    base2_scale,
    dequantise,
    dequantise_values,
    find_slots,
    load_token_scales,
    logits,
    products,
    softmax_step,
)


def packed_operands(batch: PagedBatch) -> tuple[torch.Tensor, ...]:
    """binding.operands of x-packed caches: K [num_blocks, num_kv_heads, head_size / x, block_size * x]."""
    return loadable(batch.query), loadable(batch.key_cache.flatten(3)), loadable(batch.value_cache)


def load_packed_tile(cache, page, slot, kv_head, wanted, head_size, x, dtype, masked):
    """K [tile_size, head_size] of one KV head out of a view [num_blocks, num_kv_heads, head_size / x, block_size * x].

    V, [num_blocks, num_kv_heads, head_size, block_size], is the same with x = 1. Keys that are not `wanted` give zeros.
    """
    lane = hl.arange(head_size).unsqueeze(0)
    page, slot = page.unsqueeze(1), slot.unsqueeze(1)
    at = [page, torch.zeros_like(page) + kv_head, div(lane, x), slot * x + mod(lane, x)]
    if masked:
        tile = hl.load(cache, at, extra_mask=wanted.unsqueeze(1))
    else:
        tile = hl.load(cache, at)
    return dequantise(tile, dtype)


def attend_paged_tile(
    j, q, m, l, acc, query_pos, seq, seq_len, first_key, end_key, kv_head, softmax_scale, f,
    r, key_cache, value_cache, block_table, lanes, block_size, page_rows, gather, tile_size, x, masked,
):  # fmt: skip
    """attend_tile over pages of either layout; x: lanes that lie together in an x-packed K, None for whole heads.

    lanes: head size and value size.
    """
    if x is None:
        return attend_tile(
            j, q, m, l, acc, query_pos, seq, seq_len, first_key, end_key, kv_head, softmax_scale, f,
            r, key_cache, value_cache, block_table, block_size, page_rows, gather, tile_size, masked,
        )  # fmt: skip
    else:
        key_pos = j * tile_size + hl.arange(tile_size)
        wanted = not_before(first_key, key_pos, key_pos < end_key, f)
        page, slot = find_slots(
            block_table, seq, j, key_pos, first_key, end_key, f, block_size, page_rows, gather, tile_size, masked
        )
        tile = block_table, seq, j, key_pos, first_key, end_key, f, kv_head
        k = load_packed_tile(key_cache, page, slot, kv_head, wanted, lanes[0], x, q.dtype, False)
        if f["transposed_keys"] is not None:
            k = k.transpose(0, 1)
        scales = load_token_scales(f["key_token_scales"], *tile, wanted, block_size, tile_size, masked)
        s = logits(products(q, k, f), q, scales, query_pos, key_pos, seq_len, softmax_scale, f, r, masked)
        v = load_packed_tile(value_cache, page, slot, kv_head, wanted, lanes[1], 1, None, masked)
        v = dequantise_values(v, value_dtype(q.dtype, f["value_token_scales"] is not None))
        scales = load_token_scales(f["value_token_scales"], *tile, wanted, block_size, tile_size, masked)
        return softmax_step(s, v, scales, m, l, acc, base2_scale(softmax_scale, f, r), f, r, masked)


def attend_new_tile(
    j, q, m, l, acc, token, new_len, first_key, end_key, kv_head, softmax_scale, f, r,
    key, value, new_start, lanes, tile_size, masked,
):  # fmt: skip
    """attend_tile over a sequence's new tokens, counted from the first that has a key: rows new_start on of K and V
    [num_tokens, num_kv_heads, head_size].

    Rows that are not wanted belong to other sequences, or lie past the tensors: K reads the first instead.
    """
    key_pos = j * tile_size + hl.arange(tile_size)
    wanted = (key_pos >= first_key) & (key_pos < end_key)
    row = new_start + key_pos
    if masked:
        row = torch.where(wanted, row, new_start)
    row, lane = row.to(torch.int64), hl.arange(lanes[0])
    if f["transposed_keys"] is not None:
        at = [row.unsqueeze(0), torch.zeros_like(row).unsqueeze(0) + kv_head, lane.unsqueeze(1)]
    else:
        at = [row.unsqueeze(1), torch.zeros_like(row).unsqueeze(1) + kv_head, lane.unsqueeze(0)]
    k = dequantise(hl.load(key, at), q.dtype)
    s = logits(products(q, k, f), q, None, token, key_pos, new_len, softmax_scale, f, r, masked)
    row = row.unsqueeze(1)
    at = [row, torch.zeros_like(row) + kv_head, hl.arange(lanes[1]).unsqueeze(0)]
    if masked:
        v = dequantise(hl.load(value, at, extra_mask=wanted.unsqueeze(1)), q.dtype)
    else:
        v = dequantise(hl.load(value, at), q.dtype)
    return softmax_step(s, v, None, m, l, acc, base2_scale(softmax_scale, f, r), f, r, masked)
