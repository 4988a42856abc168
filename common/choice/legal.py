"""What fits a GPU: operands in shared memory, sums in registers, by an upper bound of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from common.gpus import MOST_REGISTERS, REGISTER_STEP, REGISTERS, Gpu
from common.spec import AttentionShape
from common.spec.metadata import power_of_two

Columns = dict[str, np.ndarray]  # of batches, or of candidates, by name
GATHERS = ("key", "run", "page", "flat", "2idx")
BY_KEY = tuple(map(GATHERS.index, ("key", "flat")))  # an address for each key
BY_RUN = GATHERS.index("run")
KERNELS = ("q_block", "parallel_softmax", "adjustable_tile", "unpaged", "native.sm90_prefill")

MOST_SEGMENTS = 128  # what a reduction's tile holds
FILLED = 200  # of a thread's 255 registers: most compiled candidates beyond it spill, and none was near a best
WARP_GROUP_ROWS = 64  # from which a product takes its operands from shared memory
REGISTER_BYTES = 4
LEAST_LANES = 16  # of a matrix product
PART_LANES, PART_ROWS = 256, 128  # of values: as many as so many rows may sum in eight warps


def in_registers(
    rows: Any, tile: Any, threads: Any, lanes: Any, values: Any, cache_bytes: Any, by_key: Any = False
) -> Any:
    """Registers of a thread that sums and scores fill, and a tile of K where a product takes its operands from there;
    else the addresses of a tile of K and V that is read by keys. Compiled kernels spill beyond; numbers or arrays."""
    addresses = tile * (lanes + values) * cache_bytes / 2  # in bytes: an address of 8 loads 16
    held = np.where(rows < WARP_GROUP_ROWS, tile * lanes * cache_bytes, np.where(by_key, addresses, 0.0))
    return (rows * (values + tile) + held / REGISTER_BYTES) / threads


def registers(rows: Any, tile: Any, threads: Any, lanes: Any, values: Any) -> Any:
    """Registers of a thread, as compiled kernels have them; numbers or arrays. lanes: of K where a tile of it passes
    through registers, else 0."""
    return np.minimum(20 + (rows * (1.3 * values + 2 * tile) + tile * lanes) / threads, MOST_REGISTERS)


def register_bound(rows: Any, tile: Any, threads: Any, lanes: Any, values: Any) -> tuple[Any, Any]:
    """(registers of a thread, programs of under WARP_GROUP_ROWS that then fit an SM), both 0 for no bound; numbers or
    arrays. lanes, values: powers of two.

    Without a bound ptxas takes 156 where 128 do without a spill: three programs an SM for four.
    """
    programs = np.maximum(REGISTERS // (registers(rows, tile, threads, lanes, values) * threads), 1)
    most = REGISTERS // (programs * threads * REGISTER_STEP) * REGISTER_STEP
    some = (rows < WARP_GROUP_ROWS) & (most <= MOST_REGISTERS)
    return np.where(some, most, 0), np.where(some, programs, 0)


def part_lanes(rows: Any, tile: Any, threads: Any, values: Any) -> Any:
    """Lanes of values that a program of `unpaged` sums: PART_LANES where the sums of more fill more registers than
    there are. Each part computes the scores again, and fewer rows than PART_ROWS would read as many keys for them.
    Numbers or arrays; values: a power of two."""
    spills = rows * (values + tile) / threads > FILLED
    return np.where(spills & (rows >= PART_ROWS), np.minimum(values, PART_LANES), values)


@lru_cache
def value_parts(rows: int, tile: int, threads: int, values: int) -> tuple[slice, ...]:
    """Lanes of `values` that each launch of `unpaged` sums: all, or parts of them."""
    part = int(part_lanes(rows, tile, threads, power_of_two(values)))
    return tuple(slice(lane, min(lane + part, values)) for lane in range(0, values, part))


def staged_rows(gpu: Gpu) -> float:
    """Rows of a Q Block below which P passes through shared memory on its way to a product: on NVIDIA's GPUs all, but
    for wgmma, which takes it from registers."""
    return 0 if gpu.vendor != "nvidia" else WARP_GROUP_ROWS if gpu.arch == "sm_90" else np.inf


def holds(
    rows: Any, tile: Any, threads: Any, stages: Any, lanes: Any, values: Any, query_bytes: Any, cache_bytes: Any,
    shared: Any, staged: Any, dense: Any = False, by_key: Any = False,
) -> Any:  # fmt: skip
    """Whether a program of so many rows fits; numbers or arrays. lanes, values: powers of two, of K and of V. shared:
    bytes. staged: as staged_rows. dense: tiles are blocks of contiguous keys, as those of `unpaged`, which sums values
    in parts. by_key: as of in_registers.

    Shared memory has K and V of each stage in flight, and Q; V beside a query of 8 bits is multiplied in fp16. Beside a
    staged P there are a float a row, and in float32 a tile of K or V once more. Where V has more lanes than there are
    rows, warps of a prompt that stage P share a tile's keys: 8 each, else they repeat scores.
    """
    lanes, values = np.maximum(lanes, LEAST_LANES), np.maximum(values, LEAST_LANES)
    values = np.where(dense, part_lanes(rows, tile, threads, values), values)
    multiplied = np.where(dense & (rows >= WARP_GROUP_ROWS), 1, 0)  # a tile that products read cannot be loaded
    keys = tile * np.maximum(stages - 1 + multiplied, 1)
    held = keys * (lanes * query_bytes + values * np.maximum(query_bytes, 2)) + rows * lanes * query_bytes
    again = np.where(query_bytes > 2, tile * np.maximum(lanes, values) * query_bytes, 0)
    held = held + np.where(rows < staged, rows * (tile * np.maximum(query_bytes, 2) + REGISTER_BYTES) + again, 0)
    repeats = (rows >= WARP_GROUP_ROWS) & (rows < np.minimum(staged, values)) & (tile < threads // 4)
    filled = in_registers(rows, tile, threads, lanes, values, cache_bytes, by_key)
    return (held <= shared) & (filled <= FILLED) & ~repeats


def fits(b: Columns, c: Columns, part: str) -> np.ndarray:
    """Whether candidates fit, by their launch of `part` (`long_`, `short_`). b, c: as columns.launches has them."""
    rows = np.maximum(c[part + "block_m"], 2 ** np.ceil(np.log2(b["ratio"])))
    tile, warps, stages = (c[part + name] for name in ("tile_size", "num_warps", "num_stages"))
    of = (b[name] for name in ("lanes", "value_lanes", "bytes", "cache_bytes", "shared", "staged"))
    held = holds(rows, tile, warps * b["warp"], stages, *of, is_dense(c, part), is_by_key(c, part))
    by_run = (c[part + "gather"] == BY_RUN) & ~is_dense(c, part)
    return held & ~(by_run & spills_by_run(rows, b["cache_bytes"], b["staged"]))


def spills_by_run(rows: Any, cache_bytes: Any, staged: Any) -> Any:
    """Whether tiles of 8 bits by runs spill: beside products of many rows that take both operands from registers.
    Numbers or arrays."""
    return (rows >= WARP_GROUP_ROWS) & (staged > WARP_GROUP_ROWS) & (cache_bytes == 1)


def is_dense(c: Columns, part: str) -> np.ndarray:
    """Whether candidates' launches of `part` read blocks of contiguous keys."""
    return (c["kernel"] == KERNELS.index("unpaged")) & (part == "long_")


def is_by_key(c: Columns, part: str) -> np.ndarray:
    """Whether candidates' launches of `part` read tiles by an address for each key."""
    return np.isin(c[part + "gather"], BY_KEY) & ~is_dense(c, part)


def fits_one(
    rows: int, tile: int, warps: int, stages: int, shape: AttentionShape, gpu: Gpu, dense: bool = False,
    programs: int = 1,
) -> bool:  # fmt: skip
    """Whether one launch fits, as the kernels' spaces ask it. dense: as of `holds`. programs: that share the memory."""
    lanes = power_of_two(shape.head_size), power_of_two(shape.value_lanes)
    sizes = shape.dtype.itemsize, shape.cache_dtype.itemsize, gpu.shared_bytes // programs, staged_rows(gpu)
    return bool(holds(rows, tile, warps * gpu.warp_size, stages, *lanes, *sizes, dense))


def programs_at_once(rows: int, tile: int, warps: int, stages: int, shape: AttentionShape, gpu: Gpu) -> tuple[int, int]:
    """(programs that an SM holds of one launch through pages, the registers of a thread that they are bounded to), the
    latter 0 where shared memory holds fewer, or `register_bound` has none."""
    lanes = power_of_two(shape.head_size), power_of_two(shape.value_lanes)
    threads = warps * gpu.warp_size
    bound, some = (int(n) for n in register_bound(rows, tile, threads, *lanes))
    programs = some or max(int(REGISTERS // (registers(rows, tile, threads, *lanes) * threads)), 1)
    while programs > 1 and not fits_one(rows, tile, warps, stages, shape, gpu, programs=programs):
        programs -= 1
    return programs, bound if programs == some else 0


def fitted(config: Any, shape: AttentionShape, gpu: Gpu) -> Any:
    """A kernel's DEFAULT, each part with fewer keys a tile, then fewer stages, then fewer rows, until it fits."""
    if not dataclasses.is_dataclass(config):
        return config
    changes = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    if {"tile_size", "num_warps", "num_stages"} <= changes.keys():
        changes = fitted_part(changes, shape, gpu)
        rows, sizes = changes.get("block_m", LEAST_LANES), (shape.cache_dtype.itemsize, staged_rows(gpu))
        if changes.get("gather") == "run" and spills_by_run(rows, *sizes):
            changes["gather"] = "key"
        return dataclasses.replace(config, **changes)
    return dataclasses.replace(config, **{name: fitted(value, shape, gpu) for name, value in changes.items()})


def fitted_part(part: Mapping[str, Any], shape: AttentionShape, gpu: Gpu) -> dict[str, Any]:
    """As `fitted`, of one launch's config as plain values."""
    least = power_of_two(shape.queries_per_kv)
    part = dict(part)
    smallest = {"tile_size": LEAST_LANES, "num_stages": 1, "block_m": LEAST_LANES}
    for name, limit in smallest.items():
        while name in part and part[name] > limit:
            rows = max(part.get("block_m", LEAST_LANES), least)
            if fits_one(rows, part["tile_size"], part["num_warps"], part["num_stages"], shape, gpu):
                return part
            part[name] = part[name] - 1 if name == "num_stages" else part[name] // 2
    return part
