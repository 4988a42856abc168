"""A cache of 8 bits on NVIDIA's GPUs: the bytes take as long to convert as to load, and registers to hold.

Decodes were measured at 32 decodes of up to 4096 keys in fp8 on an H200, where 16 bits take 111 us.
"""

from common.gpus import Gpu
from common.spec import AttentionShape
from common.spec.metadata import BatchStats, cdiv
from dsl_triton.binding import can_overlap
from dsl_triton.parallel_softmax import Config


def ahead(shape: AttentionShape, gpu: Gpu) -> bool:
    """Whether a decode asks for a tile while it works on the one before.

    Page ids and what they lead to are (stages - 1) // 2 tiles ahead each: up to 4 stages ask for a tile when the one
    before is done, and other programs hide its latency. 5 stages: 92 us for 146.
    """
    return shape.cache_dtype.itemsize == 1 and gpu.vendor == "nvidia" and gpu.shared_bytes > 160 * 1024


def by_keys(shape: AttentionShape, rows: int, gpu: Gpu) -> bool:
    """Whether Q Blocks of a prompt take a page id a key where 16 bits take runs: 64 rows before sm_90 (static facts).

    Over int8 64 rows by 64 keys of 128 lanes spill 123 words by runs, with 63 and 26 accesses in the two loops over
    tiles (static_grid; adjustable_tile 53 and 20), by keys 13, outside of them. 32 rows spill none, for 2022
    instructions a tile of 64 in place of 1862. Heads of 256: 93 accesses and 15. Heads of 64 spill nothing by runs, and
    128 rows by 128 keys 629 words by keys, 150 by runs.
    """
    before = gpu.vendor == "nvidia" and not can_overlap(gpu)
    return before and rows == 64 and shape.cache_dtype.itemsize == 1 and max(shape.head_size, shape.value_lanes) > 64


def decode(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> Config | None:
    """One warp a program, which waits for no other; None where it gains nothing or was not measured.

    13 programs a unit, of which 10 are resident: 71 us in 7 segments, 80 in 5, 78 in 10; from four a unit on three
    segments (256 decodes 422 us, 455 in one). Few sequences: 8 programs a unit, 8 decodes of 8k keys 37.7 us in 16
    segments, 50 by four warps, one of 32k 26.8 in 66, for 35. On a B200 it spills 6 words (static fact). An fp8 query
    has a bound of 240 registers and takes 209: of its own accord ptxas takes 168 and reads the thread's number in every
    tile, 77.7 us for 68.7.
    """
    programs = max(stats.num_seqs, 1) * shape.num_kv_heads
    small = max(shape.head_size, shape.value_lanes) <= 128 and shape.queries_per_kv <= 16 and shape.dtype.itemsize <= 2
    if gpu.arch != "sm_90" or not small or shape.block_size % 16 or not ahead(shape, gpu):
        return None
    if (segments := _segments(programs, stats, gpu, 27 * gpu.units // 2)) == 0:
        return None
    registers = 240 if shape.dtype.itemsize == 1 else 0
    return Config(16, 32, segments, num_warps=1, num_stages=5, overlap=True, gather="run", registers=registers)


def _segments(programs: int, stats: BatchStats, gpu: Gpu, wanted: int) -> int:
    """Of at least 256 keys, 128 where they are all that fills the units, and there 66 at most (128: 28.2 us for 26.8);
    0 where nothing is gained.
    """
    if programs < gpu.units:
        least = 128 if programs < 32 else 256
        return min(8 * gpu.units // programs, 66, stats.max_seq_len // least) if stats.max_seq_len >= 2048 else 0
    fewest = 3 if stats.max_seq_len >= 2048 else 1
    return min(max(cdiv(wanted, programs), fewest), stats.max_seq_len // 256) if stats.max_seq_len >= 1024 else 0
