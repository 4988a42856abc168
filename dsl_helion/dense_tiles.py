"""Tiles whose keys lie one behind the other: one descriptor block each (TMA: NVIDIA from sm_90 on) (ours)."""

import helion.language as hl
import torch

from dsl_helion.primitives import base2_scale, score, softmax_step, visible


def masked_tile(i, left, lo, full_hi):
    """The i-th tile that needs a mask: `left` of them begin at lo, the others at full_hi.

    One loop for both edges, after the tiles between: with a third loop ptxas 12.8 crashes on TMA loads.
    """
    return torch.where(i < left, lo + i, full_hi + i - left)


def attend_block(
    j, q, m, l, acc, query_pos, seq_len, softmax_scale, f, keys, values, row, kv_head, tile_size, masked, foreign
):
    """Tile j of the sequence, which begins at `row` of keys and values. Returns the new m, l, acc.

    foreign: keys and values are the step's new ones [num_tokens, num_kv_heads, head_size]: behind the sequence's last
    key there are those of others, or NaN, not zeros.
    """
    key_pos = j * tile_size + hl.arange(tile_size)
    at = [row + j * tile_size + hl.arange(tile_size), slice(None)]
    if foreign:
        at = [row + j * tile_size + hl.arange(tile_size), kv_head, slice(None)]
    s = score(q, hl.load(keys, at), softmax_scale, f)
    if masked:
        s = torch.where(visible(query_pos, key_pos, seq_len, f), s, float("-inf"))
    if masked and foreign:
        v = hl.load(values, at, extra_mask=(key_pos < seq_len).unsqueeze(1))
    else:
        v = hl.load(values, at)
    return softmax_step(s, v, m, l, acc, base2_scale(softmax_scale, f), masked)
