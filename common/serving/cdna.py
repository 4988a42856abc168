"""Adjust a chosen config to AMD's data-centre GPUs, for the kernels of both DSLs.

The choice sets rows, tiles and stages. The fields set here depend on the GPU and the batch only.
docs/results/mi300/counts.md has the counts behind the rules.
"""

import dataclasses
from typing import Any

from common.choice.legal import LEAST_LANES, PART_LANES
from common.gpus import Gpu
from common.serving.grid import few_rows
from common.spec import AttentionShape
from common.spec.cdna import Cdna
from common.spec.metadata import BatchStats, power_of_two

BY_KEYS = {"page": "flat", "run": "key"}  # forms with a page axis (Helion, Triton), and with one index a key
MATRIX_ROWS = 32  # of an MFMA
FEW_ROWS = 2 * MATRIX_ROWS  # of prompts that need many registers a row: with more a CU holds one program
WIDE = 128  # lanes of values, beyond which the sums of MATRIX_ROWS rows leave a wave few registers
AHEAD = 3  # stages: a page id is loaded a tile before what it leads to, and that a tile before its products
SIMDS = 4  # of a compute unit
WAVES = 2  # of a SIMD, which prompts and decodes have registers for
FEW_BYTES = 2**14  # of K and V in a small tile
COPIED = "copy_programs"  # a field of the part that reads K and V from a copy, without page ids
DECODE = "decode"  # the part of a config for short queries


def settled(config: Any, shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> Any:
    """Adjust a config and its parts to a GPU with MFMA; return it unchanged for other GPUs.

    - K is loaded transposed if LDS cannot transpose it in wide reads.
    - Tiles of several pages use one index per key, because a page axis is not swizzled in LDS.
    - Decodes read K and V past the CU's L1 cache.
    - Programs of one KV head share an XCD if an XCD serves several heads. With fewer heads the order of the grid does
      that already and balances causal work.
    - Prompts that are read through pages, or have wide heads, have at most FEW_ROWS rows, so that two programs share a
      CU. Wider than PART_LANES they are summed in parts, which ask for more rows.
    - A program has at most one wave for each 32 rows: two waves on fewer rows would compute the same products. Of wide
      heads with an MFMA of 16 rows it has one for each 16, so that sums stay in registers.
    - Prompts load K and V under `ilp`. In the compiler's own order a wave waits for them in front of the products that
      they should hide behind. Where LDS transposes on a read, that order is as good for tiles of the copy.
    - Two stages become three where a small tile lies in one page, or LDS has room beside the tiles of two waves a SIMD
      for page ids. With two a wave waits for the page id of the next tile as soon as it asked for it; with three it has
      a tile's time. LDS holds as many tiles as before. More become three: with a fourth LDS holds half of the programs,
      and a wave waits for K and V soon after it asked for them.
    - A program of fewer waves than a CU has SIMDs has small tiles, so that LDS and registers hold several programs; so
      has one that reads K and V from a copy, whose 128 rows leave registers for no more.
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
        copied = hasattr(config, COPIED)
        if hasattr(config, "block_m") and not decodes and (not copied or WIDE < shape.value_lanes <= PART_LANES):
            config = dataclasses.replace(config, block_m=min(config.block_m, FEW_ROWS))
        rows = max(shape.queries_per_kv, *(getattr(part, "block_m", 1) for part in (config, *parts.values())))
        each = config.matrix_instr if config.matrix_instr and shape.value_lanes > WIDE else MATRIX_ROWS
        parts["num_warps"] = min(config.num_warps, max(rows // each, 1))
        if hasattr(config, "tile_size"):
            row = (power_of_two(shape.head_size) + power_of_two(shape.value_lanes)) * shape.dtype.itemsize
            if parts["num_warps"] < SIMDS or (copied and shape.value_lanes <= PART_LANES):
                parts["tile_size"] = min(config.tile_size, max(power_of_two(FEW_BYTES // row + 1) // 2, LEAST_LANES))
            tile_size = parts.get("tile_size", config.tile_size)
            parts["num_stages"] = _stages(config, tile_size, row, parts["num_warps"], shape, gpu, decodes)
        parts |= {"transposed_keys": not gpu.turns_on_read, "stream": decodes, "xcds": gpu.xcds if several else 1}
        parts["ilp"] = not (decodes or (copied and gpu.turns_on_read))
    gather = getattr(config, "gather", "")
    tiles = [part.tile_size for part in (config, *parts.values()) if hasattr(part, "tile_size")]
    if gather in BY_KEYS and any(shape.block_size % tile for tile in tiles):
        parts["gather"] = BY_KEYS[gather]
    return dataclasses.replace(config, **parts) if parts else config


def _stages(config: Any, tile_size: int, row: int, warps: int, shape: AttentionShape, gpu: Gpu, decodes: bool) -> int:
    """AHEAD at most, and where LDS then holds as many programs. row: bytes of K and V of a key."""
    stages = min(config.num_stages, AHEAD)
    small = decodes or tile_size * row <= FEW_BYTES // 2
    one_page = shape.block_size % tile_size == 0  # ids of several pages take LDS themselves
    room = tile_size * row * WAVES * SIMDS // warps < gpu.shared_bytes
    paged = not hasattr(config, COPIED)
    return AHEAD if paged and ((small and one_page) or room) and stages == AHEAD - 1 else stages
