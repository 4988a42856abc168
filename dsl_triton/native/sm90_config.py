"""The config of sm90_prefill.py, and what a batch takes: sizes of Q Blocks and tiles, segments, where decodes run."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar

from common.gpus import Gpu
from common.serving.choice import MOST_PARTS_BYTES
from common.serving.grid import GRID
from common.serving.rules import Situation, splits
from common.spec import AttentionShape
from common.spec.metadata import EVERY_KEY, SHORT_QUERY, BatchStats, cdiv
from dsl_triton import parallel_softmax
from dsl_triton.native.sm90_boxes import block_tokens

MOST_HEADS = 16  # of a group: larger ones were not timed
SHORT_PROMPT = 1024  # keys
MOST_SPLITS = 64  # segments of short queries
# What segments cost, in tiles: MERGE, and one for SUMS lanes of Q Blocks, whose sums, 2 MB, are written and read. 4 of
# 301 tokens over 2k keys of 32:8 heads (320 Q Blocks) are 69 us whole and 96 in two segments, ten of 32 over 55k of
# 16:8 (80) 764 and 414 in eight. On 29 rows of 24 to 864 Q Blocks, to which both were fitted, the number with the
# fewest tiles is 0.02% slower than the fastest that was timed, without the sums 14% (sweeps/native_segments.jsonl,
# geometric means).
MERGE, SUMS = 4, 4096
BESIDE = 32  # tiles: how much later than the prompts the longest decode may end


@dataclass(frozen=True)
class Prefill:
    """tile_size: keys, most_keys at most. num_stages: tiles of K, and of V, in flight; two of 128 keys and two of Q
    fill 193 of 227 KB with heads of 128.

    num_segments: at most that many programs share the tiles of a Q Block. programs: as many as multiprocessors.
    overlap: the reduction of segments is launched when this kernel has ended.
    """

    RUN_TIME: ClassVar = ("num_segments",)

    tile_size: int = 128
    num_stages: int = 2
    num_segments: int = 1
    programs: int = 132
    overlap: bool = False


@dataclass(frozen=True)
class Config:
    """prefill: sequences of more than SHORT_QUERY query tokens; decode: the others, where they are not `together`."""

    prefill: Prefill = Prefill()
    decode: parallel_softmax.Config = parallel_softmax.DEFAULT
    together: bool = False

    @property
    def short(self) -> int:
        """Sequences of more query tokens are items of the plan."""
        return 0 if self.together else SHORT_QUERY


DEFAULT = Config()


def head_groups(shape: AttentionShape) -> int:
    """Groups that share a KV head: as few as have MOST_HEADS query heads at most, all equally many."""
    ratio = shape.queries_per_kv
    return next((n for n in range(cdiv(ratio, MOST_HEADS), ratio) if ratio % n == 0), ratio)


def group_heads(shape: AttentionShape) -> int:
    """Query heads of a group."""
    return shape.queries_per_kv // head_groups(shape)


def tokens_of_block(shape: AttentionShape) -> int:
    """Query tokens of a Q Block: as many as its rows have room for under all heads of a group."""
    return block_tokens(group_heads(shape))


def most_keys(shape: AttentionShape) -> int:
    """Keys of a tile: 32 KB of K, and of V, with two in flight; FlashAttention 3 takes 128 and 80."""
    return 128 if shape.head_size <= 128 else 64


def most_tokens(shape: AttentionShape, segments: int) -> int:
    """Query tokens at most whose sums, m and l so many segments may leave, in float32: MOST_PARTS_BYTES of them."""
    return MOST_PARTS_BYTES // (4 * segments * shape.num_query_heads * (shape.head_size + 2))


def default(
    heuristics: ModuleType, shape: AttentionShape, stats: BatchStats, gpu: Gpu, sees: int = EVERY_KEY
) -> Config:
    """Config of a batch, from docs/results/h200/sweeps/native_items.jsonl and native_drafts.jsonl.

    sees: keys that a query token sees at most, as `Features.sees`; those of a Q Block, or a decode, are fewer than
    stats', which are of all tokens of a query.

    Many short prompts take tiles of 64 keys: their diagonal wastes less (8q1k~ 93.0 us for 95.6). Segments where Q
    Blocks leave units idle, or waves end unevenly; beside decodes only where the prompts fill less than half of the
    units, for nobody says which sequence the longest is (128q1s4k_1q512s16k 684 us for 724). Decodes are items of the
    same launch where the longest of them ends BESIDE tiles after the prompts, by the prompts' own keys alone, or
    sooner: a launch beside takes units first, which all others wait for (28 tiles, of 1 decode and 6 of up to 40
    tokens, 38 us for 53; 32, of 7 decodes and 29 of 38 tokens in a window of 4096, 81 for 121; but 8 tiles of 2
    decodes and 5 of up to 28 tokens of 256 lanes 18.6 for 15.5). Elsewhere they run beside it (40 tiles, of 3 decodes
    and 3 prompts, 63 us for 71; 77 of 1 and 1 94 for 129; 64q1s2k_2q2ks2k 244 for 256). Prompts that are certainly
    alone have no launch beside them: q512 13.6 us for 14.7. Short queries alone are all items, in segments as every
    kernel's: 2 of 11 tokens over 4.8k keys of 16:4 heads of 256 are 106 us whole, 21 in 16 segments, 25 in 32.
    """
    decode = heuristics.unpaged(shape, stats, gpu).decode
    s = Situation(shape, stats, gpu)
    room = max(most_tokens(shape, 1) // max(stats.num_tokens, 1), 1)
    if s.short:
        items = s.programs * head_groups(shape) * cdiv(max(s.queries, 1), tokens_of_block(shape))
        split = splits(items, s.units, cdiv(s.keys, most_keys(shape)), min(room, MOST_SPLITS), s.evenness)
        return Config(Prefill(most_keys(shape), num_segments=split, programs=s.units), decode, together=True)
    items = s.long_parts(tokens_of_block(shape)) * shape.num_kv_heads * head_groups(shape)
    short = stats.max_seq_len <= SHORT_PROMPT and items > 4 * s.units
    tile_size = 64 if short else most_keys(shape)
    tiles = cdiv(min(s.prompt_keys, sees + tokens_of_block(shape)), tile_size)
    most = cdiv(min(stats.max_seq_len, sees), tile_size)
    busy = stats.num_decodes * shape.num_kv_heads > s.units
    own = items * (cdiv(stats.max_query_len, tile_size) // 2 + 1) // s.units  # tiles in turn: half of a causal square
    one = busy or (stats.num_decodes > 0 and 2 * items > s.units)

    def cost(segments: int) -> float:
        merge = MERGE + items * segments * shape.head_size / SUMS if segments > 1 else 0
        return cdiv(items * segments, s.units) * (cdiv(tiles, segments) + 1) + merge

    segments = 1 if one else min((n for n in GRID if n <= min(room, 16)), key=cost)
    all_long = stats.num_tokens > (stats.num_seqs - 1) * stats.max_query_len + SHORT_QUERY
    soon = stats.num_decodes > 0 and not busy and cdiv(most, segments) <= own + BESIDE
    together = all_long or soon
    stages = 2 * most_keys(shape) // tile_size
    return Config(Prefill(tile_size, stages, segments, s.units), decode, together)
