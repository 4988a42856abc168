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
from dsl_helion import adjustable_tile as adjustable_tile_kernel
from dsl_helion import parallel_softmax as parallel_softmax_kernel
from dsl_helion import q_block as q_block_kernel
from dsl_helion import unpaged as unpaged_kernel
from dsl_helion.heuristics.generic import default

PROVENANCE = {
    "gpu": "NVIDIA H200 SXM 141 GB",
    "date": "2026-11-21",
    "commit": "e91d50b092",
    "versions": "torch 2.11.0+cu130, triton 3.6.0, helion 1.5.0",
    "minutes": 7.9,
    "machine": "1 GPU, 64 cores",
    "seed": 0,
    "plan": "14463293aebbfa60",
    "rows": "24 of suite tuning",
}
HELD_OUT = {
    "q_block": (1.006, 1.031),
    "parallel_softmax": (1.017, 1.112),
    "adjustable_tile": (1.005, 1.028),
    "unpaged": (1.035, 1.164),
}
# head size, page, dtype of the query and of the cache
MEASURED = {(128, 16, torch.bfloat16, torch.bfloat16)}


def covers(shape: AttentionShape, gpu: Gpu) -> bool:
    """Whether the trees answer for a shape; above 16 query heads a KV head Q Blocks are larger."""
    known = (shape.head_size, shape.block_size, shape.dtype, shape.cache_dtype) in MEASURED
    return gpu.name == "h200" and known and shape.queries_per_kv <= 16


def q_block(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> q_block_kernel.Config:
    """Held out 1.006 (worst 1.03) of the best measured; default 1.006 (worst 1.03)."""
    return default.q_block(shape, stats, gpu)


def parallel_softmax(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> parallel_softmax_kernel.Config:
    """Held out 1.017 (worst 1.11) of the best measured; default 1.017 (worst 1.11)."""
    if not covers(shape, gpu):
        return default.parallel_softmax(shape, stats, gpu)
    if (
        8 < stats.max_query_len <= 64
        and stats.max_seq_len <= 6144
        and stats.num_seqs - stats.num_decodes > 1
        and shape.queries_per_kv > 4
    ):
        config = default.parallel_softmax(shape, stats, gpu)
        if config.tile_size == 128:  # younger than the fit; in one stage 64 rows spill 33 words
            return config
        return replace(config, num_stages=1)
    return default.parallel_softmax(shape, stats, gpu)


def adjustable_tile(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> adjustable_tile_kernel.Config:
    """Held out 1.005 (worst 1.03) of the best measured; default 1.005 (worst 1.03)."""
    return default.adjustable_tile(shape, stats, gpu)


def unpaged(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> unpaged_kernel.Config:
    """Held out 1.035 (worst 1.16) of the best measured; default 1.035 (worst 1.16)."""
    if not covers(shape, gpu):
        return default.unpaged(shape, stats, gpu)
    if stats.max_query_len > 512 and stats.max_seq_len > 8192:
        config = default.unpaged(shape, stats, gpu)
        prefill = replace(config.prefill, block_m=64)
        return replace(config, prefill=prefill)
    return default.unpaged(shape, stats, gpu)


TREES = {"parallel_softmax": parallel_softmax, "unpaged": unpaged}


def auto(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> tuple[str, Any]:
    """The kernel that the untuned default takes, with the config that its function has."""
    if not covers(shape, gpu):
        return default.auto(shape, stats, gpu)
    name, config = default.auto(shape, stats, gpu)
    return name, TREES[name](shape, stats, gpu) if name in TREES else config
