"""A right kernel in plain torch: tiles through the block table, base-2 online softmax, segments merged at the end.

It rounds where a kernel on a GPU rounds (operands, P, output; float32 sums) and shares no line with `common.reference`,
so it stands in for a kernel where the checker itself is tested. Every place where a kernel may go wrong is a method of
`Edits`; a mutant (`common.mutants`) is an `Edits` with one of them overridden.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from common.spec import Features, PagedBatch

LOG2E = math.log2(math.e)
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

    def store(self, at: At, out: Tensor, rows: Tensor) -> None:
        """Write rows [tokens, heads, size], rounded to the dtype of `out`."""
        out[at.tokens] = rows.to(out.dtype)


def tf32(x: Tensor) -> Tensor:
    """float32 rounded to nearest at ten explicit bits of mantissa."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


def _dot(a: Tensor, b: Tensor, at: At, edits: Edits) -> Tensor:
    """Matrix product with float32 sums, as a tensor core does it."""
    return edits.operand(at, a.float()) @ edits.operand(at, b.float())


def _load(at: At, edits: Edits, kind: Kind, key: Tensor) -> Tensor:
    """One tile of K or V, [num_query_heads, keys, head_size], through the block table."""
    cache = edits.cache(at, kind, at.batch.key_cache if kind == "key" else at.batch.value_cache)
    num_query_heads = at.batch.query.shape[1]
    heads = torch.arange(num_query_heads, device=key.device) // (num_query_heads // cache.shape[2])
    index = key // cache.shape[1]
    table = at.batch.block_table[at.seq].long()
    pages = edits.pages(at, kind, index, table[index.clamp(max=table.numel() - 1)])
    slots = edits.slots(at, kind, key % cache.shape[1])
    return cache[pages[None, :], slots[None, :], edits.kv_heads(at, heads)[:, None]]


def _mask(at: At, edits: Edits, key: Tensor) -> Tensor:
    query = torch.arange(at.context_len, at.seq_len, device=key.device)[:, None]
    key = key[None, :]
    seen = key <= query if at.features.causal else (key < at.seq_len).expand(query.shape[0], -1)
    if at.features.sliding_window is not None:
        seen = seen & (key > query - at.features.sliding_window) & (key < query + at.features.sliding_window)
    return edits.visible(at, query, key, seen)


def _step(at: At, edits: Edits, query: Tensor, state: State, key: Tensor) -> State:
    """One tile of online softmax."""
    scale = edits.scale(at, at.batch.softmax_scale)
    logits = _dot(query, _load(at, edits, "key", key).transpose(1, 2), at, edits) * scale
    seen = _mask(at, edits, key)
    scores = torch.where(seen, edits.score(at, logits, at.features.softcap) * LOG2E, -math.inf)
    m = edits.maximum(at, torch.maximum(state.m, scores.amax(-1)))
    shift = edits.shift(at, m)
    p = torch.exp2(scores - shift[..., None])
    fade = torch.exp2(state.m - shift)
    value = _load(at, edits, "value", key)
    value = torch.where(edits.wanted(at, key, seen)[:, None], value, 0.0)
    rounded = edits.probabilities(at, p).to(at.schedule.probabilities or value.dtype)
    acc = edits.accumulator(at, state.acc * fade[..., None] + _dot(rounded, value, at, edits))
    return State(m, state.l * fade + p.sum(-1), acc)


def _segment(at: At, edits: Edits, query: Tensor) -> State:
    """One program: the tiles of one segment."""
    heads, rows, size = query.shape
    m = torch.full((heads, rows), -math.inf, device=query.device)
    l = torch.zeros_like(m)
    if at.features.sinks is not None:
        sink = edits.sink(at, at.features.sinks.float())
        m = (sink * LOG2E)[:, None].expand(heads, rows)
        l = torch.where(m > -math.inf, 1.0, 0.0)
    state = State(m, l, torch.zeros(heads, rows, size, device=query.device))
    keys = edits.segment(at, at.keys)
    for first in range(keys.start, keys.stop, at.schedule.tile):
        key = torch.arange(first, min(first + at.schedule.tile, keys.stop), device=query.device)
        state = _step(at, edits, query, state, key)
    return state


def _segments(at: At) -> list[At]:
    """The tiles that any query of the sequence can see, shared out among the segments; late segments may be empty."""
    tile, window = at.schedule.tile, at.features.sliding_window
    first = 0 if window is None else max(0, at.context_len - window + 1) // tile
    tiles = -(-at.seq_len // tile) - first
    share = max(1, -(-tiles // at.schedule.segments)) * tile
    starts = [min(first * tile + i * share, at.seq_len) for i in range(at.schedule.segments)] + [at.seq_len]
    return [replace(at, segment=i, keys=range(starts[i], starts[i + 1])) for i in range(at.schedule.segments)]


def _merge(at: At, edits: Edits, states: list[State]) -> State:
    m = torch.stack([state.m for state in states])
    top = m.amax(0)
    weights = edits.weights(at, torch.exp2(m - torch.where(top == -math.inf, 0.0, top)))
    l = sum(w * state.l for w, state in zip(weights, states, strict=True))
    acc = sum(w[..., None] * state.acc for w, state in zip(weights, states, strict=True))
    return State(top, l, acc)


def _sequence(at: At, edits: Edits, out: Tensor, lse: Tensor | None) -> None:
    query = edits.query(at, at.batch.query[at.tokens].transpose(0, 1))
    states = [_segment(part, edits, query) for part in _segments(at)]
    state = _merge(at, edits, edits.partials(at, states))
    edits.store(at, out, edits.finish(at, state.acc, state.l).transpose(0, 1))
    if lse is not None:
        natural = (state.m + torch.log2(state.l)) / LOG2E
        blind = torch.full_like(natural, -math.inf)  # also where a sink is all there is
        lse[at.tokens] = edits.lse(at, natural if at.seq_len else blind).transpose(0, 1)


def emulate(
    batch: PagedBatch,
    features: Features,
    out: Tensor,
    schedule: Schedule | None = None,
    *,
    lse: Tensor | None = None,
    edits: Edits | None = None,
) -> None:
    """Write out[:query_start_loc[-1]] (and lse likewise), as `Kernel.launch` does; on the batch's device."""
    starts, lengths = batch.query_start_loc.tolist(), batch.seq_lens.tolist()
    edits, schedule = edits or Edits(), schedule or Schedule()
    for seq, seq_len in enumerate(lengths):
        tokens = slice(starts[seq], starts[seq + 1])
        if tokens.start < tokens.stop:
            query_len = tokens.stop - tokens.start
            _sequence(At(batch, features, schedule, seq, tokens, query_len, seq_len), edits, out, lse)
