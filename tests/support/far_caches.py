"""A cache whose pages or slots lie far apart: offsets that 32 bits do not hold, in memory that is not touched."""

import torch


def apart(cache: torch.Tensor, page: int, slot: int) -> torch.Tensor:
    """The same cache with pages and slots that many elements apart; only what is touched is resident."""
    blocks, slots, heads, lanes = cache.shape
    storage = torch.empty((blocks - 1) * page + (slots - 1) * slot + heads * lanes, dtype=cache.dtype)
    return storage.as_strided(cache.shape, (page, slot, lanes, 1)).copy_(cache)
