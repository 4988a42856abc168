"""Choices by rule, a table a kernel (common/serving/rules.py): the first rule that applies has the Config.

Written by hand: tiles, rows and segments as Triton's (common/serving/untuned.py) have them from an H200, because the
code that Helion generates needs as many registers; the gather form by those registers (quoted at head size 128, sm_90).
Every other shape and GPU only has to fit. Measured winners of a GPU come before them (common/serving/winners.py).
"""

from typing import Any

from common.gpus import Gpu
from common.serving import untuned
from common.serving.rules import Rule, Rules, Situation, always
from common.serving.untuned import LONG, NO_TMA, PROMPTS, SHORT, Tile, tile
from common.spec import AttentionShape
from common.spec.metadata import BatchStats
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


def _named(found: Tile) -> dict[str, int]:
    """As keywords: the gather form stands between keys and warps."""
    return found._asdict()


def _rows(s: Situation) -> Tile:
    return tile(s, "rows")


def _ahead(s: Situation, found: Tile, segments: int = 1) -> Tile:
    """Five stages where they pay (untuned.loads_ahead), over 16 bits: twelve batches of 0.52 to 0.95 of two stages in
    q_block; 233 times 38 tokens over 2k keys 1161 us for 1316."""
    pays = s.stored_in_16_bits and untuned.loads_ahead(s, found.block_m, s.keys // segments)
    return found._replace(num_stages=5) if pays and found.block_m <= 64 and found.tile_size <= 64 else found


def _in_place(s: Situation) -> bool:
    """As timed: whole pages of 16 bits under up to 16 query heads a KV head."""
    two = s.shape.dtype.itemsize == 2 and s.stored_in_16_bits
    return two and s.shape.block_size % 16 == 0 and s.shape.queries_per_kv <= 16 and untuned.in_place(s)


def _decode_gather(s: Situation, keys: int) -> Gather:
    """Registers at 64 keys: flat 150, by pages 194; at 128: flat 168 and two words of spill, which an H200 does not
    feel (194 against 234 us at 128 x 2048, three programs per multiprocessor for two), by pages 210."""
    return "flat" if keys < 128 or s.nvidia else "page"


# A table a kernel.


def naive(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> naive_kernel.Config:
    """One warp a program: a page of 16 keys is 16 loads a lane."""
    grid = "sequences" if stats.max_query_len <= 1 else "tokens"
    return naive_kernel.Config(grid, num_warps=1 if shape.block_size * shape.head_size <= 2048 else 4)


def _decode_block(s: Situation) -> dict[str, Any]:
    """Page ids a tile ahead pay where programs are few."""
    keys, found = s.decode_keys(128), tile(s, "decode")
    if s.nvidia and s.programs <= 4 * s.units:
        found = found._replace(num_stages=max(found.num_stages, 3))
    found = untuned.in_flight(s, found._replace(tile_size=keys))
    return _named(found) | {"gather": _decode_gather(s, keys)}


q_block = Rules(
    Rule(
        "decodes: 128 keys keep most bytes in flight",
        lambda s: s.few_rows,
        lambda s: q_block_kernel.Config(**_decode_block(s)),
    ),
    Rule(
        "prompts of thousands of tokens: 128 rows by 128 keys",
        lambda s: s.long_prompts,
        lambda s: q_block_kernel.Config(**_named(LONG), gather="page"),
        "static fact: 250 registers; flat and 2idx spill",
    ),
    Rule(
        "prompts: the rows and keys that registers hold",
        always,
        lambda s: q_block_kernel.Config(**_named(_ahead(s, _rows(s))), gather="page"),
    ),
)


def _short_blocks(s: Situation) -> parallel_softmax_kernel.Config:
    """Two programs a unit; one of 64 rows by 128 keys."""
    found, slots, gather = untuned.short_rows(s, _rows(s)), 2 * s.units, "page"
    if s.tma and s.stored_in_16_bits and s.full:
        if found.block_m <= 32:
            found, gather = found._replace(tile_size=128), "flat"  # by pages 32 rows spill 4 words
        elif 2 * s.q_blocks(found.block_m) <= s.units and s.shape.block_size in (16, 32, 64):
            found, slots = found._replace(tile_size=128), s.units  # 16 times 4 tokens of 16 heads: 21.5 us for 25.3
    segments = untuned.dealt(s, found, slots)
    found = _ahead(s, untuned.in_matrix(s, found), segments) if gather == "page" else untuned.in_matrix(s, found)
    return parallel_softmax_kernel.Config(**_named(found), gather=gather, num_segments=segments)


def _decode(s: Situation, segments: int, keys: int) -> parallel_softmax_kernel.Config:
    segments = untuned.within(s, segments, keys)
    found = _named(untuned.in_flight(s, tile(s, "decode")._replace(tile_size=keys), segments))
    return parallel_softmax_kernel.Config(**found, num_segments=segments, gather=_decode_gather(s, keys))


parallel_softmax = Rules(
    Rule(
        "prompts: one segment",
        lambda s: not s.short,
        lambda s: parallel_softmax_kernel.Config(**_named(_ahead(s, _rows(s))), num_segments=1, gather="page"),
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
    *untuned.few_decodes(_decode),
    Rule(
        "many decodes: segments of a thousand keys where contexts are long",
        always,
        lambda s: _decode(s, untuned.waves(s, drafts=1), s.decode_keys(128)),
        "as in Triton; four tokens of 32 sequences over 4096 keys: 137 us in one, 139 in 4, 157 in 2",
    ),
)


def split(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> split_kernel.Config:
    """Both parts as q_block has them for their own class, but where two phases of loops take more of a program.

    128 rows by 128 keys in three stages would be 224 KB; before sm_90 4 warps spill at 64 rows by 64 keys.
    """
    s = Situation(shape, stats, gpu)
    decode, found = _decode_block(s), _rows(s)
    if s.old and s.full:  # of 256 lanes 8 warps would form every score twice
        found = found._replace(num_warps=8)
    if s.mfma and gpu.fp8_products and not gpu.turns_on_read and s.small and s.usual:
        found = found._replace(tile_size=found.tile_size // 2)  # gfx942, all keys: 260 registers, one program a unit
    prefill = split_kernel.Prefill(**_named(found), gather="page")
    if s.few_rows:
        prefill = split_kernel.Prefill(**decode)
    elif s.long_prompts and not s.old:
        prefill = split_kernel.Prefill(**_named(LONG._replace(tile_size=64)), gather="page")
    decode.pop("block_m")
    return split_kernel.Config(prefill, split_kernel.Decode(**decode))


def adjustable_tile(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> adjustable_tile_kernel.Config:
    s = Situation(shape, stats, gpu)
    gather = "flat" if s.mfma else "run"  # an axis of runs is not swizzled in LDS
    prefill = adjustable_tile_kernel.Prefill(**_named(LONG if s.long_prompts else _ahead(s, _rows(s))), gather=gather)
    return adjustable_tile_kernel.Config(prefill, untuned.beside_prompts(s, parallel_softmax))


def unpaged(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> unpaged_kernel.Config:
    """Tiles through descriptors: 128 rows by 64 keys in 4 warps (255 registers, 29 or 30 spilled by Triton 3.7.1).

    Heads that are no power of two are read by pointers, in Q Blocks of 64 rows. Few programs get segments: of heads of
    up to 128 lanes in Q Blocks of 64 rows (168 registers; 128 rows spill 54 to 63), of larger ones on sm_90 in Q Blocks
    of 128 rows by 32 keys in 8 warps (heads of 256: 240, none spilled). Long prompts over long contexts take 64 rows
    too (tuned at e91d50b).
    """
    s = Situation(shape, stats, gpu)
    found, segments = _rows(s), 0
    if s.tma and s.small and s.usual:
        described = is_power_of_two(shape.head_size) and is_power_of_two(shape.value_lanes)
        long = s.wgmma and s.full and s.queries > 512 and s.keys > 8192
        segments = untuned.few_blocks(s, unpaged_kernel.MOST_PARTS)
        found = found._replace(block_m=128 if described and not long else 64, tile_size=64)
        if segments:
            found = found._replace(block_m=64, num_stages=3)
    elif s.old and s.full:
        found = found._replace(num_warps=8)
    elif s.tall:  # four chunks of 512 over 2k keys: 165 us in three stages, 203 in two
        found = found._replace(num_stages=3 if s.wgmma else found.num_stages)
        segments = untuned.cut(s, found.block_m, s.units, unpaged_kernel.MOST_PARTS)
    copy = {"gather": "page", "num_segments": max(segments, 1)} | untuned.copying(s)
    return unpaged_kernel.Config(
        unpaged_kernel.Prefill(**_named(found), **copy), untuned.beside_prompts(s, parallel_softmax)
    )


def static_grid(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> static_grid_kernel.Config:
    """The same for every batch, as a captured graph is: as many programs as stay on the GPU together, with the warps
    and stages of prompts, which decodes take as well."""
    s = Situation(shape, stats, gpu)
    keys, rows = s.decode_keys(64), _named(_rows(s))
    if s.mfma and s.small and not s.broad:  # 128 rows take 375 registers here: one program a unit
        rows |= {"block_m": 64, "num_warps": 4, "matrix_instr": 16}
        if s.usual:  # so do 32 keys of 128 lanes: up to 299 registers, 252 of 16 keys
            rows["tile_size"] = max(rows["tile_size"] // 2, 16)
    if s.broad:  # 64 rows take 128 KB of LDS
        rows["block_m"] = min(rows["block_m"], 32)
    if s.tma and s.usual and s.stored_in_16_bits:
        keys = s.decode_keys(128)  # one loop, as in Triton: 32q4s4k 134 us there for 157
    # of 256 lanes a unit of CDNA holds one program (370 registers)
    two = rows["num_warps"] == 4 if s.nvidia else s.mfma and s.usual
    decode = static_grid_kernel.Part(16, keys)
    prefill = static_grid_kernel.Part(rows.pop("block_m"), rows.pop("tile_size"))
    return static_grid_kernel.Config(decode, prefill, (2 if two else 1) * s.units, "flat", **rows)


# Which kernel.


def _one_launch(s: Situation) -> bool:
    """Decodes do not gain."""
    if s.gpu is None or s.few_rows or not s.tma:
        return False
    return untuned.one_launch(s, parallel_softmax(s.shape, s.stats, s.gpu))


auto_kernel = Rules(
    Rule(
        "short queries that fill the units without segments: one launch of q_block",
        lambda s: s.short and _one_launch(s),
        untuned.takes("q_block"),
        "212 of 3 tokens over up to 1190 keys: 259 us for 280",
    ),
    SHORT,
    NO_TMA,
    Rule(
        "keys beyond 512 that few rows read: parallel_softmax in one loop, two tiles ahead",
        _in_place,
        untuned.takes("parallel_softmax"),
        "sweeps/ahead.jsonl: five rows 0.76 to 0.90 of what they took in q_block and unpaged",
    ),
    *PROMPTS,
)


def auto(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> tuple[str, Any]:
    """The kernel by name, and its config."""
    name = auto_kernel(shape, stats, gpu)
    return name, globals()[name](shape, stats, gpu)
