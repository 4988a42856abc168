"""Measured choices for the NVIDIA H200 SXM 141 GB, written by `python -m compare tune` and reviewed as code.

The functions answer for the shapes of MEASURED on that GPU; all others get heuristics.default. A regret is a
time over the best of all candidates on a row. HELD_OUT: mean and worst of a kernel's, every row held out of
the fit that chose for it.
"""

from dataclasses import replace
from typing import Any

import torch

from common.gpus import Gpu
from common.spec import AttentionShape
from common.spec.metadata import BatchStats
from dsl_triton import adjustable_tile as adjustable_tile_kernel
from dsl_triton import parallel_softmax as parallel_softmax_kernel
from dsl_triton import q_block as q_block_kernel
from dsl_triton import static_grid as static_grid_kernel
from dsl_triton import unpaged as unpaged_kernel
from dsl_triton.heuristics.generic import default

PROVENANCE = {
    "gpu": "NVIDIA H200 SXM 141 GB",
    "date": "2026-11-21",
    "commit": "e91d50b092",
    "versions": "torch 2.11.0+cu130, triton 3.6.0, helion 1.5.0",
    "minutes": 7.9,
    "machine": "1 GPU, 64 cores",
    "seed": 0,
    "plan": "525d57a762f85f1f",
    "rows": "24 of suite tuning",
}
HELD_OUT = {
    "q_block": (1.065, 1.459),
    "parallel_softmax": (1.074, 1.673),
    "adjustable_tile": (1.091, 1.74),
    "unpaged": (1.038, 1.219),
    "static_grid": (1.025, 1.165),
    "auto": (1.09, 1.9),
}
# head size, page, dtype of the query and of the cache
MEASURED = {(128, 16, torch.bfloat16, torch.bfloat16)}


def covers(shape: AttentionShape, gpu: Gpu) -> bool:
    """Whether the trees answer for a shape; above 16 query heads a KV head Q Blocks are larger."""
    known = (shape.head_size, shape.block_size, shape.dtype, shape.cache_dtype) in MEASURED
    return gpu.name == "h200" and known and shape.queries_per_kv <= 16


def q_block(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> q_block_kernel.Config:
    """Held out 1.065 (worst 1.46) of the best measured; default 1.065 (worst 1.46)."""
    if not covers(shape, gpu):
        return default.q_block(shape, stats, gpu)
    if stats.max_query_len <= 64 and stats.max_seq_len <= 192 and shape.queries_per_kv > 4:
        config = default.q_block(shape, stats, gpu)
        return replace(config, tile_size=16)
    return default.q_block(shape, stats, gpu)


def parallel_softmax(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> parallel_softmax_kernel.Config:
    """Held out 1.074 (worst 1.67) of the best measured; default 1.093 (worst 1.67)."""
    if not covers(shape, gpu):
        return default.parallel_softmax(shape, stats, gpu)
    if 32 < stats.max_query_len <= 128 and stats.max_seq_len <= 128:
        config = default.parallel_softmax(shape, stats, gpu)
        return replace(config, tile_size=16)
    if stats.max_query_len <= 1 and 128 < stats.max_seq_len <= 512 and stats.num_decodes > 8:
        config = default.parallel_softmax(shape, stats, gpu)
        if config.num_segments == 1:  # younger than the fit: one loop, 56.3 us by 128 keys and 57.6 by 64
            return config
        return replace(config, tile_size=64)
    if (
        stats.max_query_len <= 512
        and 4096 < stats.max_seq_len <= 16384
        and stats.num_seqs <= 64
        and stats.num_decodes > 8
    ):
        config = default.parallel_softmax(shape, stats, gpu)
        if config.gather == "run" or stats.max_query_len <= 1:  # younger than the fit, with segments of their own
            return config
        return replace(config, num_segments=min(2 * config.num_segments, 128))
    return default.parallel_softmax(shape, stats, gpu)


def adjustable_tile(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> adjustable_tile_kernel.Config:
    """Held out 1.091 (worst 1.74) of the best measured; default 1.104 (worst 1.74)."""
    if not covers(shape, gpu):
        return default.adjustable_tile(shape, stats, gpu)
    if 4 < stats.max_query_len <= 256 and stats.num_decodes <= 0:
        config = default.adjustable_tile(shape, stats, gpu)
        if config.decode.gather == "run":  # younger than the fit: two warps, which 64 rows outgrow
            return config
        decode = replace(config.decode, block_m=64)
        return replace(config, decode=decode)
    if stats.max_query_len <= 1 and 128 < stats.max_seq_len <= 512 and stats.num_decodes > 0:
        config = default.adjustable_tile(shape, stats, gpu)
        decode = replace(config.decode, block_m=16, tile_size=32, num_warps=2, num_stages=2, overlap=True)
        return replace(config, decode=decode)
    return default.adjustable_tile(shape, stats, gpu)


def unpaged(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> unpaged_kernel.Config:
    """Held out 1.038 (worst 1.22) of the best measured; default 1.039 (worst 1.22)."""
    if not covers(shape, gpu):
        return default.unpaged(shape, stats, gpu)
    if 32 < stats.max_query_len <= 256 and stats.max_seq_len <= 256:
        config = default.unpaged(shape, stats, gpu)
        prefill = replace(config.prefill, tile_size=32)
        return replace(config, prefill=prefill)
    return default.unpaged(shape, stats, gpu)


def static_grid(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> static_grid_kernel.Config:
    """Held out 1.025 (worst 1.16) of the best measured; default 1.025 (worst 1.16)."""
    return default.static_grid(shape, stats, gpu)


TREES = {
    "q_block": q_block,
    "parallel_softmax": parallel_softmax,
    "adjustable_tile": adjustable_tile,
    "unpaged": unpaged,
}


def auto(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> tuple[str, Any]:
    """Held out 1.090 (worst 1.90) of the best kernel and config; default 1.114 (worst 1.90)."""
    if not covers(shape, gpu):
        return default.auto(shape, stats, gpu)
    if stats.max_query_len <= 64 and stats.max_seq_len <= 192 and stats.num_seqs > 32:
        return "parallel_softmax", parallel_softmax(shape, stats, gpu)
    if 16 < stats.max_query_len <= 32 and 4096 < stats.max_seq_len <= 16384 and stats.num_seqs > 32:
        return "q_block", q_block(shape, stats, gpu)
    name, config = default.auto(shape, stats, gpu)
    return name, TREES[name](shape, stats, gpu) if name in TREES else config
