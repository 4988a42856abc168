"""torch's scaled_dot_product_attention on gathered pages."""

import torch
from torch.nn.functional import scaled_dot_product_attention


def paged_attention(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, *, softmax_scale):
    out, page = torch.zeros_like(query), key_cache.shape[1]
    group = query.shape[1] // key_cache.shape[2]
    for i, length in enumerate(seq_lens.tolist()):
        begin, end = query_start_loc[i : i + 2].tolist()
        if begin == end:
            continue
        pages = block_table[i, : -(-length // page)].long()
        k, v = (
            c[pages].flatten(0, 1)[:length].repeat_interleave(group, 1).transpose(0, 1)
            for c in (key_cache, value_cache)
        )
        seen = (
            torch.arange(length, device=query.device)
            <= torch.arange(length - (end - begin), length, device=query.device)[:, None]
        )
        q = query[begin:end].transpose(0, 1).float()
        found = scaled_dot_product_attention(q, k.float(), v.float(), seen, scale=softmax_scale)
        out[begin:end] = found.masked_fill(~seen.any(-1)[:, None], 0.0).transpose(0, 1).to(out.dtype)
    return out
