"""The public calls with sm90_prefill.py among what may be chosen; `triton/native.auto`, in a column of its own.

    from dsl_triton.native import paged_attention, plan_paged_attention

Elsewhere than on Hopper GPUs, and for whatever that kernel does not do, the choice is dsl_triton's own.
"""

from functools import lru_cache
from importlib import import_module
from typing import Any

from common.gpus import Gpu
from common.serving.call import PagedAttention
from common.serving.choice import UNTUNED, Choice, Family, few_segments
from common.serving.facade import FlashAttention
from common.serving.grid import on_grid
from common.serving.library import register
from common.serving.plan import planner, sizer
from common.spec import AttentionShape
from common.spec.metadata import EVERY_KEY, SHORT_QUERY, BatchStats
from common.spec.toolchain import refusal
from dsl_triton import auto as portable
from dsl_triton import split
from dsl_triton.handle import recorded
from dsl_triton.heuristics.generic import default
from dsl_triton.native import sm90_prefill

SUPPORTS = portable.SUPPORTS
CONTRACT = portable.CONTRACT
Config = Choice
DEFAULT = portable.DEFAULT
KERNEL = "native.sm90_prefill"
# Keys of the longest sequence above which a batch with prompts takes it: on an H200 (docs/results/h200/native-items,
# 16-bit heads of 128) it needs 0.71 to 0.83 of dsl_triton's time at up to 1024 and 2048 keys, at 512 1.13.
FEW_KEYS = 512


class Sm90Prefill:
    """sm90_prefill.py, and `split`, which has no scratch, for tensors over which no boxes can be laid."""

    SUPPORTS, CONTRACT, DEFAULT = sm90_prefill.SUPPORTS, sm90_prefill.CONTRACT, sm90_prefill.DEFAULT
    workspace = staticmethod(sm90_prefill.workspace)

    @staticmethod
    def launch(batch, features, out, config, workspace, *, lse=None) -> None:
        if sm90_prefill.is_boxed(batch, out):
            sm90_prefill.launch(batch, features, out, config, workspace, lse=lse)
        else:
            split.launch(batch, features, out, split.DEFAULT, None, lse=lse)


class NativeFamily(Family):
    """dsl_triton's kernels and trees, and one kernel more."""

    def named(self, kernel: str, shape: AttentionShape, stats: BatchStats, gpu: Gpu | None) -> Choice:
        if kernel == KERNEL:
            return _native(shape, stats, gpu) if gpu else super().named(kernel, shape, stats, gpu)
        return portable.FAMILY.named(kernel, shape, stats, gpu)

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
            and needs <= sm90_prefill.SUPPORTS
            and sm90_prefill.serves(shape, gpu)
            and refusal(sm90_prefill.NAME, gpu.arch) is None
        ):
            stats = on_grid(stats.num_seqs, stats.num_decodes, stats.max_query_len, stats.max_seq_len)
            if stats.max_query_len > SHORT_QUERY and stats.max_seq_len > FEW_KEYS:
                return _native(shape, stats, gpu)
        return portable.FAMILY.choose(shape, stats, gpu, needs, heuristics, sees)


@lru_cache(4096)
def _native(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> Choice:
    config = sm90_prefill.default(default, shape, stats, gpu)
    return Choice(KERNEL, few_segments(config, shape, stats), "native/auto.py", UNTUNED)


def _load(name: str) -> Any:
    return Sm90Prefill if name == KERNEL else import_module(f"dsl_triton.{name}")


FAMILY = NativeFamily("triton_native", (*portable.KERNELS, KERNEL), _load, recorded)
paged_attention = PagedAttention(FAMILY)
register(FAMILY.name, paged_attention)
flash_attention = FlashAttention(paged_attention)
flash_attn_varlen_func = flash_attention.flash_attn_varlen_func
flash_attn_with_kvcache = flash_attention.flash_attn_with_kvcache
plan_paged_attention = planner(FAMILY)
workspace_bytes = sizer(FAMILY)

choose, space, workspace, launch = FAMILY.choose, FAMILY.space, FAMILY.workspace, FAMILY.launch
