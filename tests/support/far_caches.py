"""A cache whose pages or slots lie far apart: offsets that 32 bits do not hold, in memory that is not touched."""

import torch


def apart(cache: torch.Tensor, page: int, slot: int, head: int | None = None) -> torch.Tensor:
    """The same cache with pages, slots and heads that many elements apart; only what is touched is resident."""
    strides = (page, slot, head or cache.shape[3], 1)
    storage = torch.empty(sum((n - 1) * by for n, by in zip(cache.shape, strides, strict=True)) + 1, dtype=cache.dtype)
    return storage.as_strided(cache.shape, strides).copy_(cache)
