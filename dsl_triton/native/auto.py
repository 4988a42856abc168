"""The public calls of dsl_triton: sm90_prefill.py where it is measured faster; `triton/native.auto` in comparisons.

Elsewhere than on Hopper GPUs, for whatever that kernel does not do, with `portable=True`, and with DIPTYCH_PORTABLE=1
in the environment, the choice is that of dsl_triton/auto.py, which comparisons call `triton/auto`.
"""

import os
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

from common.gpus import Gpu
from common.serving import untuned
from common.serving.call import PagedAttention
from common.serving.choice import UNTUNED, Choice, Family, few_segments
from common.serving.facade import FlashAttention
from common.serving.grid import decided_by, seen
from common.serving.library import register
from common.serving.measured import Table
from common.serving.plan import planner, sizer
from common.serving.rules import Rule, Rules, Situation, always
from common.spec import AttentionShape
from common.spec.metadata import EVERY_KEY, BatchStats, cdiv
from common.spec.toolchain import refusal
from dsl_triton import auto as portable
from dsl_triton import split
from dsl_triton.handle import recorded
from dsl_triton.heuristics.generic import default
from dsl_triton.native import sm90_prefill
from dsl_triton.native.sm90_boxes import ROWS
from dsl_triton.native.sm90_config import group_heads, head_groups, tokens_of_block

SUPPORTS = portable.SUPPORTS
CONTRACT = portable.CONTRACT
Config = Choice
DEFAULT = portable.DEFAULT
KERNEL = "native.sm90_prefill"
TILE_LANES = 128 * 128  # of K, and of V, in a tile of 64 KB of both
PORTABLE = "DIPTYCH_PORTABLE"  # 1 in the environment: this kernel never
# Of 64 rows by 64 keys a unit: up to so many, its plan and its launch take longer than what they save. More of fewer Q
# Blocks of 64 rows than units, of up to 128 lanes (four of 80 tokens in a window of 512 of 16:4 heads, 7 tiles, on an
# H100 19.9 us, in parallel_softmax 15.3), of chunks of few rows, which leave its Q Blocks half empty, and of those
# beside decodes, which are a launch too: 21 of 18 tokens over 243 keys of ratio 7 (9 tiles, two Q Blocks each then)
# 24.5 us, in q_block 19.7; 16 sequences of up to 50 tokens over 586 keys (23 tiles) 38.1 and 34.0; but one of 310 and a
# decode of 128:32 heads of 96 (12 tiles, 1240 rows) 21.6 for 33.0. Of fewer rows than a Q Block has, beside decodes, 12
# sequences of up to 27 tokens in a window of 1024 (127 tiles) 66.8 us, in parallel_softmax 27.0. Of 64 lanes, whose
# tiles are half as long, of 257 to 1024 rows: nine prompts of 69 behind up to 160 keys of 48:8 heads (13 tiles) 19.0
# and 11.1, five of 66 in a window of 512 (31 tiles) 25.8 and 16.7; but six of 244 (24 tiles, 1952 rows) 23.9 and 25.2.
# Of padded heads, whose portable products are of 128 lanes, by Q Blocks of fewer than four a unit: one prompt of 258 of
# 128:8 heads of 80 (12 tiles) 17.5 and 15.1, two of up to 347 and a decode of 12:2 in a window of 512 (14 tiles) 24.7
# and 20.0.
FEW_TILES, FEW_OF_CHUNKS, FEW_BESIDE_DECODES, FEW_OF_HALF_EMPTY, FEW_ROWS = 4, 12, 24, 160, 256
FEW_OF_64_LANES, ROWS_OF_64_LANES = 40, 1024
FEW_OF_PADDED, BLOCKS_OF_PADDED = 15, 4  # Q Blocks of 64 rows a unit
# Of more than 128 lanes, by keys: of 64 and fewer 18 prompts of 63 tokens (2 tiles) 31.8 us for 27.5, 200 of 33 (9 and
# 11 tiles) 97 for 112 and 128 for 133; of 128, 16 prompts (4 tiles) 25.3 for 29.1; of 407, two of 18 (0.8) 14.0 for 23.
FEW_OF_WIDE = ((64, 6), (256, 3))


def _padded(s: Situation) -> bool:
    """Heads whose portable tiles have 128 lanes and are not full."""
    return s.full and s.padded


def _few_keys(s: Situation) -> int:
    """Prompts over so many keys at most are dsl_triton's: 99 of 25 tokens of 64:8 heads of 64 are 30.4 us here, 23.7
    there; of more lanes 102 of 44 of 64:16 are 74.0 and 83.5, 143 of 43 of 32:4 of 80 41.1 and 45.3. Of wide heads the
    tiles decide alone."""
    return 0 if s.wide else 128 if s.narrow else 40


def _few_tiles(s: Situation) -> int:
    if s.wide:
        return next((tiles for keys, tiles in FEW_OF_WIDE if s.keys <= keys), 0)
    if s.narrow and FEW_ROWS < s.rows <= ROWS_OF_64_LANES:
        return FEW_OF_64_LANES
    if s.rows > FEW_ROWS:
        if _padded(s) and s.long_blocks(64) < BLOCKS_OF_PADDED * s.units:
            return FEW_OF_PADDED
        return FEW_OF_CHUNKS if s.long_blocks(64) < s.units else FEW_TILES
    if not s.stats.num_decodes:
        return FEW_OF_CHUNKS
    return FEW_OF_HALF_EMPTY if s.rows < FEW_ROWS // 2 else FEW_BESIDE_DECODES


def _one_and_a_half(s: Situation) -> bool:
    """Chunks over contexts of more than one of its Q Blocks, and at most one and a half: two of 128 rows, in
    parallel_softmax two or three of 64. Nine of 20 tokens over 65k keys of 112:16 heads on an H100 2739 us, there 2350.
    Beside decodes this kernel gains: 69 sequences of up to 24 tokens of 48:8 heads, three of them decodes, 1035 and
    1443; prompts without a context were not timed, nor padded heads."""
    tokens = tokens_of_block(s.shape)
    chunks = s.prompt_keys >= 2 * s.queries and not s.stats.num_decodes
    return s.full and not s.padded and chunks and tokens < s.queries <= tokens * 3 // 2


class Reads(NamedTuple):
    """Short queries that are faster as items of this kernel: over more than so many keys, where a unit reads at least
    so many tiles of 64 KB."""

    keys: int
    tiles: int


# Rows of a decode, up to sixteen, gain little: 100 of 16:4 heads in a window of 512 (768 keys, 18 tiles) take 45.0 us,
# in q_block 41.1, and five over 4.5k keys of 32:8 of 64 (5 tiles) 19.0 and 16.3; but 32 over 8k of 32:8 (124) 241.8 for
# 254.7, 88 of 24:4 of 96 over 5.2k (72) 144 for 167, and five of 16:4 of 256 over 5.5k (13) 35.0 for 40.5.
DECODES = Reads(768, 12)
# Portable programs of drafts pad and wait: 16 of 3 tokens over up to 1k keys of 64:8 heads of 64 (3 tiles) 13.5 us for
# 21.8, 21 of 6 over 9.5k of 64:16 (153) 294 for 358; in a window of 512 39 of 9 of 64:8 of 96 (768 keys) 82.7 for 53.9.
DRAFTS = Reads(768, 2)
# Their sums spill: 57 of 12 of 32:4 of 256 in that window 54.5 us for 77.1.
WIDE_DRAFTS = Reads(512, 2)
DECODE_ROWS = 16
NARROW_ROWS = ROWS // 2  # of 64 lanes, whose tiles are soon read: both halves of the rows at once were not timed since


def _reads(s: Situation) -> bool:
    """Short queries that are faster here."""
    tokens = tokens_of_block(s.shape)
    rows = min(s.queries, tokens) * group_heads(s.shape)
    blocks = cdiv(s.queries, tokens) * s.shape.num_kv_heads * head_groups(s.shape)
    tiles = s.stats.total_seq_len * blocks * s.shape.head_size / TILE_LANES / s.units
    found = DECODES if rows <= DECODE_ROWS else WIDE_DRAFTS if s.wide else DRAFTS
    fits = rows <= NARROW_ROWS or not s.narrow
    return s.short and fits and s.keys > found.keys and tiles >= found.tiles


# Whether a batch that the kernel can serve takes it.
TAKES = Rules(
    Rule(
        "prompts over more than 40 keys, 128 of 64 lanes, and four tiles a unit, 12 to 160 of few rows, few Q"
        " Blocks or 64 lanes; fewer of more than 128 lanes; no chunks of one and a half Q Blocks: the Gluon kernel",
        lambda s: (
            not s.short and s.keys > _few_keys(s) and untuned.tiles_a_unit(s) > _few_tiles(s) and not _one_and_a_half(s)
        ),
        lambda s: True,
        "sweeps/native_items.jsonl, steps planned once: 0.84 of dsl_triton's time at q512 (8 tiles a unit), 0.59 at"
        " 32q256, 0.73 at q8k; 4 of 317 tokens of 8 heads (3 tiles) on an H100 12.3 to 16.5 us for 10.8",
    ),
    Rule(
        "short queries over more than 768 keys, 512 of wide drafts, of which a unit reads two tiles of 64 KB, 12 of"
        " decodes: the Gluon kernel, in segments",
        _reads,
        lambda s: True,
        "sweeps/native_short.jsonl, steps planned once: on 97 rows of decodes and drafts this choice takes 0.94 of the"
        " time of dsl_triton's, and 1.6% more than the faster of both",
    ),
    Rule("short queries and short prompts: dsl_triton's own choice", always, lambda s: False),
)


class Sm90Prefill:
    """sm90_prefill.py, and `split`, which has no scratch, for tensors that it can't take."""

    SUPPORTS, CONTRACT, DEFAULT = sm90_prefill.SUPPORTS, sm90_prefill.CONTRACT, sm90_prefill.DEFAULT
    workspace = staticmethod(sm90_prefill.workspace)
    prepare = staticmethod(sm90_prefill.prepare)

    @staticmethod
    def launch(batch, features, out, config, workspace, *, lse=None) -> None:
        if sm90_prefill.takes(batch, features, out):
            sm90_prefill.launch(batch, features, out, config, workspace, lse=lse)
        else:
            split.launch(batch, features, out, split.DEFAULT, None, lse=lse)


class NativeFamily(Family):
    """dsl_triton's kernels and trees, and one kernel more."""

    @property
    def portable(self) -> Family:
        return portable.FAMILY

    def table(self, gpu: Gpu) -> Table | None:
        return portable.FAMILY.table(gpu)

    def named(
        self, kernel: str, shape: AttentionShape, stats: BatchStats, gpu: Gpu | None, heuristics: str = "tree"
    ) -> Choice:
        if kernel == KERNEL:
            return _native(shape, stats, gpu) if gpu else super().named(kernel, shape, stats, gpu)
        return portable.FAMILY.named(kernel, shape, stats, gpu, heuristics)

    def choose(
        self,
        shape: AttentionShape,
        stats: BatchStats,
        gpu: Gpu | None,
        needs: frozenset[str] = frozenset(),
        heuristics: str = "tree",
        sees: int = EVERY_KEY,
    ) -> Choice:
        """As common.serving.choice.Family.choose."""
        if (
            gpu is not None
            and os.environ.get(PORTABLE) != "1"
            and needs <= sm90_prefill.SUPPORTS
            and sm90_prefill.serves(shape, gpu)
            and refusal(sm90_prefill.NAME, gpu.arch) is None
        ):
            told = seen(decided_by(stats), sees)
            if TAKES(shape, told, gpu):
                return _native(shape, told, gpu, sees)
        return portable.FAMILY.choose(shape, stats, gpu, needs, heuristics, sees)


@lru_cache(4096)
def _native(shape: AttentionShape, stats: BatchStats, gpu: Gpu, sees: int = EVERY_KEY) -> Choice:
    config = sm90_prefill.default(default, shape, stats, gpu, sees)
    return Choice(KERNEL, few_segments(config, shape, stats), "native/auto.py", UNTUNED)


def _load(name: str) -> Any:
    return Sm90Prefill if name == KERNEL else import_module(f"..{name}", __package__)


FAMILY = NativeFamily("triton_native", (*portable.KERNELS, KERNEL), _load, recorded)
paged_attention = PagedAttention(FAMILY)
register(FAMILY.name, paged_attention)
flash_attention = FlashAttention(paged_attention)
flash_attn_varlen_func = flash_attention.flash_attn_varlen_func
flash_attn_with_kvcache = flash_attention.flash_attn_with_kvcache
plan_paged_attention = planner(FAMILY)
workspace_bytes = sizer(FAMILY)

choose, space, workspace = FAMILY.choose, FAMILY.space, FAMILY.workspace
prepare, launch = FAMILY.prepare, FAMILY.launch
