"""Configs for a GPU that nobody tuned: short rules from first principles and the figures named beside them.

Every function maps (AttentionShape, BatchStats, Gpu) to its kernel's Config; the statistics are hints.
"""

from dataclasses import replace
from typing import TypeVar

from common.gpus import Gpu
from common.metadata import BatchStats, cdiv, num_q_blocks
from common.spec import AttentionShape
from dsl_helion import naive as naive_kernel
from dsl_helion import parallel_softmax as parallel_softmax_kernel
from dsl_helion import q_block as q_block_kernel
from dsl_helion.binding import fits, smallest_block_m

C = TypeVar("C", q_block_kernel.Config, parallel_softmax_kernel.Config)


def shrink(config: C, shape: AttentionShape, gpu: Gpu) -> C:
    """`config` with stages, then tiles, then rows halved until it fits; the gather form falls back by itself."""
    while not fits(replace(config, gather="flat"), shape, gpu):
        if config.num_stages > 2:
            config = replace(config, num_stages=config.num_stages - 1)
        elif config.tile_size > 16:
            config = replace(config, tile_size=config.tile_size // 2)
        elif config.block_m > 16:
            config = replace(config, block_m=config.block_m // 2)
        else:
            break
    return config


def naive(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> naive_kernel.Config:
    """The paper's two grids: sequences where every query has one token, else tokens."""
    decode = stats.num_decodes == stats.num_seqs
    return naive_kernel.Config(grid="sequences" if decode else "tokens")


def q_block(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> q_block_kernel.Config:
    """Small Q Blocks and long tiles for decode, which reads; large Q Blocks for prefill, which multiplies.

    On an H200: decode 128 keys x 4 warps, 15% over 64 keys; prefill 128 rows x 64 keys x 8 warps, 1.5 x over 4 warps.
    """
    if stats.max_query_len * shape.queries_per_kv <= 16:
        config = q_block_kernel.Config(block_m=16, tile_size=128, gather="page", num_warps=4, num_stages=3)
    elif stats.max_query_len * shape.queries_per_kv <= 256:
        config = q_block_kernel.Config(block_m=32, tile_size=64, gather="page", num_warps=4, num_stages=2)
    else:
        config = q_block_kernel.Config(block_m=128, tile_size=64, gather="page", num_warps=8, num_stages=2)
    return shrink(config, shape, gpu)


def parallel_softmax(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> parallel_softmax_kernel.Config:
    """As many segments as fill the units about twice, none shorter than a tile."""
    config = parallel_softmax_kernel.Config(block_m=16, tile_size=128, gather="page", num_warps=4, num_stages=3)
    config = shrink(config, shape, gpu)
    block_q = max(config.block_m, smallest_block_m(shape)) // shape.queries_per_kv
    programs = max(num_q_blocks(stats.num_tokens, stats.num_seqs, block_q), 1) * shape.num_kv_heads
    tiles = cdiv(max(stats.max_seq_len, 1), config.tile_size)
    segments = 1
    while segments < 64 and segments < tiles and segments * programs < 2 * gpu.units:
        segments *= 2
    return replace(config, num_segments=segments)
