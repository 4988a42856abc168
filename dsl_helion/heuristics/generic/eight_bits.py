"""Decodes over a cache of 8 bits on NVIDIA's larger GPUs: the bytes take as long to convert as to load.

Measured at 32 decodes of up to 4096 keys in fp8 on an H200, where 16 bits take 112 us.
"""

from common.gpus import Gpu
from common.spec import AttentionShape
from common.spec.metadata import BatchStats, cdiv
from dsl_helion.binding import page_form_applies
from dsl_helion.parallel_softmax import Config


def ahead(shape: AttentionShape, gpu: Gpu) -> bool:
    """Whether a decode asks for a tile while it works on the one before: dsl_triton/heuristics/generic/eight_bits.py
    says why.

    5 stages: 90 us for 121.
    """
    return shape.cache_dtype.itemsize == 1 and gpu.vendor == "nvidia" and gpu.shared_bytes > 160 * 1024


def decode(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> Config | None:
    """One warp a program, which waits for no other; None where it gains nothing or was not measured.

    16 programs a unit: 75 us in 8 segments by whole pages, 83 in 6, and 87 by a page id a key. Few sequences: 8
    programs a unit, 8 decodes of 8k keys 38.9 us in 16 segments, 50 by four warps, one 14.6 for 17.2.
    """
    programs = max(stats.num_seqs, 1) * shape.num_kv_heads
    small = max(shape.head_size, shape.value_lanes) <= 128 and shape.queries_per_kv <= 16 and shape.dtype.itemsize <= 2
    if gpu.arch != "sm_90" or not small or not page_form_applies(shape, 32) or not ahead(shape, gpu):
        return None
    if (segments := _segments(programs, stats, gpu, 15 * gpu.units)) == 0:
        return None
    return Config(16, 32, segments, "page", num_warps=1, num_stages=5)


def _segments(programs: int, stats: BatchStats, gpu: Gpu, wanted: int) -> int:
    """Of at least 256 keys, 128 where they are all that fills the units, and there 66 at most; 0: nothing is gained."""
    if programs < gpu.units:
        least = 128 if programs < 32 else 256
        return min(8 * gpu.units // programs, 66, stats.max_seq_len // least) if stats.max_seq_len >= 2048 else 0
    fewest = 3 if stats.max_seq_len >= 2048 else 1
    return min(max(cdiv(wanted, programs), fewest), stats.max_seq_len // 256) if stats.max_seq_len >= 1024 else 0
