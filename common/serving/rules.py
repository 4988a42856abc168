"""Rules as data: what a choice may ask (`Situation`), rules of which the first that applies decides, and one count of
segments for every kernel.

Both DSLs' heuristics are tables of these. A rule asks what a GPU has, never what it is called: another GPU of the
same capabilities gets the same rule, with its own units and shared memory in it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from common.choice.legal import MOST_SEGMENTS
from common.gpus import KIB, Gpu
from common.serving.grid import KEYS, few_rows
from common.spec import AttentionShape
from common.spec.metadata import SHORT_QUERY, BatchStats, cdiv, power_of_two

# Of a program, in tiles of its own: what it takes to begin and end, and what a second launch that merges segments
# takes. From a fit over committed times: 3.1 us and 2.1 us beside tiles of about a microsecond.
START, MERGE = 3, 2
WORTH = 1.1  # more segments are taken for a tenth less alone: lengths are uneven, and waves not as whole as counted


@dataclass(frozen=True)
class Situation:
    """A shape, the host integers of a batch (`grid.decided_by`) and a GPU; None: any GPU, for a kernel's name alone.

    windowed: a window hides keys, and stats' are those that are seen (`grid.seen`).
    """

    shape: AttentionShape
    stats: BatchStats
    gpu: Gpu | None
    windowed: bool = False

    def of(self, **changes: int) -> Situation:
        """The same with other host integers."""
        return replace(self, stats=replace(self.stats, **changes))

    @property
    def units(self) -> int:
        return max(self.gpu.units, 1)

    @property
    def nvidia(self) -> bool:
        return self.gpu.vendor == "nvidia"

    @property
    def tma(self) -> bool:
        return self.gpu is None or self.gpu.tma

    @property
    def wgmma(self) -> bool:
        return self.gpu is not None and self.gpu.wgmma

    @property
    def mfma(self) -> bool:
        return self.gpu is not None and self.gpu.mfma

    @property
    def queries(self) -> int:
        return self.stats.max_query_len

    @property
    def keys(self) -> int:
        """Of the longest sequence; 0: not told (`untuned.beside_prompts`)."""
        return self.stats.max_seq_len

    @property
    def prompts(self) -> int:
        """Sequences that are no decodes."""
        return max(self.stats.num_seqs - self.stats.num_decodes, 1)

    @property
    def prompt_keys(self) -> int:
        """What the longest of the `prompts` has, at most about: twice their mean, were all keys theirs. Ten prompts
        beside one decode of 58k keys are not told by the longest sequence, but 58k keys in all can't be of them."""
        return max(min(self.keys, 2 * self.stats.total_seq_len // self.prompts), self.queries, 1)

    @property
    def short(self) -> bool:
        """Whether every sequence reads its keys as a decode does: they, not the products, cost time."""
        return self.queries <= SHORT_QUERY

    @property
    def few_rows(self) -> bool:
        return few_rows(self.shape, self.stats)

    @property
    def rows(self) -> int:
        """Of all query tokens of the longest query under one KV head."""
        return self.queries * self.shape.queries_per_kv

    @property
    def programs(self) -> int:
        """One a sequence and KV head."""
        return max(self.stats.num_seqs, 1) * self.shape.num_kv_heads

    def q_blocks(self, rows: int) -> int:
        """Programs of Q Blocks of so many rows, without segments."""
        return self.programs * cdiv(self.rows, rows)

    def long_blocks(self, rows: int) -> int:
        """Programs of Q Blocks of so many rows for all queries of more than SHORT_QUERY tokens, without segments.

        Counted as kernels cut: whole tokens a Q Block, a rest in each sequence. 66 tokens of ratio 6 are seven Q Blocks
        of 64 rows, of ten tokens each; by rows alone they would be six, and segments overflow their wave.
        """
        return self.long_parts(max(rows // self.shape.queries_per_kv, 1)) * self.shape.num_kv_heads

    def long_parts(self, tokens: int) -> int:
        """Of the prompts, each cut into parts of so many tokens and a rest; at most, where lengths differ."""
        in_all = max(self.stats.num_tokens - self.stats.num_decodes, 1)
        return min(self.prompts * cdiv(self.queries, tokens), in_all // tokens + self.prompts)

    @property
    def evenness(self) -> float:
        """Keys of the mean sequence, as a share of the longest's."""
        return min(self.stats.total_seq_len / (max(self.stats.num_seqs, 1) * max(self.keys, 1)), 1.0)

    @cached_property
    def lanes(self) -> int:
        """Of the wider of K and V."""
        return max(self.shape.head_size, self.shape.value_lanes)

    @property
    def narrow(self) -> bool:
        return self.lanes <= 64

    @property
    def padded(self) -> bool:
        """Lanes of which a power of two leaves some empty: 80 and 96 of 128."""
        return self.lanes != power_of_two(self.lanes)

    @property
    def usual(self) -> bool:
        return self.lanes <= 128

    @property
    def full(self) -> bool:
        """The heads that most models have."""
        return self.usual and not self.narrow

    @property
    def wide(self) -> bool:
        return not self.usual and not self.broad

    @property
    def broad(self) -> bool:
        return self.lanes > 256

    @property
    def held(self) -> bool:
        """Sums that one warp of a decode holds."""
        return self.usual and self.shape.queries_per_kv <= 16 and self.small

    @property
    def ahead(self) -> bool:
        """Whether a decode over 8 bits asks for a tile while it works on the one before: page ids and what they lead to
        are (stages - 1) // 2 tiles ahead each. NVIDIA's larger GPUs."""
        return self.stored_in_8_bits and self.nvidia and self.gpu.shared_bytes > 160 * KIB

    @property
    def old(self) -> bool:
        """NVIDIA's before sm_90."""
        return self.nvidia and not self.tma

    @property
    def long_prompts(self) -> bool:
        return self.queries > 2048 and self.usual and self.roomy

    @cached_property
    def row_bytes(self) -> int:
        """Of one key and its value, as operands of a product."""
        lanes = power_of_two(self.shape.head_size) + power_of_two(self.shape.value_lanes)
        return lanes * self.shape.dtype.itemsize

    @property
    def small(self) -> bool:
        """Operands of at most 16 bits."""
        return self.shape.dtype.itemsize <= 2

    @property
    def stored_in_8_bits(self) -> bool:
        return self.shape.cache_dtype.itemsize == 1

    @property
    def stored_in_16_bits(self) -> bool:
        return self.shape.cache_dtype.itemsize == 2

    @property
    def roomy(self) -> bool:
        """Shared memory for tiles of 128 rows or keys in three stages."""
        return self.small and self.gpu.shared_bytes > 160 * KIB

    @property
    def tall(self) -> bool:
        """Heads of up to 256 where 128 rows take 8 warps: 64 for each group of four, 246 registers and no spill."""
        return self.wide and self.roomy and self.tma

    def fitting(self, wanted: int) -> int:
        """At most so many keys, fewer where one K and one V tile exceed half of the shared memory, or 80 KB."""
        while wanted > 16 and wanted * self.row_bytes > min(self.gpu.shared_bytes // 2, 80 * KIB):
            wanted //= 2
        return wanted

    def decode_keys(self, wanted: int) -> int:
        """Keys of a decode's tile; by MFMA 16 KB of K and V, so that LDS holds four programs of one wave.

        Beside TMA, of heads that are no power of two, 64 at most: 429 times 3 tokens over 209 keys of 20:4 heads of 80
        take 44 us for 63, 141 of up to 21,897 keys 844 for 897. By 128 keys they have 160 registers, heads of 128 126.
        """
        if not self.mfma:
            return self.fitting(min(wanted, 64) if self.tma and self.padded else wanted)
        return 32 if wanted >= 32 and 32 * self.row_bytes <= 16 * KIB else 16


def ends(programs: int, slots: int, tiles: int, segments: int, evenness: float = 1.0) -> float:
    """When the slot is done that ends last, in tiles: its tiles, a start for each of its programs, and one merge where
    there are several segments.

    Equal programs take `ceil(programs n / slots)` waves of `ceil(tiles / n)`. Of unequal ones (evenness: of the mean
    sequence, as a share of the longest) the next begins where one ends: the mean slot's tiles, and half of a program
    more (list scheduling, Graham 1969: at most a whole one). So 6 times 16 tokens over 2,300 to 4,674 keys take four
    segments a Q Block, 49 us on an H100, where one wave of two, the longest of which decides, takes 53.
    """
    programs, slots = max(programs, 1) * segments, max(slots, 1)
    each, waves = cdiv(max(tiles, 1), segments), cdiv(programs, slots)
    span = waves * each
    if waves > 1 and evenness < 1:
        span = min(span, (evenness * programs / slots + 0.5) * each)
    return span + waves * START + (MERGE if segments > 1 else 0)


def splits(programs: int, slots: int, tiles: int, most: int = MOST_SEGMENTS, evenness: float = 1.0) -> int:
    """How many segments a sequence's `tiles` are dealt to, so that `programs` times as many end soonest on `slots`.

    Flash-Decoding's split of keys (Dao et al., 2023) with FlashAttention's count of waves (num_splits_heuristic), but
    with what a program and a merge cost in place of a share of full waves: 85% full is no gain where tiles are few.
    Bytes in flight need no term: slots are full or a wave is one. Of numbers that a choice may have
    (`choice.few_segments`): the fewest within WORTH of the soonest.
    """
    allowed = [n for n in KEYS if n <= max(min(tiles, most), 1)]
    after = [ends(programs, slots, tiles, n, evenness) for n in allowed]
    return next(n for n, end in zip(allowed, after, strict=True) if end <= WORTH * min(after))


def filling(programs: int, slots: int, keys: int, least: int, most: int) -> int:
    """Segments that fill `slots` once, each of `least` keys at least: `splits` where a second wave is never worth it,
    for programs are few and long: 17 decodes of 4 KV heads over 4.6k keys are 34.2 us by 1,020 programs on the 1,056
    slots of an H200, 37.3 by 1,088."""
    return at_most(min(slots // max(programs, 1), keys // least, most))


def at_most(segments: int) -> int:
    """The largest number of segments that a choice may have and that is no larger; 1 for less."""
    return KEYS[max(bisect_right(KEYS, segments) - 1, 0)]


Take = Callable[[Situation], Any]


@dataclass(frozen=True)
class Rule:
    """`take` where `when` holds. name: what is gained, in positive words. evidence: run and rows, or what was compiled;
    empty where nothing was measured."""

    name: str
    when: Callable[[Situation], bool]
    take: Take
    evidence: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.evidence or 'not measured'})"


def always(_: Situation) -> bool:
    return True


class Rules(tuple[Rule, ...]):
    """A table; called as every chooser is, with a shape, stats and a GPU. The first rule that applies decides."""

    __slots__ = ()

    def __new__(cls, *rules: Rule) -> Rules:
        return super().__new__(cls, rules)

    def __call__(self, shape: AttentionShape, stats: BatchStats, gpu: Gpu | None, windowed: bool = False) -> Any:
        situation = Situation(shape, stats, gpu, windowed)
        return next(rule for rule in self if rule.when(situation)).take(situation)

    def told(self, situation: Situation) -> Sequence[Rule]:
        """The rule that decides, and those behind it that apply too."""
        return [rule for rule in self if rule.when(situation)]
