"""Where a page id for each run of keys pays on an H200 beside 16 bits, heads of 128 (decodes: of 256) and whole pages.

It leaves registers for larger tiles or fewer warps (parallel_softmax, `gather="run"`); measured lines are in
docs/results/h200/sweeps/page_runs.jsonl. Elsewhere a page id a key stays: 64 keys and two warps lose 1% from eight
programs a unit on, and with less than 1024 keys a segment.
"""

from dataclasses import replace

import triton

from common.serving import untuned
from common.serving.rules import Situation, splits
from common.spec.metadata import cdiv
from dsl_triton.parallel_softmax import Config

THREE_A_UNIT = 168  # registers of 32 rows by 64 keys: Triton 3.9 took 170, two fit, and 48.6 us for 3.6's 38.6
KEYS_A_SEGMENT = 1024  # with half as many 32 decodes of 4096 keys gain 2% and, of four KV heads, lose 5%


def applies(s: Situation, lanes: int = 128) -> bool:
    """The shapes that were measured, and those whose registers are the same: `lanes` when padded."""
    return _measured(s) and triton.next_power_of_2(s.lanes) == lanes


def _measured(s: Situation) -> bool:
    """Whole pages of 16 bits under up to 16 query heads a KV head, of whatever lanes."""
    two = s.shape.dtype.itemsize == 2 and s.stored_in_16_bits
    return s.wgmma and two and s.shape.block_size % 16 == 0 and s.shape.queries_per_kv <= 16


def tiny(s: Situation) -> bool:
    """Short queries over up to 32 keys, more of 16 rows than there are units: what a program needs to begin decides."""
    small = s.usual and s.shape.queries_per_kv <= 16 and s.shape.block_size % 16 == 0
    return s.short and s.tma and small and s.stored_in_16_bits and 0 < s.keys <= 32 and s.q_blocks(16) > s.units


def decode(s: Situation) -> Config | None:
    """15 programs a unit over long contexts of one sequence: 131,072 keys of 8 heads take 134 us, by a page id a key
    139. Of several sequences those gain since their tiles take one loop: 32 of 8k keys 202 us, by runs 207.

    Heads of 256 take 16 keys and one warp: 64 decodes of 4k over eight KV heads 374 us for 453 by 64 keys.
    None where a unit has more than four without segments (128 of 8k: 760 for 752), or segments are short.
    """
    segments = min(cdiv(15 * s.units, s.programs), 128)
    if s.programs > 4 * s.units or s.keys < KEYS_A_SEGMENT * segments:
        return None
    if applies(s, 256):
        return Config(16, 16, segments, num_warps=1, num_stages=2, overlap=True, gather="run")
    if applies(s) and s.stats.num_seqs <= 1:
        return Config(16, 64, segments, num_warps=2, num_stages=3, overlap=True, gather="run")
    return None


def short_queries(s: Situation) -> Config | None:
    """Q Blocks of 64 rows take 128 keys, one program a unit: 16 times 4 tokens of 16 heads 17.6 us for 23.1.

    Of 32 rows three programs a unit: 8 times 8 tokens of four heads 39.1 us for 41.2. Few such Q Blocks take 64 rows
    too, half of them empty, and a stage more: 16 times 4 tokens of 8 heads take 17.2 us, in two stages 18.1, by 32
    rows, whose products pass through registers, 21.2. Of 16 heads a stage more takes 17.8 for 17.5. Half of the units
    without segments at most, below which nothing was measured.
    """
    rows, q_blocks = triton.next_power_of_2(s.rows), s.programs
    if not applies(s) or rows not in (32, 64) or 2 * q_blocks > s.units:
        return None
    if rows == 32 and q_blocks < 32 and s.keys < 2048:
        return None
    stages = 3 if rows == 32 and q_blocks < 32 else 2
    rows = 64 if q_blocks < 32 else rows
    tile_size, per_unit = (128, 1) if rows == 64 else (64, 3)
    most = min(s.keys // (2 * tile_size), 64)
    segments = splits(q_blocks, per_unit * s.units, cdiv(s.keys, tile_size), most, s.evenness)
    registers = THREE_A_UNIT if rows == 32 else 0
    made = Config(rows, tile_size, segments, num_stages=stages, overlap=True, gather="run", registers=registers)
    return ahead(s, made) if rows == 64 else made  # 32 rows, three a unit, were not timed in five stages


def ahead(s: Situation, made: Config) -> Config:
    """Five stages from 512 keys a segment on (untuned.loads_ahead), by a page id for each run of keys: two of 3 tokens
    over 22k keys of 128:8 heads of 80 45.4 us, in two stages 63.5; 171 of 11 over 5.7k of 64:8 of them 923 and 1167.
    But two of 412 of heads of 80 36.3 and 35.1. Prompts in segments from 256 keys on: one of 74 tokens over 1.6k in
    seven 11.1 and 11.9. Over 8 bits for up to 525 rows: eight of up to 105 tokens over 7.9k 414 and 440, but 5,440 rows
    368 and 338.
    """
    keys = s.keys // made.num_segments
    long = 2 * keys if made.num_segments > 1 and not s.short else keys
    reads = made.gather == "run" or (s.stored_in_8_bits and s.rows <= 525)
    pays = reads and untuned.loads_ahead(s, made.block_m, long) and not _wave_of_four(s)
    return replace(made, num_stages=5) if pays else made


def _wave_of_four(s: Situation) -> bool:
    """Short queries of 64 lanes, three to four programs a unit: it holds four of two stages, three of five. 59 times 8
    tokens over 2.1k keys of 64:8 heads, 3.6 a unit, take 65.6 us in two, 70.9 in five."""
    return s.short and s.narrow and 3 < s.q_blocks(64) / s.units <= 4


def few_blocks(s: Situation, made: Config) -> Config:
    """Prompts of fewer Q Blocks than units over more than 512 keys: as many segments as end soonest, one program a
    unit. Two decodes and two prompts of 19 in a window of 512 take 10.9 us in three, 15.1 in one."""
    blocks = s.long_blocks(64)
    segments = splits(blocks, s.units, cdiv(s.keys, 64), min(s.keys // 256, 16), s.evenness)
    return replace(made, num_segments=segments if s.keys > 512 and blocks < s.units else 1)


def one_loop(s: Situation) -> bool:
    """Whether prompts, which have Q Blocks of 64 rows by 64 keys, gain by a page id for each run of keys."""
    return not s.short and _longer(s)


def _longer(s: Situation) -> bool:
    return _measured(s) and s.usual and s.keys > 128


def sixty_four_rows(s: Situation, made: Config) -> bool:
    """Whether Q Blocks of 64 rows by 64 keys take a page id a run; timed over 243 to 66k keys. Heads of 64: 107 times
    15 tokens over 4.3k keys in one segment 126 us for 163, 14 times 6 over 18k in four 131 for 168; of 96 and 128 452
    for 470 and 217 for 229; seven prompts of 840 285 for 319. Over 8 bits they lose (a prompt 2621 us for 2441).

    Not where they are a wave of q_block's, of which a unit holds four of 64 lanes, three of these: 259 times 14 tokens
    in a window of 4096 of 8:1 heads, 3.9 a unit, 125 us there, 184 here (the one row timed of so many).
    """
    more = _wave_of_four(s) and s.evenness > 0.9
    return _longer(s) and made.block_m == 64 and made.tile_size == 64 and not more


def chunk(s: Situation) -> Config | None:
    """A chunk of few tokens over a long context, read by pages: two programs of 64 rows a unit.

    64 tokens over 8k keys 36.8 us for 48.6 copied, 128 tokens 58.3 for 63.4 and over 32k 196 for 216; 256 tokens
    lose (103 for 97). Where 256 rows at most read a key, Q Blocks may fill the units twice, for a copy reads and
    writes as much as they read: 29 times 42 tokens of 336 rows over 24k keys are 2236 us, copied 3729. Contexts of a
    few tiles are cut as well: two of 22 tokens over 806 keys of 64:32 heads are 21.3 us in two segments, 33.4 copied.
    """
    q_blocks, least = s.long_blocks(64), max(512, 4 * s.queries)
    most = 2 * s.units if s.rows <= 256 else s.units // 2
    if s.short or not applies(s) or s.stats.num_decodes or q_blocks > most or s.keys < least:
        return None
    segments = splits(q_blocks, 2 * s.units, cdiv(s.keys, 64), min(s.keys // 256, 16), s.evenness)
    return ahead(s, Config(64, 64, segments, num_stages=2, overlap=True, gather="run"))
