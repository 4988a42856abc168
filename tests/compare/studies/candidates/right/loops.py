"""Plain loops: one query row and one head at a time."""

import torch


def paged_attention(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, *, softmax_scale):
    out, page = torch.zeros_like(query), key_cache.shape[1]
    group = query.shape[1] // key_cache.shape[2]
    starts = query_start_loc.tolist()
    for seq, length in enumerate(seq_lens.tolist()):
        pages = block_table[seq, : -(-length // page)].long()
        keys, values = (cache[pages].flatten(0, 1).float() for cache in (key_cache, value_cache))
        for row in range(starts[seq], starts[seq + 1]):
            seen = max(length - starts[seq + 1] + row + 1, 0)
            for head in range(query.shape[1]):
                scores = keys[:seen, head // group] @ query[row, head].float() * softmax_scale
                out[row, head] = scores.softmax(0).to(query.dtype).float() @ values[:seen, head // group]
    return out
