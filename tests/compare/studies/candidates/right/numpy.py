"""numpy in place of torch."""

import numpy as np
import torch


def paged_attention(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, *, softmax_scale):
    out, page = np.zeros(query.shape), key_cache.shape[1]
    group = query.shape[1] // key_cache.shape[2]
    starts, table = query_start_loc.tolist(), block_table.cpu().numpy()
    q, keys, values = (tensor.double().cpu().numpy() for tensor in (query, key_cache, value_cache))
    for i, length in enumerate(seq_lens.tolist()):
        rows = slice(starts[i], starts[i + 1])
        pages = table[i, : -(-length // page)]
        k, v = (c[pages].reshape(-1, *c.shape[2:])[:length].repeat(group, 1) for c in (keys, values))
        s = np.einsum("qhd,khd->hqk", q[rows], k) * softmax_scale
        seen = np.arange(length) <= np.arange(length - s.shape[1], length)[:, None]
        s = np.where(seen, s, -np.inf)
        p = np.exp(s - s.max(-1, keepdims=True, initial=-1e300))
        out[rows] = np.einsum("hqk,khd->qhd", p / p.sum(-1, keepdims=True).clip(1e-300), v)
    return torch.from_numpy(out).to(query)
