"""What a choice knows of a batch and of a candidate, as columns of numbers.

In: shapes, host integers of batches, GPUs; kernels with their configs as plain values. Out: arrays of the batches'
sizes, of the configs' numbers, and of what follows from both by counting: programs, waves, tiles, bytes. Any candidate
has them: a field that a DSL's Config lacks has its neutral value, so both DSLs have the same columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from common.choice.legal import (
    GATHERS,
    KERNELS,
    REGISTER_BYTES,
    WARP_GROUP_ROWS,
    Columns,
    in_registers,
    is_dense,
    part_lanes,
    registers,
    staged_rows,
)
from common.gpus import REGISTERS, Gpu
from common.spec import AttentionShape
from common.spec.kernel import parts_of
from common.spec.metadata import SHORT_QUERY, BatchStats, power_of_two

DSLS = ("triton", "helion")
NEUTRAL = {"block_m": 128, "tile_size": 64, "num_warps": 4, "num_stages": 2, "num_segments": 1, "registers": 0}
BLOCK_BYTES = 1024  # of shared memory that a program takes beside its own
MOST_PROGRAMS = 16  # of an SM, beyond which none more hides latency
OF_SHORT_MMA = 0.6  # of a unit's peak: products of under 64 rows pass their operands through registers


class Launch(NamedTuple):
    """One launch of a candidate, an array each. span: tiles of the slot that ends last; waves: programs of that slot;
    together: programs of a unit at once; products_us: of a tile at the unit's peak; instructions: of a warp, a tile;
    filled: registers of a thread that sums, scores and operands fill.
    """

    programs: np.ndarray
    tiles: np.ndarray
    span: np.ndarray
    waves: np.ndarray
    held: np.ndarray
    together: np.ndarray
    products_us: np.ndarray
    instructions: np.ndarray
    filled: np.ndarray


class Undivided(NamedTuple):
    """Both launches of a candidate before segments divide it: [2, ...], of long and of short queries. mean, most: tiles
    of a program; others as of Launch."""

    seqs: np.ndarray
    programs: np.ndarray
    mean: np.ndarray
    most: np.ndarray
    held: np.ndarray
    products_us: np.ndarray
    instructions: np.ndarray
    filled: np.ndarray


def batches(of: Sequence[tuple[AttentionShape, BatchStats, Gpu]]) -> Columns:
    """Sizes of batches as `grid.decided_by` has them, one array for each name; a batch without keys counts as one
    of one key."""
    rows = []
    for shape, stats, gpu in of:
        short, seqs, all_keys = stats.max_query_len <= SHORT_QUERY, max(stats.num_seqs, 1), max(stats.total_seq_len, 1)
        prompts, of_prompts = (0, 0) if short else (max(stats.prompts, 1), max(stats.keys_of_prompts, 1))
        rows.append({
            "seqs": seqs, "tokens": max(stats.num_tokens, 1), "longest": max(stats.max_query_len, 1),
            "keys": max(stats.max_seq_len, 1), "all_keys": all_keys, "decodes": stats.num_decodes,
            "prompts": prompts, "shorts": seqs if short else stats.num_decodes,
            "keys_of_prompts": of_prompts, "keys_of_shorts": max(all_keys - of_prompts, 0),
            "kv_heads": shape.num_kv_heads, "ratio": shape.queries_per_kv, "head": shape.head_size,
            "lanes": power_of_two(shape.head_size), "value_lanes": power_of_two(shape.value_lanes),
            "bytes": shape.dtype.itemsize, "cache_bytes": shape.cache_dtype.itemsize, "page": shape.block_size,
            "parts": parts_of(shape),
            "units": max(gpu.units, 1), "warp": gpu.warp_size, "shared": gpu.shared_bytes,
            "staged": staged_rows(gpu),
            "nvidia": gpu.vendor == "nvidia",
            "hbm": gpu.bytes_per_us, "peak": gpu.flops_per_us / max(gpu.units, 1),
        })  # fmt: skip
    return {name: np.array([row[name] for row in rows], dtype=float) for name in rows[0]}


def configs(of: Sequence[tuple[str, Mapping[str, Any]]], dsl: str) -> Columns:
    """Numbers of candidates: of a kernel's name and its Config as plain values. `long_` and `short_`: of the launches
    of long and of short queries, the same where a kernel has one launch for both. whole_heads: of logs older than
    parts of heads: 2, or 1 where only prompts of some kernels had them."""
    rows = []
    for kernel, config in of:
        row: dict[str, float] = {"dsl": DSLS.index(dsl), "kernel": KERNELS.index(kernel)}
        row["whole_heads"] = float(config.get("whole_heads", 0))
        long = config.get("prefill", config)
        short = long if config.get("together") else config.get("decode", config)
        for prefix, part in (("long_", long), ("short_", short)):
            row |= {prefix + name: float(part.get(name) or neutral) for name, neutral in NEUTRAL.items()}
            row[prefix + "gather"] = GATHERS.index(part.get("gather", "key"))
            row[prefix + "heads_fastest"] = float(part.get("heads_fastest", True))
        rows.append(row)
    return {name: np.array([row[name] for row in rows], dtype=float) for name in rows[0]}


def launches(b: Columns, c: Columns, undivided: Undivided | None = None) -> tuple[Launch, Launch]:
    """The launches of long and of short queries. b, c: of batches and candidates that broadcast. undivided: of them,
    where it is known."""
    kernel = c["kernel"]
    cut_long = np.where((kernel == 0) | (kernel == 2), 1.0, c["long_num_segments"])  # q_block, adjustable_tile: whole
    cut_short = np.where(kernel == 0, 1.0, c["short_num_segments"])
    both = _dealt(b, undivided or whole(b, c), _both(cut_long, cut_short))
    return Launch(*(one[0] for one in both)), Launch(*(one[1] for one in both))


def whole(b: Columns, c: Columns) -> Undivided:
    """What a candidate's launches are with one segment a sequence: of long, then of short queries."""
    prompt = _prompt(b)
    query = np.where(b["prompts"] > 0, 1.0, b["tokens"] / b["seqs"])
    of = {name: _both(c["long_" + name], c["short_" + name]) for name in NEUTRAL if name != "num_segments"}
    of["dense"] = _both(is_dense(c, "long_"), is_dense(c, "short_"))
    of["parted"] = _in_parts(b, c)
    seqs, keys = _both(b["prompts"], b["shorts"]), _both(b["keys_of_prompts"], b["keys_of_shorts"])
    return _undivided(b, of, seqs, _both(prompt, query), keys)


def _in_parts(b: Columns, c: Columns) -> np.ndarray:
    """Whether the launches of long and of short queries multiply a head in parts (spec.kernel.parts_of), without lanes
    of zeros: [2, ...]."""
    names = "parallel_softmax", "adjustable_tile", "unpaged"
    segments, tiles, copied = (c["kernel"] == KERNELS.index(name) for name in names)
    two, older = b["parts"] > 1, c["whole_heads"]
    pages = two & (b["cache_bytes"] > 1)  # a copy has 16 bits
    short = pages & (segments | tiles | copied) & (older == 0)
    long = (pages & tiles | two & copied) & (older < 2) | short & segments
    return _both(long, short)


def _prompt(b: Columns) -> np.ndarray:
    """Tokens of a prompt on the mean; 0 without one."""
    return np.where(b["prompts"] > 0, (b["tokens"] - b["shorts"]) / np.maximum(b["prompts"], 1), 0.0)


def _both(long: np.ndarray, short: np.ndarray) -> np.ndarray:
    """[2, ...] of two arrays that broadcast: the launches of long and of short queries are counted at once."""
    made = np.empty((2, *np.broadcast_shapes(long.shape, short.shape)), dtype=np.result_type(long, short))
    made[0], made[1] = long, short
    return made


def _undivided(b: Columns, c: Columns, seqs: np.ndarray, query: np.ndarray, keys: np.ndarray) -> Undivided:
    """Programs of `seqs` sequences of `query` tokens on the mean, over `keys` keys together. All but b: [2, ...]."""
    tile, stages, dense, threads = c["tile_size"], c["num_stages"], c["dense"], c["num_warps"] * b["warp"]
    rows = np.maximum(c["block_m"], 2 ** np.ceil(np.log2(b["ratio"])))
    tokens = np.maximum(np.floor(rows / b["ratio"]), 1)
    lanes, of_value = (np.where(c["parted"], b["head"], b[name]) for name in ("lanes", "value_lanes"))
    values = np.where(dense, part_lanes(rows, tile, threads, of_value), of_value)
    kv_bytes = tile * (lanes + values) * np.where(dense, b["bytes"], b["cache_bytes"])
    flops = 2 * rows * tile * (lanes + values)
    return Undivided(
        seqs=seqs,
        programs=seqs * np.ceil(np.maximum(query, 1) / tokens) * b["kv_heads"] * (of_value / values),
        mean=np.ceil(np.maximum(keys / np.maximum(seqs, 1) - np.maximum(query - tokens, 0) / 2, 1) / tile),
        most=np.ceil(np.maximum(np.minimum(b["keys"], keys), 1) / tile),
        held=_held(b | {"lanes": lanes}, rows, tile, threads, stages, values, kv_bytes, dense, c["registers"]),
        products_us=flops / (b["peak"] * np.where(rows >= WARP_GROUP_ROWS, 1.0, OF_SHORT_MMA)),
        instructions=7 * rows * tile / threads + kv_bytes / REGISTER_BYTES / threads + 2 * rows * values / threads,
        filled=in_registers(rows, tile, threads, lanes, values, b["cache_bytes"]),
    )


def _dealt(b: Columns, of: Undivided, segments: np.ndarray) -> Launch:
    """Programs of so many segments, and their deal to the slots: list scheduling (Graham 1969), whole waves of equal
    programs, half of one more where they differ."""
    segments = np.minimum(segments, of.most)
    programs, mean, most = of.programs * segments, np.ceil(of.mean / segments), np.ceil(of.most / segments)
    slots = of.held * b["units"]
    waves = np.ceil(programs / slots)
    span = np.where(programs <= slots, most, np.minimum(waves * most, programs * mean / slots + most / 2))
    return Launch(
        programs=programs,
        tiles=programs * mean,
        span=np.where(of.seqs > 0, span, 0.0),
        waves=waves,
        held=of.held,
        together=np.clip(np.ceil(programs / b["units"]), 1, of.held),
        products_us=of.products_us,
        instructions=of.instructions,
        filled=of.filled,
    )


def _held(
    b: Columns, rows: Any, tile: Any, threads: Any, stages: Any, values: Any, kv_bytes: Any, dense: Any, asked: Any
) -> np.ndarray:
    """Programs that an SM holds at once, as the compiled launches of committed runs have registers and shared memory.
    asked: registers that a config names, 0 for none.

    Products of WARP_GROUP_ROWS read K and V where loads put them, one tile behind; of fewer rows, and of pointers, a
    tile passes through registers. A load behind a page id takes two of the stages. Blocks of contiguous keys take one.
    """
    needed = registers(rows, tile, threads, np.where(dense, 0.0, b["lanes"]), values)
    taken = np.where(asked > 0, asked, needed)
    by_pages = np.where(stages > 1, stages // 2 + (rows >= WARP_GROUP_ROWS), 0.5)
    shared = kv_bytes * np.where(dense, stages, by_pages) + rows * b["lanes"] * b["bytes"]
    found = np.minimum(REGISTERS // (taken * threads), (b["shared"] + BLOCK_BYTES) // (shared + BLOCK_BYTES))
    return np.clip(found, 1, MOST_PROGRAMS)


def moved_us(b: Columns, c: Columns) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Microseconds at HBM's peak: of K, V, queries and outputs; of partial results; of the copy out of the pages."""
    kv, queries = b["kv_heads"] * (b["head"] + b["value_lanes"]) * b["cache_bytes"], b["kv_heads"] * b["ratio"]
    io = b["tokens"] * queries * (b["head"] + b["value_lanes"]) * b["bytes"]
    part = 2 * REGISTER_BYTES * queries * (b["value_lanes"] + 2)
    long, short = c["long_num_segments"], c["short_num_segments"]
    shorts = np.where(b["prompts"] > 0, b["shorts"], b["tokens"])
    whole = c["kernel"] != 0
    parts = np.where(whole & (short > 1), short * shorts, 0.0)
    parts = parts + np.where(whole & (long > 1) & (b["prompts"] > 0), long * (b["tokens"] - b["shorts"]), 0.0)
    lanes = np.where(_in_parts(b, c)[0], 2 * b["head"], b["lanes"] + b["value_lanes"])
    copy = b["keys_of_prompts"] * b["kv_heads"] * lanes * (b["cache_bytes"] + b["bytes"])
    copy = np.where(c["kernel"] == KERNELS.index("unpaged"), copy, 0.0)
    return (b["all_keys"] * kv + io) / b["hbm"], part * parts / b["hbm"], copy / b["hbm"]
