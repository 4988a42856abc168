"""All sequences at once, padded to the longest."""

import torch


def paged_attention(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, *, softmax_scale):
    tokens, longest = int(query_start_loc[-1]), int(seq_lens.max()) if len(seq_lens) else 0
    out = torch.zeros_like(query)
    if not tokens:
        return out
    page, group = key_cache.shape[1], query.shape[1] // key_cache.shape[2]
    row = torch.arange(tokens, device=query.device)
    seq = torch.searchsorted(query_start_loc[1:].contiguous(), row.int(), right=True)
    position = seq_lens[seq] - query_start_loc[seq + 1] + row
    key = torch.arange(longest, device=query.device)
    seen = key <= position[:, None]
    pages = torch.where(key < seq_lens[:, None], block_table[:, key // page], 0).long()
    k, v = (c[pages, key % page].repeat_interleave(group, 2)[seq].float() for c in (key_cache, value_cache))
    s = torch.einsum("rhd,rkhd->rhk", query[:tokens].float(), k) * softmax_scale
    p = s.masked_fill(~seen[:, None], -torch.inf).softmax(-1).masked_fill(position[:, None, None] < 0, 0.0)
    out[:tokens] = torch.einsum("rhk,rkhd->rhd", p, v.masked_fill(~seen[..., None, None], 0.0)).to(out.dtype)
    return out
