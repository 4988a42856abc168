"""Heads of 256 lanes over 16 bits on Hopper: where less than 128 rows by 8 warps leaves a unit two programs."""

from common.serving.rules import Situation
from common.serving.untuned import Tile

TWO_A_UNIT = Tile(64, 16, 4, 5)  # 80 KB


def block(s: Situation) -> bool:
    """Short queries of 33 to 64 rows."""
    return not s.few_rows and s.short and _timed(s) and 32 < s.rows <= 64


def prompts(s: Situation) -> bool:
    return not s.short and _timed(s) and 0 < s.keys <= 64


def prompts_by_runs(s: Situation) -> bool:
    """Prompts of 128 rows by 8 warps over whole pages: a page id for each run of keys leaves registers."""
    return not s.short and _timed(s) and 64 < s.keys <= 512 and s.shape.block_size % 16 == 0


def _timed(s: Situation) -> bool:
    return s.tall and s.wgmma and s.stored_in_16_bits
