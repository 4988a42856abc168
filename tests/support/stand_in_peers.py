"""Stand-ins for the functions of others' Triton kernels: each asserts what it is given and answers in float64."""

import torch


def dense(query, keys, values, scale, causal=True, window=None, softcap=0.0, sinks=None):
    """[queries, heads, size] of the last keys of one sequence, in float64."""
    groups = query.shape[1] // keys.shape[1]
    keys, values = (one.double().repeat_interleave(groups, 1) for one in (keys, values))
    logits = torch.einsum("qhd,khd->hqk", query.double(), keys) * scale
    logits = softcap * torch.tanh(logits / softcap) if softcap > 0 else logits
    behind = (torch.arange(len(query)) + len(keys) - len(query))[:, None] - torch.arange(len(keys))
    hidden = (behind < 0) & causal | (behind >= (window or len(keys) + len(query)))
    logits = logits.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        logits = torch.cat([logits, sinks[:, None, None].expand(-1, len(query), 1).double()], -1)
    weights = logits.softmax(-1).nan_to_num(0.0)[..., : len(keys)]
    return torch.einsum("hqk,khd->qhd", weights, values)


def paged(query, caches, table, starts, lens, out, scale, **asked):
    """`out` of a batch over pages [pages, slots, heads, size]."""
    for i, keys in enumerate(lens.tolist()):
        rows = slice(*starts[i : i + 2].tolist())
        pages = table[i, : -(-keys // caches[0].shape[1])].long()
        out[rows] = dense(query[rows], *(c[pages].flatten(0, 1)[:keys] for c in caches), scale, **asked)


def varlen_attention(query, keys, values, starts, most, lens, longest, table, *, output, scale, strict, **asked):
    assert strict and most == (starts[1:] - starts[:-1]).max() and longest == lens.max()
    paged(query, (keys, values), table, starts, lens, output, scale, **asked)


def paged_attention(query, keys, values, table, lens, *, output, scale, softcap):
    paged(query, (keys, values), table, torch.arange(len(lens) + 1), lens, output, scale, softcap=softcap)


def paged_attention_decode(out, query, keys, values, lens, table, scale, longest, kind, *ones, alibi_slopes):
    assert longest == lens.max() and [one.item() for one in ones] == [1, 1] and alibi_slopes is None
    caches = keys.transpose(1, 2), values.transpose(1, 2)
    paged(query, caches, table, torch.arange(len(lens) + 1), lens, out, scale)


def decode_attention_fwd(q, k, v, out, starts, slots, parts, sums, splits, most, scale, *ones, page_size, **asked):
    assert parts.shape == (*q.shape[:2], most, v.shape[-1]) and sums.shape == parts.shape[:-1] and len(splits) == len(q)
    for i in range(len(q)):
        own = slots[starts[i] : starts[i + 1]]
        cap, sinks = asked["logit_cap"], asked["sinks"]
        out[i : i + 1] = dense(q[i : i + 1], k[own], v[own], scale, softcap=cap, sinks=sinks)


def extend_attention_fwd_unified(q, out, k, v, one, other, starts, indptr, slots, prefix, longest, **asked):
    window = asked["sliding_window_size"] + 1 or None
    for i in range(len(prefix)):
        rows, own = slice(*starts[i : i + 2].tolist()), slots[indptr[i] : indptr[i + 1]]
        assert len(own) == prefix[i] + rows.stop - rows.start
        more = {"causal": asked["is_causal"], "window": window, "softcap": asked["logit_cap"], "sinks": asked["sinks"]}
        out[rows] = dense(q[rows], k[own], v[own], asked["sm_scale"], **more)


def flash_attn_with_kvcache(query, keys, values, lens, table, *, max_seqlen_q, softmax_scale, **asked):
    assert max_seqlen_q == 1
    out, starts = torch.empty_like(query), torch.arange(len(lens) + 1)
    window = asked["window_size"] + 1 or None
    more = {"window": window, "softcap": asked["softcap"], "sinks": asked["sinks"]}
    paged(query, (keys, values), table, starts, lens, out, softmax_scale, **more)
    return out


def flatten_kv_cache(keys, values, lens, table, *, start_loc, out_size, out_dtype):
    flat = [cache.new_zeros(cache.shape[2], out_size, cache.shape[3], dtype=out_dtype) for cache in (keys, values)]
    for made, cache in zip(flat, (keys, values), strict=True):
        for i, count in enumerate(lens.tolist()):
            pages = table[i, : -(-count // cache.shape[1])].long()
            made[:, start_loc[i] : start_loc[i] + count] = cache[pages].flatten(0, 1)[:count].transpose(0, 1)
    return flat


def flash_attn_varlen_func(query, keys, values, starts, key_starts, *, max_seqlen_q, softmax_scale, causal, **asked):
    out, window = torch.empty_like(query), asked["window_size"] + 1 or None
    for i in range(len(starts) - 1):
        rows, own = slice(*starts[i : i + 2].tolist()), slice(*key_starts[i : i + 2].tolist())
        more = {"causal": causal, "window": window, "softcap": asked["softcap"], "sinks": asked["sinks"]}
        found = (flat[:, own].transpose(0, 1) for flat in (keys, values))
        out[rows] = dense(query[rows], *found, softmax_scale, **more)
    return out
