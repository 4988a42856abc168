"""What fits a GPU: operands in shared memory, sums in registers, by an upper bound of each."""

from __future__ import annotations

import numpy as np

from common.choice.columns import LANES, Columns

MOST_SEGMENTS = 128  # what a reduction's tile holds
SUMS = 160  # registers of a thread's 255 that sums may fill


def fits(b: Columns, c: Columns, part: str) -> np.ndarray:
    """Whether candidates fit, by their launch of `part` (`long_`, `short_`). b, c: as columns.launches has them.

    Shared memory holds the K and V of each stage in flight and Q; V of a query of 8 bits is multiplied in fp16.
    """
    rows = np.maximum(c[part + "block_m"], 2 ** np.ceil(np.log2(b["ratio"])))
    tile, stages = c[part + "tile_size"], np.maximum(c[part + "num_stages"] - 1, 1)
    lanes, values = np.maximum(b["lanes"], 16), np.maximum(b["value_lanes"], 16)
    shared = tile * stages * (lanes * b["bytes"] + values * np.maximum(b["bytes"], 2)) + rows * lanes * b["bytes"]
    return (shared <= b["shared"]) & (rows * (values + tile) <= c[part + "num_warps"] * LANES * SUMS)
