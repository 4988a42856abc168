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
from common.spec.metadata import EVERY_KEY, BatchStats
from common.spec.toolchain import refusal
from dsl_triton import auto as portable
from dsl_triton import split
from dsl_triton.handle import recorded
from dsl_triton.heuristics.generic import default
from dsl_triton.native import sm90_prefill
from dsl_triton.native.sm90_boxes import ROWS
from dsl_triton.native.sm90_config import group_heads, tokens_of_block

SUPPORTS = portable.SUPPORTS
CONTRACT = portable.CONTRACT
Config = Choice
DEFAULT = portable.DEFAULT
KERNEL = "native.sm90_prefill"
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
    """Prompts over so many keys at most are dsl_triton's: of padded heads 143 of 43 tokens are 48 us here, 45 there,
    and 363 of 89 are 212 and 320. Of wide heads the tiles decide alone."""
    return 0 if s.wide else 64 if _padded(s) else 128


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


class Drafts(NamedTuple):
    """Short queries that are faster as items of this kernel: more rows of a Q Block, at most so many, over so many
    keys."""

    more_than: int
    rows: int
    keys: int


# Portable tiles of padded and wide heads are padded, or spill. 57 of 12 tokens of 32:4 heads of 256 in a window of 512
# take 57.9 us, in q_block 77.4; 2 of 9 over 14.8k keys of 32:4 of 80 23.7 and 30.7; but 8 of 3 of 128:8 of 80 (48 rows)
# are even, and 166 of 2 over 234 keys of 80:16 of 96 118 and 77.
PADDED_OR_WIDE = Drafts(32, ROWS, 512)
# 160 of 12 tokens over 1k keys of 16:2 heads (96 rows) 52.4 us and 65.2, 16 of 16 of 64:8 26.4 and 29.3; of 64 rows
# 16 of 16 over 16k keys of 32:8 237 and 216.
FULL = Drafts(64, ROWS, 768)
# 93 of 3 tokens over 2.9k keys of 48:8 heads (18 rows) 138 us and 161, 28 of 4 over 12.7k 184 and 222; of 40 rows 16 of
# 8 over 8k of 40:8 84.0 and 74.3, over 1k keys 200 of 8 of 32:8 (32 rows) 130 and 120.
NARROW = Drafts(16, 32, 2048)


def _drafts(s: Situation) -> bool:
    """Short queries that are faster here."""
    rows = min(s.queries, tokens_of_block(s.shape)) * group_heads(s.shape)
    found = NARROW if s.narrow else PADDED_OR_WIDE if s.padded or s.wide else FULL
    return s.short and found.more_than < rows <= found.rows and s.keys > found.keys


# Whether a batch that the kernel can serve takes it.
TAKES = Rules(
    Rule(
        "prompts over more than 128 keys, 64 of padded heads, and four tiles a unit, 12 to 160 of few rows, few Q"
        " Blocks or 64 lanes; fewer of more than 128 lanes; no chunks of one and a half Q Blocks: the Gluon kernel",
        lambda s: (
            not s.short and s.keys > _few_keys(s) and untuned.tiles_a_unit(s) > _few_tiles(s) and not _one_and_a_half(s)
        ),
        lambda s: True,
        "sweeps/native_items.jsonl, steps planned once: 0.84 of dsl_triton's time at q512 (8 tiles a unit), 0.59 at"
        " 32q256, 0.73 at q8k; 4 of 317 tokens of 8 heads (3 tiles) on an H100 12.3 to 16.5 us for 10.8",
    ),
    Rule(
        "short queries of more than 64 rows over 768 keys, 32 over 512 of padded and wide heads, 16 over 2048 of 64"
        " lanes: the Gluon kernel, in segments",
        _drafts,
        lambda s: True,
        "328 of up to 15 tokens over up to 26k keys of 128:8 heads of 96 2.45 ms, in parallel_softmax 4.11",
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
