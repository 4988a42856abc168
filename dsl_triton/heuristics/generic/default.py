"""Choices by rule, a table a kernel (common/serving/rules.py): the first rule that applies has the Config.

Written by hand from sweeps of the Llama-3-8B shape in bf16 on an H200, which the evidence quotes; on every other shape
and GPU they only have to fit. Rules ask what a GPU has. Measured winners of a GPU come before them
(common/serving/measured.py).
"""

from dataclasses import replace
from typing import Any

import triton

from common.gpus import Gpu
from common.serving.grid import few_keys
from common.serving.rules import MERGE, Rule, Rules, Situation, always, splits
from common.spec import AttentionShape
from common.spec.metadata import BatchStats, cdiv
from dsl_triton import adjustable_tile as adjustable_tile_kernel
from dsl_triton import naive as naive_kernel
from dsl_triton import parallel_softmax as parallel_softmax_kernel
from dsl_triton import q_block as q_block_kernel
from dsl_triton import split as split_kernel
from dsl_triton import static_grid as static_grid_kernel
from dsl_triton import unpaged as unpaged_kernel
from dsl_triton.heuristics.generic import eight_bits, page_runs
from dsl_triton.page_runs import Gather

WRITTEN_ON = frozenset({"h200"})  # GPUs by whose times the rules were written; elsewhere they are untuned
PROGRAMS_PER_UNIT = 3  # resident programs of 64 keys and 4 warps per H200 multiprocessor: 156 registers, 39 KB


# Tiles, warps and stages by what a GPU has.


def _decode_warps(s: Situation) -> tuple[int, int]:
    """16 rows give an AMD compute unit one MFMA tile: every wave beyond repeats half of it (1.5x the work with two).
    512 lanes in float32 spill 179 registers of 4 warps on sm_90, none of 8."""
    warps = 4 if s.nvidia else 1 if s.mfma else 2
    if s.lanes <= 256:
        return warps, 5 if eight_bits.ahead(s) else 2
    return (8 if warps == 2 else warps if s.small else 2 * warps), (2 if s.nvidia or s.small else 1)


def _matrix_warps(rows: int) -> int:
    """One wave per MFMA of 32 rows: where two share them the compiler repeats half of the products (static fact)."""
    return max(rows // 32, 1)


def _rows(s: Situation) -> int:
    """Heads of up to 512: 64 rows by 32 keys spill 41 registers on sm_90, 32 rows none; an MI300 holds 64 in 341."""
    if s.lanes > 256:
        return 16 if not s.small else 64 if s.mfma else 32 if s.nvidia else 16
    if s.tall or (s.mfma and s.small and s.lanes <= 128):
        return 128
    return 64 if s.small else 16


def _prefill(s: Situation) -> tuple[int, int, int]:
    """Keys, warps and stages. Before sm_90 4 warps spill 25 registers of 64 rows by 256 lanes, and 8 form every score
    twice, 1.5 times the products (static facts).

    AMD's fewer keys let two programs of 128 rows live on a compute unit: 206 to 211 registers for 280 to 289.
    """
    if s.lanes > 256:  # more warps than rows ask for: a lane's share of 512 sums
        return (s.fitting(32), 8, 2) if s.nvidia else (16, 4 if s.mfma else 8, 1)
    if s.mfma:
        return s.fitting(64 if s.lanes <= 64 else 32), _matrix_warps(_rows(s)), 2 if s.lanes <= 128 else 1
    if s.lanes > 128:  # 4 x 512 tokens in 64 keys 137 us, in 32 183
        return s.fitting(64 if s.tall and s.wgmma else 32), 8 if s.tall else 4, 2
    return s.fitting(64), 4, 2


def _gather(s: Situation, tile_size: int, rows: int = 16) -> Gather:
    """Runs, but not where gfx942 turns V by 2-byte reads: 96 a tile out of [pages, page, head], 32 of [tile, head]."""
    turns = not s.gpu.turns_on_read and s.shape.block_size % tile_size
    return "key" if turns or eight_bits.by_keys(s, rows) else "run"


# A table a kernel.


def naive(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> naive_kernel.Config:
    """One warp a program, for a page of 16 keys is 16 loads a lane: 238 us at one prompt of 512, two warps 553."""
    grid = "sequences" if stats.max_query_len <= 1 else "tokens"
    return naive_kernel.Config(grid, num_warps=1 if shape.block_size * shape.head_size <= 2048 else 4)


def _q_block(s: Situation, **changes: int) -> q_block_kernel.Config:
    return replace(q_block_kernel.Config(_rows(s), *_prefill(s)), **changes)


def _many_prompts(s: Situation) -> bool:
    return s.stats.num_seqs > 32 and not s.short and s.lanes <= 128 and s.tma


def _many_short(s: Situation) -> bool:
    return _many_prompts(s) and s.queries <= 64 and s.keys <= 192


q_block = Rules(
    Rule(
        "decodes: 128 keys keep most bytes in flight",
        lambda s: s.few_rows,
        lambda s: q_block_kernel.Config(16, s.decode_keys(128), *_decode_warps(s)),
    ),
    Rule(
        "prompts of thousands of tokens: 128 rows by 128 keys",
        lambda s: s.queries > 2048 and s.lanes <= 128 and s.roomy,
        lambda s: q_block_kernel.Config(128, 128, 8, 3),
        "a prompt of 8192: 1.04x of the next",
    ),
    Rule(
        "many prompts of up to 256 keys: tiles of 16",
        lambda s: _many_prompts(s) and s.keys <= 256,
        lambda s: _q_block(s, tile_size=16),
        "161 prompts of up to 167 tokens: 351 us for 426",
    ),
    Rule(
        "many prompts of up to 512 keys: one stage",
        lambda s: _many_prompts(s) and s.keys <= 512,
        lambda s: _q_block(s, num_stages=1),
        "53 prompts of up to 348: 377 us for 415",
    ),
    Rule("prompts: the rows and keys that registers hold", always, _q_block),
)


def _short_blocks(s: Situation) -> parallel_softmax_kernel.Config:
    """Q Blocks of as many rows as a sequence has, two programs a unit."""
    tile_size, warps, stages = _prefill(s)
    rows = max(min(_rows(s), triton.next_power_of_2(s.rows)), 16)
    if rows <= 32 and s.tma and s.stored_in_16_bits and 64 < s.lanes <= 128:
        tile_size = 128  # by 64 keys 48 us; 64 rows spill 19 words
    most = min(s.keys // (2 * tile_size), 32)
    segments = splits(s.q_blocks(rows), 2 * s.units, cdiv(s.keys, tile_size), most)
    warps = min(warps, _matrix_warps(rows)) if s.mfma else warps
    return parallel_softmax_kernel.Config(rows, tile_size, segments, warps, stages, s.tma)


def _decode(s: Situation, segments: int, tile_size: int) -> parallel_softmax_kernel.Config:
    segments = max(1, min(segments, cdiv(s.keys, tile_size), 128))
    return parallel_softmax_kernel.Config(16, tile_size, segments, *_decode_warps(s), s.tma)


def _resident(s: Situation) -> int:
    return (4 if s.mfma else PROGRAMS_PER_UNIT) * s.units


def _one_wave(s: Situation) -> parallel_softmax_kernel.Config:
    segments, tile_size = _resident(s) // s.programs, s.decode_keys(64)
    tiles = cdiv(s.keys, tile_size)  # 8 of 512 keys: 9.0 us in 8 segments of a tile, 9.7 in 6 of one or two
    return _decode(s, tiles if tiles <= 3 * segments // 2 else segments, tile_size)


def _waves(s: Situation) -> parallel_softmax_kernel.Config:
    """Four tokens each, of lengths from half of 4096 on, take 104.7 in 3 segments, 109.2 in one; of equal lengths 132.8
    and 126.2: 3 loses less."""
    drafts = s.queries > 1 and s.keys < 8192
    most = 3 if drafts else max(14 * s.units // s.programs, 3)
    split = s.keys >= 4096 and (not drafts or s.programs <= 3 * s.units)
    return _decode(s, min(s.keys // 1024, most) if split else 1, s.decode_keys(128))


parallel_softmax = Rules(
    Rule(
        "a chunk over a long context: read by pages, two programs a unit",
        lambda s: not s.short and page_runs.chunk(s) is not None,
        lambda s: page_runs.chunk(s),
        "sweeps/page_runs: 64 tokens over 8k keys 36.8 us for 48.6 copied",
    ),
    Rule(
        "many short prompts: tiles of 16",
        lambda s: _many_short(s),
        lambda s: replace(_with_segments(s, 1), tile_size=16),
        "tuning/tuneT: 58 prompts of 49: 26.3 us for 42.3",
    ),
    Rule(
        "prompts: one segment",
        lambda s: not s.short,
        lambda s: _with_segments(s, 1),
    ),
    Rule(
        "few short queries: 64 rows by 128 keys, read by pages",
        lambda s: not s.few_rows and page_runs.short_queries(s) is not None,
        lambda s: page_runs.short_queries(s),
        "sweeps/page_runs: 16 times 4 tokens of 16 heads 17.6 us for 23.1",
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
    Rule(
        "few long decodes: segments of up to 2048 keys even out lengths",
        lambda s: (
            2 * s.programs <= _resident(s) and s.stats.num_seqs > 1 and s.keys // 1536 > _resident(s) // s.programs
        ),
        lambda s: _decode(s, max(_resident(s) // s.programs, s.keys // 2048), s.decode_keys(128)),
        "8 of 32k keys: 197 us, by 64 keys in 24 segments 207",
    ),
    Rule(
        "few decodes: segments that make one wave",
        lambda s: 2 * s.programs <= _resident(s),
        _one_wave,
        "peers: 49 segments at batch 1, 6 at batch 8",
    ),
    Rule(
        "many decodes: segments of a thousand keys where contexts are long",
        always,
        _waves,
        "32 of 4096 keys: 107 us in 4 segments, 117 in 2, 112 in one",
    ),
)


def _with_segments(s: Situation, segments: int) -> parallel_softmax_kernel.Config:
    tile_size, warps, stages = _prefill(s)
    return parallel_softmax_kernel.Config(_rows(s), tile_size, segments, warps, stages, s.tma)


def split(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> split_kernel.Config:
    """Both parts as q_block has them for their own class, but where two phases of loops take more of a program.

    128 rows by 128 keys in three stages would be 224 KB; before sm_90 4 warps spill 19 words of 64 rows by 64 keys.
    """
    s = Situation(shape, stats, gpu)
    decode = s.decode_keys(128), *_decode_warps(s)
    keys, warps, stages = _prefill(s)
    if s.nvidia and 64 < s.lanes <= 128 and not s.tma:
        warps = 8
    prefill = _rows(s), keys, warps, stages
    if s.few_rows:
        prefill = 16, *decode
    elif s.queries > 2048 and s.lanes <= 128 and s.roomy and s.tma:
        prefill = 128, 64, 8, 3
    return split_kernel.Config(split_kernel.Prefill(*prefill), split_kernel.Decode(*decode))


def adjustable_tile(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> adjustable_tile_kernel.Config:
    s = Situation(shape, stats, gpu)
    rows, (tile_size, warps, stages) = _rows(s), _prefill(s)
    if s.queries > 2048 and s.lanes <= 128 and s.roomy:
        rows, tile_size, warps, stages = 128, 128, 8, 3
    prefill = adjustable_tile_kernel.Prefill(rows, tile_size, _gather(s, tile_size, rows), warps, stages)
    return adjustable_tile_kernel.Config(prefill, _short_queries(s))


def unpaged(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> unpaged_kernel.Config:
    """Two programs of 128 rows a unit: one's softmax hides under the other's products.

    With fewer Q Blocks than that, smaller ones, and segments that fill the units.
    """
    s = Situation(shape, stats, gpu)
    block_m, (tile_size, warps, stages), segments = _rows(s), _prefill(s), 1
    if s.tma and s.small and s.lanes <= 128:
        block_m, tile_size, warps, stages = 128, 64, 4, 2
        if stats.num_tokens * shape.num_query_heads // 128 < 2 * s.units:  # fewer Q Blocks than two a unit
            programs = max(stats.num_tokens * shape.num_query_heads // 64, 1)
            segments = max(1, min(2 * s.units // programs, s.keys // 1024, 16))
            block_m, stages = 64, 3  # one prompt of 512: 22.0 us in Q Blocks of 128, 15.9 in twice as many
    if s.mfma and not gpu.fp8_products and s.small and s.lanes > 64:
        tile_size = 16  # gfx90a, 32 keys: 258 registers, one program a unit
    new_kv = s.keys <= min(few_keys(s.queries), 4096)  # no context; 8k keys are faster out of the copy
    copy = {"copy_programs": 8 * s.units, "overlap": s.tma, "new_kv": new_kv}
    prefill = unpaged_kernel.Prefill(block_m, tile_size, warps, stages, num_segments=segments, **copy)
    return unpaged_kernel.Config(prefill, _short_queries(s))


def static_grid(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> static_grid_kernel.Config:
    """The same for every batch, as a captured graph is: as many programs as stay on the GPU together."""
    s = Situation(shape, stats, gpu)
    (decode_warps, stages), (tile_size, warps, prefill_stages) = _decode_warps(s), _prefill(s)
    keys, broad = s.decode_keys(64), s.lanes > 256
    decode_warps = min(2 * decode_warps, 8) if broad else decode_warps  # half as many spill 2 registers, 62 on MI300
    three = s.nvidia and s.lanes <= 128 and s.small
    loads = _gather(s, keys), 168 if three else 0
    if three and s.tma and s.stored_in_16_bits:  # 32q4s4k 134 us, three a unit of 64 keys 157
        three, keys, loads = s.lanes <= 64, s.decode_keys(128), ("key", 0, 0, 2)
    programs = (4 if s.mfma and not broad else 3 if three else 2) * s.units
    decode = static_grid_kernel.Part(16, keys, programs, 1, decode_warps, stages, *loads)
    rows, matrix, programs = _rows(s), 0, (2 if (s.nvidia and warps == 4) or s.mfma else 1) * s.units
    if s.mfma and s.lanes > 128:  # 32 keys: 392 registers and one spilled
        tile_size = 16
    elif s.mfma and s.small:  # 128 rows: up to 265 and one program a unit; so at most 243
        rows, matrix = 64, 16
    parts = (_gather(s, tile_size, rows), 0, matrix, 512 // tile_size)  # a prompt of 512: 61 us cut, 17 whole
    prefill = static_grid_kernel.Part(rows, tile_size, programs, 2, warps, prefill_stages, *parts)
    return static_grid_kernel.Config(decode, prefill, s.tma)


def _short_queries(s: Situation) -> parallel_softmax_kernel.Config:
    """A decode's config for the sequences of at most SHORT_QUERY query tokens.

    Where none is expected their launch has one segment, and no reduction behind it; neither where they fill the units
    by themselves, for the longest sequence is then another's: 255 decodes beside a chunk over 8k keys, 685 for 803 us.
    """
    if not s.short:
        split = 0 < s.stats.num_decodes * s.shape.num_kv_heads < 2 * s.units
        s = s.of(num_seqs=max(s.stats.num_decodes, 1), max_seq_len=s.keys if split else 1)
    return parallel_softmax(s.shape, s.of(max_query_len=1).stats, s.gpu)


# Which kernel.


def _one_launch(s: Situation) -> bool:
    """Whether few segments are no gain over q_block, whose one launch takes less. Where its programs are fewer than the
    units they are: 12 times 4 tokens of 64:8 heads over 3k keys are 96 programs of 24 tiles, in q_block half of FA3."""
    if s.gpu is None or not (s.few_rows or s.tma):
        return False
    config = parallel_softmax(s.shape, s.stats, s.gpu)
    long = cdiv(s.keys, config.tile_size) > 2 * MERGE
    idle = config.num_segments > 1 and long and s.q_blocks(config.block_m) < s.units
    return config.gather == "key" and config.num_segments <= 2 and not idle


def _three_a_unit(s: Situation) -> bool:
    return s.few_rows and s.gpu is not None and s.tma and (2 < s.programs / s.units <= 3 or s.programs > 4 * s.units)


auto_kernel = Rules(
    Rule(
        "decodes that even out at three programs a unit: parallel_softmax in one loop",
        lambda s: s.short and _one_launch(s) and _three_a_unit(s),
        lambda s: "parallel_softmax",
        "128 of 512 keys: 56.3 us, in q_block of 178 registers 59.0; 32 of 2048 63.1 for 59.0",
    ),
    Rule(
        "short queries that fill the units without segments: one launch of q_block",
        lambda s: s.short and _one_launch(s),
        lambda s: "q_block",
        "212 of 3 tokens: 269 us to 241",
    ),
    Rule(
        "short queries: parallel_softmax reads keys as decode does",
        lambda s: s.short,
        lambda s: "parallel_softmax",
        "8 times 8 tokens over 4k keys: 41 us, 122 without segments",
    ),
    Rule(
        "without TMA: adjustable_tile, which needs no descriptor",
        lambda s: not s.tma,
        lambda s: "adjustable_tile",
        "static fact: 128 loads of 2 bytes a tile by descriptor, 16 of 16 bytes by pages",
    ),
    Rule(
        "a chunk of few tokens over a long context: parallel_softmax by pages",
        lambda s: s.gpu is not None and page_runs.chunk(s) is not None,
        lambda s: "parallel_softmax",
        "sweeps/page_runs: 128 tokens over 8k keys 58.3 us for 63.4; 256 tokens lose, 103 for 97",
    ),
    Rule(
        "many short prompts: parallel_softmax by tiles of 16",
        lambda s: s.gpu is not None and _many_short(s),
        lambda s: "parallel_softmax",
        "tuning/tuneT: 58 prompts of 49: 26.3 us, in q_block 29.3",
    ),
    Rule(
        "prompts of up to 512 keys: one launch of q_block",
        lambda s: s.keys <= 512,
        lambda s: "q_block",
        "four of up to 512: 19.3 us, in unpaged 27.7",
    ),
    Rule(
        "eight Q Blocks of 128 rows read what unpaged copies once",
        lambda s: s.rows > 512,
        lambda s: "unpaged",
        "peers: prompts of 2k and 8k",
    ),
    Rule(
        "few programs over long contexts: unpaged has the segments that q_block lacks",
        lambda s: s.programs <= 256 and s.keys >= 16 * s.queries,
        lambda s: "unpaged",
        "tuning",
    ),
    Rule(
        "short chunks of many sequences: one launch of q_block",
        always,
        lambda s: "q_block",
        "42 of up to 20 tokens over 5k keys: 242 us, in unpaged 425",
    ),
)


def auto(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> tuple[str, Any]:
    """The kernel by name, and its config; where decodes even out at three a unit, in one segment."""
    name, s = auto_kernel(shape, stats, gpu), Situation(shape, stats, gpu)
    config = globals()[name](shape, stats, gpu)
    if name == "parallel_softmax" and s.short and _one_launch(s):
        config = replace(config, num_segments=1)
    return name, config
