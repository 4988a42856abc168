"""The public calls of dsl_triton: sm90_prefill.py where it is measured faster; `triton/native.auto` in comparisons.

Elsewhere than on Hopper GPUs, for whatever that kernel does not do, with `portable=True`, and with DIPTYCH_PORTABLE=1
in the environment, the choice is that of dsl_triton/auto.py, which comparisons call `triton/auto`.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

from common.choice.learned import COUNT
from common.serving import untuned
from common.serving.call import PagedAttention
from common.serving.choice import UNTUNED, Choice, Family, Timed, distinct, few_segments
from common.serving.facade import FlashAttention
from common.serving.grid import decided_by, seen
from common.serving.library import register
from common.serving.plan import planner, sizer
from common.serving.rules import Rule, Rules, Situation, always
from common.serving.winners import Winners
from common.spec import AttentionShape, Gpu
from common.spec.metadata import EVERY_KEY, BatchStats, cdiv
from common.spec.toolchain import refusal
from dsl_triton import auto as portable
from dsl_triton import split
from dsl_triton.handle import recorded
from dsl_triton.heuristics.generic import default
from dsl_triton.native import sm90_prefill
from dsl_triton.native.sm90_boxes import ROWS
from dsl_triton.native.sm90_config import group_heads, head_groups, prompt_items, tokens_of_block

SUPPORTS = portable.SUPPORTS
CONTRACT = portable.CONTRACT
Config = Choice
DEFAULT = portable.DEFAULT
KERNEL = "native.sm90_prefill"
PORTABLE = "DIPTYCH_PORTABLE"  # 1 in the environment: this kernel never


class Least(NamedTuple):
    """What prompts have to exceed: keys, and tiles of 64 rows by 64 keys a unit where decodes are beside them, where
    they have at least MANY_BLOCKS Q Blocks a unit, and where they have fewer. With less the plan and the launch take
    longer than they save."""

    keys: int
    mixed: float
    many_blocks: float
    few_blocks: float


MANY_BLOCKS = 4  # a unit
# Here and there, us: 327 prompts of 22 tokens of 32:8 heads (24 keys, 8 tiles) 66.2 and 77.0, 32 of 37 of 64:4 (4.8 Q
# Blocks, 3.3) 20.3 and 27.0; 11 of 63 of 56:8 (2.7 Q Blocks, 2.4) 18.9 and 15.4, five of 50 over 740 keys of 8:2 (3.5)
# 16.1 and 11.1, one of 512 of 32:8 (7.8) 14.2 and 16.3; beside decodes 57 of up to 430 of 10:2 (7.9) 19.3 and 21.4, 26
# of up to 41 of 32:8 (5.3) 19.5 and 19.2, eight of 138 of 28:4 (1.4) 10.8 and 8.4.
USUAL = Least(20, 5, 2.5, 7)
# Chunks of less than a Q Block: 13 of up to 24 tokens of 40:8 heads (13 tiles) 27.7 and 19.5, 25 of 22 of 16:4 (30)
# 62.4 and 64.1, 19 of 27 (46) 30.8 and 58.5.
CHUNKS = USUAL._replace(mixed=24)
# 153 of 52 tokens of 8:2 heads of 96 (4.6 Q Blocks, 4.3 tiles) 17.7 and 23.4, 145 of 29 of 40:8 (32 keys) 62.7 and
# 53.4, ten of 66 of 12:2 of 80 (6.9) 13.2 and 18.3, four of 34 over 844 keys of 16:2 (4.2) 15.6 and 11.6, beside
# decodes three of up to 27 of 16:8 (3.9) 15.9 and 19.7, 31 of 96 of 8:8 (1.8) 13.4 and 10.2. This loses three of 81 of
# 28:4 of 80 in a window of 512 (9.3): 19.6 and 16.1.
PADDED = Least(40, 2, 4, 6)
# Seven of up to 89 tokens of 64:8 heads (1.7 tiles) 11.5 and 22.9, 36 of 40 (3.4) 47.3 and 53.9, two of 139 (3.1) 15.0
# and 18.5; four of up to 17 of 32:4 (0) 9.1 and 6.5.
WIDE = Least(0, 1.5, 1.5, 1.5)
# Tiles of 64 lanes are half as long. 53 of up to 119 tokens of 16:1 heads (1904 rows, 6.2 tiles) 14.8 and 21.3; up to
# 1024 rows nine of 69 of 48:8 (13) 16.6 and 11.5, 40 of up to 65 beside decodes (25) 15.4 and 13.1, five of 66 in a
# window of 512 of 64:8 (31) 24.7 and 16.8; of more tiles nothing was timed.
NARROW = Least(128, 4, 4, 4)
FEW_ROWS_OF_NARROW = NARROW._replace(mixed=40, many_blocks=40, few_blocks=40)
ROWS_OF_NARROW = 1024


def _least(s: Situation) -> Least:
    if s.wide:
        return WIDE
    if s.narrow:
        return NARROW if s.rows > ROWS_OF_NARROW else FEW_ROWS_OF_NARROW
    if s.padded:
        return PADDED
    return USUAL if s.rows >= ROWS else CHUNKS


def _prompts(s: Situation) -> bool:
    """Prompts that are faster here."""
    least = _least(s)
    alone = least.many_blocks if prompt_items(s) >= MANY_BLOCKS * s.units else least.few_blocks
    tiles = least.mixed if s.stats.num_decodes else alone
    return not s.short and s.keys > least.keys and untuned.tiles_a_unit(s) > tiles


TILE_LANES = 128 * 128  # of K, and of V, in a tile of 64 KB of both


class Reads(NamedTuple):
    """Short queries that are faster as items of this kernel: over more than so many keys, where a unit reads at least
    so many tiles of 64 KB."""

    keys: int
    tiles: float


# Up to sixteen rows, those of decodes, gain little, and a call that makes its own plan pays a launch of 3 us for it: 32
# decodes of up to 2k keys of 32:8 heads (27 tiles) take 54.9 us, in q_block 59.2, one of 32k (15) 42.7 and 39.9, 256
# of up to 1k (93) 201 and 194; but 32 of up to 8k (109) 194 for 200, 64 of up to 4k of 28:4 (54) 102 for 110, 88 of
# 24:4 of 96 over 5.2k (72) 144 for 167, and two of 75k of 32:8 of 64 (34) 74.7 for 80.6.
FEW_ROWS = 16
FEW_ROWS_READ = Reads(1024, 32)
# More rows the portable programs pad and wait for: 16 drafts of 3 tokens over up to 1k keys of 64:8 heads of 64 (3
# tiles) 13.5 us for 21.8, 21 of 6 over 9.5k of 64:16 (153) 294 for 358, 30 of 14 over 3k of 48:8 of 64 (22) 67.7 for
# 143, 305 of 9 over 355 of 128:16 (78) 261 for 437, 50 of 12 over 250 of 32:2 (1.5) 15.5 for 19.3, 80 of 8 over 120 of
# 64:8 (4.7) 24.1 for 28.5; but 30 of 12 over 500 of 32:8 of 64 (3.6) 16.2 for 15.6.
ROWS_READ = Reads(100, 1.5)
# A window's first and last tile are masked, and V is cleared there: in one of 512, 39 of 9 of 64:8 of 96 take 82.7 for
# 53.9, ten of 9 of 16:4 19.6 for 13.4, but 57 of 12 of 32:4 of 256 54.5 for 77.1.
WINDOWED_KEYS = 768
# Sums of wide heads spill there: 16 of 16 over 64 keys of 16:8 of 256 (0.97 tiles) 7.5 us for 10.2, 40 of 12 over 120
# of 16:2 (1.2) 11.4 for 14.1, but four of 16 over 500 (0.5) 17.7 for 14.6.
WIDE_ROWS_READ = Reads(60, 0.9)


def _keeps_up(s: Situation, rows: int) -> bool:
    """Whether the GPU multiplies a key by the rows that this kernel pads to, half of them where the others stand by, in
    the time that K and V of it take to come; as all that were timed do, and a GPU of unknown peaks is taken to. An H20
    does 37 operations a byte, where one half asks for 64."""
    known, most = s.gpu.flops_per_byte, ROWS // 2 if rows <= ROWS // 2 else ROWS
    return known is None or known >= 2 * most / s.shape.cache_dtype.itemsize


def _reads(s: Situation) -> bool:
    """Short queries that are faster here."""
    tokens = tokens_of_block(s.shape)
    rows = min(s.queries, tokens) * group_heads(s.shape)
    blocks = cdiv(s.queries, tokens) * s.shape.num_kv_heads * head_groups(s.shape)
    tiles = s.stats.total_seq_len * blocks * s.shape.head_size / TILE_LANES / s.units
    found = FEW_ROWS_READ if rows <= FEW_ROWS else WIDE_ROWS_READ if s.wide else ROWS_READ
    least = max(found.keys, WINDOWED_KEYS) if s.windowed and not s.wide else found.keys
    return s.short and s.keys > least and tiles >= found.tiles and _keeps_up(s, rows)


# Whether a batch that the kernel can serve takes it.
TAKES = Rules(
    Rule(
        "prompts over more than 20 keys, 40 of padded heads, 128 of 64 lanes, any of wide ones, and 1.5 to 40 tiles a"
        " unit, by lanes, decodes and Q Blocks: the Gluon kernel",
        _prompts,
        lambda s: True,
        "sweeps/native_half.jsonl and native_few.jsonl, steps planned once: on 130 rows of prompts and mixed batches,"
        " 61 of up to 10 tiles a unit, this choice takes 0.4% more than the faster of both, each at its least time",
    ),
    Rule(
        "short queries over more than 100 keys (768 in a window), 1024 of up to 16 rows and 60 of more of wide heads,"
        " of which a unit reads 1.5 tiles of 64 KB, 32 of up to 16 rows and 0.9 of more of wide heads, where the GPU"
        " does the 64 or 128 operations a byte that the rows ask for: the Gluon kernel, in segments",
        _reads,
        lambda s: True,
        "sweeps/native_half.jsonl, steps planned once: on 95 rows of decodes and drafts this choice takes 0.94 of the"
        " time of dsl_triton's, and 0.7% more than the faster of both",
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

    def winners(self, gpu: Gpu) -> Winners:
        return portable.FAMILY.winners(gpu)

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
        if self.allows(shape, gpu, needs):
            decided = decided_by(stats)
            told = seen(decided, sees)
            if heuristics == "tree" and (won := self._won(shape, told, gpu, None)):
                won = self.serving(won, needs, gpu, told, shape)
                return replace(won, config=few_segments(won.config, shape, told))
            if TAKES(shape, told, gpu, told is not decided):
                return _native(shape, told, gpu, sees)
        return portable.FAMILY.choose(shape, stats, gpu, needs, heuristics, sees)

    def keep_times(self, shape: AttentionShape, stats: BatchStats, gpu: Gpu, timed: Sequence[Timed], row: str) -> None:
        """As Family.keep_times; and of the portable kernels for those who ask for these alone."""
        super().keep_times(shape, stats, gpu, timed, row)
        others = portable.FAMILY
        if not others.is_measured(shape, stats, gpu):
            first = others.choose(shape, stats, gpu)
            of_them = [one for one in timed if one.choice.kernel != KERNEL]
            others.keep_times(shape, stats, gpu, sorted(of_them, key=lambda one: one.choice != first), row)

    def allows(self, shape: AttentionShape, gpu: Gpu | None, needs: frozenset[str]) -> bool:
        """Whether the kernel may serve such a batch here."""
        return (
            gpu is not None
            and os.environ.get(PORTABLE) != "1"
            and needs <= sm90_prefill.SUPPORTS
            and sm90_prefill.serves(shape, gpu)
            and refusal(sm90_prefill.NAME, gpu.arch) is None
        )

    def candidates(
        self,
        shape: AttentionShape,
        stats: BatchStats,
        gpu: Gpu,
        needs: frozenset[str] = frozenset(),
        sees: int = EVERY_KEY,
        count: int = COUNT,
    ) -> list[Choice]:
        """As Family.candidates, with this kernel among them."""
        first = self.choose(shape, stats, gpu, needs, sees=sees)
        told = seen(decided_by(stats), sees)
        native = [_native(shape, told, gpu, sees)] if self.allows(shape, gpu, needs) else []
        others = portable.FAMILY.candidates(shape, stats, gpu, needs, sees, count)
        return distinct([first, *native, *others])[:count]


@lru_cache(4096)
def _native(shape: AttentionShape, stats: BatchStats, gpu: Gpu, sees: int = EVERY_KEY) -> Choice:
    config = sm90_prefill.default(default, shape, stats, gpu, sees)
    return Choice(KERNEL, few_segments(config, shape, stats), "native/auto.py", UNTUNED)


def _load(name: str) -> Any:
    return Sm90Prefill if name == KERNEL else import_module(f"..{name}", __package__)


FAMILY = NativeFamily("triton_native", (*portable.KERNELS, KERNEL), _load, recorded, of="native.auto")
paged_attention = PagedAttention(FAMILY)
register(FAMILY.name, paged_attention)
flash_attention = FlashAttention(paged_attention)
flash_attn_varlen_func = flash_attention.flash_attn_varlen_func
flash_attn_with_kvcache = flash_attention.flash_attn_with_kvcache
plan_paged_attention = planner(FAMILY)
workspace_bytes = sizer(FAMILY)

choose, space, workspace = FAMILY.choose, FAMILY.space, FAMILY.workspace
prepare, launch = FAMILY.prepare, FAMILY.launch
