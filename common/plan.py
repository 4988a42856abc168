"""A plan: what a serving engine prepares once, so that its launches allocate nothing, compile nothing and wait for
nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from common import scratch
from common.call import PagedAttention
from common.choice import Family, gpu_of
from common.kernel import Capacity
from common.metadata import cdiv
from common.spec import AttentionShape, Features, SpecError


class Plan:
    """Calls of one shape up to a capacity, over scratch that the plan owns.

    choices: every kernel and config that calls of this capacity reach. workspace: uint8, large enough for each.
    """

    def __init__(
        self,
        family: Family,
        shape: AttentionShape,
        max_tokens: int,
        max_seqs: int,
        max_seq_len: int,
        device: torch.device | str,
        max_keys: int = 0,
    ) -> None:
        """max_keys: keys of all sequences together that context scratch holds; more cost time. Raises SpecError."""
        for name, value in (("max_tokens", max_tokens), ("max_seqs", max_seqs), ("max_seq_len", max_seq_len)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise SpecError(name, repr(value), "an integer of at least 1")
        self.family, self.shape, self.device = family, shape, torch.device(device)
        self.max_tokens, self.max_seqs, self.max_seq_len = max_tokens, max_seqs, max_seq_len
        gpu = gpu_of(self.device)
        reached = family.reachable(shape, gpu, max_tokens, max_seqs, max_seq_len)
        self.choices = tuple(reached)
        sizes = (
            scratch.Layout.of(
                family.kernel(choice.kernel),
                shape,
                Capacity(cdiv(tokens, 16) * 16, seqs, self.device, max_keys or max_seq_len),
                choice.config,
            ).num_bytes
            for choice, (tokens, seqs, _) in reached.items()
        )
        self.workspace = torch.empty(max(sizes, default=0), dtype=torch.uint8, device=self.device)
        self._call = PagedAttention(family)

    def __call__(self, query: torch.Tensor, *tensors: torch.Tensor, out: torch.Tensor, **options: Any) -> torch.Tensor:
        """`paged_attention` in the plan's scratch; `out` is required. Raises SpecError beyond the capacity."""
        self._within(query, *tensors)
        return self._call(query, *tensors, out=out, workspace=self.workspace, **options)

    def _within(self, query: torch.Tensor, *tensors: torch.Tensor) -> None:
        if query.shape[0] > self.max_tokens:
            raise SpecError("query", f"{query.shape[0]} tokens", f"at most the plan's max_tokens = {self.max_tokens}")
        seqs = tensors[4].shape[0]
        if seqs > self.max_seqs:
            raise SpecError("seq_lens", f"{seqs} sequences", f"at most the plan's max_seqs = {self.max_seqs}")

    def warmup(self, features: Features | None = None, **options: Any) -> int:
        """Compile every choice for batches that look like the given ones; how many there were."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise SpecError where a kernel found a batch beyond its capacity on the device. Waits for the device."""


def planner(family: Family) -> Callable[..., Plan]:
    def plan_paged_attention(
        shape: AttentionShape,
        max_tokens: int,
        max_seqs: int,
        max_seq_len: int,
        device: torch.device | str,
        *,
        max_keys: int = 0,
    ) -> Plan:
        """A plan for calls of `shape` with up to max_tokens query tokens, max_seqs sequences, max_seq_len keys each."""
        return Plan(family, shape, max_tokens, max_seqs, max_seq_len, device, max_keys)

    return plan_paged_attention
