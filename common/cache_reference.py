"""What a pool holds after new K and V were written into it: the definition that both DSLs are checked against."""

from __future__ import annotations

import torch

from common.cache import CacheWrite


def written(write: CacheWrite) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies of key_cache and value_cache with the tokens in their slots, in order; the write itself is not done."""
    caches = write.key_cache.clone(), write.value_cache.clone()
    block_size = write.key_cache.shape[1]
    for token, slot in enumerate(write.slot_mapping.tolist()):
        if 0 <= slot < write.num_slots:
            for cache, new in zip(caches, (write.key, write.value), strict=True):
                cache[slot // block_size, slot % block_size] = new[token]
    return caches
