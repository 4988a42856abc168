"""V is read by K's strides."""

import torch


def paged_attention(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, *, softmax_scale):
    out, page, group = torch.zeros_like(query), key_cache.shape[1], query.shape[1] // key_cache.shape[2]
    for i, length in enumerate(seq_lens.tolist()):
        begin, end = query_start_loc[i : i + 2].tolist()
        pages = block_table[i, : -(-length // page)].long()
        k, v = (
            c[pages].flatten(0, 1)[:length].repeat_interleave(group, 1).double()
            for c in (key_cache, value_cache.as_strided(value_cache.shape, key_cache.stride()))
        )
        scores = torch.einsum("qhd,khd->hqk", query[begin:end].double(), k) * softmax_scale
        last_seen = torch.arange(end - begin, device=query.device)[:, None] + length - (end - begin)
        scores.masked_fill_(torch.arange(length, device=query.device) > last_seen, -torch.inf)
        p = scores.softmax(-1)
        found = torch.einsum("hqk,khd->hqd", p, v).masked_fill(last_seen < 0, 0.0)
        out[begin:end] = found.transpose(0, 1).to(out.dtype)
    return out
