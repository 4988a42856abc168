"""What fits a GPU: operands in shared memory, sums in registers, by an upper bound of each."""

from __future__ import annotations

from typing import Any

import numpy as np

from common.choice.columns import Columns
from common.gpus import Gpu
from common.spec import AttentionShape
from common.spec.metadata import power_of_two

MOST_SEGMENTS = 128  # what a reduction's tile holds
SUMS = 160  # registers of a thread's 255 that sums may fill
LEAST_LANES = 16  # of a matrix product


def holds(
    rows: Any, tile: Any, warps: Any, stages: Any, lanes: Any, values: Any, query_bytes: Any, warp: Any, shared: Any
) -> Any:
    """Whether a program of so many rows fits; numbers or arrays. lanes, values: powers of two, of K and of V. warp:
    threads. shared: bytes.

    Shared memory has K and V of each stage in flight, and Q; V beside a query of 8 bits is multiplied in fp16.
    """
    lanes, values = np.maximum(lanes, LEAST_LANES), np.maximum(values, LEAST_LANES)
    keys = tile * np.maximum(stages - 1, 1)
    held = keys * (lanes * query_bytes + values * np.maximum(query_bytes, 2)) + rows * lanes * query_bytes
    return (held <= shared) & (rows * (values + tile) <= warps * warp * SUMS)


def fits(b: Columns, c: Columns, part: str) -> np.ndarray:
    """Whether candidates fit, by their launch of `part` (`long_`, `short_`). b, c: as columns.launches has them."""
    rows = np.maximum(c[part + "block_m"], 2 ** np.ceil(np.log2(b["ratio"])))
    of = (c[part + name] for name in ("tile_size", "num_warps", "num_stages"))
    return holds(rows, *of, b["lanes"], b["value_lanes"], b["bytes"], b["warp"], b["shared"])


def fits_one(rows: int, tile: int, warps: int, stages: int, shape: AttentionShape, gpu: Gpu) -> bool:
    """Whether one launch fits, as the kernels' spaces ask it."""
    lanes = power_of_two(shape.head_size), power_of_two(shape.value_lanes)
    return bool(holds(rows, tile, warps, stages, *lanes, shape.dtype.itemsize, gpu.warp_size, gpu.shared_bytes))
