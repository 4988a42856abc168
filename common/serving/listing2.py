"""The paper's Listing 2, its tuned decision tree for Triton, and what its text says about other kernels.

    BLOCK_M = 64 if max_seqlen_q > 1 and avg_seqlen_q >= 4096 and is_nvidia_gpu() else 16
    BLOCK_N = 32 if max_seqlen_k <= 64 or avg_seqlen_q <= 4096 or is_amd_gpu() else 64

BLOCK_M is the rows of a Q Block, BLOCK_N the keys of a tile. The paper does not give warps and stages: each kernel's
DEFAULT has them. Kernels that the paper lacks are not here.
"""

from dataclasses import dataclass, replace
from typing import Any

from common.gpus import Gpu
from common.spec import AttentionShape
from common.spec.metadata import BatchStats


def listing_2(stats: BatchStats, gpu: Gpu) -> tuple[int, int]:
    """BLOCK_M and BLOCK_N."""
    mean_query_len = stats.num_tokens / max(stats.num_seqs, 1)
    nvidia = gpu.vendor == "nvidia"
    block_m = 64 if stats.max_query_len > 1 and mean_query_len >= 4096 and nvidia else 16
    block_n = 32 if stats.max_seq_len <= 64 or mean_query_len <= 4096 or not nvidia else 64
    return block_m, block_n


@dataclass(frozen=True)
class Listing2:
    """The paper's choices, with the modules of a DSL: q (q_block), segments (parallel_softmax), tiles
    (adjustable_tile)."""

    q: Any
    segments: Any
    tiles: Any

    @staticmethod
    def auto(stats: BatchStats) -> str:
        """Which kernel: parallel only for decodes (4.5), else tiles of any size (4.6)."""
        return "parallel_softmax" if stats.max_query_len <= 1 else "adjustable_tile"

    def q_block(self, shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> Any:
        block_m, tile_size = listing_2(stats, gpu)
        return replace(self.q.DEFAULT, block_m=block_m, tile_size=tile_size)

    def parallel_softmax(self, shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> Any:
        """Section 4.5: parallel only for small decode batches of long sequences, without a threshold or a number of
        segments. Here: one segment for prompts, else the kernel's DEFAULT."""
        block_m, tile_size = listing_2(stats, gpu)
        config = replace(self.segments.DEFAULT, block_m=block_m, tile_size=tile_size)
        return config if stats.max_query_len <= 1 else replace(config, num_segments=1)

    def adjustable_tile(self, shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> Any:
        block_m, tile_size = listing_2(stats, gpu)
        prefill = replace(self.tiles.DEFAULT.prefill, block_m=block_m, tile_size=tile_size)
        decode = self.parallel_softmax(shape, replace(stats, max_query_len=1), gpu)
        return self.tiles.Config(prefill, decode)
