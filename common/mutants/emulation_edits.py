"""The seams of the emulation: every place where a paged-attention kernel may go wrong, as a method to override."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from common.spec import Features, PagedBatch

Kind = Literal["key", "value"]


@dataclass(frozen=True)
class Schedule:
    """How the work is cut, and how it is rounded: keys per tile, segments, dtype of P (None: V's), fp32 dots."""

    tile: int = 32
    segments: int = 1
    probabilities: torch.dtype | None = None
    dot: Literal["ieee", "tf32"] = "ieee"


@dataclass(frozen=True)
class At:
    """Where in the work an edit is asked: which sequence, which segment, and the keys that this segment was given."""

    batch: PagedBatch
    features: Features
    schedule: Schedule
    seq: int
    tokens: slice
    query_len: int
    seq_len: int
    segment: int = 0
    keys: range = range(0)

    @property
    def long(self) -> bool:
        """A sequence past 2,048 keys: where a fault is the hardest to see."""
        return self.seq_len > 2048

    @property
    def context_len(self) -> int:
        return self.seq_len - self.query_len  # position of the first query: the context length


@dataclass(frozen=True)
class State:
    """Online softmax, float32: running maximum (base 2) and sum [heads, rows], accumulator [heads, rows, size]."""

    m: Tensor
    l: Tensor
    acc: Tensor


class Edits:
    """What a kernel does at each seam, done right. A mutant overrides one method."""

    def query(self, at: At, query: Tensor) -> Tensor:
        """The rows [heads, rows, size] of this sequence, as stored."""
        return query

    def kv_heads(self, at: At, heads: Tensor) -> Tensor:
        """int64 [num_query_heads]: the KV head that each query head reads."""
        return heads

    def cache(self, at: At, kind: Kind, cache: Tensor) -> Tensor:
        """A cache as [num_blocks, block_size, num_kv_heads, head_size]."""
        return cache

    def pages(self, at: At, kind: Kind, index: Tensor, pages: Tensor) -> Tensor:
        """int64 [keys]: the physical page of each key of a tile; `index` is its logical page."""
        return pages

    def slots(self, at: At, kind: Kind, slots: Tensor) -> Tensor:
        """int64 [keys]: where in its page each key of a tile lies."""
        return slots

    def segment(self, at: At, keys: range) -> range:
        """The keys that this segment goes through, tile by tile."""
        return keys

    def visible(self, at: At, query: Tensor, key: Tensor, seen: Tensor) -> Tensor:
        """bool, broadcastable to [heads, rows, keys]; query [rows, 1] and key [1, keys] are positions."""
        return seen

    def wanted(self, at: At, key: Tensor, seen: Tensor) -> Tensor:
        """bool [keys]: the keys whose V is multiplied; others give zeros, for 0 * NaN would reach the sum."""
        return seen.reshape(-1, key.numel()).any(0)

    def causal(self, at: At, flags: Tensor | None) -> bool:
        """Whether this sequence is causal; flags: one per sequence, or None."""
        return at.features.causal and (flags is None or bool(flags[at.seq]))

    def chunk(self, at: At, chunk: int, lookback: int) -> tuple[int, int]:
        """The size of the chunks, and how many of them before its own a query sees."""
        return chunk, lookback

    def spans(self, at: At, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """(first, last) of the stretches of this sequence that see all of themselves, both inclusive."""
        return [(first, last) for first, last in spans if first < last]

    def slopes(self, at: At, slopes: Tensor) -> Tensor:
        """[heads]: the slopes of ALiBi."""
        return slopes

    def distance(self, at: At, query: Tensor, key: Tensor) -> Tensor:
        """What a slope is multiplied by: key - query, or minus the root of query - key."""
        if at.features.alibi_sqrt:
            return -(query - key).clamp(min=0).float().sqrt()
        return (key - query).float()

    def tree(self, at: At, row: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
        """Where in the tree's bias a query [rows, 1] and a key [1, keys] stand; outside of it nothing is added."""
        return row, column

    def stored(self, at: At, kind: Kind, x: Tensor) -> Tensor:
        """A tile as it lies in the cache, before its cast to float32, which is exact."""
        return x

    def kv_scale(self, at: At, kind: Kind, scale: Tensor | None) -> Tensor | None:
        """The scales of K or V, as `Features` holds them."""
        return scale

    def query_scale(self, at: At, scale: Tensor | None) -> Tensor | None:
        return scale

    def maximum(self, at: At, m: Tensor) -> Tensor:
        """The running maximum [heads, rows] after a tile, base 2."""
        return m

    def shift(self, at: At, m: Tensor) -> Tensor:
        """What P is taken relative to; a row that saw nothing yet: exp2(-inf - 0) is 0, not NaN."""
        return torch.where(m == -math.inf, 0.0, m)

    def scale(self, at: At, scale: float) -> float:
        """What multiplies the products of Q and K, in float32."""
        return scale

    def operand(self, at: At, x: Tensor) -> Tensor:
        """One operand of a matrix product, float32: exact from 16 bits, else rounded as the schedule says."""
        return tf32(x) if at.schedule.dot == "tf32" else x

    def score(self, at: At, logits: Tensor, softcap: float | None) -> Tensor:
        """Scaled logits [heads, rows, keys], soft-capped."""
        return logits if softcap is None else softcap * torch.tanh(logits / softcap)

    def sink(self, at: At, sinks: Tensor) -> Tensor:
        """[heads]: the logit of the sink that this segment begins with; -inf for none."""
        return sinks if at.segment == 0 else torch.full_like(sinks, -math.inf)

    def probabilities(self, at: At, p: Tensor) -> Tensor:
        """P of one tile, float32, before it is cast to its declared dtype."""
        return p

    def rounded(self, at: At, p: Tensor, dtype: torch.dtype) -> Tensor:
        """P as an operand of P.V; in fp8 it was multiplied by 256 or 128 before."""
        return p.to(dtype)

    def accumulator(self, at: At, acc: Tensor) -> Tensor:
        """The accumulator after each tile."""
        return acc

    def partials(self, at: At, states: list[State]) -> list[State]:
        """What the merge finds, one state per segment."""
        return states

    def weights(self, at: At, weights: Tensor) -> Tensor:
        """[segments, heads, rows]: by how much the merge rescales each segment."""
        return weights

    def finish(self, at: At, acc: Tensor, l: Tensor) -> Tensor:
        """The rows [heads, rows, size]: the accumulator over the sum; 0 where nothing was summed."""
        return torch.where(l[..., None] == 0, 0.0, acc / l[..., None])

    def lse(self, at: At, lse: Tensor) -> Tensor:
        """[heads, rows], natural logarithm."""
        return lse

    def cut(self, at: At, rows: Tensor, most: float) -> Tensor:
        """The rows over `out_scale`, cut to the range of fp8."""
        return rows.clamp(-most, most)

    def store(self, at: At, out: Tensor, rows: Tensor) -> None:
        """Write rows [tokens, heads, size], rounded to the dtype of `out`."""
        out[at.tokens] = rows.to(out.dtype)


def tf32(x: Tensor) -> Tensor:
    """float32 rounded to nearest at ten explicit bits of mantissa."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)
