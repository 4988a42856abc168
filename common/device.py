"""The GPU behind a device, asked of the driver once."""

from __future__ import annotations

from functools import lru_cache

import torch

from common.gpus import Gpu, detect

_at = lru_cache(maxsize=64)(detect)


def gpu_of(device: torch.device) -> Gpu | None:
    """The GPU behind a device; None for a CPU."""
    if device.type != "cuda":
        return None
    return _at(torch.cuda.current_device() if device.index is None else device.index)
