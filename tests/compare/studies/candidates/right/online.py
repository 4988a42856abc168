"""An online softmax over pages, as flash kernels have it."""

import torch


def paged_attention(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, *, softmax_scale):
    out, page = torch.zeros_like(query), key_cache.shape[1]
    group = query.shape[1] // key_cache.shape[2]
    for i, length in enumerate(seq_lens.tolist()):
        begin, end = query_start_loc[i : i + 2].tolist()
        q = query[begin:end].float() * softmax_scale
        last = torch.arange(end - begin, device=query.device)[:, None] + length - (end - begin)
        m, total = torch.full((query.shape[1], end - begin, 1), -1e30, device=query.device), 0.0
        acc = torch.zeros(query.shape[1], end - begin, query.shape[2], device=query.device)
        for first in range(0, length, page):
            number, count = int(block_table[i, first // page]), min(page, length - first)
            k, v = (c[number, :count].repeat_interleave(group, 1).float() for c in (key_cache, value_cache))
            s = torch.einsum("qhd,khd->hqk", q, k).masked_fill(
                first + torch.arange(count, device=query.device) > last, -torch.inf
            )
            top = torch.maximum(m, s.amax(-1, keepdim=True))
            p, fade = torch.exp(s - top), torch.exp(m - top)
            acc, total, m = acc * fade + torch.einsum("hqk,khd->hqd", p, v), total * fade + p.sum(-1, keepdim=True), top
        if length:
            out[begin:end] = (acc / total.clamp_min(1e-30)).transpose(0, 1).to(out.dtype)
    return out
