"""Adjust a config to AMD's data-centre GPUs: one step behind the choice of both DSLs.

Rows, tiles and stages are chosen; what follows here depends only on the GPU and the batch, for every kernel.
docs/results/mi300/counts.md has the counts behind it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from common.gpus import Gpu
from common.serving.grid import few_rows
from common.spec import AttentionShape
from common.spec.cdna import Cdna
from common.spec.metadata import BatchStats, power_of_two

BY_KEYS = {"page": "flat", "run": "key"}  # forms with a page axis (Helion, Triton), and with one index a key
MATRIX_ROWS = 32  # of an MFMA
DECODE_BYTES = 2**14  # of a decode's tile of K and V
DECODE = "decode"  # the part of a config for short queries


def settled(config: Any, shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> Any:
    """`config` and its parts, adjusted to a GPU with MFMA; unchanged on others.

    K is loaded transposed where shared memory cannot transpose it in wide reads. Tiles of several pages are read by one
    index a key, because their page axis is not swizzled. Decodes stream K and V, in tiles so small that LDS holds four
    programs of one wave. Programs of one KV head share a die where a die serves several heads; with fewer heads the
    grid's own order does it, and balances causal work. A program has no more waves than matrices of 32 rows: of a
    matrix that two share each forms half of the products twice.
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
        rows = max(shape.queries_per_kv, *(getattr(part, "block_m", 1) for part in (config, *parts.values())))
        if decodes and hasattr(config, "tile_size"):
            row = (power_of_two(shape.head_size) + power_of_two(shape.value_lanes)) * shape.dtype.itemsize
            parts["tile_size"] = min(config.tile_size, max(power_of_two(DECODE_BYTES // row + 1) // 2, 16))
        parts["num_warps"] = min(config.num_warps, max(rows // MATRIX_ROWS, 1))
        parts |= {"transposed_keys": not gpu.turns_on_read, "stream": decodes, "xcds": gpu.xcds if several else 1}
    gather = getattr(config, "gather", "")
    tiles = [part.tile_size for part in (config, *parts.values()) if hasattr(part, "tile_size")]
    if gather in BY_KEYS and any(shape.block_size % tile for tile in tiles):
        parts["gather"] = BY_KEYS[gather]
    return dataclasses.replace(config, **parts) if parts else config
