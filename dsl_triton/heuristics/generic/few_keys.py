"""Batches over so few keys that what a program begins and ends with decides, and what a tile has above the diagonal."""

from common.serving.rules import Situation


def many_prompts(s: Situation) -> bool:
    """More than 32; of up to 32 keys, where tiles of 16 keep the lower half of a square from being computed, fewer:
    29 of 23 tokens of 56:8 heads 14.1 us by 16 keys, 17.5 by 64."""
    few = s.keys <= 32 and s.shape.queries_per_kv >= 4 and s.long_blocks(64) > 4 * s.units
    return (s.prompts > 32 or few) and not s.short and s.usual and s.tma


def filling(s: Situation) -> bool:
    """Prompts over 65 to 128 keys, more than two Q Blocks of 64 rows a unit; of 1.7, 7 of 123 of 16:8 heads, 9.1 us by
    64 keys, 10.3 by 32."""
    return not s.short and s.usual and s.wgmma and 64 < s.keys <= 128 and s.long_blocks(64) > 2 * s.units


def many_short(s: Situation) -> bool:
    return many_prompts(s) and s.queries <= 64 and s.keys <= 192


def tiny(s: Situation) -> bool:
    """Few short queries over up to 64 keys, and few prompts of up to 32."""
    if s.few_rows or not (s.usual and s.tma):
        return False
    return s.keys <= 64 and s.q_blocks(16) <= s.units if s.short else s.keys <= 32 and s.long_blocks(16) <= 2 * s.units


def one_tile_each(s: Situation) -> bool:
    """Decodes over 65 to 128 keys of which a tile of 32 lets a unit hold all, more than six."""
    timed = s.usual and s.wgmma and s.stored_in_16_bits and not s.padded
    return timed and s.few_rows and 64 < s.keys <= 128 and s.programs > 6 * s.units


def many_decodes(s: Situation) -> bool:
    """More than three a unit, others of which load meanwhile, over so few keys that half of a tile of 128 counts, which
    a window's first and last are. A window of 512 is up to 768 keys here (grid.seen)."""
    many = s.few_rows and s.programs > 3 * s.units
    return many and s.usual and s.wgmma and s.stored_in_16_bits and 192 < s.keys <= 768
