"""The public calls of dsl_triton: sm90_prefill.py is one kernel more to choose; `triton/native.auto` in comparisons.

Elsewhere than on Hopper GPUs, for whatever that kernel does not do, with `portable=True`, and with DIPTYCH_PORTABLE=1
in the environment, the choice is that of dsl_triton/auto.py, which comparisons call `triton/auto`.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import import_module
from typing import Any

from common.choice.learned import Candidate, Learned, Own, Question
from common.serving.call import PagedAttention
from common.serving.choice import MOST_CHOICES, RANKED, UNTUNED, Choice, Family
from common.serving.facade import FlashAttention
from common.serving.library import register
from common.serving.pieces import few_segments
from common.serving.plan import planner, sizer
from common.serving.winners import Timed, Winners, built
from common.spec import AttentionShape, Gpu
from common.spec.metadata import EVERY_KEY, BatchStats
from common.spec.toolchain import refusal
from dsl_triton import auto as portable
from dsl_triton import parallel_softmax, split
from dsl_triton.native import sm90_config, sm90_prefill

SUPPORTS = portable.SUPPORTS
CONTRACT = portable.CONTRACT
Config = Choice
DEFAULT = portable.DEFAULT
KERNEL = "native.sm90_prefill"
PORTABLE = "DIPTYCH_PORTABLE"  # 1 in the environment: never choose this kernel


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


@dataclass
class NativeFamily(Family):
    """dsl_triton's kernels, and one kernel more, whose config follows from the batch (sm90_config.py)."""

    # chooses for batches that this kernel does not serve
    others: Family = field(default_factory=lambda: portable.FAMILY)

    @property
    def portable(self) -> Family:
        return self.others

    def winners(self, gpu: Gpu) -> Winners:
        return self.others.winners(gpu)

    def learned(self, gpu: Gpu) -> Learned | None:
        return self.others.learned(gpu)

    def ranked_by(self, gpu: Gpu, ranking: Learned, firsts: dict[Any, Candidate | None]) -> Family:
        return replace(super().ranked_by(gpu, ranking, firsts), others=self.others.ranked_by(gpu, ranking, {}))

    def named(
        self, kernel: str, shape: AttentionShape, stats: BatchStats, gpu: Gpu | None, heuristics: str = "tree"
    ) -> Choice:
        if kernel != KERNEL:
            return self.others.named(kernel, shape, stats, gpu, heuristics)
        if gpu is None:
            return self.default(kernel, shape, stats, gpu)
        beside = self.others.named("unpaged", shape, stats, gpu, "learned").config.decode
        return _native(shape, stats, gpu, EVERY_KEY, beside)

    def choose(
        self,
        shape: AttentionShape,
        stats: BatchStats,
        gpu: Gpu | None,
        needs: frozenset[str] = frozenset(),
        heuristics: str = "tree",
        sees: int = EVERY_KEY,
    ) -> Choice:
        """As common.serving.choice.Family.choose. `others` chooses for batches that this kernel does not serve."""
        if self.allows(shape, gpu, needs) and heuristics in RANKED:
            found = super().choose(shape, stats, gpu, needs, heuristics, sees)
            if found.kernel == KERNEL or found.measured or not self.winners(gpu).has(shape):
                return found
        return self.others.choose(shape, stats, gpu, needs, heuristics, sees)

    def rank(
        self,
        shape: AttentionShape,
        many: Sequence[BatchStats],
        gpu: Gpu | None,
        needs: frozenset[str] = frozenset(),
        sees: int = EVERY_KEY,
    ) -> None:
        """As common.serving.choice.Family.rank. Batches that go to a portable kernel keep that rank in `others`."""
        if not self.allows(shape, gpu, needs):
            return self.others.rank(shape, many, gpu, needs, sees)
        super().rank(shape, many, gpu, needs, sees)
        mine, theirs = (of.question(shape, gpu, needs, sees) for of in (self, self.others))
        for (question, stats), first in self._firsts.items():
            if question == mine and first is not None and first.kernel != KERNEL:
                self.others._firsts.setdefault((theirs, stats), first)

    def own(self, question: Question) -> Own | None:
        shape, gpu, sees = question.shape, question.gpu, question.sees
        if KERNEL not in question.kernels or not self.allows(shape, gpu, frozenset()):
            return None

        def config(stats: BatchStats, beside: Mapping[str, Any] | None) -> dict[str, Any]:
            made = sm90_config.default(shape, stats, gpu, sees, _decode(tuple((beside or {}).items())))
            return vars(made) | {name: dict(vars(getattr(made, name))) for name in ("prefill", "decode")}

        return Own(KERNEL, config)

    def _of_logs(self, candidate: Candidate, known: Learned, question: Question, stats: BatchStats) -> Choice:
        """This kernel's config from the exact counts of the batch; it was ranked by counts that were rounded up."""
        choice = super()._of_logs(candidate, known, question, stats)
        if candidate.kernel != KERNEL:
            return choice
        own = _native(question.shape, stats, question.gpu, question.sees, choice.config.decode)
        return replace(choice, config=own.config)

    def keep_times(self, shape: AttentionShape, stats: BatchStats, gpu: Gpu, timed: Sequence[Timed], row: str) -> None:
        """As Family.keep_times. Also keeps the fastest portable kernel, for calls with portable=True."""
        super().keep_times(shape, stats, gpu, timed, row)
        others = self.others
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


@lru_cache
def _decode(config: tuple[tuple[str, Any], ...]) -> parallel_softmax.Config:
    return built(parallel_softmax.DEFAULT, dict(config), older=True)


@lru_cache(MOST_CHOICES)
def _native(shape: AttentionShape, stats: BatchStats, gpu: Gpu, sees: int, beside: parallel_softmax.Config) -> Choice:
    config = sm90_config.default(shape, stats, gpu, sees, beside)
    return Choice(KERNEL, few_segments(config, shape, stats), "native/sm90_config.py", UNTUNED)


def _load(name: str) -> Any:
    return Sm90Prefill if name == KERNEL else import_module(f"..{name}", __package__)


FAMILY = NativeFamily("triton_native", (*portable.KERNELS, KERNEL), _load, of="native.auto", fixed=(1,))
paged_attention = PagedAttention(FAMILY)
register(FAMILY.name, paged_attention)
flash_attention = FlashAttention(paged_attention)
flash_attn_varlen_func = flash_attention.flash_attn_varlen_func
flash_attn_with_kvcache = flash_attention.flash_attn_with_kvcache
plan_paged_attention = planner(FAMILY)
workspace_bytes = sizer(FAMILY)

choose, space, workspace = FAMILY.choose, FAMILY.space, FAMILY.workspace
prepare, launch = FAMILY.prepare, FAMILY.launch
