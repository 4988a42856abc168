"""Choices by rule, a table a kernel (common/serving/rules.py): the first rule that applies has the Config.

Written by hand: tiles, rows and segments as dsl_triton/heuristics/generic/default.py has them from an H200, because the
code that Helion generates needs as many registers; the gather form by those registers (quoted at head size 128, sm_90).
Every other shape and GPU only has to fit. Measured winners of a GPU come before them (common/serving/measured.py).
"""

from typing import Any

import helion

from common.gpus import Gpu
from common.serving.grid import few_keys
from common.serving.rules import MERGE, Rule, Rules, Situation, always, splits
from common.spec import AttentionShape
from common.spec.metadata import BatchStats, cdiv
from dsl_helion import adjustable_tile as adjustable_tile_kernel
from dsl_helion import naive as naive_kernel
from dsl_helion import parallel_softmax as parallel_softmax_kernel
from dsl_helion import q_block as q_block_kernel
from dsl_helion import split as split_kernel
from dsl_helion import static_grid as static_grid_kernel
from dsl_helion import unpaged as unpaged_kernel
from dsl_helion.binding import Gather, is_power_of_two
from dsl_helion.heuristics.generic import eight_bits

WRITTEN_ON = frozenset({"h200"})  # GPUs by whose times the rules were written; elsewhere they are untuned
PROGRAMS_PER_UNIT = 3  # resident programs of 64 keys and 4 warps per H200 multiprocessor: 150 registers, 39 KB


# Tiles, warps and stages by what a GPU has.


def _decode_warps(s: Situation) -> dict[str, int]:
    """16 rows give an AMD compute unit one MFMA tile: every wave beyond repeats half of it (1.5x the work with two).
    512 lanes of float32 take twice the warps, as in Triton."""
    warps = 4 if s.nvidia else 1 if s.mfma else 2
    if s.lanes <= 256:
        return {"num_warps": warps, "num_stages": 5 if eight_bits.ahead(s) else 2}
    warps = 8 if warps == 2 else warps if s.small else 2 * warps
    return {"num_warps": warps, "num_stages": 2 if s.nvidia or s.small else 1}


def _matrix_warps(rows: int) -> int:
    """One wave per MFMA of 32 rows: where two share them the compiler repeats half of the products (static fact)."""
    return max(rows // 32, 1)


def _decode_gather(s: Situation, keys: int) -> Gather:
    """Registers at 64 keys: flat 150, by pages 194; at 128: flat 168 and two words of spill, which an H200 does not
    feel (194 against 234 us at 128 x 2048, three programs per multiprocessor for two), by pages 210."""
    return "flat" if keys < 128 or s.nvidia else "page"


def _rows(s: Situation) -> dict[str, Any]:
    """Rows, keys and warps of a Q Block that multiplies.

    AMD's fewer keys let two programs of 128 rows live on a compute unit, as in Triton.
    """
    if s.lanes > 256:
        return _broad_rows(s)
    if s.mfma and s.small:
        rows, stages = (128, 2) if s.lanes <= 128 else (64, 1)
        tile = {"block_m": rows, "tile_size": s.fitting(64 if s.lanes <= 64 else 32)}
        return tile | {"num_warps": _matrix_warps(rows), "num_stages": stages}
    if s.tall:
        return {"block_m": 128, "tile_size": s.fitting(32), "num_warps": 8, "num_stages": 2}  # as in Triton
    # float32 on AMD: one wave of 16 rows by 64 keys of 80 lanes spills 83 registers on gfx950, 32 keys none
    rows, keys = 64 if s.small else 16, 64 if s.lanes <= 128 and not s.mfma else 32
    return {"block_m": rows, "tile_size": s.fitting(keys), "num_warps": 4, "num_stages": 2}


def _broad_rows(s: Situation) -> dict[str, Any]:
    """Heads of up to 512: more warps than rows ask for, which share the sums of 512 lanes."""
    rows = 16 if not s.small or not (s.nvidia or s.mfma) else 32 if s.nvidia else 64
    tile = {"block_m": rows, "tile_size": s.fitting(32) if s.nvidia else 16}
    return tile | {"num_warps": 4 if s.mfma else 8, "num_stages": 2 if s.nvidia else 1}


# A table a kernel.


def naive(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> naive_kernel.Config:
    """One warp a program: a page of 16 keys is 16 loads a lane."""
    grid = "sequences" if stats.max_query_len <= 1 else "tokens"
    return naive_kernel.Config(grid, num_warps=1 if shape.block_size * shape.head_size <= 2048 else 4)


def _decode_block(s: Situation) -> tuple[int, Gather, dict[str, int]]:
    """Page ids a tile ahead pay where programs are few."""
    keys, warps = s.decode_keys(128), _decode_warps(s)
    if s.nvidia and s.programs <= 4 * s.units:
        warps["num_stages"] = max(warps["num_stages"], 3)
    return keys, _decode_gather(s, keys), warps


def _decode_q_block(s: Situation) -> q_block_kernel.Config:
    keys, gather, warps = _decode_block(s)
    return q_block_kernel.Config(16, keys, gather, **warps)


q_block = Rules(
    Rule("decodes: 128 keys keep most bytes in flight", lambda s: s.few_rows, _decode_q_block),
    Rule(
        "prompts of thousands of tokens: 128 rows by 128 keys",
        lambda s: s.queries > 2048 and s.lanes <= 128 and s.roomy,
        lambda s: q_block_kernel.Config(128, 128, "page", num_warps=8, num_stages=3),
        "static fact: 250 registers; flat and 2idx spill",
    ),
    Rule(
        "prompts: the rows and keys that registers hold",
        always,
        lambda s: q_block_kernel.Config(**_rows(s), gather="page"),
    ),
)


def _short_blocks(s: Situation) -> parallel_softmax_kernel.Config:
    """Q Blocks of as many rows as a sequence has, two programs a unit; one of 64 rows by 128 keys."""
    rows, programs = _rows(s), 2 * s.units
    block_m = max(min(rows["block_m"], helion.next_power_of_2(s.rows)), 16)
    rows |= {"block_m": block_m, "gather": "page"}
    q_blocks = s.q_blocks(block_m)
    if s.tma and s.stored_in_16_bits and 64 < s.lanes <= 128:
        if block_m <= 32:
            rows |= {"tile_size": 128, "gather": "flat"}  # by pages 32 rows spill 4 words
        elif 2 * q_blocks <= s.units and s.shape.block_size in (16, 32, 64):
            rows["tile_size"], programs = 128, s.units  # 16 times 4 tokens of 16 heads: 21.5 us for 25.3
    most = min(s.keys // (2 * rows["tile_size"]), 32)
    segments = splits(q_blocks, programs, cdiv(s.keys, rows["tile_size"]), most)
    rows["num_warps"] = min(rows["num_warps"], _matrix_warps(block_m)) if s.mfma else rows["num_warps"]
    return parallel_softmax_kernel.Config(**rows, num_segments=segments)


def _decode(s: Situation, segments: int, tile_size: int) -> parallel_softmax_kernel.Config:
    segments = max(1, min(segments, cdiv(s.keys, tile_size), 128))
    return parallel_softmax_kernel.Config(16, tile_size, segments, _decode_gather(s, tile_size), **_decode_warps(s))


def _resident(s: Situation) -> int:
    return (4 if s.mfma else PROGRAMS_PER_UNIT) * s.units


def _one_wave(s: Situation) -> parallel_softmax_kernel.Config:
    segments, tile_size = _resident(s) // s.programs, s.decode_keys(64)
    tiles = cdiv(s.keys, tile_size)  # 8 of 512 keys: 10.4 us in 8 segments of a tile, 11.6 in 6 of one or two
    return _decode(s, tiles if tiles <= 3 * segments // 2 else segments, tile_size)


def _waves(s: Situation) -> parallel_softmax_kernel.Config:
    split = s.keys >= (4096 if s.queries <= 1 else 8192)
    segments = min(s.keys // 1024, max(14 * s.units // s.programs, 3)) if split else 1
    return _decode(s, segments, s.decode_keys(128))


parallel_softmax = Rules(
    Rule(
        "prompts: one segment",
        lambda s: not s.short,
        lambda s: parallel_softmax_kernel.Config(**_rows(s), num_segments=1, gather="page"),
    ),
    Rule(
        "short queries: as many segments as end soonest, two programs a unit",
        lambda s: not s.few_rows,
        _short_blocks,
        "as in Triton: 8 times 8 tokens over 4k keys 41 us with segments, 122 without",
    ),
    Rule(
        "decodes over 8 bits: one warp a program, five stages",
        lambda s: eight_bits.decode(s) is not None,
        lambda s: eight_bits.decode(s),
        "sweeps/eight_bits: 32 of up to 4096 keys 75 us, in 16 bits 112",
    ),
    Rule(
        "few long decodes: segments of up to 2048 keys even out lengths",
        lambda s: (
            2 * s.programs <= _resident(s) and s.stats.num_seqs > 1 and s.keys // 1536 > _resident(s) // s.programs
        ),
        lambda s: _decode(s, max(_resident(s) // s.programs, s.keys // 2048), s.decode_keys(128)),
        "as in Triton: 8 of 32k keys 197 us, by 64 keys in 24 segments 207",
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
        "as in Triton; four tokens of 32 sequences over 4096 keys: 137 us in one, 139 in 4, 157 in 2",
    ),
)


def split(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> split_kernel.Config:
    """Both parts as q_block has them for their own class, but where two phases of loops take more of a program.

    128 rows by 128 keys in three stages would be 224 KB; before sm_90 4 warps spill at 64 rows by 64 keys.
    """
    s = Situation(shape, stats, gpu)
    keys, gather, warps = _decode_block(s)
    rows, old = _rows(s), s.nvidia and not s.tma
    if old and 64 < s.lanes <= 128:  # of 256 lanes 8 warps would form every score twice
        rows["num_warps"] = 8
    if s.mfma and gpu.fp8_products and not gpu.turns_on_read and s.small and 64 < s.lanes <= 128:
        rows["tile_size"] = 16  # gfx942: two phases of loops over 32 keys take 260 registers, one program; 206 of 16
    prefill = split_kernel.Prefill(**rows, gather="page")
    if s.few_rows:
        prefill = split_kernel.Prefill(16, keys, gather, **warps)
    elif s.queries > 2048 and s.lanes <= 128 and s.roomy and not old:
        prefill = split_kernel.Prefill(128, 64, "page", num_warps=8, num_stages=3)
    return split_kernel.Config(prefill, split_kernel.Decode(keys, gather, **warps))


def adjustable_tile(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> adjustable_tile_kernel.Config:
    s = Situation(shape, stats, gpu)
    prefill = adjustable_tile_kernel.Prefill(**_rows(s), gather="run")
    if s.queries > 2048 and s.lanes <= 128 and s.roomy:
        prefill = adjustable_tile_kernel.Prefill(128, 128, "run", num_warps=8, num_stages=3)
    return adjustable_tile_kernel.Config(prefill, _short_queries(s))


def unpaged(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> unpaged_kernel.Config:
    """Tiles through descriptors leave registers for 128 rows by 64 keys in 4 warps (255, no spill; by pointers 66).

    Heads that are no power of two are read by pointers. Few programs get segments, in Q Blocks of 64 rows: of 128 rows
    their partial results spill 23 registers.
    """
    s = Situation(shape, stats, gpu)
    rows, segments, old = _rows(s), 1, s.nvidia and not s.tma
    if s.tma and s.small and s.lanes <= 128:
        described = is_power_of_two(shape.head_size) and is_power_of_two(shape.value_lanes)
        rows |= {"block_m": 128 if described else 64, "tile_size": 64}
        if stats.num_tokens * shape.num_query_heads // 128 < 2 * s.units:  # fewer Q Blocks than two a unit
            programs = max(stats.num_tokens * shape.num_query_heads // 64, 1)
            segments = max(1, min(2 * s.units // programs, s.keys // 1024, 16))
            rows |= {"block_m": 64, "num_stages": 3}
        elif s.wgmma and s.lanes > 64 and s.queries > 512 and s.keys > 8192:
            rows["block_m"] = 64  # peers: prompts of 32k in 20.5 ms; tuned at e91d50b
    elif old and 64 < s.lanes <= 128:
        rows["num_warps"] = 8
    elif s.wgmma and rows["block_m"] == 128:
        rows["num_stages"] = 3  # heads of 256: four chunks of 512 over 2k keys 165 us for 203
    new_kv = s.keys <= min(few_keys(s.queries), 4096)  # no context; 8k keys are faster out of the copy
    copy = {"gather": "page", "copy_programs": 8 * s.units, "new_kv": new_kv}
    prefill = unpaged_kernel.Prefill(**rows, num_segments=segments, **copy)
    return unpaged_kernel.Config(prefill, _short_queries(s))


def static_grid(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> static_grid_kernel.Config:
    """The same for every batch, as a captured graph is: as many programs as stay on the GPU together."""
    s = Situation(shape, stats, gpu)
    keys, rows = s.decode_keys(64), _rows(s)
    broad = s.lanes > 256
    if s.mfma and s.small and not broad:  # 128 rows take 375 registers here: one program a unit
        rows |= {"block_m": 64, "num_warps": 4, "matrix_instr": 16}
        if s.lanes <= 128:  # so do 32 keys of 128 lanes: up to 299 registers, 252 of 16 keys
            rows["tile_size"] = max(rows["tile_size"] // 2, 16)
    warps = _decode_warps(s)
    if broad:  # beside the schedule: 21 spills on sm_90 and 168 on an MI300, where 64 rows take 128 KB of LDS
        warps["num_warps"] = min(2 * warps["num_warps"], 8)
        rows["block_m"] = min(rows["block_m"], 32)
    # sm_90: 198 to 252 registers (Triton 3.6.0); of three programs a unit the third began when the others had ended
    programs, whole = (4 if s.mfma and not broad else 2) * s.units, 0
    if s.nvidia and s.tma and s.lanes <= 128 and s.stored_in_16_bits:
        keys, whole = s.decode_keys(128), 2  # one loop, as in Triton: 32q4s4k 134 us there for 157
    decode = static_grid_kernel.Part(16, keys, programs, 1, _decode_gather(s, keys), **warps, whole=whole)
    # of 256 lanes a unit of CDNA holds one program (370 registers)
    two = rows["num_warps"] == 4 if s.nvidia else s.mfma and s.lanes <= 128
    programs = (2 if two else 1) * s.units
    rows |= {"snap": 2, "whole": 512 // rows["tile_size"]}  # a prompt of 512: 65 us cut into pieces, 19 in Q Blocks
    return static_grid_kernel.Config(decode, static_grid_kernel.Part(**rows, programs=programs, gather="page"))


def _short_queries(s: Situation) -> parallel_softmax_kernel.Config:
    """A decode's config for the sequences of at most SHORT_QUERY query tokens.

    Where none is expected their launch has one segment, and no reduction behind it; neither where they fill the units
    by themselves, for the longest sequence is then another's.
    """
    if not s.short:
        split = 0 < s.stats.num_decodes * s.shape.num_kv_heads < 2 * s.units
        s = s.of(num_seqs=max(s.stats.num_decodes, 1), max_seq_len=s.keys if split else 1)
    return parallel_softmax(s.shape, s.of(max_query_len=1).stats, s.gpu)


# Which kernel.


def _one_launch(s: Situation) -> bool:
    """Whether few segments are no gain over q_block, whose one launch takes less; decodes do not gain. Where its
    programs are fewer than the units they are, as in Triton."""
    if s.gpu is None or s.few_rows or not s.tma:
        return False
    config = parallel_softmax(s.shape, s.stats, s.gpu)
    long = cdiv(s.keys, config.tile_size) > 2 * MERGE
    idle = config.num_segments > 1 and long and s.q_blocks(config.block_m) < s.units
    return config.num_segments <= 2 and not idle


auto_kernel = Rules(
    Rule(
        "short queries that fill the units without segments: one launch of q_block",
        lambda s: s.short and _one_launch(s),
        lambda s: "q_block",
        "212 of 3 tokens over up to 1190 keys: 259 us for 280",
    ),
    Rule(
        "short queries: parallel_softmax reads keys as decode does",
        lambda s: s.short,
        lambda s: "parallel_softmax",
        "as in Triton: 8 times 8 tokens over 4k keys 41 us, 122 without segments",
    ),
    Rule(
        "without TMA: adjustable_tile, which needs no descriptor",
        lambda s: not s.tma,
        lambda s: "adjustable_tile",
        "static fact: descriptors are read 2 bytes a lane",
    ),
    Rule(
        "prompts of up to 512 keys: one launch of q_block",
        lambda s: s.keys <= 512,
        lambda s: "q_block",
        "four of up to 512: 20.1 us, in unpaged 34.7",
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
        "42 of up to 20 tokens over 5k keys: 265 us, in unpaged 430",
    ),
)


def auto(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> tuple[str, Any]:
    """The kernel by name, and its config."""
    name = auto_kernel(shape, stats, gpu)
    return name, globals()[name](shape, stats, gpu)
