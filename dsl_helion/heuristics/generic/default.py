"""Untuned choices, one function a kernel: host integers in, Config out.

Written by hand: tiles, rows and segments as dsl_triton/heuristics/generic/default.py has them from an H200, because the
code that Helion generates needs as many registers; the gather form by those registers (quoted at head size 128, sm_90).
Every other shape and GPU only has to fit. A measured tree per GPU replaces this where one exists.
"""

from dataclasses import replace
from typing import Any

import helion

from common.gpus import Gpu
from common.serving.grid import few_keys, few_rows
from common.spec import AttentionShape
from common.spec.metadata import SHORT_QUERY, BatchStats, cdiv
from dsl_helion import adjustable_tile as adjustable_tile_kernel
from dsl_helion import naive as naive_kernel
from dsl_helion import parallel_softmax as parallel_softmax_kernel
from dsl_helion import q_block as q_block_kernel
from dsl_helion import split as split_kernel
from dsl_helion import static_grid as static_grid_kernel
from dsl_helion import unpaged as unpaged_kernel
from dsl_helion.binding import Gather, is_power_of_two
from dsl_helion.heuristics.generic import eight_bits

PROGRAMS_PER_UNIT = 3  # resident programs of 64 keys and 4 warps per H200 multiprocessor: 150 registers, 39 KB


def naive(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> naive_kernel.Config:
    """One warp a program: a page of 16 keys is 16 loads a lane."""
    grid = "sequences" if stats.max_query_len <= 1 else "tokens"
    return naive_kernel.Config(grid, num_warps=1 if shape.block_size * shape.head_size <= 2048 else 4)


def q_block(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> q_block_kernel.Config:
    if few_rows(shape, stats):  # decode: 128 keys keep most bytes in flight
        keys, warps = _decode_keys(128, shape, gpu), _decode_warps(shape, gpu)
        if gpu.vendor == "nvidia" and stats.num_seqs * shape.num_kv_heads <= 4 * gpu.units:
            warps["num_stages"] = max(warps["num_stages"], 3)  # page ids a tile ahead: pays where programs are few
        return q_block_kernel.Config(16, keys, _decode_gather(keys, gpu), **warps)
    if stats.max_query_len > 2048 and _lanes(shape) <= 128 and _wide(shape, gpu):
        return q_block_kernel.Config(128, 128, "page", num_warps=8, num_stages=3)  # 250 registers; flat and 2idx spill
    return q_block_kernel.Config(**_rows(shape, gpu), gather="page")


def parallel_softmax(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> parallel_softmax_kernel.Config:
    if stats.max_query_len > SHORT_QUERY:
        return parallel_softmax_kernel.Config(**_rows(shape, gpu), num_segments=1, gather="page")
    if not few_rows(shape, stats):  # 8 tokens of 8 sequences over 4k keys: 41 us with segments, 122 without (Triton)
        rows = _rows(shape, gpu)
        block_m = min(rows["block_m"], helion.next_power_of_2(stats.max_query_len * shape.queries_per_kv))
        rows |= {"block_m": max(block_m, 16), "gather": "page"}
        q_blocks = stats.num_seqs * shape.num_kv_heads * cdiv(stats.max_query_len * shape.queries_per_kv, block_m)
        programs = 2 * gpu.units
        if _has_tma(gpu) and shape.cache_dtype.itemsize == 2 and 64 < _lanes(shape) <= 128:
            if block_m <= 32:
                rows |= {"tile_size": 128, "gather": "flat"}  # by pages 32 rows spill 4 words
            elif 2 * q_blocks <= gpu.units and shape.block_size in (16, 32, 64):
                rows["tile_size"], programs = 128, gpu.units  # 16 times 4 tokens of 16 heads: 21.5 us for 25.3
        segments = max(1, min(programs // max(q_blocks, 1), stats.max_seq_len // (2 * rows["tile_size"]), 32))
        rows["num_warps"] = min(rows["num_warps"], _matrix_warps(block_m)) if _cdna(gpu) else rows["num_warps"]
        return parallel_softmax_kernel.Config(**rows, num_segments=segments)
    if (config := eight_bits.decode(shape, stats, gpu)) is not None:
        return config
    programs = max(stats.num_seqs, 1) * shape.num_kv_heads
    resident = (4 if _cdna(gpu) else PROGRAMS_PER_UNIT) * gpu.units
    if 2 * programs <= resident:
        # One wave: 49 segments at batch 1, 6 at batch 8. Longer than 1536 keys they are too coarse to even out lengths.
        segments, tile_size = resident // programs, _decode_keys(64, shape, gpu)
        if stats.num_seqs > 1 and stats.max_seq_len // 1536 > segments:  # Triton: 8 of 32k 197 us, by 64 keys in 24 207
            segments, tile_size = max(segments, stats.max_seq_len // 2048), _decode_keys(128, shape, gpu)
        if (tiles := cdiv(stats.max_seq_len, tile_size)) <= 3 * segments // 2:
            segments = tiles  # 8 decodes of 512 keys: 10.4 us in 8 segments of a tile, 11.6 in 6 of one or two
    else:
        # as in Triton: 32 decodes of 4096 keys take 107 us in 4 segments, 117 in 2; here four tokens each 137 in one,
        # 139 in 4, 157 in 2
        split = stats.max_seq_len >= (4096 if stats.max_query_len <= 1 else 8192)
        segments = min(stats.max_seq_len // 1024, max(14 * gpu.units // programs, 3)) if split else 1
        tile_size = _decode_keys(128, shape, gpu)
    segments = max(1, min(segments, -(-stats.max_seq_len // tile_size), 128))
    return parallel_softmax_kernel.Config(
        16, tile_size, segments, _decode_gather(tile_size, gpu), **_decode_warps(shape, gpu)
    )


def split(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> split_kernel.Config:
    """Both parts as q_block has them for their own class, but where two phases of loops take more of a program.

    128 rows by 128 keys in three stages would be 224 KB; before sm_90 4 warps spill at 64 rows by 64 keys.
    """
    keys, warps = _decode_keys(128, shape, gpu), _decode_warps(shape, gpu)
    if gpu.vendor == "nvidia" and stats.num_seqs * shape.num_kv_heads <= 4 * gpu.units:
        warps["num_stages"] = max(warps["num_stages"], 3)
    decode = split_kernel.Decode(keys, _decode_gather(keys, gpu), **warps)
    rows, old = _rows(shape, gpu), gpu.arch == "sm_80"
    if old and 64 < _lanes(shape) <= 128:  # of 256 lanes 8 warps would form every score twice
        rows["num_warps"] = 8
    if gpu.arch == "gfx942" and shape.dtype.itemsize <= 2 and 64 < _lanes(shape) <= 128:
        rows["tile_size"] = 16  # two phases of loops over 32 keys take 260 registers: one program a unit; 206 of 16
    prefill = split_kernel.Prefill(**rows, gather="page")
    if few_rows(shape, stats):
        prefill = split_kernel.Prefill(16, keys, _decode_gather(keys, gpu), **warps)
    elif stats.max_query_len > 2048 and _lanes(shape) <= 128 and _wide(shape, gpu) and not old:
        prefill = split_kernel.Prefill(128, 64, "page", num_warps=8, num_stages=3)
    return split_kernel.Config(prefill, decode)


def adjustable_tile(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> adjustable_tile_kernel.Config:
    prefill = adjustable_tile_kernel.Prefill(**_rows(shape, gpu), gather="run")
    if stats.max_query_len > 2048 and _lanes(shape) <= 128 and _wide(shape, gpu):
        prefill = adjustable_tile_kernel.Prefill(128, 128, "run", num_warps=8, num_stages=3)
    return adjustable_tile_kernel.Config(prefill, _short_queries(shape, stats, gpu))


def unpaged(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> unpaged_kernel.Config:
    """Tiles through descriptors leave registers for 128 rows by 64 keys in 4 warps (255, no spill; by pointers 66).

    Heads that are no power of two are read by pointers. Few programs get segments, in Q Blocks of 64 rows: of 128 rows
    their partial results spill 23 registers.
    """
    rows, segments = _rows(shape, gpu), 1
    if gpu.vendor == "nvidia" and gpu.arch != "sm_80" and shape.dtype.itemsize <= 2 and _lanes(shape) <= 128:
        described = is_power_of_two(shape.head_size) and is_power_of_two(shape.value_lanes)
        rows |= {"block_m": 128 if described else 64, "tile_size": 64}
        if _units_idle(shape, stats, gpu):
            programs = max(stats.num_tokens * shape.num_query_heads // 64, 1)
            segments = max(1, min(2 * gpu.units // programs, stats.max_seq_len // 1024, 16))
            rows |= {"block_m": 64, "num_stages": 3}
    elif gpu.arch == "sm_80" and 64 < _lanes(shape) <= 128:
        rows["num_warps"] = 8
    elif gpu.arch == "sm_90" and rows["block_m"] == 128:
        rows["num_stages"] = 3  # heads of 256: four chunks of 512 over 2k keys 165 us for 203
    new_kv = stats.max_seq_len <= min(few_keys(stats.max_query_len), 4096)  # no context; 8k keys are faster out of the copy
    copy = {"gather": "page", "copy_programs": 8 * gpu.units, "new_kv": new_kv}
    prefill = unpaged_kernel.Prefill(**rows, num_segments=segments, **copy)
    return unpaged_kernel.Config(prefill, _short_queries(shape, stats, gpu))


def static_grid(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> static_grid_kernel.Config:
    """The same for every batch, as a captured graph is: as many programs as stay on the GPU together."""
    keys, rows, nvidia = _decode_keys(64, shape, gpu), _rows(shape, gpu), gpu.vendor == "nvidia"
    broad = _lanes(shape) > 256
    if _cdna(gpu) and shape.dtype.itemsize <= 2 and not broad:  # 128 rows take 375 registers here: one program a unit
        rows |= {"block_m": 64, "num_warps": 4, "matrix_instr": 16}
        if _lanes(shape) <= 128:  # so do 32 keys of 128 lanes: up to 299 registers, 252 of 16 keys
            rows["tile_size"] = max(rows["tile_size"] // 2, 16)
    warps = _decode_warps(shape, gpu)
    if broad:  # beside the schedule: 21 spills on sm_90 and 168 on an MI300, where 64 rows take 128 KB of LDS
        warps["num_warps"] = min(2 * warps["num_warps"], 8)
        rows["block_m"] = min(rows["block_m"], 32)
    # sm_90: 198 to 252 registers (Triton 3.6.0); of three programs a unit the third began when the others had ended
    programs, whole = (4 if _cdna(gpu) and not broad else 2) * gpu.units, 0
    if nvidia and _has_tma(gpu) and _lanes(shape) <= 128 and shape.cache_dtype.itemsize == 2:
        keys, whole = _decode_keys(128, shape, gpu), 2  # one loop, as in Triton: 32q4s4k 134 us there for 157
    decode = static_grid_kernel.Part(16, keys, programs, 1, _decode_gather(keys, gpu), **warps, whole=whole)
    # of 256 lanes a unit of CDNA holds one program (370 registers)
    two = rows["num_warps"] == 4 if nvidia else _cdna(gpu) and _lanes(shape) <= 128
    programs = (2 if two else 1) * gpu.units
    rows |= {"snap": 2, "whole": 512 // rows["tile_size"]}  # a prompt of 512: 65 us cut into pieces, 19 in Q Blocks
    return static_grid_kernel.Config(decode, static_grid_kernel.Part(**rows, programs=programs, gather="page"))


def auto(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> tuple[str, Any]:
    """The kernel by name, and its config."""
    name = auto_kernel(shape, stats, gpu)
    config = globals()[name](shape, stats, gpu)
    if name == "parallel_softmax" and config.num_segments <= 2 and not few_rows(shape, stats) and _has_tma(gpu):
        # 212 sequences of 3 tokens over up to 1190 keys: 259 us for 280; decodes do not gain
        name, config = "q_block", q_block(shape, stats, gpu)
    return name, config


def auto_kernel(shape: AttentionShape, stats: BatchStats, gpu: Gpu | None) -> str:
    """Up to SHORT_QUERY tokens a sequence reads its keys as decode does. Copying keys reads and writes them once more:
    it pays where many Q Blocks read them, from eight of 128 rows on, and where few programs need the segments that
    q_block lacks. Elsewhere one launch takes less: four prompts of up to 512 take 20.1 us in q_block and 34.7 in
    unpaged, 42 chunks of up to 20 tokens over 5k keys 265 and 430. Without TMA descriptors are read 2 bytes a lane, as
    in Triton.
    """
    if stats.max_query_len <= SHORT_QUERY:
        return "parallel_softmax"
    if gpu is not None and not _has_tma(gpu):
        return "adjustable_tile"
    if stats.max_seq_len <= 512:
        return "q_block"
    if stats.max_query_len * shape.queries_per_kv > 512:
        return "unpaged"
    few = stats.num_seqs * shape.num_kv_heads <= 256  # up to two programs a unit of an H200
    return "unpaged" if few and stats.max_seq_len >= 16 * stats.max_query_len else "q_block"


def _short_queries(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> parallel_softmax_kernel.Config:
    """A decode's config for the sequences of at most SHORT_QUERY query tokens.

    Where none is expected their launch has one segment, and no reduction behind it; neither where they fill the units
    by themselves, for the longest sequence is then another's.
    """
    if stats.max_query_len > SHORT_QUERY:
        split = 0 < stats.num_decodes * shape.num_kv_heads < 2 * gpu.units
        longest = stats.max_seq_len if split else 1
        stats = replace(stats, num_seqs=max(stats.num_decodes, 1), max_seq_len=longest)
    return parallel_softmax(shape, replace(stats, max_query_len=1), gpu)


def _units_idle(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> bool:
    """Are there fewer Q Blocks of 128 rows than two a unit?"""
    return stats.num_tokens * shape.num_query_heads // 128 < 2 * gpu.units


def _decode_gather(keys: int, gpu: Gpu) -> Gather:
    # Registers at 64 keys: flat 150, by pages 194; at 128: flat 168 and two words of spill, which an H200 does not feel
    # (194 against 234 us at 128 x 2048, three programs per multiprocessor for two), by pages 210.
    return "flat" if keys < 128 or gpu.vendor == "nvidia" else "page"


def _has_tma(gpu: Gpu) -> bool:
    """Whether tensor descriptors are a unit of the GPU: NVIDIA's from sm_90 on."""
    return gpu.vendor == "nvidia" and int(gpu.arch.removeprefix("sm_")) >= 90


def _cdna(gpu: Gpu) -> bool:
    """AMD's data-centre GPUs: waves of 64 lanes, 512 registers a lane, MFMA of 32 or 16 rows."""
    return gpu.vendor == "amd" and gpu.warp_size == 64


def _matrix_warps(rows: int) -> int:
    """One wave per MFMA of 32 rows: where two share them the compiler repeats half of the products (static fact)."""
    return max(rows // 32, 1)


def _decode_warps(shape: AttentionShape, gpu: Gpu) -> dict[str, int]:
    # 16 rows give an AMD compute unit one MFMA tile: every wave beyond repeats half of it (1.5x the work with two)
    warps = 4 if gpu.vendor == "nvidia" else 1 if _cdna(gpu) else 2
    if _lanes(shape) <= 256:
        return {"num_warps": warps, "num_stages": 5 if eight_bits.ahead(shape, gpu) else 2}
    single = shape.dtype.itemsize > 2  # 512 lanes of float32 take twice the warps, as in Triton
    warps = 8 if warps == 2 else 2 * warps if single else warps
    return {"num_warps": warps, "num_stages": 1 if gpu.vendor == "amd" and single else 2}


def _decode_keys(wanted: int, shape: AttentionShape, gpu: Gpu) -> int:
    """AMD: 16 KB of K and V, so that LDS holds four programs of one wave; elsewhere what `_keys` says."""
    if not _cdna(gpu):
        return _keys(wanted, shape, gpu)
    return 32 if wanted >= 32 and 32 * _row_bytes(shape) <= 16 * 1024 else 16


def _rows(shape: AttentionShape, gpu: Gpu) -> dict[str, Any]:
    """Rows, keys and warps of a Q Block that multiplies.

    AMD's fewer keys let two programs of 128 rows live on a compute unit, as in Triton.
    """
    if _lanes(shape) > 256:
        return _broad_rows(shape, gpu)
    if _cdna(gpu) and shape.dtype.itemsize <= 2:
        keys = _keys(64 if _lanes(shape) <= 64 else 32, shape, gpu)
        rows, stages = (128, 2) if _lanes(shape) <= 128 else (64, 1)
        return {"block_m": rows, "tile_size": keys, "num_warps": _matrix_warps(rows), "num_stages": stages}
    if _lanes(shape) > 128 and _wide(shape, gpu) and _has_tma(gpu):
        return {"block_m": 128, "tile_size": _keys(32, shape, gpu), "num_warps": 8, "num_stages": 2}  # as in Triton
    # float32 on AMD: one wave of 16 rows by 64 keys of 80 lanes spills 83 registers on gfx950, 32 keys none
    rows, keys = 64 if shape.dtype.itemsize <= 2 else 16, 64 if _lanes(shape) <= 128 and not _cdna(gpu) else 32
    return {"block_m": rows, "tile_size": _keys(keys, shape, gpu), "num_warps": 4, "num_stages": 2}


def _broad_rows(shape: AttentionShape, gpu: Gpu) -> dict[str, Any]:
    """Heads of up to 512: more warps than rows ask for, which share the sums of 512 lanes."""
    amd, single = gpu.vendor == "amd", shape.dtype.itemsize > 2
    rows = 16 if single or (amd and not _cdna(gpu)) else 64 if amd else 32
    keys = 16 if amd else _keys(32, shape, gpu)
    return {"block_m": rows, "tile_size": keys, "num_warps": 4 if _cdna(gpu) else 8, "num_stages": 1 if amd else 2}


def _lanes(shape: AttentionShape) -> int:
    """Of the wider of K and V."""
    return max(shape.head_size, shape.value_lanes)


def _row_bytes(shape: AttentionShape) -> int:
    """Of one key and its value, as operands of a product."""
    lanes = sum(helion.next_power_of_2(lanes) for lanes in (shape.head_size, shape.value_lanes))
    return lanes * shape.dtype.itemsize


def _wide(shape: AttentionShape, gpu: Gpu) -> bool:
    return shape.dtype.itemsize <= 2 and gpu.shared_bytes > 160 * 1024


def _keys(wanted: int, shape: AttentionShape, gpu: Gpu) -> int:
    """At most `wanted` keys, fewer where a K and a V tile exceed half of a program's shared memory, or 80 KB."""
    row_bytes = _row_bytes(shape)
    while wanted > 16 and wanted * row_bytes > min(gpu.shared_bytes // 2, 80 * 1024):
        wanted //= 2
    return wanted
