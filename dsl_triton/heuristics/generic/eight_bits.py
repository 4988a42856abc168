"""A cache of 8 bits on NVIDIA's GPUs: the bytes take as long to convert as to load, and registers to hold.

Decodes were measured at 32 decodes of up to 4096 keys in fp8 on an H200, where 16 bits take 111 us.
"""

from common.gpus import KIB
from common.serving.rules import Situation
from common.spec.metadata import cdiv
from dsl_triton.parallel_softmax import Config


def ahead(s: Situation) -> bool:
    """Whether a decode asks for a tile while it works on the one before.

    Page ids and what they lead to are (stages - 1) // 2 tiles ahead each: up to 4 stages ask for a tile when the one
    before is done, and other programs hide its latency. 5 stages: 92 us for 146.
    """
    return s.stored_in_8_bits and s.nvidia and s.gpu.shared_bytes > 160 * KIB


def by_keys(s: Situation, rows: int) -> bool:
    """Whether Q Blocks of a prompt take a page id a key where 16 bits take runs: 64 rows before sm_90 (static facts).

    Over int8 64 rows by 64 keys of 128 lanes spill 123 words by runs, with 63 and 26 accesses in the two loops over
    tiles (static_grid; adjustable_tile 53 and 20), by keys 13, outside of them. 32 rows spill none, for 2022
    instructions a tile of 64 in place of 1862. Heads of 256: 93 accesses and 15. Heads of 64 spill nothing by runs, and
    128 rows by 128 keys 629 words by keys, 150 by runs.
    """
    return s.nvidia and not s.tma and rows == 64 and s.stored_in_8_bits and s.lanes > 64


def decode(s: Situation) -> Config | None:
    """One warp a program, which waits for no other; None where it gains nothing or was not measured.

    13 programs a unit, of which 10 are resident: 71 us in 7 segments, 80 in 5, 78 in 10; from four a unit on three
    segments (256 decodes 422 us, 455 in one). Few sequences: 8 programs a unit, 8 decodes of 8k keys 37.7 us in 16
    segments, 50 by four warps, one of 32k 26.8 in 66, for 35. On a B200 it spills 6 words (static fact). An fp8 query
    has a bound of 240 registers and takes 209: of its own accord ptxas takes 168 and reads the thread's number in every
    tile, 77.7 us for 68.7.
    """
    held = s.lanes <= 128 and s.shape.queries_per_kv <= 16 and s.small
    if not s.wgmma or not held or s.shape.block_size % 16 or not ahead(s):
        return None
    if (segments := _segments(s, 27 * s.units // 2)) == 0:
        return None
    registers = 240 if s.shape.dtype.itemsize == 1 else 0
    return Config(16, 32, segments, num_warps=1, num_stages=5, overlap=True, gather="run", registers=registers)


def _segments(s: Situation, wanted: int) -> int:
    """Of at least 256 keys, 128 where they are all that fills the units, and there 66 at most (128: 28.2 us for 26.8);
    0 where nothing is gained.
    """
    if s.programs < s.units:
        least = 128 if s.programs < 32 else 256
        return min(8 * s.units // s.programs, 66, s.keys // least) if s.keys >= 2048 else 0
    fewest = 3 if s.keys >= 2048 else 1
    return min(max(cdiv(wanted, s.programs), fewest), s.keys // 256) if s.keys >= 1024 else 0
