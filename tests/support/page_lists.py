"""A batch's pages as FlashInfer lists them."""

import itertools

import torch


def page_lists(batch, page):
    """The arguments of a call: the batch's pages, or its slots as pages of one token."""
    size, lens = batch.shape.block_size, batch.seq_lens.tolist()
    counts = [length if page == 1 else -(-length // size) for length in lens]
    each = [range(0, count) for count in counts]
    found = [batch.block_table[i, at // size] * size + at % size for i, ats in enumerate(each) for at in ats]
    if page > 1:
        found = [batch.block_table[i, at] for i, ats in enumerate(each) for at in ats]
    caches = batch.key_cache, batch.value_cache
    return {
        "q": batch.query,
        "k_cache": caches[0] if page > 1 else caches[0].reshape(-1, 1, *caches[0].shape[2:]),
        "v_cache": caches[1] if page > 1 else caches[1].reshape(-1, 1, *caches[1].shape[2:]),
        "kv_indptr": torch.tensor([*itertools.accumulate(counts, initial=0)], dtype=torch.int32, device=batch.device),
        "kv_indices": torch.tensor(found, dtype=torch.int32, device=batch.device),
        "sm_scale": batch.softmax_scale,
        "qo_indptr": None if batch.stats.max_query_len == 1 else batch.query_start_loc,
        "kv_last_page_len": None if page == 1 else ((batch.seq_lens - 1) % size + 1).int(),
    }
