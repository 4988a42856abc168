"""The decision (paper 5): a tree over host integers picks a kernel of this folder and its config, and launches it.

`paged_attention` is the public call; `plan_paged_attention` the one for serving, which owns its scratch.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch

from common.call import PagedAttention
from common.choice import Choice, Family
from common.facade import FlashAttention
from common.gpus import Gpu
from common.kernel import Capacity, Precision, asked_of
from common.library import register
from common.metadata import EVERY_KEY, BatchStats
from common.plan import planner
from common.spec import AttentionShape, Features, PagedBatch
from dsl_helion.features import SEAMS
from dsl_helion.handle import recorded

SUPPORTS = SEAMS | {"lse", "full_graph", "x_packed", "batch_invariant"}
CONTRACT = Precision()

# `split` has no scratch, so it can take the place of any other at a launch
KERNELS = ("adjustable_tile", "parallel_softmax", "unpaged", "split")
FAMILY = Family("helion", KERNELS, lambda name: import_module(f"dsl_helion.{name}"), recorded)
paged_attention = PagedAttention(FAMILY)
register(FAMILY.name, paged_attention)
flash_attention = FlashAttention(paged_attention)
flash_attn_varlen_func = flash_attention.flash_attn_varlen_func
flash_attn_with_kvcache = flash_attention.flash_attn_with_kvcache
plan_paged_attention = planner(FAMILY)

Config = Choice
DEFAULT = Choice("parallel_softmax", FAMILY.kernel("parallel_softmax").DEFAULT)


def choose(
    shape: AttentionShape,
    stats: BatchStats,
    gpu: Gpu | None,
    needs: frozenset[str] = frozenset(),
    heuristics: str = "tree",
    sees: int = EVERY_KEY,
) -> Choice:
    """The kernel and config for a batch of these sizes on `gpu`, and why; see common.choice.Family."""
    return FAMILY.choose(shape, stats, gpu, needs, heuristics, sees)


def space(shape: AttentionShape, gpu: Gpu) -> Iterator[Choice]:
    """Every choice for up to 256 sequences of 128 k keys and 8192 tokens."""
    yield from FAMILY.reachable(shape, gpu, 8192, 256, 131072)


def workspace(shape: AttentionShape, capacity: Capacity, config: Choice) -> Any:
    """The chosen kernel's."""
    return FAMILY.kernel(config.kernel).workspace(shape, capacity, config.config)


def launch(
    batch: PagedBatch,
    features: Features,
    out: torch.Tensor,
    config: Choice,
    workspace: Any,
    *,
    lse: torch.Tensor | None = None,
) -> None:
    """The chosen kernel's; where it lacks what the batch needs `split`'s, for the workspace is another's."""
    config = FAMILY.serving(config, asked_of(batch, features), names=("split",))
    FAMILY.kernel(config.kernel).launch(batch, features, out, config.config, workspace, lse=lse)
