"""Twins of a kernel, for compare.doctor: the kernel itself under two names, and one that does 5% more work.

`compare.planted:first__triton__q_block` and `second__...` launch triton/q_block as it is. `slow__...` launches every
EVERYth call twice: 21 calls of work in the time of 20. The additional one reads pages that were read half a cycle ago,
so it finds as little of them in a cache as any other, and writes to an output of its own.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from common.kernel import Capacity
from common.spec import AttentionShape, Features, PagedBatch
from compare import registry
from compare.asked import empty_output

EVERY = 20
SLOWER = 1 + 1 / EVERY


class Twin:
    """Another name of a kernel, with its untuned DEFAULT."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self.SUPPORTS, self.CONTRACT, self.DEFAULT = kernel.SUPPORTS, kernel.CONTRACT, kernel.DEFAULT

    def workspace(self, shape: AttentionShape, capacity: Capacity, config: Any) -> Any:
        return self._kernel.workspace(shape, capacity, config)

    def launch(self, batch: PagedBatch, *rest: Any, lse: torch.Tensor | None = None) -> None:
        """rest: features, out, config and workspace, as every kernel takes them."""
        self._kernel.launch(batch, *rest, lse=lse)


class Slow(Twin):
    """The kernel with SLOWER times its work. `prepare` hears of every page set before the first launch."""

    def workspace(self, shape: AttentionShape, capacity: Capacity, config: Any) -> Any:
        self._batches: list[PagedBatch] = []
        self._calls = 0
        return super().workspace(shape, capacity, config)

    def prepare(self, batch: PagedBatch, features: Features, config: Any, workspace: Any) -> Any:
        if not any(batch is known for known in self._batches):
            self._batches.append(batch)
            self._spare = empty_output(batch, features)
        return workspace

    def launch(self, batch: PagedBatch, *rest: Any, lse: torch.Tensor | None = None) -> None:
        super().launch(batch, *rest, lse=lse)
        self._calls += 1
        if self._calls % EVERY == 0:
            here = next(number for number, known in enumerate(self._batches) if known is batch)
            far = self._batches[(here + len(self._batches) // 2) % len(self._batches)]
            features, _, *options = rest
            super().launch(far, features, self._spare, *options)


_KINDS = {"first": Twin, "second": Twin, "slow": Slow}


def name_of(kind: str, kernel_id: str) -> str:
    """The id of a twin (first, second or slow) of a registered kernel."""
    return f"{__name__}:{kind}__{kernel_id.replace('/', '__')}"


@cache
def _twin(kind: str, kernel_id: str) -> Twin:
    return _KINDS[kind](registry.load(kernel_id))


def __getattr__(name: str) -> Twin:
    kind, _, kernel = name.partition("__")
    if kind not in _KINDS or not kernel:
        raise AttributeError(name)
    return _twin(kind, kernel.replace("__", "/"))
