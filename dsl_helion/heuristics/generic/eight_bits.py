"""Decodes over a cache of 8 bits on NVIDIA's larger GPUs: the bytes take as long to convert as to load.

Measured at 32 decodes of up to 4096 keys in fp8 on an H200, where 16 bits take 112 us.
"""

from common.gpus import KIB
from common.serving.rules import Situation
from common.spec.metadata import cdiv
from dsl_helion.binding import page_form_applies
from dsl_helion.parallel_softmax import Config


def ahead(s: Situation) -> bool:
    """Whether a decode asks for a tile while it works on the one before: dsl_triton/heuristics/generic/eight_bits.py
    says why.

    5 stages: 90 us for 121.
    """
    return s.stored_in_8_bits and s.nvidia and s.gpu.shared_bytes > 160 * KIB


def decode(s: Situation) -> Config | None:
    """One warp a program, which waits for no other; None where it gains nothing or was not measured.

    16 programs a unit: 75 us in 8 segments by whole pages, 83 in 6, and 87 by a page id a key. Few sequences: 8
    programs a unit, 8 decodes of 8k keys 38.9 us in 16 segments, 50 by four warps, one 14.6 for 17.2.
    """
    held = s.lanes <= 128 and s.shape.queries_per_kv <= 16 and s.small
    if not s.wgmma or not held or not page_form_applies(s.shape, 32) or not ahead(s):
        return None
    if (segments := _segments(s, 15 * s.units)) == 0:
        return None
    return Config(16, 32, segments, "page", num_warps=1, num_stages=5)


def _segments(s: Situation, wanted: int) -> int:
    """Of at least 256 keys, 128 where they are all that fills the units, and there 66 at most; 0: nothing is gained."""
    if s.programs < s.units:
        least = 128 if s.programs < 32 else 256
        return min(8 * s.units // s.programs, 66, s.keys // least) if s.keys >= 2048 else 0
    fewest = 3 if s.keys >= 2048 else 1
    return min(max(cdiv(wanted, s.programs), fewest), s.keys // 256) if s.keys >= 1024 else 0
