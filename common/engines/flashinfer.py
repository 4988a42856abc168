"""Our kernels under the arguments of FlashInfer's paged attention, as flashinfer-bench defines them.

The pages of sequence i are kv_indices[kv_indptr[i] : kv_indptr[i + 1]]. The block table is made of them on the device,
without waiting for it: it has a column for each entry of kv_indices, for the longest list is not known to the host.
"""

import math
from functools import cache

import torch
from torch import Tensor

from common.engines.options import kernel_of
from common.spec import SpecError
from common.spec.metadata import cdiv
from common.spec.plain import shown
from common.spec.refusals import expect, expect_tensor

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
    if not isinstance(kernel, str) or _kernel(kernel).name is not None:
        raise SpecError("kernel", shown(kernel), "triton/auto, triton/native.auto or helion/auto")
    _expect(q, k_cache, v_cache, kv_indptr, kv_indices, qo_indptr, kv_last_page_len)
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
    out = _kernel(kernel).module.paged_attention(
        q, k_cache, v_cache, block_table, qo_indptr, seq_lens.int(), lse=lse, softmax_scale=sm_scale, **hints
    )
    return out, lse.div_(math.log(2.0))


def _expect(q: Tensor, k: Tensor, v: Tensor, indptr: Tensor, indices: Tensor, starts: Tensor, last: Tensor) -> None:
    """Check what the block table is made of: types, sizes and devices, and on a CPU the values. Raises SpecError."""
    lists = {"kv_indptr": indptr, "kv_indices": indices, "qo_indptr": starts, "kv_last_page_len": last}
    lists = {name: one for name, one in lists.items() if one is not None or name.startswith("kv_ind")}
    tensors = {"q": (q, 3), "k_cache": (k, 4), "v_cache": (v, 4)} | {name: (one, 1) for name, one in lists.items()}
    for name, (tensor, rank) in tensors.items():
        expect_tensor(tensor, name, rank)
        expect(tensor.device == q.device, name, f"on {tensor.device}", f"the device of q, {q.device}")
    for name, one in lists.items():
        expect(one.dtype in (torch.int32, torch.int64), name, one.dtype, "torch.int32 or torch.int64")
    expect(v.shape[:3] == k.shape[:3], "v_cache", tuple(v.shape), f"that of k_cache, {tuple(k.shape)}, but for lanes")
    expect(len(indptr) > 0, "kv_indptr", "no entry", "num_seqs + 1")
    for name, wanted in (("qo_indptr", len(indptr)), ("kv_last_page_len", len(indptr) - 1)):
        if name in lists:
            expect(len(lists[name]) == wanted, name, f"{len(lists[name])} entries", f"{wanted}")
    if q.is_cpu:
        _expect_values(k, indptr, indices, last)


def _expect_values(k: Tensor, indptr: Tensor, indices: Tensor, last: Tensor | None) -> None:
    whole = int(indptr[0]) == 0 and bool((indptr.diff() >= 0).all()) and int(indptr[-1]) <= len(indices)
    allowed = f"0 first, never less, at most the {len(indices)} kv_indices"
    expect(whole, "kv_indptr", f"{indptr.tolist()!s:.60}", allowed)
    used = {"kv_indices": (indices[: int(indptr[-1])], 0, len(k) - 1)}
    if last is not None:
        used["kv_last_page_len"] = (last[indptr.diff() > 0], 1, k.shape[1])
    for name, (found, least, most) in used.items():
        bad = found[(found < least) | (found > most)]
        expect(not len(bad), name, bad[:1].tolist(), f"{least} to {most}")


def _pages(cache: Tensor, kv_indices: Tensor) -> Tensor:
    """[max(1, tokens), PAGE, KV heads, head size]: the tokens of a cache of one-token pages, copied in the order of
    kv_indices; page i begins at token i, so each overlaps the next."""
    tokens, (heads, size) = len(kv_indices), cache.shape[2:]
    room = cache.new_empty((max(1, tokens) + PAGE, heads, size))
    torch.index_select(cache[:, 0], 0, kv_indices, out=room[:tokens])
    return room.as_strided((max(1, tokens), PAGE, heads, size), (heads * size, heads * size, size, 1))
