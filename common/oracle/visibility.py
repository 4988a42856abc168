"""Which keys the queries of one sequence see, and the bias added to their logits. The reference and the fills use
it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from common.spec import Features


@dataclass(frozen=True)
class Sight:
    """The masks of one sequence. `causal` is this sequence's; spans: (first, last) of its bidirectional spans, on the
    host."""

    features: Features
    query_len: int
    seq_len: int
    causal: bool
    spans: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, features: Features, seq: int, query_len: int, seq_len: int) -> Sight:
        """The masks of sequence `seq`; reads its spans and its causal flag on the host."""
        flags, spans = features.causal_per_sequence, features.spans
        causal = features.causal and (flags is None or bool(flags[seq]))
        pairs = () if spans is None else tuple((a, b) for a, b in spans[seq].tolist() if a < b)
        return cls(features, query_len, seq_len, causal, pairs)

    @property
    def context_len(self) -> int:
        """Position of the first query; negative where there are more queries than keys."""
        return self.seq_len - self.query_len

    @property
    def exact_range(self) -> bool:
        """Whether every key in the `key_range` of all queries is visible to some query."""
        return not self.spans and self.features.tree_bias is None

    def visible(self, positions: Tensor, keys: Tensor) -> Tensor:
        """bool [queries, keys]: whether the query at a position of the sequence sees the key at a position."""
        f, positions, keys = self.features, positions[:, None], keys[None, :]
        distance = positions - keys
        seen = torch.ones_like(distance, dtype=torch.bool)
        if self.causal:
            seen &= distance >= 0
        if f.sliding_window is not None:
            seen &= distance.abs() < f.sliding_window
        if f.chunk is not None:
            seen &= positions // f.chunk - keys // f.chunk <= f.chunk_lookback
        for first, last in self.spans:
            seen |= (positions >= first) & (positions <= last) & (keys >= first) & (keys <= last)
        if f.tree_bias is not None:
            seen &= self._tree(positions, keys) > -math.inf
        return seen & (keys < self.seq_len)

    def key_range(self, first: int, last: int) -> tuple[int, int]:
        """The keys `begin <= k < end` that any query at the positions first..last may see."""
        f, begin, end = self.features, 0, last + 1 if self.causal else self.seq_len
        if f.sliding_window is not None:
            begin, end = first - f.sliding_window + 1, min(end, last + f.sliding_window)
        if f.chunk is not None:
            begin = (first // f.chunk - f.chunk_lookback) * f.chunk
        for a, b in self.spans:
            if a <= last and b >= first:
                begin, end = min(begin, a), max(end, b + 1)
        begin = max(0, begin)
        return begin, max(begin, min(end, self.seq_len))

    def bias(self, positions: Tensor, keys: Tensor) -> Tensor | None:
        """float64 [heads or 1, queries, keys]: what ALiBi and the tree add to each logit; None if nothing.

        0 where the tree hides a key: `visible` handles that.
        """
        f, positions, keys = self.features, positions[:, None], keys[None, :]
        total = None
        if f.alibi_slopes is not None:
            distance = (keys - positions).double()
            shape = -(-distance).clamp(min=0).sqrt() if f.alibi_sqrt else distance
            total = f.alibi_slopes.double()[:, None, None] * shape
        if f.tree_bias is not None:
            tree = self._tree(positions, keys)
            tree = torch.where(tree > -math.inf, tree, 0.0)
            total = tree[None] if total is None else total + tree
        return total

    def _tree(self, positions: Tensor, keys: Tensor) -> Tensor:
        """float64 [queries, keys]: the bias of a draft tree; 0 outside it."""
        table = self.features.tree_bias
        row, column = positions - self.context_len, keys - self.context_len
        size = table.shape[0]
        inside = (row < size) & (column >= 0) & (column < size)
        bias = table.double()[row.clamp(0, size - 1), column.clamp(0, size - 1)]
        return torch.where(inside, bias, 0.0)
