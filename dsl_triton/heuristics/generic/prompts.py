"""Whether prompts are read where they lie, in one loop or by Q Blocks, or copied first: what `auto_kernel` asks."""

from common.gpus import KIB
from common.serving import untuned
from common.serving.rules import Situation
from dsl_triton.heuristics.generic import page_runs
from dsl_triton.unpaged import MOST_PARTS


def many_runs(s: Situation) -> bool:
    """Of prompts, without decodes: four Q Blocks of 64 rows a unit."""
    if s.gpu is None or untuned.copies(s) or s.stats.num_decodes or s.keys <= 512:
        return False
    return s.full and s.stored_in_16_bits and s.long_blocks(64) > 4 * s.units


def up_to_512(s: Situation) -> bool:
    """Of more than 256 keys, where one loop over masked tiles is the faster one: many Q Blocks without decodes, and few
    beside them. q_block, whose loop over what every row sees has no masks, has the others: 143 prompts beside 33
    decodes over 307 keys of 128:32 heads 555 us, here 621; two of 264 of heads of 80 11.1, 12.5. Of padded heads, which
    it reads slowly, only those."""
    if not (page_runs.one_loop(s) and 256 < s.keys <= 512):
        return False
    many, decodes = s.long_blocks(64) > 4 * s.units, s.stats.num_decodes > 0
    return many != decodes or (s.padded and decodes)


def many_rows(s: Situation) -> bool:
    """Prompts of up to 512 keys whose products last longer than a copy: eight Q Blocks of 128 rows a unit."""
    return s.keys > 384 and s.full and s.small and s.long_blocks(128) > 8 * s.units


def read_by_few(s: Situation, rows: int) -> bool:
    """Chunks over a context whose keys fewer than so many rows read, on the mean, and which need no segments.

    A key that is copied is read and written once more, and saves a sixth of each tile of 64 rows after it. Where a
    window ends what is read, `keys` are what is left of them (grid.seen). A cache of 8 bits is copied as 16, twice what
    is read: 42 of 28 tokens over 9.8k keys of ratio 5, 140 rows, are 602 us, copied 869. More than 200 were not tried.
    """
    if s.gpu is None or not (s.usual and s.small and s.keys > 512 and (s.rows > 512 or untuned.copies(s))):
        return False
    reading = s.rows * (s.prompt_keys - s.queries) / s.prompt_keys
    rows = rows if s.stored_in_16_bits else min(rows, 200)
    return s.prompt_keys >= 2 * s.queries and reading < rows and untuned.even(s, MOST_PARTS)


def short_beside(s: Situation) -> bool:
    """No decodes, or whose keys end before the chunks' rows do: 12 over up to 75k keys beside 36 of 67 tokens take 1332
    us in segments of adjustable_tile, 1904 in one loop."""
    return not s.stats.num_decodes or (s.rows > 512 and s.keys <= 16 * KIB)


def tiles_a_unit(s: Situation) -> float:
    """Of 64 rows by 64 keys: about a microsecond each, where a launch more takes four."""
    return s.long_blocks(64) * (s.prompt_keys - s.queries / 2) / untuned.KEYS / s.units
