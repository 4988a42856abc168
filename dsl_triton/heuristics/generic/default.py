"""Untuned choices, one function a kernel: host integers in, Config out.

Written by hand from one sweep of the Llama-3-8B shape in bf16 on an H200 (what the comments quote); on every other
shape and GPU they only have to fit. A measured tree per GPU replaces this where one exists.
"""

from dataclasses import replace
from typing import Any

import triton

from common.gpus import Gpu
from common.serving.grid import few_keys, few_rows
from common.spec import AttentionShape
from common.spec.metadata import SHORT_QUERY, BatchStats, cdiv
from dsl_triton import adjustable_tile as adjustable_tile_kernel
from dsl_triton import naive as naive_kernel
from dsl_triton import parallel_softmax as parallel_softmax_kernel
from dsl_triton import q_block as q_block_kernel
from dsl_triton import split as split_kernel
from dsl_triton import static_grid as static_grid_kernel
from dsl_triton import unpaged as unpaged_kernel
from dsl_triton.binding import can_overlap
from dsl_triton.heuristics.generic import eight_bits, page_runs
from dsl_triton.page_runs import Gather

PROGRAMS_PER_UNIT = 3  # resident programs of 64 keys and 4 warps per H200 multiprocessor: 156 registers, 39 KB


def naive(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> naive_kernel.Config:
    """One warp a program, for a page of 16 keys is 16 loads a lane: 238 us at one prompt of 512, two warps 553."""
    grid = "sequences" if stats.max_query_len <= 1 else "tokens"
    return naive_kernel.Config(grid, num_warps=1 if shape.block_size * shape.head_size <= 2048 else 4)


def q_block(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> q_block_kernel.Config:
    if few_rows(shape, stats):  # decode: 128 keys keep most bytes in flight
        warps, stages = _decode_warps(shape, gpu)
        return q_block_kernel.Config(16, _decode_keys(128, shape, gpu), warps, stages)
    if stats.max_query_len > 2048 and _lanes(shape) <= 128 and _wide(shape, gpu):
        return q_block_kernel.Config(128, 128, 8, 3)  # 1.04x of the next at one prompt of 8192
    tile_size, warps, stages = _prefill(shape, gpu)
    many = stats.num_seqs > 32 and stats.max_query_len > SHORT_QUERY and _lanes(shape) <= 128 and _has_tma(gpu)
    if many and stats.max_seq_len <= 256:
        tile_size = 16  # 161 prompts of up to 167 tokens: 351 us for 426
    elif many and stats.max_seq_len <= 512:
        stages = 1  # 53 prompts of up to 348: 377 us for 415
    return q_block_kernel.Config(_rows(shape, gpu), tile_size, warps, stages)


def parallel_softmax(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> parallel_softmax_kernel.Config:
    overlap = can_overlap(gpu)
    if stats.max_query_len > SHORT_QUERY:
        tile_size, warps, stages = _prefill(shape, gpu)
        plain = parallel_softmax_kernel.Config(_rows(shape, gpu), tile_size, 1, warps, stages, overlap)
        return page_runs.chunk(shape, stats, gpu) or plain
    if not few_rows(shape, stats):  # 8 tokens of 8 sequences over 4k keys: 41 us with segments, 122 without
        tile_size, warps, stages = _prefill(shape, gpu)
        rows = max(min(_rows(shape, gpu), triton.next_power_of_2(stats.max_query_len * shape.queries_per_kv)), 16)
        if rows <= 32 and _has_tma(gpu) and shape.cache_dtype.itemsize == 2 and 64 < _lanes(shape) <= 128:
            tile_size = 128  # by 64 keys 48 us; 64 rows spill 19 words
        q_blocks = stats.num_seqs * shape.num_kv_heads * cdiv(stats.max_query_len * shape.queries_per_kv, rows)
        segments = max(1, min(2 * gpu.units // max(q_blocks, 1), stats.max_seq_len // (2 * tile_size), 32))
        warps = min(warps, _matrix_warps(rows)) if _cdna(gpu) else warps
        by_keys = parallel_softmax_kernel.Config(rows, tile_size, segments, warps, stages, overlap)
        return page_runs.short_queries(shape, stats, gpu) or by_keys
    if (config := eight_bits.decode(shape, stats, gpu) or page_runs.decode(shape, stats, gpu)) is not None:
        return config
    programs = max(stats.num_seqs, 1) * shape.num_kv_heads
    warps, stages = _decode_warps(shape, gpu)
    resident = (4 if _cdna(gpu) else PROGRAMS_PER_UNIT) * gpu.units
    if 2 * programs <= resident:
        # One wave: 49 segments at batch 1, 6 at batch 8. Longer than 1536 keys they are too coarse to even out lengths.
        segments, tile_size = resident // programs, _decode_keys(64, shape, gpu)
        if stats.num_seqs > 1 and stats.max_seq_len // 1536 > segments:  # 8 of 32k: 197 us, by 64 keys in 24 207
            segments, tile_size = max(segments, stats.max_seq_len // 2048), _decode_keys(128, shape, gpu)
        if (tiles := cdiv(stats.max_seq_len, tile_size)) <= 3 * segments // 2:
            segments = tiles  # 8 decodes of 512 keys: 9.0 us in 8 segments of a tile, 9.7 in 6 of one or two
    else:
        # 32 decodes of 4096 keys take 107 us in 4 segments, 117 in 2, 112 in one. Four tokens each, of lengths from
        # half of it on, 104.7 in 3, 109.2 in one; of equal lengths 132.8 and 126.2: no hint tells which, 3 loses less
        even = stats.max_query_len > 1 and stats.max_seq_len < 8192
        split = stats.max_seq_len >= 4096 and (not even or programs <= 3 * gpu.units)
        most = 3 if even else max(14 * gpu.units // programs, 3)
        segments = min(stats.max_seq_len // 1024, most) if split else 1
        tile_size = _decode_keys(128, shape, gpu)
    segments = max(1, min(segments, -(-stats.max_seq_len // tile_size), 128))
    return parallel_softmax_kernel.Config(16, tile_size, segments, warps, stages, overlap)


def split(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> split_kernel.Config:
    """Both parts as q_block has them for their own class, but where two phases of loops take more of a program.

    128 rows by 128 keys in three stages would be 224 KB; before sm_90 4 warps spill 19 words of 64 rows by 64 keys.
    """
    warps, stages = _decode_warps(shape, gpu)
    decode = _decode_keys(128, shape, gpu), warps, stages
    keys, warps, stages = _prefill(shape, gpu)
    if gpu.vendor == "nvidia" and 64 < _lanes(shape) <= 128 and not can_overlap(gpu):
        warps = 8
    prefill = _rows(shape, gpu), keys, warps, stages
    if few_rows(shape, stats):
        prefill = 16, *decode
    elif stats.max_query_len > 2048 and _lanes(shape) <= 128 and _wide(shape, gpu) and can_overlap(gpu):
        prefill = 128, 64, 8, 3
    return split_kernel.Config(split_kernel.Prefill(*prefill), split_kernel.Decode(*decode))


def adjustable_tile(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> adjustable_tile_kernel.Config:
    rows, (tile_size, warps, stages) = _rows(shape, gpu), _prefill(shape, gpu)
    if stats.max_query_len > 2048 and _lanes(shape) <= 128 and _wide(shape, gpu):
        rows, tile_size, warps, stages = 128, 128, 8, 3
    prefill = adjustable_tile_kernel.Prefill(rows, tile_size, _gather(shape, tile_size, gpu, rows), warps, stages)
    return adjustable_tile_kernel.Config(prefill, _short_queries(shape, stats, gpu))


def unpaged(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> unpaged_kernel.Config:
    """Two programs of 128 rows a unit: one's softmax hides under the other's products.

    With fewer Q Blocks than that, smaller ones, and segments that fill the units.
    """
    overlap = can_overlap(gpu)
    block_m, (tile_size, warps, stages), segments = _rows(shape, gpu), _prefill(shape, gpu), 1
    if overlap and shape.dtype.itemsize <= 2 and _lanes(shape) <= 128:
        block_m, tile_size, warps, stages = 128, 64, 4, 2
        if stats.num_tokens * shape.num_query_heads // 128 < 2 * gpu.units:  # fewer Q Blocks than two a unit
            programs = max(stats.num_tokens * shape.num_query_heads // 64, 1)
            segments = max(1, min(2 * gpu.units // programs, stats.max_seq_len // 1024, 16))
            block_m, stages = 64, 3  # one prompt of 512: 22.0 us in Q Blocks of 128, 15.9 in twice as many
    if gpu.arch == "gfx90a" and shape.dtype.itemsize <= 2 and _lanes(shape) > 64:
        tile_size = 16  # 32 keys: 258 registers, one program a unit
    new_kv = stats.max_seq_len <= min(few_keys(stats.max_query_len), 4096)  # no context; 8k keys are faster out of the copy
    copy = {"copy_programs": 8 * gpu.units, "overlap": overlap, "new_kv": new_kv}
    prefill = unpaged_kernel.Prefill(block_m, tile_size, warps, stages, num_segments=segments, **copy)
    return unpaged_kernel.Config(prefill, _short_queries(shape, stats, gpu))


def static_grid(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> static_grid_kernel.Config:
    """The same for every batch, as a captured graph is: as many programs as stay on the GPU together."""
    (decode_warps, stages), (tile_size, warps, prefill_stages) = _decode_warps(shape, gpu), _prefill(shape, gpu)
    keys, nvidia, broad = _decode_keys(64, shape, gpu), gpu.vendor == "nvidia", _lanes(shape) > 256
    decode_warps = min(2 * decode_warps, 8) if broad else decode_warps  # half as many spill 2 registers, 62 on MI300
    three = nvidia and _lanes(shape) <= 128 and shape.dtype.itemsize <= 2
    loads = _gather(shape, keys, gpu), 168 if three else 0
    if three and _has_tma(gpu) and shape.cache_dtype.itemsize == 2:  # 32q4s4k 134 us, three a unit of 64 keys 157
        three, keys, loads = _lanes(shape) <= 64, _decode_keys(128, shape, gpu), ("key", 0, 0, 2)
    programs = (4 if _cdna(gpu) and not broad else 3 if three else 2) * gpu.units
    decode = static_grid_kernel.Part(16, keys, programs, 1, decode_warps, stages, *loads)
    rows, matrix, programs = _rows(shape, gpu), 0, (2 if (nvidia and warps == 4) or _cdna(gpu) else 1) * gpu.units
    if _cdna(gpu) and _lanes(shape) > 128:  # 32 keys: 392 registers and one spilled
        tile_size = 16
    elif _cdna(gpu) and shape.dtype.itemsize <= 2:  # 128 rows: up to 265 and one program a unit; so at most 243
        rows, matrix = 64, 16
    parts = (_gather(shape, tile_size, gpu, rows), 0, matrix, 512 // tile_size)  # a prompt of 512: 61 us cut, 17 whole
    prefill = static_grid_kernel.Part(rows, tile_size, programs, 2, warps, prefill_stages, *parts)
    return static_grid_kernel.Config(decode, prefill, can_overlap(gpu))


def auto(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> tuple[str, Any]:
    """The kernel by name, and its config."""
    name = auto_kernel(shape, stats, gpu)
    config = globals()[name](shape, stats, gpu)
    plain = name == "parallel_softmax" and config.gather == "key"
    if plain and config.num_segments <= 2 and (few_rows(shape, stats) or _has_tma(gpu)):  # 212 of 3 tokens: 269 to 241
        if few_rows(shape, stats) and _has_tma(gpu) and _three_a_unit(stats.num_seqs * shape.num_kv_heads, gpu):
            return name, replace(config, num_segments=1)
        name, config = "q_block", q_block(shape, stats, gpu)
    return name, config


def _three_a_unit(programs: int, gpu: Gpu) -> bool:
    """Whether decodes without segments take parallel_softmax, of 168 registers in Triton 3.6.0: three even out lengths,
    128 of 512 keys 56.3 us for 59.0. Or q_block, of 178: two are dealt evenly, 32 of 2048 keys 59.0 us for 63.1.
    """
    return 2 * gpu.units < programs <= 3 * gpu.units or programs > 4 * gpu.units


def auto_kernel(shape: AttentionShape, stats: BatchStats, gpu: Gpu | None) -> str:
    """Up to SHORT_QUERY tokens a sequence reads its keys as decode does. Copying keys reads and writes them once more:
    it pays where many Q Blocks read them, from eight of 128 rows on, and where few programs need the segments that
    q_block lacks. Elsewhere one launch takes less: four prompts of up to 512 take 19.3 us in q_block and 27.7 in
    unpaged, 42 chunks of up to 20 tokens over 5k keys 242 and 425. Without TMA Triton 3.7.1 reads what a descriptor
    names 2 bytes a lane (static fact: 128 loads a tile for 16 of 16 bytes).
    """
    if stats.max_query_len <= SHORT_QUERY:
        return "parallel_softmax"
    if gpu is not None and not _has_tma(gpu):
        return "adjustable_tile"
    if gpu is not None and page_runs.chunk(shape, stats, gpu) is not None:
        return "parallel_softmax"
    if stats.max_seq_len <= 512:
        return "q_block"
    if stats.max_query_len * shape.queries_per_kv > 512:
        return "unpaged"
    few = stats.num_seqs * shape.num_kv_heads <= 256  # up to two programs a unit of an H200
    return "unpaged" if few and stats.max_seq_len >= 16 * stats.max_query_len else "q_block"


def _short_queries(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> parallel_softmax_kernel.Config:
    """A decode's config for the sequences of at most SHORT_QUERY query tokens.

    Where none is expected their launch has one segment, and no reduction behind it; neither where they fill the units
    by themselves, for the longest sequence is then another's: 255 decodes beside a chunk over 8k keys, 685 for 803 us.
    """
    if stats.max_query_len > SHORT_QUERY:
        split = 0 < stats.num_decodes * shape.num_kv_heads < 2 * gpu.units
        longest = stats.max_seq_len if split else 1
        stats = replace(stats, num_seqs=max(stats.num_decodes, 1), max_seq_len=longest)
    return parallel_softmax(shape, replace(stats, max_query_len=1), gpu)


def _gather(shape: AttentionShape, tile_size: int, gpu: Gpu, rows: int = 16) -> Gather:
    """Runs, but not where gfx942 turns V by 2-byte reads: 96 a tile out of [pages, page, head], 32 of [tile, head]."""
    turns = gpu.arch in ("gfx90a", "gfx942") and shape.block_size % tile_size
    return "key" if turns or eight_bits.by_keys(shape, rows, gpu) else "run"


def _has_tma(gpu: Gpu) -> bool:
    """Whether tensor descriptors are a unit of the GPU: NVIDIA's from sm_90 on, where launches overlap too."""
    return can_overlap(gpu)


def _cdna(gpu: Gpu) -> bool:
    """AMD's data-centre GPUs: waves of 64 lanes, 512 registers a lane, MFMA of 32 or 16 rows."""
    return gpu.vendor == "amd" and gpu.warp_size == 64


def _matrix_warps(rows: int) -> int:
    """One wave per MFMA of 32 rows: where two share them the compiler repeats half of the products (static fact)."""
    return max(rows // 32, 1)


def _decode_warps(shape: AttentionShape, gpu: Gpu) -> tuple[int, int]:
    # 16 rows give an AMD compute unit one MFMA tile: every wave beyond repeats half of it (1.5x the work with two)
    warps = 4 if gpu.vendor == "nvidia" else 1 if _cdna(gpu) else 2
    if _lanes(shape) <= 256:
        return warps, 5 if eight_bits.ahead(shape, gpu) else 2
    single = shape.dtype.itemsize > 2  # 512 lanes in float32 spill 179 registers of 4 warps on sm_90, none of 8
    return (8 if warps == 2 else 2 * warps if single else warps), (1 if gpu.vendor == "amd" and single else 2)


def _decode_keys(wanted: int, shape: AttentionShape, gpu: Gpu) -> int:
    """AMD: 16 KB of K and V, so that LDS holds four programs of one wave; elsewhere what `_keys` says."""
    if not _cdna(gpu):
        return _keys(wanted, shape, gpu)
    return 32 if wanted >= 32 and 32 * _row_bytes(shape) <= 16 * 1024 else 16


def _prefill(shape: AttentionShape, gpu: Gpu) -> tuple[int, int, int]:
    """Keys, warps and stages. Before sm_90 4 warps spill 25 registers of 64 rows by 256 lanes, and 8 form every score
    twice, 1.5 times the products (static facts).

    AMD's fewer keys let two programs of 128 rows live on a compute unit: 206 to 211 registers for 280 to 289.
    """
    if _lanes(shape) > 256:  # more warps than rows ask for: a lane's share of 512 sums
        return (16, 4 if _cdna(gpu) else 8, 1) if gpu.vendor == "amd" else (_keys(32, shape, gpu), 8, 2)
    if _cdna(gpu):
        keys = 64 if _lanes(shape) <= 64 else 32
        return _keys(keys, shape, gpu), _matrix_warps(_rows(shape, gpu)), 2 if _lanes(shape) <= 128 else 1
    if _lanes(shape) > 128:
        keys, warps = (64 if gpu.arch == "sm_90" else 32, 8) if _tall(shape, gpu) else (32, 4)
        return _keys(keys, shape, gpu), warps, 2  # 4 x 512 tokens in 64 keys 137 us, in 32 183
    return _keys(64, shape, gpu), 4, 2


def _rows(shape: AttentionShape, gpu: Gpu) -> int:
    """Heads of up to 512: 64 rows by 32 keys spill 41 registers on sm_90, 32 rows none; an MI300 holds 64 in 341."""
    if _lanes(shape) > 256:
        return 16 if shape.dtype.itemsize > 2 else 64 if _cdna(gpu) else 32 if gpu.vendor == "nvidia" else 16
    if _tall(shape, gpu) or (_cdna(gpu) and shape.dtype.itemsize <= 2 and _lanes(shape) <= 128):
        return 128
    return 64 if shape.dtype.itemsize <= 2 else 16


def _tall(shape: AttentionShape, gpu: Gpu) -> bool:
    """Heads of 256 from sm_90 on: 64 rows for each group of four warps, 246 registers and no spill."""
    return 128 < _lanes(shape) <= 256 and _wide(shape, gpu) and _has_tma(gpu)


def _lanes(shape: AttentionShape) -> int:
    """Of the wider of K and V."""
    return max(shape.head_size, shape.value_lanes)


def _row_bytes(shape: AttentionShape) -> int:
    """Of one key and its value, as operands of a product."""
    lanes = sum(triton.next_power_of_2(lanes) for lanes in (shape.head_size, shape.value_lanes))
    return lanes * shape.dtype.itemsize


def _wide(shape: AttentionShape, gpu: Gpu) -> bool:
    return shape.dtype.itemsize <= 2 and gpu.shared_bytes > 160 * 1024


def _keys(wanted: int, shape: AttentionShape, gpu: Gpu) -> int:
    """At most `wanted` keys, fewer where one K and one V tile exceed half of the shared memory, or 80 KB."""
    row_bytes = _row_bytes(shape)
    while wanted > 16 and wanted * row_bytes > min(gpu.shared_bytes // 2, 80 * 1024):
        wanted //= 2
    return wanted
