"""Whether prompts are read where they lie, in one loop or by Q Blocks, or copied first: what `auto_kernel` asks."""

from common.gpus import KIB
from common.serving import untuned
from common.serving.grid import EIGHTHS
from common.serving.rules import Situation
from dsl_triton.heuristics.generic import page_runs
from dsl_triton.unpaged import MOST_PARTS


def up_to_512(s: Situation) -> bool:
    """Many Q Blocks over more than 256 keys, and any beside decodes, of heads that are a power of two from 193 on, of
    padded ones in large pages from 129 on. Few stay in q_block, whose loop over what every row sees has no masks: two
    of 264 of heads of 80 11.1 us, here 12.5; six of 244 of 64:8 heads of 64 25.2 and 28.0 by a page id a key."""
    decodes = s.stats.num_decodes > 0
    if not page_runs.one_loop(s):
        return False
    least = 192 if decodes and not s.padded else 128 if _many_in_pages(s) else 256
    return least < s.keys <= 512 and (_many(s) or decodes)


def _many_in_pages(s: Situation) -> bool:
    """Padded heads by tiles of 32 keys that lie in one page: 25 of 186 tokens of 128:8 heads of 80 in pages of 64 158
    us, in q_block 215; 59 of 138 of 32:8 heads in pages of 16 134, 111."""
    return s.padded and s.shape.block_size >= 32 and s.long_blocks(64) > 16 * s.units


def _many(s: Situation) -> bool:
    return s.long_blocks(64) > 4 * s.units


def many_rows(s: Situation) -> bool:
    """Prompts of up to 512 keys whose products last longer than a copy: eight Q Blocks of 128 rows a unit.

    Over 8 bits, which a copy converts once, where more than 512 rows read a key: four of 99 tokens of ratio 7 over up
    to 200 keys 16.8 us, in q_block 19.5; 40 of 226 of ratio 5 beside 69 decodes over 364 190, 248. Of fewer a copy
    loses: 16 of 287 of 32:32 heads 178 us, in q_block 144.
    """
    if s.stored_in_8_bits:
        return s.keys > 128 and s.rows > 512 and s.full and s.small and s.long_blocks(64) > 2 * s.units
    return s.keys > 384 and s.full and s.small and s.long_blocks(128) > 8 * s.units


def read_by_few(s: Situation, rows: int) -> bool:
    """Chunks over a context whose keys fewer than so many rows read, on the mean, and which need no segments.

    A key that is copied is read and written once more, and saves a sixth of each tile of 64 rows after it. Where a
    window ends what is read, `keys` are what is left of them (grid.seen). A cache of 8 bits is copied as 16, twice what
    is read: 42 of 28 tokens over 9.8k keys of ratio 5, 140 rows, are 602 us, copied 869.
    """
    if s.gpu is None or not (s.usual and s.small and s.keys > 512 and (s.rows > 512 or untuned.copies(s))):
        return False
    reading = s.rows * (s.prompt_keys - s.queries) / s.prompt_keys
    rows = rows if s.stored_in_16_bits else min(rows, untuned.ROWS_8_BITS)
    return s.prompt_keys >= 2 * s.queries and reading < rows and untuned.even(s, MOST_PARTS)


def in_place(s: Situation) -> bool:
    """untuned.in_place; over 8 bits, which a copy converts once, where few rows read a key: nine decodes beside 276 of
    up to 44 tokens over 8k keys of ratio 4 243 us, in adjustable_tile 395."""
    few = s.stored_in_8_bits and s.rows <= untuned.ROWS_8_BITS
    return untuned.in_place(s) and (few or page_runs.one_loop(s))


def decodes_last(s: Situation) -> bool:
    """Decodes that one loop would wait for: most of the sequences, over more than 8k keys, or one that outlasts all."""
    decodes = s.stats.num_decodes
    return 2 * decodes > s.stats.num_seqs or (decodes > 0 and s.keys > 8 * KIB) or one_outlasts(s)


def one_outlasts(s: Situation) -> bool:
    """Many sequences whose mean has a quarter of the longest's keys at most, as uneven batches of a warm-up's points
    have: if the longest is a decode, it outlasts the others. Seven decodes over up to 14k keys beside 131 prompts over
    102: 171 us in 14 segments, in q_block 376."""
    return s.stats.num_decodes > 0 and s.stats.num_seqs > 32 and s.evenness <= 2 / EIGHTHS
