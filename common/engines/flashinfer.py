"""Our kernels under the arguments of FlashInfer's paged attention, as flashinfer-bench defines them.

The pages of sequence i are kv_indices[kv_indptr[i] : kv_indptr[i + 1]]. The block table is made of them on the device,
without waiting for it: it has a column for each entry of kv_indices, for the longest list is not known to the host.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from common.engines.options import kernel_of
from common.spec import SpecError
from common.spec.metadata import cdiv

PAGE = 16  # tokens of a page, where the cache's pages have one token each
_kernel = cache(kernel_of)


def attention(
    kernel: str,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    sm_scale: float,
    qo_indptr: Tensor | None = None,
    kv_last_page_len: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Causal attention by `kernel`, `triton/auto`, `triton/native.auto` or `helion/auto`.

    q [tokens, query heads, head size]; k_cache, v_cache [pages, page size, KV heads, head size], the page size 1 or a
    multiple of 8; kv_indptr int32 [sequences + 1]; kv_indices int32 [pages of all sequences]; qo_indptr int32
    [sequences + 1], None for one token a sequence; kv_last_page_len int32 [sequences]: tokens in each last page, None
    where all pages are full. Returns the output, as q, and the LSE, float32 [tokens, query heads], in base 2. Pages of
    one token are first gathered, K and V, into consecutive memory. Raises SpecError.
    """
    chosen = _kernel(kernel)
    if chosen.name is not None:
        raise SpecError("kernel", repr(kernel), "triton/auto, triton/native.auto or helion/auto")
    page, counts = k_cache.shape[1], kv_indptr.diff()
    if page == 1:
        seq_lens, num_keys = counts, len(kv_indices)
        k_cache, v_cache = (_pages(cache, kv_indices) for cache in (k_cache, v_cache))
        starts = torch.arange(0, max(1, num_keys), PAGE, dtype=torch.int32, device=q.device)
        block_table = kv_indptr[:-1, None] + starts
    else:
        last = page if kv_last_page_len is None else kv_last_page_len
        seq_lens, num_keys = torch.where(counts > 0, (counts - 1) * page + last, 0), len(kv_indices) * page
        kv_indices = kv_indices if len(kv_indices) else kv_indices.new_zeros(1)
        entries = torch.arange(len(kv_indices), dtype=torch.int32, device=q.device)
        block_table = kv_indices[(kv_indptr[:-1, None] + entries).clamp_(max=len(kv_indices) - 1)]
    if qo_indptr is None:
        qo_indptr, longest = torch.arange(len(kv_indptr), dtype=torch.int32, device=q.device), 1
    else:
        longest = len(q)
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    mean = cdiv(num_keys, max(1, len(counts)))  # a hint: how long each would be if all were alike
    hints = {"max_query_len": longest, "max_seq_len": mean, "total_seq_len": num_keys}
    out = chosen.module.paged_attention(
        q, k_cache, v_cache, block_table, qo_indptr, seq_lens.int(), lse=lse, softmax_scale=sm_scale, **hints
    )
    return out, lse.div_(math.log(2.0))


def _pages(cache: Tensor, kv_indices: Tensor) -> Tensor:
    """[max(1, tokens), PAGE, KV heads, head size]: the tokens of a cache of one-token pages, copied in the order of
    kv_indices; page i begins at token i, so each overlaps the next."""
    tokens, (heads, size) = len(kv_indices), cache.shape[2:]
    room = cache.new_empty((max(1, tokens) + PAGE, heads, size))
    torch.index_select(cache[:, 0], 0, kv_indices, out=room[:tokens])
    return room.as_strided((max(1, tokens), PAGE, heads, size), (heads * size, heads * size, size, 1))
