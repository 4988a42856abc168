"""The same right attention behind other signatures: FlashAttention's two calls, a returned output, and less of it."""

import torch
from kit_callables import right

SUPPORTS = {"causal", "non_causal", "sliding_window", "softcap", "lse"}


def plain(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, softmax_scale, return_lse=False):
    """Allocates its output; scales by its own argument; computes the LSE where it is asked to."""
    out = torch.empty_like(query)
    lse = torch.empty(query.shape[:2])
    tensors = (query, key_cache, value_cache, block_table, query_start_loc, seq_lens)
    right(*tensors, softmax_scale=softmax_scale, out=out, lse=lse)
    return (out, lse) if return_lse else out


plain.SUPPORTS = {"causal", "lse"}


def forwards(*tensors, **options):
    """Names no parameter: what it gets is what it may need."""
    return right(*tensors, **options)


def _window(window_size, causal):
    return {"causal": causal, "sliding_window": None if window_size[0] < 0 else window_size[0] + 1}


def varlen(
    q, k, v, cu_seqlens_q, max_seqlen_q, cu_seqlens_k, max_seqlen_k, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0, block_table=None, return_softmax_lse=False,
):  # fmt: skip
    """As flash_attn_varlen_func of FlashAttention 2: lengths of keys by their sums, LSE [heads, tokens]."""
    out, lse = torch.empty_like(q), torch.empty(q.shape[:2])
    lengths = cu_seqlens_k[1:] - cu_seqlens_k[:-1]
    options = _window(window_size, causal) | {"softcap": softcap or None, "softmax_scale": softmax_scale}
    right(q, k, v, block_table, cu_seqlens_q, lengths, out=out, lse=lse, **options)
    return (out, lse.t()) if return_softmax_lse else out


def kvcache(
    q, k_cache, v_cache, cache_seqlens, block_table, softmax_scale=None, causal=False, window_size=(-1, -1),
    softcap=0.0, return_softmax_lse=False,
):  # fmt: skip
    """As flash_attn_with_kvcache of FlashAttention 2: q [batch, 1, heads, size], LSE [batch, heads, 1]."""
    flat = q.flatten(0, 1)
    out, lse = torch.empty_like(flat), torch.empty(flat.shape[:2])
    starts = torch.arange(q.shape[0] + 1, dtype=torch.int32)
    options = _window(window_size, causal) | {"softcap": softcap or None, "softmax_scale": softmax_scale}
    right(flat, k_cache, v_cache, block_table, starts, cache_seqlens, out=out, lse=lse, **options)
    return (out[:, None], lse[..., None]) if return_softmax_lse else out[:, None]


kvcache.LIMITS = {"max_query_len": 1, "cases": {"query-0": "a sequence without a query", "no-tokens": "no queries"}}


def halves(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, softmax_scale, out):
    """float16 and bfloat16 in pages of 16 alone; says so."""
    assert query.dtype != torch.float32 and key_cache.shape[1] == 16
    tensors = (query, key_cache, value_cache, block_table, query_start_loc, seq_lens)
    right(*tensors, softmax_scale=softmax_scale, out=out)


def _in_place(gives):
    """A kernel that writes to `out`, and gives something back beside it."""

    def kernel(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, softmax_scale, out):
        tensors = (query, key_cache, value_cache, block_table, query_start_loc, seq_lens)
        right(*tensors, softmax_scale=softmax_scale, out=out)
        return gives(out)

    kernel.SUPPORTS = {"causal"}
    return kernel


gives_more = _in_place(lambda out: (out, None, {"seed": 1}))
gives_a_list = _in_place(lambda out: [out])
gives_true = _in_place(lambda out: True)
gives_more_rows = _in_place(lambda out: torch.cat([out, out]))
gives_resized = _in_place(lambda out: setattr(out, "data", out.data[:, :1]))
gives_moved = _in_place(lambda out: setattr(out, "data", out.data.clone()))
gives_fewer_rows = _in_place(lambda out: out.resize_(0, *out.shape[1:]).numel())
gives_other_strides = _in_place(lambda out: out.transpose(0, 1).contiguous().transpose(0, 1))
gives_zeros_behind = _in_place(lambda out: (torch.zeros_like(out), None, out))
halves.SUPPORTS = {"causal"}
halves.LIMITS = {"dtype": ["float16", torch.bfloat16], "block_size": (16,)}


def refuses(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, sliding_window=None):
    """Refuses what SUPPORTS declares."""
    raise NotImplementedError("sliding_window on Tuesdays")


refuses.SUPPORTS = {"causal", "sliding_window"}


def deaf(query, key_cache, value_cache, block_table, query_start_loc, seq_lens):
    """SUPPORTS has more than its parameters."""
    return torch.zeros_like(query)


def unknown_limit(query, key_cache, value_cache, block_table, query_start_loc, seq_lens):
    return query


unknown_limit.LIMITS = {"weather": ["fair"]}
