"""Twins of a kernel, for compare.run.doctor: the kernel itself under two names, and a known difference of 5%.

`compare.competitors.twins:first__triton__q_block` and `second__...` launch triton/q_block as it is. A launch of
`block__...` is BLOCK calls of it, one of `slow__...` BLOCK + 1: SLOWER times the work by count, in whatever number the
timer takes launches into a sample, so the slow twin is judged against the block. One call of a launch is the one asked
for; the others write to an output of their own and read other page sets, each after about a whole cycle of them, as the
timer's own calls do.
"""

from functools import cache
from typing import Any

import torch

from common.spec import AttentionShape, Features, PagedBatch
from common.spec.kernel import Capacity, planned
from compare.competitors import registry
from compare.competitors.planning import Wrapped
from compare.workloads.workload import empty_output

BLOCK = 20
SLOWER = 1 + 1 / BLOCK


class Twin(Wrapped):
    """Another name of a kernel, with its untuned DEFAULT."""

    without = "choose"


class Block(Twin):
    """`calls` calls of the kernel as one launch. `prepare` hears of every page set before the first launch."""

    def __init__(self, kernel: Any, calls: int) -> None:
        super().__init__(kernel)
        self._calls = calls

    def workspace(self, shape: AttentionShape, capacity: Capacity, config: Any) -> Any:
        self._batches: list[PagedBatch] = []
        self._planned: list[Any] = []
        self._next = 0
        return self._kernel.workspace(shape, capacity, config)

    def prepare(self, batch: PagedBatch, features: Features, config: Any, workspace: Any) -> Any:
        plan = planned(self._kernel, batch, features, config, workspace)
        known = [number for number, one in enumerate(self._batches) if one is batch]
        if known:
            self._planned[known[0]] = plan
        else:
            self._batches.append(batch)
            self._planned.append(plan)
            self._spare = empty_output(batch, features)
        return plan

    def launch(self, batch: PagedBatch, *rest: Any, lse: torch.Tensor | None = None) -> None:
        features, out, config, _ = rest
        own = next(number for number, known in enumerate(self._batches) if known is batch)
        order = self._order(own)
        asked = order.index(own)
        for at, number in enumerate(order):
            into, further = (out, lse) if at == asked else (self._spare, None)
            self._kernel.launch(self._batches[number], features, into, config, self._planned[number], lse=further)

    def _order(self, own: int) -> list[int]:
        """Page sets of one launch, `own` among them. Fewer sets than calls are gone round and round, from one launch to
        the next; of more, each launch takes them at even distances, so that the next launch reads those between."""
        sets, calls = len(self._batches), self._calls
        if sets > calls:
            return [(own + at * sets // calls) % sets for at in range(calls)]
        first, self._next = self._next, (self._next + calls) % sets
        return [(first + at) % sets for at in range(calls)]


_KINDS = {
    "first": Twin,
    "second": Twin,
    "block": lambda kernel: Block(kernel, BLOCK),
    "slow": lambda kernel: Block(kernel, BLOCK + 1),
}


def name_of(kind: str, kernel_id: str) -> str:
    """The id of a twin (first, second, block or slow) of a registered kernel."""
    return f"{__name__}:{kind}__{kernel_id.replace('/', '__')}"


@cache
def __getattr__(name: str) -> Twin:
    kind, _, kernel = name.partition("__")
    if kind not in _KINDS or not kernel:
        raise AttributeError(name)
    return _KINDS[kind](registry.load(kernel.replace("__", "/")))
