"""Tiles whose keys lie one behind the other: one descriptor block each (TMA: NVIDIA from sm_90 on) (ours)."""

import helion.language as hl
import torch

from common.spec import Features, PagedBatch
from common.spec.kernel import first_part, new_tokens
from dsl_helion.arithmetic import int32
from dsl_helion.binding import loadable, value_dtype
from dsl_helion.head_parts import lanes_of
from dsl_helion.primitives import (
    base2_scale,
    dequantise,
    logits,
    products,
    softmax_weights,
    sum_values,
    wide_index,
)


def masked_tile(i, left, lo, full_hi):
    """The i-th tile that needs a mask: `left` of them begin at lo, the others at full_hi.

    One loop for both edges, after the tiles between: with a third loop ptxas 12.8 crashes on TMA loads.
    """
    return torch.where(int32(i) < left, lo + int32(i), full_hi + int32(i) - left)


def load_copied_scales(scales, row, tile_size):
    """float32 [tile_size] of the keys from `row` of the scratch on; None where there are no such scales."""
    if scales is None:
        return None
    return hl.load(scales, [row + hl.arange(tile_size)])


def load_key_rows(keys, rows, at, lanes, kv_head, f, foreign, dtype):
    """primitives.load_keys of some lanes of these rows; at: where they lie, without a transposition."""
    if f["transposed_keys"] is None:
        return dequantise(hl.load(keys, [*at, lanes]), dtype)
    at = [rows.unsqueeze(0), hl.arange(keys.size(-1)).unsqueeze(1)]
    if foreign:
        at = [at[0], wide_index(kv_head), at[1]]
    return dequantise(hl.load(keys, at), dtype)


def load_values(values, at, own, dtype):
    """V of these rows as an operand of a product; zeros for keys that are not `own`, unless that is None."""
    if own is None:
        return dequantise(hl.load(values, at), dtype)
    else:
        return dequantise(hl.load(values, at, extra_mask=own.unsqueeze(1)), dtype)


def attend_block(
    j, q, m, l, acc, acc_rest, query_pos, seq_len, softmax_scale, f, r, keys, values, key_scales, value_scales, row,
    kv_head, tile_size, first, parts, masked, foreign,
):  # fmt: skip
    """Tile j of the sequence, which begins at `row` of keys and values. Returns the new m, l, acc, acc_rest.

    q: a tuple of parts (head_parts.py), of which the first has `first` lanes; V has `parts`. key_scales, value_scales:
    of the same rows, where a stored element has one for its token; else None.
    foreign: keys and values are the step's new ones [num_tokens, num_kv_heads, head_size]: behind the sequence's last
    key there are those of others, or NaN, not zeros. They have at least tile_size rows: a masked tile that would end
    behind the last begins earlier, for plain loads have no bounds, and of its rows only its own keys count.
    """
    key_pos = j * int32(tile_size) + hl.arange(tile_size)
    rows = row + j * tile_size + hl.arange(tile_size)
    at = [rows]  # in 64 bits: lanes of all rows may exceed 2^31
    if foreign:
        begin = row + j * tile_size
        if masked:
            begin = torch.minimum(begin, hl.full([], keys.size(0) - tile_size, dtype=torch.int32))
            key_pos = begin - row + hl.arange(tile_size)
        rows = begin + hl.arange(tile_size)
        at = [rows, kv_head]
    lanes, rest = lanes_of(keys.size(-1), first)
    s = products(q[0], load_key_rows(keys, rows, at, lanes, kv_head, f, foreign, q[0].dtype), f)
    if first > 0:
        s = products(q[1], load_key_rows(keys, rows, at, rest, kv_head, f, foreign, q[1].dtype), f, s)
    scales = load_copied_scales(key_scales, row + j * tile_size, tile_size)
    s = logits(s, q[0], scales, query_pos, key_pos, seq_len, softmax_scale, f, r, masked)
    own = None
    if masked and foreign:
        own = (key_pos >= j * tile_size) & (key_pos < seq_len)
        s = torch.where(own.unsqueeze(0), s, float("-inf"))
    dtype = value_dtype(q[0].dtype, f["value_token_scales"] is not None)
    value_lanes, value_rest = lanes_of(values.size(-1), first_part(values.size(-1)) if parts == 2 else 0)
    v = load_values(values, [*at, value_lanes], own, dtype)
    scales = load_copied_scales(value_scales, row + j * tile_size, tile_size)
    p, alpha, m, l = softmax_weights(s, scales, m, l, base2_scale(softmax_scale, f, r), f, r, masked)
    if parts == 2:
        acc_rest = sum_values(p, load_values(values, [*at, value_rest], own, dtype), alpha, acc_rest)
    return m, l, sum_values(p, v, alpha, acc), acc_rest


def tile_sources(
    batch: PagedBatch, features: Features, key: torch.Tensor, value: torch.Tensor, tile_size: int, new_kv: bool
) -> tuple[dict[str, tuple[torch.Tensor, ...]], int]:
    """K and V for the launch of unpaged.py, by the name of their source, and how many tiles of the scratch are used.

    new_kv: the step's new K and V in place of a copy, where there are at least a tile's rows: attend_block reads whole
    tiles.
    """
    new = new_tokens(batch, features) if new_kv else (None, None)
    if new[0] is not None and new[0].shape[0] >= tile_size:
        return {"new": new}, 0
    tiles = key.shape[0] // (batch.shape.num_kv_heads * tile_size)
    return {"copied": (loadable(key), loadable(value))}, tiles
