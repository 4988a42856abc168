"""A cache of 8 bits on NVIDIA's GPUs: the bytes take as long to convert as to load, and registers to hold."""

from common.serving.rules import Situation
from common.serving.untuned import of_eight_bits
from dsl_triton.parallel_softmax import Config


def by_keys(s: Situation, rows: int) -> bool:
    """Whether Q Blocks of a prompt take a page id a key where 16 bits take runs: 64 rows before sm_90 (static facts).

    Over int8 64 rows by 64 keys of 128 lanes spill 123 words by runs, with 63 and 26 accesses in the two loops over
    tiles (static_grid; adjustable_tile 53 and 20), by keys 13, outside of them. 32 rows spill none, for 2022
    instructions a tile of 64 in place of 1862. Heads of 256: 93 accesses and 15. Heads of 64 spill nothing by runs, and
    128 rows by 128 keys 629 words by keys, 150 by runs.
    """
    return s.old and rows == 64 and s.stored_in_8_bits and not s.narrow


def decode(s: Situation) -> Config | None:
    """One warp a program, which waits for no other; None where it gains nothing or was not measured.

    32 decodes of up to 4096 keys in fp8: 13 programs a unit, of which 10 are resident, take 71 us in 7 segments, 80 in
    5, 78 in 10, in 16 bits 111. Few sequences: 8 decodes of 8k keys 37.7 us in 16 segments, 50 by four warps. On a B200
    it spills 6 words (static fact). An fp8 query has a bound of 240 registers and takes 209: of its own accord ptxas
    takes 168 and reads the thread's number in every tile, 77.7 us for 68.7.
    """
    if s.shape.block_size % 16 or not (segments := of_eight_bits(s, 13.5)):
        return None
    registers = 240 if s.shape.dtype.itemsize == 1 else 0
    return Config(16, 32, segments, num_warps=1, num_stages=5, overlap=True, gather="run", registers=registers)
