"""The config of sm90_prefill.py, and what a batch takes: sizes of Q Blocks and tiles, segments, where decodes run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from common.choice.legal import REGISTER_BYTES
from common.serving.grid import GRID
from common.serving.pieces import MOST_PARTS_BYTES
from common.spec import AttentionShape, Gpu
from common.spec.metadata import EVERY_KEY, SHORT_QUERY, BatchStats, cdiv
from dsl_triton import parallel_softmax
from dsl_triton.native.sm90_boxes import ROWS, block_tokens, shares

MOST_HEADS = 16  # of a group: larger ones were not timed
SHORT_PROMPT = 1024  # keys
MOST_SPLITS = 64  # segments
# Costs in tiles: EACH item; MERGE, of a merge; and one tile for writing and reading the sums of SUMS lanes of Q Blocks.
# Fitted to rows that were timed with several numbers of segments (sweeps/native_segments.jsonl, native_half.jsonl): in
# the mean of a set the number that this gives is at most 2.3% slower than the fastest.
EACH, MERGE, SUMS = 2, 6, 4096
# A segment of the longest sequence may have this many tiles more than half of the mean per SM; else decodes run in a
# launch beside. If decodes have items for more than half of the SMs, prompts would wait for that launch: then sequences
# are cut into more segments instead.
BESIDE = 32


@dataclass(frozen=True)
class Prefill:
    """tile_size: keys, most_keys at most. num_stages: tiles of K, and of V, in flight; two of 128 keys and two of Q
    fill 193 of 227 KB with heads of 128.

    num_segments: at most that many programs share the tiles of a Q Block. programs: as many as SMs.
    overlap: the reduction of segments begins while this kernel ends (programmatic dependent launch), which saves 1 us.
    """

    RUN_TIME: ClassVar = ("num_segments",)

    tile_size: int = 128
    num_stages: int = 2
    num_segments: int = 1
    programs: int = 132
    overlap: bool = True


@dataclass(frozen=True)
class Config:
    """prefill: sequences of more than SHORT_QUERY query tokens, all where they are `together`; decode: the others."""

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


def items_of_tokens(shape: AttentionShape) -> int:
    """Items of the tokens of a Q Block: one under each KV head, group and share of V's lanes."""
    return shape.num_kv_heads * head_groups(shape) * shares(shape.head_size)


@dataclass(frozen=True)
class Situation:
    """The batch that determines a config. stats: of `common.serving.grid.decided_by`."""

    shape: AttentionShape
    stats: BatchStats
    gpu: Gpu

    @property
    def units(self) -> int:
        """SMs or compute units."""
        return max(self.gpu.units, 1)

    @property
    def queries(self) -> int:
        """Tokens of the longest query."""
        return self.stats.max_query_len

    @property
    def keys(self) -> int:
        """Keys of the longest sequence."""
        return self.stats.max_seq_len

    @property
    def short(self) -> bool:
        """Whether every query has at most SHORT_QUERY tokens: reading keys, not products, costs time."""
        return self.queries <= SHORT_QUERY

    @property
    def prompts(self) -> int:
        """Sequences that are no decodes."""
        return max(self.stats.prompts, 1)

    @property
    def prompt_keys(self) -> int:
        """Keys of the longest prompt, taken to have at most twice the mean of the prompts."""
        return max(min(self.keys, 2 * self.stats.keys_of_prompts // self.prompts), self.queries, 1)

    def long_parts(self, tokens: int) -> int:
        """Q Blocks of all prompts, of `tokens` query tokens each; an upper bound if lengths differ."""
        in_all = max(self.stats.num_tokens - self.stats.num_decodes, 1)
        return min(self.prompts * cdiv(self.queries, tokens), in_all // tokens + self.prompts)


def prompt_items(s: Situation) -> int:
    """Items of all prompts in one segment: at most, where lengths differ."""
    return s.long_parts(tokens_of_block(s.shape)) * items_of_tokens(s.shape)


def most_keys(shape: AttentionShape) -> int:
    """Keys of a tile: 32 KB of K, and of V, with two in flight; FlashAttention 3 takes 128 and 80."""
    return 128 if shape.head_size <= 128 else 64


def most_tokens(shape: AttentionShape, segments: int) -> int:
    """The most query tokens for which `segments` segments can leave acc, m and l in MOST_PARTS_BYTES of float32."""
    return MOST_PARTS_BYTES // (REGISTER_BYTES * segments * shape.num_query_heads * (shape.head_size + 2))


def default(shape: AttentionShape, stats: BatchStats, gpu: Gpu, sees: int, beside: parallel_softmax.Config) -> Config:
    """Config of a batch, by what items, segments and merges cost (`_segments`).

    sees: keys that a query token sees at most, as `Features.sees`. beside: of a launch of short queries.

    Many short prompts take tiles of 64 keys, whose diagonal wastes less. Q Blocks get segments where they leave units
    idle or waves end unevenly. Short queries beside prompts are items of the same launch, unless decodes are few and
    the longest would end alone (BESIDE): then they run beside it, in segments of their own. There is no launch beside
    where every query is certainly long.
    """
    s = Situation(shape, stats, gpu)
    groups, tokens, decodes = items_of_tokens(shape), tokens_of_block(shape), stats.num_decodes
    if s.short:
        items = stats.num_seqs * groups * cdiv(max(s.queries, 1), tokens)
        tiles = stats.total_seq_len * groups // most_keys(shape)
        segments = _segments(s, items, tiles, cdiv(min(s.keys, sees), most_keys(shape)))
        return Config(Prefill(most_keys(shape), num_segments=segments, programs=s.units), together=True)
    blocks = prompt_items(s)
    small = s.keys <= SHORT_PROMPT and blocks > 4 * s.units
    tile_size = 64 if small else most_keys(shape)
    own, longest = (cdiv(n, tile_size) for n in (min(s.prompt_keys, sees + tokens), min(s.keys, sees)))
    # of keys that are read once, and by half of the Q Blocks of a causal square
    tiles = stats.total_seq_len * groups // tile_size + blocks * (cdiv(s.queries, tile_size) // 2 + 1)
    crowded, most = 2 * decodes * groups > s.units, tiles // (2 * s.units) + BESIDE
    if decodes:
        segments = _segments(s, blocks + decodes * groups, tiles, longest, most if crowded else longest)
    else:
        segments = _segments(s, blocks, blocks * own, own)
    all_long = stats.num_tokens > (stats.num_seqs - 1) * s.queries + SHORT_QUERY
    together = all_long or crowded or cdiv(longest, segments) <= most
    decode = parallel_softmax.DEFAULT
    if not together:  # units that decodes beside them fill are no idle ones
        idle = max(2 * blocks, decodes * groups) <= s.units
        segments = _segments(s, blocks, blocks * own, own) if idle else 1
        decode = beside
    return Config(Prefill(tile_size, 2 * most_keys(shape) // tile_size, segments, s.units), decode, together)


def _segments(s: Situation, items: int, tiles: int, longest: int, most: int = EVERY_KEY) -> int:
    """How many share an item, where `items` have `tiles` together and the longest has `longest`: the number that ends
    soonest, of those that leave a segment of it no more than `most` tiles, if there are any."""
    shape = s.shape
    sums = s.stats.num_tokens * shape.num_query_heads * shape.head_size / (ROWS * SUMS)
    tokens = max(s.stats.num_tokens, s.stats.num_seqs * min(s.queries, SHORT_QUERY), 1)  # as choice.few_segments counts
    room = max(most_tokens(shape, 1) // tokens, 1)

    def cost(segments: int) -> float:
        waves = cdiv(items * segments, s.units) * (tiles / max(items * segments, 1) + EACH)
        return max(waves, longest / segments + EACH) + (MERGE + sums * segments if segments > 1 else 0)

    allowed = [n for n in GRID if n <= min(room, MOST_SPLITS)]
    return min([n for n in allowed if cdiv(longest, n) <= most] or allowed, key=cost)
