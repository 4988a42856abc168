"""Adjust a chosen config to AMD's data-centre GPUs, for the kernels of both DSLs.

The choice sets rows, tiles and stages. The fields set here depend on the GPU and the batch only.
docs/results/mi300/counts.md has the counts behind the rules.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from common.choice.legal import LEAST_LANES
from common.gpus import Gpu
from common.serving.grid import few_rows
from common.spec import AttentionShape
from common.spec.cdna import Cdna
from common.spec.metadata import BatchStats, power_of_two

BY_KEYS = {"page": "flat", "run": "key"}  # forms with a page axis (Helion, Triton), and with one index a key
MATRIX_ROWS = 32  # of an MFMA
PAGED_ROWS = 2 * MATRIX_ROWS  # of prompts through pages: with more a SIMD has registers for one wave
WIDE = 128  # lanes of values, beyond which the sums of MATRIX_ROWS rows leave a wave few registers
AHEAD = 3  # stages: a page id is loaded a tile before what it leads to, and that a tile before its products
SIMDS = 4  # of a compute unit
FEW_BYTES = 2**14  # of K and V in a tile of fewer waves than a unit has SIMDs
COPIED = "copy_programs"  # a field of the part that reads K and V from a copy, without page ids
DECODE = "decode"  # the part of a config for short queries


def settled(config: Any, shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> Any:
    """Adjust a config and its parts to a GPU with MFMA; return it unchanged for other GPUs.

    - K is loaded transposed if LDS cannot transpose it in wide reads.
    - Tiles of several pages use one index per key, because a page axis is not swizzled in LDS.
    - Decodes read K and V past the CU's L1 cache.
    - Programs of one KV head share an XCD if an XCD serves several heads. With fewer heads the order of the grid does
      that already and balances causal work.
    - Prompts that are read through pages have at most PAGED_ROWS rows, so that two programs share a CU.
    - A program has at most one wave for each 32 rows: two waves on fewer rows would compute the same products. Of wide
      heads with an MFMA of 16 rows it has one for each 16, so that sums stay in registers.
    - On GPUs whose LDS cannot transpose, tiles of the copy of K and V are loaded under `ilp`. In the compiler's own
      order a wave waits for them in front of the products that they should hide behind.
    - Two stages become three where a small tile lies in one page. With two a wave waits for the page id of the next
      tile as soon as it asked for it; with three it has a tile's time. LDS holds as many tiles as before.
    - A program of fewer waves than a CU has SIMDs has small tiles, so that LDS and registers hold several programs.
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
        if hasattr(config, "block_m") and not (decodes or hasattr(config, COPIED)):
            config = dataclasses.replace(config, block_m=min(config.block_m, PAGED_ROWS))
        rows = max(shape.queries_per_kv, *(getattr(part, "block_m", 1) for part in (config, *parts.values())))
        each = config.matrix_instr if config.matrix_instr and shape.value_lanes > WIDE else MATRIX_ROWS
        parts["num_warps"] = min(config.num_warps, max(rows // each, 1))
        if hasattr(config, "tile_size"):
            row = (power_of_two(shape.head_size) + power_of_two(shape.value_lanes)) * shape.dtype.itemsize
            if parts["num_warps"] < SIMDS:
                parts["tile_size"] = min(config.tile_size, max(power_of_two(FEW_BYTES // row + 1) // 2, LEAST_LANES))
            parts["num_stages"] = _stages(config, parts.get("tile_size", config.tile_size), row, shape, decodes)
        parts |= {"transposed_keys": not gpu.turns_on_read, "stream": decodes, "xcds": gpu.xcds if several else 1}
        parts["ilp"] = hasattr(config, COPIED) and not gpu.turns_on_read
    gather = getattr(config, "gather", "")
    tiles = [part.tile_size for part in (config, *parts.values()) if hasattr(part, "tile_size")]
    if gather in BY_KEYS and any(shape.block_size % tile for tile in tiles):
        parts["gather"] = BY_KEYS[gather]
    return dataclasses.replace(config, **parts) if parts else config


def _stages(config: Any, tile_size: int, row: int, shape: AttentionShape, decodes: bool) -> int:
    """AHEAD where LDS then holds as many programs. row: bytes of K and V of a key."""
    paged = not hasattr(config, COPIED)
    small = decodes or tile_size * row <= FEW_BYTES // 2
    one_page = shape.block_size % tile_size == 0  # ids of several pages take LDS themselves
    return AHEAD if paged and small and one_page and config.num_stages == AHEAD - 1 else config.num_stages
