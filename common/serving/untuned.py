"""What the rules of both DSLs share: tiles by what a GPU has (tiles.json), segments, which kernel a prompt gets.

Times in an evidence are of the H200 and of Triton where Helion's are not said.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from common.serving.grid import few_keys
from common.serving.rules import (
    MERGE,
    MOST_SEGMENTS,
    START,
    Rule,
    Situation,
    always,
    at_most,
    ends,
    filling,
    power_of_two,
    splits,
)
from common.spec.metadata import cdiv

Line = tuple[str, int, int, int, int, str]  # facts, then a Tile, then what was seen
TABLES: dict[str, list[Line]] = {
    part: [tuple(line) for line in lines]
    for part, lines in json.loads((Path(__file__).parent / "tiles.json").read_text(encoding="utf-8")).items()
    if part != "of"
}
RESIDENT, RESIDENT_MFMA = 3, 4  # programs of a decode that a unit holds: on an H200 156 registers and 39 KB each
KEYS = 64  # of a prompt's tile
ROWS_8_BITS = 350  # that read a key; of more a copy, which converts it once, pays: read_often
SEGMENT = 1024  # keys: where segments are shorter, what starts and merges them costs more than they gain


class Tile(NamedTuple):
    """Rows of a Q Block, keys of a tile, warps, stages."""

    block_m: int
    tile_size: int
    num_warps: int
    num_stages: int


LONG = Tile(128, 128, 8, 3)  # prompts of thousands of tokens; a prompt of 8192: 1.04x of the next


@cache
def _words(facts: str) -> tuple[tuple[str, bool], ...]:
    """Names of a line's facts, and whether they are to hold. A plan of a server asks a million times."""
    return tuple((word.lstrip("!"), not word.startswith("!")) for word in facts.split())


def tile(s: Situation, part: str, own: Sequence[Line] = ()) -> Tile:
    """Of the first line that holds, a DSL's own before the shared ones; fewer keys where shared memory asks."""

    def holds(facts: str) -> bool:
        for name, wanted in _words(facts):  # noqa: SIM110  a generator under all() takes twice as long
            if bool(getattr(s, name)) != wanted:
                return False
        return True

    _, *sizes, _ = next(line for line in (*own, *TABLES[part]) if holds(line[0]))
    found = Tile(*sizes)
    return found._replace(tile_size=s.fitting(found.tile_size))


def in_matrix(s: Situation, found: Tile) -> Tile:
    """By MFMA no more warps than Q Blocks have matrices of 32 rows."""
    return found._replace(num_warps=min(found.num_warps, max(found.block_m // 32, 1))) if s.mfma else found


def in_flight(s: Situation, found: Tile, segments: int = 1) -> Tile:
    """Over 8 bits, where (stages - 1) // 2 tiles are ahead, no more stages than a program's tiles use: the rest is
    shared memory that other programs lack. 32 KB are a tile of 128 keys, four of which leave a unit one program.

    2 of 8 tokens over 81 keys on an H100: 5.4 us in one stage, 6.0 in four, 7.0 in five. 15 of 1506 keys of 64:4 heads
    in segments of four tiles: 16.2 in three, 18.9 in five. Up to 1024 keys a segment, as many stages as let a unit
    of Hopper's hold the programs that it gets: 42 of 635 keys of 48:8 heads 29.6 in two, 31.0 in four; by 64 keys 61 in
    a window of 512 of 64:8 heads of 80 on an H100 32.2 in four, 35.0 in five.
    """
    if not (s.ahead and s.keys):
        return found
    tiles = cdiv(cdiv(s.keys, found.tile_size), segments)
    used = 2 * tiles - 1 if tiles < 3 else max(tiles - 1, 3)
    if s.wgmma and s.usual and tiles > 1 and s.keys <= SEGMENT * segments:
        programs = min(cdiv(s.programs * segments, s.units), RESIDENT)
        tile_bytes = found.tile_size * s.row_bytes // s.shape.dtype.itemsize
        used = min(used, max(s.gpu.shared_bytes // (programs * tile_bytes), 2))
    return found._replace(num_stages=min(found.num_stages, used))


# Segments.


def resident(s: Situation) -> int:
    return (RESIDENT_MFMA if s.mfma else RESIDENT) * s.units


def _few(s: Situation) -> bool:
    return 2 * s.programs <= resident(s)


def _wave(s: Situation, made: Callable[[Situation, int, int], Any]) -> Any:
    # 128 keys of 64 lanes are as many bytes as 64 of 128: one of 43,635 keys 18.6 us, by 64 keys 20.5
    wide = s.wgmma and s.narrow and s.stored_in_16_bits and s.keys > 2 * SEGMENT
    segments, keys = at_most(resident(s) // s.programs), s.decode_keys(128 if wide else 64)
    tiles = cdiv(s.keys, keys)  # 8 of 512 keys: 9.0 us in 8 segments of a tile, 9.7 in 6 of one or two
    return made(s, tiles if tiles <= 3 * segments // 2 else segments, keys)


def few_decodes(made: Callable[[Situation, int, int], Any]) -> tuple[Rule, ...]:
    """made: a Config of so many segments and keys a tile."""
    return (
        Rule(
            "few long decodes: segments of up to 2048 keys even out lengths",
            lambda s: _few(s) and s.stats.num_seqs > 1 and 2 * s.keys // (3 * SEGMENT) > resident(s) // s.programs,
            lambda s: made(s, max(at_most(resident(s) // s.programs), s.keys // (2 * SEGMENT)), s.decode_keys(128)),
            "8 of 32k keys: 197 us, by 64 keys in 24 segments 207",
        ),
        Rule(
            "few decodes: segments that make one wave",
            _few,
            lambda s: _wave(s, made),
            "peers: 48 segments at batch 1, 6 at batch 8",
        ),
    )


def waves(s: Situation, drafts: int) -> int:
    """Segments of a thousand keys where contexts are long. drafts: of several tokens over less than 8192 keys."""
    most = max(14 * s.units // s.programs, 3)
    if s.queries > 1 and s.keys < 8 * SEGMENT:
        most = drafts if s.programs <= 3 * s.units else 1
    return min(s.keys // SEGMENT, most) if s.keys >= 4 * SEGMENT else 1


def within(s: Situation, segments: int, keys: int) -> int:
    return max(1, min(segments, cdiv(s.keys, keys), MOST_SEGMENTS))


def short_rows(s: Situation, found: Tile) -> Tile:
    """Q Blocks of as many rows as a sequence has. Up to 32 rows of 256 lanes take 4 warps, 248 registers and 86 KB, so
    that a unit holds two; 64 rows by 4 warps spill 53 words, by 8 none (static facts, sm_90)."""
    found = found._replace(block_m=max(min(found.block_m, power_of_two(s.rows)), 16))
    return found._replace(num_warps=4) if s.tall and found.block_m <= 32 else found


def dealt(s: Situation, found: Tile, slots: int) -> int:
    """Segments of short queries, of a tile at least: as many as end soonest. Two of 3 tokens over 854 keys take 11.7 us
    in six of up to two tiles, 13.0 in three."""
    most = min(s.keys // found.tile_size, 64)
    return splits(s.q_blocks(found.block_m), slots, cdiv(s.keys, found.tile_size), most, s.evenness)


def of_eight_bits(s: Situation, a_unit: float) -> int:
    """Segments of a decode over 8 bits by programs of one warp for 16 rows, 0 where they gain nothing or were not
    measured.

    Of at least 256 keys, 128 where they are all that fills the units. There 64 at most (128: 28.2 us for 26.8), and
    more in segments of 512 keys while programs are at most four a unit: two tokens over 85k keys of 20:4 heads take
    33.7 us in 128 segments, 47.9 in 64; a decode over 52k of eight KV heads beside prompts 64 in 64, 84 in 112. From
    four programs a unit on three segments (256 decodes 422 us, 455 in one). Helion's were not timed again.
    """
    if not (s.wgmma and s.held and s.ahead):
        return 0
    programs = s.q_blocks(16)
    if programs < s.units:
        slots, least = 8 * s.units, 128 if programs < 32 else 256
        long = filling(programs, slots // 2, s.keys, SEGMENT // 2, MOST_SEGMENTS)
        return max(filling(programs, slots, s.keys, least, 64), long) if s.keys >= 2 * SEGMENT else 0
    fewest = 3 if s.keys >= 2 * SEGMENT else 1
    return min(max(cdiv(int(a_unit * s.units), programs), fewest), s.keys // 256) if s.keys >= SEGMENT else 0


def cut(s: Situation, rows: int, slots: int, parts: int) -> int:
    """Segments of a prompt's Q Blocks of so many rows, of 512 keys at least; twice that beside decodes, which fill what
    half of the units or more leave idle. Heads of 256 take half as many: two of 70 tokens over 852 keys of four heads
    are 31.6 us in two segments, 37.0 in one. parts: query tokens that leave partial results, times segments."""
    least = SEGMENT if s.stats.num_decodes and 2 * s.long_blocks(rows) > s.units else SEGMENT // 2
    least = least // 2 if s.tall else least
    most = min(s.prompt_keys // least, parts // max(s.stats.num_tokens, 1), 16)
    return splits(s.long_blocks(rows), slots, cdiv(s.prompt_keys, KEYS), most, _causal(s))


def _causal(s: Situation) -> float:
    """Evenness of a prompt's Q Blocks: the first sees its context alone, the last all keys."""
    return min(s.evenness * s.keys / s.prompt_keys, 1.0) * (1 - s.queries / (2 * s.prompt_keys))


def even(s: Situation, parts: int) -> bool:
    """Whether there are as many Q Blocks of 64 rows as units, and they end no later than segments and the copy that
    those need. A copy takes as long as the products of 128 rows: a quarter of those of 512.

    17 decodes beside 28 of up to 63 tokens over 30k keys of ratio 4 on an H100: 588 us, copied 1017.
    """
    slots, tiles, blocks = 2 * s.units, cdiv(s.prompt_keys, KEYS), s.long_blocks(64)
    whole, parted = (ends(blocks, slots, tiles, n, _causal(s)) for n in (1, cut(s, 64, slots, parts)))
    return blocks >= s.units and whole <= (1 + 128 / max(s.rows, 64)) * parted


def few_blocks(s: Situation, parts: int) -> int:
    """Segments of a prompt with fewer Q Blocks of 128 rows than two a unit, in Q Blocks of half; 0: it has enough.

    One prompt of 512: 22.0 us in Q Blocks of 128, 15.9 in twice as many; four of 512 of one KV head, 256 Q Blocks of
    128, 68 us on an H200 in twice as many.
    """
    return 0 if s.long_blocks(128) >= 2 * s.units else cut(s, 64, 2 * s.units, parts)


def copying(s: Situation) -> dict[str, Any]:
    """How unpaged copies: no context is read from new K and V; 8k keys are faster out of the copy."""
    return {"copy_programs": 8 * s.units, "new_kv": s.keys <= min(few_keys(s.queries), 4 * SEGMENT)}


def beside_prompts(s: Situation, parallel_softmax: Callable[..., Any]) -> Any:
    """A decode's config for the sequences of at most SHORT_QUERY query tokens.

    Where none is expected their launch has one segment, and no reduction behind it; neither where they fill the units
    by themselves, for the longest sequence is then another's: 255 decodes beside a chunk over 8k keys, 685 for 803 us.
    """
    if not s.short:
        split = 0 < s.stats.num_decodes * s.shape.num_kv_heads < 2 * s.units
        s = s.of(num_seqs=max(s.stats.num_decodes, 1), max_seq_len=s.keys if split else 0)
    return parallel_softmax(s.shape, s.of(max_query_len=1).stats, s.gpu)


# Which kernel.


def one_launch(s: Situation, config: Any) -> bool:
    """Whether few segments are no gain over q_block, whose one launch takes less.

    Decodes of 256 lanes, of which a unit holds one or two, gain by them: 87 of 4k keys of 12:2 heads 151 us for 178.
    Where its programs are fewer than the units they are: 12 times 4 tokens of 64:8 heads over 3k keys are 96 programs
    of 24 tiles, in q_block half of FA3. So they are of short queries over so many tiles that starts and the merge are a
    tenth of them: `dealt` takes two segments for a tenth less alone.
    """
    tiles = cdiv(s.keys, config.tile_size)
    idle = tiles > 2 * MERGE and (s.q_blocks(config.block_m) < s.units or (s.tall and s.few_rows))
    gains = not s.few_rows and tiles > 10 * (START + MERGE)
    return config.num_segments <= 1 or (config.num_segments == 2 and not idle and not gains)


def _many_blocks(s: Situation) -> bool:
    """Chunks alone, whose Q Blocks of 128 rows fill the units twice: 29 of 42 tokens over 24k keys took an H100 2665 us
    in q_block, 3729 in unpaged. Not beside decodes, which nothing cuts there: 11 of 26 over 58k keys 1324 for 208."""
    return not s.stats.num_decodes and s.stats.num_tokens * s.shape.num_query_heads > 128 * 256


def read_often(s: Situation) -> bool:
    """Whether so many rows read a key that a copy pays: more than eight Q Blocks of 128, four beside decodes, which are
    a launch apart then, by segments of their own; fewer over 8 bits.

    Of 513 to 1,024 rows it did not in eight of eleven batches of 16 bits: three prompts of 645 of 32:32 heads 75 us, in
    q_block 55. Over 8 bits 94 of up to 46 tokens over 9.2k keys of ratio 8 (368 rows) 6.62 ms, in place 7.19; 23 of up
    to 42 (336 rows) 0.70 and 0.68.
    """
    if s.stored_in_8_bits:
        return s.rows > ROWS_8_BITS
    return s.rows > (512 if s.stats.num_decodes else 1024)


def copies(s: Situation) -> bool:
    """Whether PROMPTS give unpaged the batch: decodes need segments for shorter contexts than chunks do.

    Chunks of fewer Q Blocks than units need them too: 20 decodes and one of 240 tokens over 2.8k keys take 75 us, in
    adjustable_tile 118.
    """
    long = s.keys >= (4 if s.stats.num_decodes else 16) * s.queries
    few = s.programs <= 256 or (s.gpu is not None and s.long_blocks(64) < s.units)
    return read_often(s) or (few and long and not _many_blocks(s))


def in_place(s: Situation) -> bool:
    """Q Blocks of 64 rows that fill Hopper's units and read their keys where they lie, two tiles ahead of the products.

    A copy pays from some 3,300 rows a key on: 3,088 rows (three of 386 tokens, heads of 80) are 461 us, copied 486, and
    6,155 (28 of up to 1231) 651 and 611. Of padded heads it pays from 1,500 on: 3,625 rows 237 and 212. It does not for
    chunks of less than 160 tiles a unit: one of 1077 and a decode in a window of 512 64.3 us, copied 75.2.

    Beside decodes over more than 8k keys a loop without segments may end last: 12 of up to 10k beside nine prompts of
    224 206 us, in unpaged 153; but two of 9k beside three of 76 165, 202. Helion alike: 233 of 38 tokens over 2k keys
    1026 us, in q_block 1316.
    """
    if s.gpu is None or s.short or not (s.wgmma and s.usual) or s.keys <= 512 or s.long_blocks(64) < s.units:
        return False
    if s.stats.num_decodes and s.keys > 8 * SEGMENT:
        return False
    little = tiles_a_unit(s) < 160 and 2 * s.prompt_keys >= 3 * s.queries
    return s.rows <= (1500 if s.padded else 3300) or little


def tiles_a_unit(s: Situation) -> float:
    """Of 64 rows by 64 keys: about a microsecond each, where a launch more takes four."""
    return s.long_blocks(64) * (s.prompt_keys - s.queries / 2) / KEYS / s.units


def loads_ahead(s: Situation, rows: int, keys: int) -> bool:
    """Whether a loop of so many rows over so many keys takes five stages on Hopper. They load page ids, keys and values
    two tiles ahead; two, three and four stages load nothing ahead. Loops over fewer than 512 keys lose by it."""
    return s.wgmma and s.usual and rows >= 32 and keys >= 512


def takes(kernel: str) -> Callable[[Situation], str]:
    return lambda s: kernel


SHORT = Rule(
    "short queries: parallel_softmax reads keys as decode does",
    lambda s: s.short,
    takes("parallel_softmax"),
    "8 times 8 tokens over 4k keys: 41 us, 122 without segments",
)
NO_TMA = Rule(
    "without TMA: adjustable_tile, which needs no descriptor",
    lambda s: not s.tma,
    takes("adjustable_tile"),
    "static fact: 128 loads of 2 bytes a tile by descriptor, 16 of 16 bytes by pages",
)
PROMPTS = (
    Rule(
        "prompts of up to 512 keys: one launch of q_block",
        lambda s: s.keys <= 512,
        takes("q_block"),
        "four of up to 512: 19.3 us, in unpaged 27.7; Helion 20.1 and 34.7",
    ),
    Rule(
        "prompts of 256 lanes: what two Q Blocks of 128 rows read is copied, for addresses of pages take registers",
        lambda s: s.gpu is not None and s.tall and s.rows > 128,
        takes("unpaged"),
        "regret_40: two of 70 tokens over 852 keys of 24:4 heads: 37.0 us, in q_block 66.5",
    ),
    Rule(
        "many Q Blocks read what unpaged copies once",
        read_often,
        takes("unpaged"),
        "peers: prompts of 2k and 8k",
    ),
    Rule(
        "few programs over long contexts: unpaged has the segments that q_block lacks",
        copies,
        takes("unpaged"),
        "tuning",
    ),
    Rule(
        "short chunks of many sequences: one launch of q_block",
        always,
        takes("q_block"),
        "42 of up to 20 tokens over 5k keys: 242 us, in unpaged 425; Helion 265 and 430",
    ),
)
