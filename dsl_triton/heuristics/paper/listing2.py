"""The paper's Listing 2, its decision tree for Triton (tuned), and what it says of the rest in words.

    BLOCK_M = 64 if max_seqlen_q > 1 and avg_seqlen_q >= 4096 and is_nvidia_gpu() else 16
    BLOCK_N = 32 if max_seqlen_k <= 64 or avg_seqlen_q <= 4096 or is_amd_gpu() else 64

BLOCK_M are the rows of a Q Block, BLOCK_N the keys of a tile. Warps and stages are not in the paper: each kernel's
DEFAULT has them. A kernel that the paper has not is not here.
"""

from dataclasses import replace

from common.gpus import Gpu
from common.spec import AttentionShape
from common.spec.metadata import BatchStats
from dsl_triton import adjustable_tile as adjustable_tile_kernel
from dsl_triton import parallel_softmax as parallel_softmax_kernel
from dsl_triton import q_block as q_block_kernel


def listing_2(stats: BatchStats, gpu: Gpu) -> tuple[int, int]:
    """BLOCK_M and BLOCK_N."""
    mean_query_len = stats.num_tokens / max(stats.num_seqs, 1)
    nvidia = gpu.vendor == "nvidia"
    block_m = 64 if stats.max_query_len > 1 and mean_query_len >= 4096 and nvidia else 16
    block_n = 32 if stats.max_seq_len <= 64 or mean_query_len <= 4096 or not nvidia else 64
    return block_m, block_n


def q_block(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> q_block_kernel.Config:
    block_m, tile_size = listing_2(stats, gpu)
    return replace(q_block_kernel.DEFAULT, block_m=block_m, tile_size=tile_size)


def parallel_softmax(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> parallel_softmax_kernel.Config:
    """4.5: in parallel for small decode batches of longer sequences alone; it names neither border nor count. Here:
    one segment for prompts, else the kernel's DEFAULT."""
    block_m, tile_size = listing_2(stats, gpu)
    config = replace(parallel_softmax_kernel.DEFAULT, block_m=block_m, tile_size=tile_size)
    return config if stats.max_query_len <= 1 else replace(config, num_segments=1)


def adjustable_tile(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> adjustable_tile_kernel.Config:
    block_m, tile_size = listing_2(stats, gpu)
    prefill = replace(adjustable_tile_kernel.DEFAULT.prefill, block_m=block_m, tile_size=tile_size)
    return adjustable_tile_kernel.Config(prefill, parallel_softmax(shape, replace(stats, max_query_len=1), gpu))
