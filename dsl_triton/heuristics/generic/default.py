"""Choices by rule, a table a kernel (common/serving/rules.py): the first rule that applies has the Config.

Written by hand from sweeps of the Llama-3-8B shape in bf16 on an H200, which the evidence quotes; on every other shape
and GPU they only have to fit. Rules ask what a GPU has. What Helion's rules share is in common/serving/untuned.py.
Measured winners of a GPU come before them (common/serving/winners.py).
"""

from dataclasses import replace
from typing import Any

from common.gpus import Gpu
from common.serving import untuned
from common.serving.rules import Rule, Rules, Situation, always
from common.serving.untuned import LONG, NO_TMA, PROMPTS, SHORT, Tile, tile
from common.spec import AttentionShape
from common.spec.metadata import BatchStats
from dsl_triton import adjustable_tile as adjustable_tile_kernel
from dsl_triton import naive as naive_kernel
from dsl_triton import parallel_softmax as parallel_softmax_kernel
from dsl_triton import q_block as q_block_kernel
from dsl_triton import split as split_kernel
from dsl_triton import static_grid as static_grid_kernel
from dsl_triton import unpaged as unpaged_kernel
from dsl_triton.heuristics.generic import eight_bits, few_keys, page_runs, prompts, tall
from dsl_triton.page_runs import Gather

WRITTEN_ON = frozenset({"h200"})  # GPUs by whose times the rules were written; elsewhere they are untuned
OWN = (
    ("mfma !small narrow", 16, 64, 1, 2, ""),
    ("mfma !small usual", 16, 32, 1, 2, ""),
    ("mfma !small wide", 16, 32, 1, 1, ""),
    ("tall wgmma", 128, 64, 8, 2, "4 x 512 tokens of heads of 256: in 64 keys 137 us, in 32 183"),
)


def _rows(s: Situation) -> Tile:
    return tile(s, "rows", OWN)


def _decode_tile(s: Situation, keys: int) -> Tile:
    return tile(s, "decode")._replace(tile_size=s.decode_keys(keys))


def _gather(s: Situation, tile_size: int, rows: int = 16) -> Gather:
    """Runs, but not where gfx942 turns V by 2-byte reads: 96 a tile out of [pages, page, head], 32 of [tile, head]."""
    turns = not s.gpu.turns_on_read and s.shape.block_size % tile_size
    return "key" if turns or eight_bits.by_keys(s, rows) else "run"


# A table a kernel.


def naive(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> naive_kernel.Config:
    """One warp a program, for a page of 16 keys is 16 loads a lane: 238 us at one prompt of 512, two warps 553."""
    grid = "sequences" if stats.max_query_len <= 1 else "tokens"
    return naive_kernel.Config(grid, num_warps=1 if shape.block_size * shape.head_size <= 2048 else 4)


def _q_block(found: Tile, **changes: int) -> q_block_kernel.Config:
    return q_block_kernel.Config(*found._replace(**changes))


def _sixteen(s: Situation) -> Tile:
    """Tiles of 16 keys; of up to 64 over 8 bits in one stage: 162 prompts of 52 of 14:2 heads 38.8 us, in two 44.3."""
    found = _rows(s)._replace(tile_size=16)
    return _one_stage_of_8_bits(s, found) if s.keys <= 64 else found


def _one_stage_of_8_bits(s: Situation, found: Tile) -> Tile:
    """165 sequences of up to 27 tokens over 245 keys of 40:8 heads, by 32 keys: 98.5 us, in two stages 120."""
    return found._replace(num_stages=1) if s.stored_in_8_bits else found


q_block = Rules(
    Rule(
        "decodes over up to 128 keys, more than six programs a unit: 32 keys, of which a unit holds as many",
        few_keys.one_tile_each,
        lambda s: _q_block(_decode_tile(s, 32)._replace(tile_size=32), num_stages=1),
        "regret_49: 55 over 96 keys of 128:16 heads 17.1 us, by 128 keys 22.1",
    ),
    Rule(
        "decodes of one tile: nothing to load ahead",
        lambda s: s.few_rows and s.keys <= s.decode_keys(128),
        lambda s: _q_block(_decode_tile(s, few_keys.tile(s)), num_stages=1),
        "2 of 8 tokens over 81 keys of fp8 on an H100: 5.4 us, in five stages 7.0; 48 keys 4.0 us by 64, 4.5 by 128",
    ),
    Rule(
        "decodes: 128 keys keep most bytes in flight; 64 where keys are few and programs more than three a unit",
        lambda s: s.few_rows,
        lambda s: _q_block(untuned.in_flight(s, _decode_tile(s, 64 if few_keys.many_decodes(s) else 128))),
        "regret_51: 119 of 32:4 heads in a window of 512 37.1 us, by 128 keys 43.6, 30 of 282 of 32:32 36.2, 37.7",
    ),
    Rule(
        "short queries over up to 32 keys: 16 rows by 16 keys",
        lambda s: s.short and s.keys <= 32 and s.tma,
        lambda s: q_block_kernel.Config(16, 16, 2, 1),
        "319 times 8 tokens over 21 keys on an H100: 15.0 us, by 64 rows and keys 22.6",
    ),
    Rule(
        "few short queries over up to 64 keys, few prompts of up to 32: a program for 16 rows",
        few_keys.tiny,
        lambda s: q_block_kernel.Config(16, 64, 4, 1),
        "regret_47: 5 times 3 tokens over 49 keys of 32:2 heads 4.4 us, by 64 rows 5.2; 7 prompts of 18 4.8 and 5.4",
    ),
    Rule(
        "many short queries over up to 64 keys: tiles of 32",
        lambda s: s.short and s.keys <= 64 and s.usual and s.tma and s.q_blocks(64) > s.units,
        lambda s: _q_block(_rows(s), tile_size=32, num_stages=1),
        "regret_44: 130 times 3 tokens over 53 keys of 64:8 heads of 80 21.9 us, by 64 keys 26.0",
    ),
    Rule(
        "short queries of 256 lanes: as many rows as a sequence has",
        lambda s: s.short and s.tall,
        lambda s: _q_block(untuned.short_rows(s, _rows(s))),
        "static fact: 32 rows by 4 warps leave a unit two programs, 128 rows by 8 one",
    ),
    Rule(
        "prompts of thousands of tokens: 128 rows by 128 keys",
        lambda s: s.long_prompts,
        lambda s: _q_block(LONG),
        "a prompt of 8192: 1.04x of the next",
    ),
    Rule(
        "many prompts of up to 64 keys: tiles of 16",
        lambda s: few_keys.many_prompts(s) and s.keys <= 64,
        lambda s: _q_block(_sixteen(s)),
        "58 prompts of 49 on an H100: 30.4 us, by 32 keys 33.8, by 64 39.9",
    ),
    Rule(
        "many prompts of up to 256 keys, fewer of up to 128: tiles of 32",
        lambda s: (few_keys.many_prompts(s) and s.keys <= 256) or few_keys.filling(s),
        lambda s: _q_block(_one_stage_of_8_bits(s, _rows(s)._replace(tile_size=32))),
        "156 of up to 117 tokens on an H100: 73 us, by 16 keys 85; 13 over 112 keys 11.1, by 64 13.4",
    ),
    Rule(
        "many prompts of up to 512 keys: one stage",
        lambda s: few_keys.many_prompts(s) and s.keys <= 512 and s.full and not s.padded,
        lambda s: _q_block(_rows(s), num_stages=1),
        "53 prompts of up to 348: 377 us for 415; heads of 64 lose, 39 of up to 295 204 us for 168",
    ),
    Rule(
        "prompts of one tile: nothing to load ahead",
        lambda s: s.tma and s.keys <= _rows(s).tile_size,
        lambda s: _q_block(_rows(s), num_stages=1),
        "10 prompts of 24 of 56 heads on an H100: 6.9 us, in two stages 8.0",
    ),
    Rule("prompts: the rows and keys that registers hold", always, lambda s: _q_block(_rows(s))),
)


def _in_segments(s: Situation, found: Tile, segments: int) -> parallel_softmax_kernel.Config:
    rows, keys, warps, stages = found
    return parallel_softmax_kernel.Config(rows, keys, segments, warps, stages, s.tma)


def _one_segment(s: Situation) -> parallel_softmax_kernel.Config:
    """Many prompts without a context take 32 keys, of which fewer are above the diagonal: 20 of up to 244 beside ten
    decodes 67.5 us, by 64 74.4; 54 of 283 of heads of 80, by a page id a key, 383 and 467, but two of 412, six Q Blocks
    a unit, 38.7, in q_block by 64 34.6. 25 of 186 of heads of 80 in pages of 64 by a page id a key 180, a run 158."""
    made = _in_segments(s, _rows(s), 1)
    if not page_runs.sixty_four_rows(s, made):
        return page_runs.ahead(s, made)
    alone = s.keys <= 512 and s.prompt_keys < 2 * s.queries and not s.narrow
    if alone and s.long_blocks(64) > (16 if s.padded else 4) * s.units:
        runs = not s.padded or s.shape.block_size >= 32
        return replace(made, tile_size=32, gather="run" if runs else "key")
    return page_runs.ahead(s, page_runs.few_blocks(s, replace(made, gather="run")))


def _short_blocks(s: Situation) -> parallel_softmax_kernel.Config:
    found = untuned.short_rows(s, _rows(s))
    if found.block_m <= 32 and s.tma and s.stored_in_16_bits and s.full and s.keys > 256:
        # 8 times 8 tokens of four heads by 64 keys 48 us, for 41; 76 times 5 over 239 keys 18.6, by 128 keys 22.4
        found = found._replace(tile_size=128)  # 64 rows spill 19 words
    made = _in_segments(s, untuned.in_matrix(s, found), untuned.dealt(s, found, 2 * s.units))
    three = made.block_m == 32 and made.tile_size == 64 < s.keys and page_runs.applies(s)
    if not (three or page_runs.sixty_four_rows(s, made)):
        return made
    segments = 1 if untuned.one_launch(s, made) else made.num_segments
    made = replace(made, gather="run", num_segments=segments)
    return replace(made, registers=page_runs.THREE_A_UNIT) if three else page_runs.ahead(s, made)


def _decode(s: Situation, segments: int, keys: int) -> parallel_softmax_kernel.Config:
    segments = untuned.within(s, segments, keys)
    found = untuned.in_flight(s, _decode_tile(s, keys)._replace(tile_size=keys), segments)
    # of a tile each: 4 of 5.9k keys in a window 9.1 us, in two stages 10.1; 24 of 181 of heads of 80 11.4 and 10.0
    if s.tma and 0 < s.keys <= keys * segments and not s.padded:
        found = found._replace(num_stages=1)
    return _in_segments(s, found, segments)


parallel_softmax = Rules(
    Rule(
        "a chunk over a long context: read by pages, two programs a unit",
        lambda s: page_runs.chunk(s) is not None,
        lambda s: page_runs.chunk(s),
        "sweeps/page_runs: 64 tokens over 8k keys 36.8 us for 48.6 copied",
    ),
    Rule(
        "many short prompts: tiles of 16",
        few_keys.many_short,
        lambda s: _in_segments(s, _sixteen(s), 1),
        "tuning/tuneT: 58 prompts of 49: 26.3 us for 42.3",
    ),
    Rule(
        "many short queries over up to 32 keys: a warp for 16 rows, by 16 keys",
        page_runs.tiny,
        lambda s: parallel_softmax_kernel.Config(16, 16, 1, num_warps=1, overlap=True, gather="run"),
        "319 times 8 tokens over 21 keys on an H100: 9.9 us, by two warps in q_block 15.0, by 64 rows and keys 22.6",
    ),
    Rule(
        "prompts of 256 lanes over up to 64 keys: 64 rows by 16 keys and 4 warps, two programs a unit",
        tall.prompts,
        lambda s: _in_segments(s, tall.TWO_A_UNIT._replace(num_stages=3), 1),
        "regret_42: 8 of up to 58 tokens of 56:8 heads 19.6 us, by 128 rows and 8 warps 22.6",
    ),
    Rule(
        "prompts: one segment, a page id for each run of keys",
        lambda s: not s.short,
        _one_segment,
        "regret_49 to regret_52: 22 rows of 64 and 128 lanes 0.97 of a page id a key, 0.87 at best",
    ),
    Rule(
        "few short queries over 65 to 512 keys: a program for each 16 rows of each tile",
        lambda s: few_keys.short(s) is not None,
        lambda s: few_keys.short(s),
        "regret_60: 7 tokens over 348 keys of 64:16 heads on an H100 6.9 us in six segments, by 32 rows in one 10.8",
    ),
    Rule(
        "few short queries: 64 rows by 128 keys, read by pages",
        lambda s: not s.few_rows and page_runs.short_queries(s) is not None,
        lambda s: page_runs.short_queries(s),
        "sweeps/page_runs: 16 times 4 tokens of 16 heads 17.6 us for 23.1",
    ),
    Rule(
        "short queries of 64 rows of 256 lanes: 16 keys by 4 warps in five stages, two programs a unit",
        tall.block,
        lambda s: _in_segments(s, tall.TWO_A_UNIT, _short_blocks(s).num_segments),
        "3 times 7 tokens over up to 9.7k keys of 80 heads on an H100: 163 us, by 64 keys and 8 warps 214",
    ),
    Rule(
        "short queries of up to 32 rows over 8 bits: as decodes, by one warp for 16 rows",
        lambda s: not s.few_rows and s.rows <= 32 and s.programs >= s.units and eight_bits.decode(s) is not None,
        lambda s: eight_bits.decode(s),
        "regret_47: 143 times 4 tokens over 12k keys of 56:8 heads 1231 us, by 64 rows 1623",
    ),
    Rule(
        "short queries: as many segments as end soonest, two programs a unit",
        lambda s: not s.few_rows,
        _short_blocks,
        "8 times 8 tokens over 4k keys: 41 us with segments, 122 without",
    ),
    Rule(
        "decodes over 8 bits: one warp a program, five stages",
        lambda s: eight_bits.decode(s) is not None,
        lambda s: eight_bits.decode(s),
        "sweeps/eight_bits: 32 of up to 4096 keys 71 us, in 16 bits 111",
    ),
    Rule(
        "few decodes over long contexts: a page id for each run of keys",
        lambda s: page_runs.decode(s) is not None,
        lambda s: page_runs.decode(s),
        "sweeps/page_runs: one of 131,072 keys 134 us for 139",
    ),
    *untuned.few_decodes(_decode),
    Rule(
        "many decodes: segments of a thousand keys where contexts are long",
        always,
        lambda s: _decode(s, untuned.waves(s, drafts=3), s.decode_keys(few_keys.tile(s))),
        "32 of 4096 keys: 107 us in 4 segments, 117 in 2, 112 in one; 4 tokens each of half of it on 104.7 in 3, 109.2",
    ),
)


def split(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> split_kernel.Config:
    """Both parts as q_block has them for their own class, but where two phases of loops take more of a program.

    128 rows by 128 keys in three stages would be 224 KB; before sm_90 4 warps spill 19 words of 64 rows by 64 keys.
    """
    s = Situation(shape, stats, gpu)
    decode, prefill = untuned.in_flight(s, _decode_tile(s, 128)), _rows(s)
    if s.few_rows:
        prefill = decode
    elif s.long_prompts and s.tma:
        prefill = LONG._replace(tile_size=64)
    elif s.full and s.old:
        prefill = prefill._replace(num_warps=8)
    return split_kernel.Config(split_kernel.Prefill(*prefill), split_kernel.Decode(*decode[1:]))


def adjustable_tile(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> adjustable_tile_kernel.Config:
    s = Situation(shape, stats, gpu)
    rows, keys, *warps = LONG if s.long_prompts else _rows(s)
    gather = _gather(s, keys, rows)
    if gather == "run" and s.stored_in_16_bits and rows == 64 and untuned.loads_ahead(s, rows, s.keys):
        warps[1] = 5  # 15 sequences of up to 65 tokens over 42k keys: 520 us for 681
    prefill = adjustable_tile_kernel.Prefill(rows, keys, gather, *warps)
    return adjustable_tile_kernel.Config(prefill, untuned.beside_prompts(s, parallel_softmax))


def unpaged(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> unpaged_kernel.Config:
    """Two programs of 128 rows a unit: one's softmax hides under the other's products. Of 64 lanes four of 64: three
    prompts of 2,995 of 8:8 heads 115 us, by 128 rows 141, in ten rows of ten 0.75 to 1.00.

    With fewer Q Blocks than that, smaller ones, and segments that fill the units.
    """
    s = Situation(shape, stats, gpu)
    found, segments = _rows(s), 0
    if s.tma and s.small and s.usual:
        segments = untuned.few_blocks(s, unpaged_kernel.MOST_PARTS)
        found = Tile(64, 64, 4, 3) if segments else Tile(64 if s.narrow and s.wgmma else 128, 64, 4, 2)
        if s.narrow and s.stored_in_8_bits:  # 55 of 172 tokens over 39k keys on an H100: 6.7 ms, in two stages 7.8
            found = found._replace(num_stages=3)
        elif s.stored_in_8_bits and s.keys <= 512:  # 33 of 503 of 40:8 heads 341 us for 352, 24 of 462 of 56:8 211, 223
            found = found._replace(tile_size=32)
    elif s.tall:  # of 8 warps, one a unit: 7 of 25 tokens over 4k keys of two heads are 28 programs of 64 tiles
        segments = untuned.cut(s, found.block_m, s.units, unpaged_kernel.MOST_PARTS)
    if s.mfma and not gpu.fp8_products and s.small and not s.narrow:
        found = found._replace(tile_size=16)  # gfx90a, 32 keys: 258 registers, one program a unit
    how = {"overlap": s.tma, "descriptors": s.tma} | untuned.copying(s)
    prefill = unpaged_kernel.Prefill(*found, num_segments=max(segments, 1), **how)
    return unpaged_kernel.Config(prefill, untuned.beside_prompts(s, parallel_softmax))


def static_grid(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> static_grid_kernel.Config:
    """The same for every batch, as a captured graph is: as many programs as stay on the GPU together, with the warps
    and stages of prompts, which decodes take as well."""
    s = Situation(shape, stats, gpu)
    (_, keys, _, _), (rows, tile_size, num_warps, num_stages) = _decode_tile(s, 64), _rows(s)
    loads = (_gather(s, keys),)
    if s.nvidia and s.usual and s.small and s.tma and s.stored_in_16_bits:
        keys, loads = s.decode_keys(128), ("key",)  # 32q4s4k 134 us, three programs a unit of 64 keys 157
    matrix, programs = 0, (2 if (s.nvidia and num_warps == 4) or s.mfma else 1) * s.units
    if s.mfma and not s.usual:  # 32 keys: 392 registers and one spilled
        tile_size = 16
    elif s.mfma and s.small:  # 128 rows: up to 265 and one program a unit; so at most 243
        rows, matrix = 64, 16
    decode = static_grid_kernel.Part(16, keys, *loads)
    prefill = static_grid_kernel.Part(rows, tile_size, _gather(s, tile_size, rows))
    how = {"num_warps": num_warps, "num_stages": num_stages, "matrix_instr": matrix, "overlap": s.tma}
    return static_grid_kernel.Config(decode, prefill, programs, **how)


# Which kernel.


def _one_launch(s: Situation) -> bool:
    if s.gpu is None or not (s.few_rows or s.tma):
        return False
    config = parallel_softmax(s.shape, s.stats, s.gpu)
    return config.gather == "key" and untuned.one_launch(s, config)


def _three_a_unit(s: Situation) -> bool:
    """Of more than two tiles on the mean: 88 decodes over 137 keys are 13.1 us in q_block, 16.2 here; 240 over up to
    293 of four heads of 80 37.3 for 40.1. In a window of 512 q_block takes less time by 64 keys: 20 of 64:16 heads 29.6
    us, 35.6 here; 267 of 128:8 heads 152 by 128 keys, 163. Padded heads over 8 bits gain here from two to
    four a unit, timed in that window alone: 61 of 64:8 heads of 80 32.7 us, in q_block 46.8."""
    most = 4 if s.padded and s.stored_in_8_bits else 3
    fills = s.gpu is not None and (2 < s.programs / s.units <= most or s.programs > 4 * s.units)
    return fills and s.few_rows and s.tma and s.keys * s.evenness > 256 and not few_keys.in_window(s)


auto_kernel = Rules(
    Rule(
        "many short queries over up to 32 keys: parallel_softmax, a warp for 16 rows",
        lambda s: s.gpu is not None and page_runs.tiny(s),
        untuned.takes("parallel_softmax"),
        "319 times 8 tokens over 21 keys on an H100: 9.9 us, in q_block 15.0",
    ),
    Rule(
        "short queries of 64 rows of 256 lanes, and prompts over up to 64 keys: parallel_softmax, two programs a unit",
        lambda s: s.gpu is not None and (tall.block(s) or tall.prompts(s)),
        untuned.takes("parallel_softmax"),
        "regret_43: 148 times 7 tokens over 61 keys of 8:1 heads: 12.3 us, in q_block 15.6",
    ),
    Rule(
        "few short queries over up to 64 keys: q_block, a program for 16 rows",
        lambda s: s.gpu is not None and s.short and few_keys.tiny(s),
        untuned.takes("q_block"),
        "regret_47: 5 times 3 tokens over 49 keys of 32:2 heads 4.4 us, in parallel_softmax 5.2",
    ),
    Rule(
        "decodes over up to 64 keys, few short queries over up to 512: parallel_softmax, each tile a program",
        lambda s: s.gpu is not None and (few_keys.short(s) or (s.few_rows and s.tma and 0 < s.keys <= 64)),
        untuned.takes("parallel_softmax"),
        "regret_44: 17 of 32 keys 3.4 us, in q_block 4.0; one of 48 3.9 and 4.0, of 42 4.9 and 5.0",
    ),
    Rule(
        "decodes that even out at three programs a unit: parallel_softmax in one loop",
        lambda s: s.short and _one_launch(s) and _three_a_unit(s),
        untuned.takes("parallel_softmax"),
        "128 of 512 keys: 56.3 us, in q_block of 178 registers 59.0; 32 of 2048 63.1 for 59.0",
    ),
    Rule(
        "short queries of 17 to 32 rows that fill the units without segments: as many rows, in one loop",
        lambda s: s.short and 16 < s.rows <= 32 and s.keys > 128 and s.wgmma and _one_launch(s),
        untuned.takes("parallel_softmax"),
        "regret_53: 26 times 5 tokens over 3.1k keys of 48:8 heads 84 us, by 64 rows in q_block 104; regret_54: 220"
        " times 6 in a window of 4096 of 64:16 heads 1736, 1934",
    ),
    Rule(
        "short queries that fill the units without segments: one launch of q_block",
        lambda s: s.short and _one_launch(s),
        untuned.takes("q_block"),
        "212 of 3 tokens: 269 us to 241",
    ),
    SHORT,
    NO_TMA,
    Rule(
        "a chunk of few tokens over a long context: parallel_softmax by pages",
        lambda s: s.gpu is not None and page_runs.chunk(s) is not None,
        untuned.takes("parallel_softmax"),
        "sweeps/page_runs: 128 tokens over 8k keys 58.3 us for 63.4; 256 tokens lose, 103 for 97",
    ),
    Rule(
        "many short prompts: parallel_softmax by tiles of 16",
        lambda s: s.gpu is not None and few_keys.many_short(s),
        untuned.takes("parallel_softmax"),
        "tuning/tuneT: 58 prompts of 49: 26.3 us, in q_block 29.3",
    ),
    Rule(
        "many prompts of up to 512 keys: unpaged, whose products are faster",
        lambda s: s.gpu is not None and s.keys <= 512 and prompts.many_rows(s),
        untuned.takes("unpaged"),
        "14 prompts of 497 of 64 heads on an H100: 241 us, in q_block 268",
    ),
    Rule(
        "prompts of 129 to 512 keys: parallel_softmax in one loop, a page id for each run of keys",
        prompts.up_to_512,
        untuned.takes("parallel_softmax"),
        "regret_53: 20 of up to 244 beside ten decodes 67.5 us, in q_block 74.9, by 32 keys 71.1; 59 of up to 248 of"
        " 8:8 heads of 64 beside 25 34.5, 40.3",
    ),
    Rule(
        "prompts of 256 lanes over 65 to 512 keys: adjustable_tile, a page id for each run of keys",
        lambda s: s.gpu is not None and tall.prompts_by_runs(s),
        untuned.takes("adjustable_tile"),
        "regret_62: 25 of up to 268 tokens of 32:8 heads 210 us, in q_block 231; 33 of 132 of 16:4 heads 59.7, 63.0",
    ),
    Rule(
        "keys beyond 512 that few rows read: parallel_softmax in one loop, two tiles ahead",
        prompts.in_place,
        untuned.takes("parallel_softmax"),
        "sweeps/ahead.jsonl: 25 rows 0.59 to 1.02 of what they took in other kernels, 0.85 on the mean",
    ),
    Rule(
        "chunks of little work over a short context or a window: one launch of q_block",
        lambda s: prompts.read_by_few(s, 2048) and untuned.tiles_a_unit(s) < 64,
        untuned.takes("q_block"),
        "tuning of the H100: two of 159 tokens with a window of 1024 30.1 us, in unpaged 33.8",
    ),
    Rule(
        "little work over up to 1024 keys: parallel_softmax without a copy, few Q Blocks in segments",
        lambda s: page_runs.one_loop(s) and 512 < s.keys <= 1024 and untuned.tiles_a_unit(s) < 8,
        untuned.takes("parallel_softmax"),
        "sweeps/ahead.jsonl: two decodes and two of 19 tokens in a window of 512 10.9 us in three segments, in unpaged"
        " 11.2 (regret_55)",
    ),
    Rule(
        "keys that few rows read: adjustable_tile, which copies none",
        lambda s: prompts.read_by_few(s, 900),
        untuned.takes("adjustable_tile"),
        "on an H100 10 of 26 tokens beside a decode over 58k keys: 199 us for 208; 4 of 1363, window 1024: 226 for 246",
    ),
    Rule(
        "prompts of 256 lanes that fill the units, of rows for a few Q Blocks: adjustable_tile, which copies none",
        lambda s: s.gpu is not None and s.tall and s.keys > 512 and s.long_blocks(128) > 2 * s.units and s.rows <= 1024,
        untuned.takes("adjustable_tile"),
        "regret_53: 24 of up to 45 tokens over 951 keys of 32:8 heads 121 us, in unpaged 199; regret_54: 79 of up to 54"
        " beside 222 decodes 1342, 1810",
    ),
    *PROMPTS[:-1],
    Rule(
        "short chunks beside many or long decodes: adjustable_tile, for a decode rows and segments of its own",
        lambda s: s.usual and prompts.decodes_last(s),
        untuned.takes("adjustable_tile"),
        "regret_55: 14 beside 19 of up to 26 tokens over 84k keys 626 us, in q_block 1638; regret_44: 152 beside 34"
        " 3534 us for 4179",
    ),
    Rule(
        "short chunks, without decodes or of padded heads: parallel_softmax, few Q Blocks in segments",
        lambda s: page_runs.one_loop(s) and (not s.stats.num_decodes or s.padded),
        untuned.takes("parallel_softmax"),
        "regret_47: 12 of up to 27 tokens over 9.4k keys of heads of 96 34 us, in q_block 45",
    ),
    PROMPTS[-1],
)


def auto(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> tuple[str, Any]:
    """The kernel by name, and its config; where decodes even out at three a unit, in one segment."""
    name, s = auto_kernel(shape, stats, gpu), Situation(shape, stats, gpu)
    config = globals()[name](shape, stats, gpu)
    if name == "parallel_softmax" and s.short and _one_launch(s):
        config = replace(config, num_segments=1)
    return name, config
