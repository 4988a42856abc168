"""Batches over so few keys that what a program begins and ends with decides, and what a tile has above the diagonal."""

from common.serving.rules import Situation, at_most
from common.serving.untuned import resident
from common.spec.metadata import cdiv
from dsl_triton.parallel_softmax import Config


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


def short(s: Situation) -> Config | None:
    """Few short queries over 65 to 512 keys, whose tiles of 16 rows by 64 keys units about hold at once. None for
    others, and over more than 128 keys for padded heads and for Q Blocks of more than half of the units.

    Up to 128 keys are one tile: 25 times 5 tokens over 78 keys of 8:1 heads of 96 5.9 us, in q_block 8.0; by a page id
    for each run of keys, which a server would compile for this alone, 5.7.
    """
    q_blocks = s.q_blocks(16)
    timed = s.usual and s.wgmma and s.stored_in_16_bits and s.small and s.shape.block_size % 16 == 0
    if not timed or s.few_rows or not s.short or not 64 < s.keys <= 512 or q_blocks > s.units:
        return None
    if s.keys <= 128:
        return Config(16, 128, 1, num_stages=2, overlap=True)
    segments, tiles = at_most(resident(s) // q_blocks), cdiv(s.keys, 64)
    if s.padded or 2 * q_blocks > s.units:
        return None
    return Config(16, 64, min(segments, tiles), num_stages=1 if segments >= tiles else 2, overlap=True)


def one_tile_each(s: Situation) -> bool:
    """Decodes over 65 to 128 keys of which a tile of 32 lets a unit hold all, more than six."""
    timed = s.usual and s.wgmma and s.stored_in_16_bits and not s.padded
    return timed and s.few_rows and 64 < s.keys <= 128 and s.programs > 6 * s.units


def tile(s: Situation) -> int:
    """Keys of a decode's tile where one holds all, 64 where nobody says how many: 482 of up to 8 keys over 8 bits of
    128:16 heads of 80 48 us by 16, 71 by 64; 17 of 32 keys 3.4 by 64, 4.1 by 32."""
    return 16 if 0 < s.keys <= 16 else 64 if s.keys <= 64 else 128


def in_window(s: Situation) -> bool:
    """Decodes whose keys are as a window of 512 leaves them: 768 of each sequence (grid.seen). Not of 64 lanes; over 8
    bits not of padded heads, nor from four programs a unit on: there q_block was no faster, or not timed."""
    few = s.stored_in_16_bits or (s.stored_in_8_bits and s.programs <= 4 * s.units and not s.padded)
    return s.few_rows and s.wgmma and s.full and few and s.keys == 768 and s.evenness == 1


def many_decodes(s: Situation) -> bool:
    """More than three a unit, others of which load meanwhile, over so few keys that half of a tile of 128 counts. In a
    window, whose first and last tile are half empty, from two a unit on; from four on 128 keys, for bytes in flight."""
    if in_window(s) and s.programs > 2 * s.units:
        return s.programs <= 4 * s.units
    many = s.few_rows and s.programs > 3 * s.units
    return many and s.usual and s.wgmma and s.stored_in_16_bits and 192 < s.keys <= 768
