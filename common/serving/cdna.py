"""Adjust a config to AMD's data-centre GPUs: one step behind the rules of both DSLs.

Rules choose rows, tiles, warps and stages; what follows here depends only on the GPU and the batch, for every kernel.
docs/results/mi300/counts.md has the counts behind it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from common.gpus import Gpu
from common.serving.grid import few_rows
from common.spec import AttentionShape
from common.spec.cdna import Cdna
from common.spec.metadata import BatchStats

BY_KEYS = {"page": "flat", "run": "key"}  # forms with a page axis (Helion, Triton), and with one index a key
DECODE = "decode"  # the part of a config for short queries


def settled(config: Any, shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> Any:
    """`config` and its parts, adjusted to a GPU with MFMA; unchanged on others.

    K is loaded transposed where shared memory cannot transpose it in wide reads. Tiles of several pages are read by one
    index a key, because their page axis is not swizzled. Decodes stream K and V. Programs of one KV head share a die
    where a die serves several heads; with fewer heads the grid's own order does it, and balances causal work.
    """
    return _settled(config, shape, gpu, few_rows(shape, stats)) if gpu.mfma else config


def _settled(config: Any, shape: AttentionShape, gpu: Gpu, decodes: bool) -> Any:
    if not dataclasses.is_dataclass(config):
        return config
    parts = {
        field.name: _settled(part, shape, gpu, decodes or field.name == DECODE)
        for field in dataclasses.fields(config)
        if dataclasses.is_dataclass(part := getattr(config, field.name))
    }
    if isinstance(config, Cdna):
        several = not decodes and shape.num_kv_heads > gpu.xcds
        parts |= {"transposed_keys": not gpu.turns_on_read, "stream": decodes, "xcds": gpu.xcds if several else 1}
    gather = getattr(config, "gather", "")
    tiles = [part.tile_size for part in (config, *parts.values()) if hasattr(part, "tile_size")]
    if gather in BY_KEYS and any(shape.block_size % tile for tile in tiles):
        parts["gather"] = BY_KEYS[gather]
    return dataclasses.replace(config, **parts) if parts else config
