"""A right kernel in plain torch: tiles through the block table, base-2 online softmax, segments merged at the end.

It rounds where a kernel on a GPU rounds (operands, P, output; float32 sums) and shares no line with
`common.oracle.reference`, so it stands in for a kernel where the checker itself is tested. Every place where a kernel
may go wrong is a method of `Edits`; a mutant (`common.mutants`) is an `Edits` with one of them overridden.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from common.spec import Features, PagedBatch, is_per_token

__all__ = ["At", "Edits", "Schedule", "State", "emulate", "tf32"]

# The seams of the emulation: every place where a paged-attention kernel may go wrong, as a method to override.


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
        """Whether the sequence has more than 2,048 keys, where a fault is hardest to see."""
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

    def exp2(self, at: At, x: Tensor) -> Tensor:
        """P of a tile from what its scores are above the maximum; -inf where a key is hidden."""
        return torch.exp2(x)

    def total(self, at: At, l: Tensor) -> Tensor:
        """The running sum of P after a tile, and after the merge."""
        return l

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


LOG2E = math.log2(math.e)
_FP8_GAIN = {torch.float8_e4m3fn: 256.0, torch.float8_e4m3fnuz: 128.0}


def _dot(a: Tensor, b: Tensor, at: At, edits: Edits) -> Tensor:
    """Matrix product with float32 sums, as a tensor core does it."""
    return edits.operand(at, a.float()) @ edits.operand(at, b.float())


def _place(at: At, edits: Edits, kind: Kind, key: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor, Tensor]:
    """int64 pages and slots of the keys of a tile, and the KV head of each query head; shape: of the cache."""
    num_query_heads = at.batch.query.shape[1]
    heads = torch.arange(num_query_heads, device=key.device) // (num_query_heads // shape[2])
    index = key // shape[1]
    table = at.batch.block_table[at.seq].long()
    pages = edits.pages(at, kind, index, table[index.clamp(max=table.numel() - 1)])
    return pages, edits.slots(at, kind, key % shape[1]), edits.kv_heads(at, heads)


def _load(at: At, edits: Edits, kind: Kind, key: Tensor) -> tuple[Tensor, Tensor | None]:
    """One tile of K or V through the block table, [num_query_heads, keys, size], and the scale of each key and head
    where there is one for each, [num_query_heads, keys]."""
    cache = edits.cache(at, kind, at.batch.key_cache if kind == "key" else at.batch.value_cache)
    pages, slots, heads = _place(at, edits, kind, key, cache.shape)
    tile = edits.stored(at, kind, cache[pages[None, :], slots[None, :], heads[:, None]])
    scale = edits.kv_scale(at, kind, getattr(at.features, f"{kind}_scale"))
    each = scale[pages[None, :], slots[None, :], heads[:, None]] if is_per_token(scale) else None
    return tile.float(), each


def _row_scale(at: At, edits: Edits, kind: Kind) -> Tensor | float:
    """float32 [heads, 1, 1], or 1.0: the scale of K or V where all keys of a head share one."""
    scale = edits.kv_scale(at, kind, getattr(at.features, f"{kind}_scale"))
    if scale is None or is_per_token(scale):
        return 1.0
    group = at.batch.query.shape[1] // scale.numel()
    return scale.repeat_interleave(group)[:, None, None]


def _mask(at: At, edits: Edits, query: Tensor, key: Tensor) -> Tensor:
    """bool [rows, keys] from positions [rows, 1] and [1, keys]."""
    f = at.features
    seen = (key < at.seq_len).expand(query.shape[0], -1)
    if edits.causal(at, f.causal_per_sequence):
        seen = seen & (key <= query)
    if f.sliding_window is not None:
        seen = seen & (key > query - f.sliding_window) & (key < query + f.sliding_window)
    if f.chunk is not None:
        chunk, lookback = edits.chunk(at, f.chunk, f.chunk_lookback)
        seen = seen & (key >= (query // chunk - lookback) * chunk)
    if f.spans is not None:
        for first, last in edits.spans(at, f.spans[at.seq].tolist()):
            seen = seen | ((query >= first) & (query <= last) & (key >= first) & (key <= last) & (key < at.seq_len))
    return edits.visible(at, query, key, seen)


def _biased(at: At, edits: Edits, scores: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Scores [heads, rows, keys] with ALiBi and the bias of a tree, whose -inf hides a key."""
    f = at.features
    if f.alibi_slopes is not None:
        scores = scores + edits.slopes(at, f.alibi_slopes)[:, None, None] * edits.distance(at, query, key)
    if f.tree_bias is not None:
        row, column = edits.tree(at, query - at.context_len, key - at.context_len)
        size = f.tree_bias.shape[0]
        inside = (row >= 0) & (row < size) & (column >= 0) & (column < size)
        bias = f.tree_bias.float()[row.clamp(0, size - 1), column.clamp(0, size - 1)]
        scores = scores + torch.where(inside, bias, 0.0)
    return scores


def _p_dtype(at: At, per_token: bool) -> torch.dtype:
    query = at.batch.query.dtype
    if at.schedule.probabilities is not None:
        return at.schedule.probabilities
    return torch.bfloat16 if per_token and query == torch.float16 else query


def _step(at: At, edits: Edits, query: Tensor, state: State, key: Tensor) -> State:
    """One tile of online softmax."""
    scale = edits.scale(at, at.batch.softmax_scale) * _row_scale(at, edits, "key")
    query_scale = edits.query_scale(at, at.features.query_scale)
    scale = scale if query_scale is None else scale * query_scale
    k, of_keys = _load(at, edits, "key", key)
    logits = _dot(query, k.transpose(1, 2), at, edits) * scale
    logits = logits if of_keys is None else logits * of_keys[:, None]
    row, column = torch.arange(at.context_len, at.seq_len, device=key.device)[:, None], key[None, :]
    seen = _mask(at, edits, row, column)
    scores = _biased(at, edits, edits.score(at, logits, at.features.softcap), row, column)
    scores = torch.where(seen, scores * LOG2E, -math.inf)
    m = edits.maximum(at, torch.maximum(state.m, scores.amax(-1)))
    shift = edits.shift(at, m)
    p = edits.exp2(at, scores - shift[..., None])
    fade = torch.exp2(state.m - shift)
    value, of_values = _load(at, edits, "value", key)
    wanted = edits.wanted(at, key, seen)
    value = torch.where(wanted[:, None], value, 0.0)
    weights = p if of_values is None else p * torch.where(wanted, of_values, 0.0)[:, None]
    dtype = _p_dtype(at, of_values is not None)
    gain = _FP8_GAIN.get(dtype, 1.0)
    rounded = edits.rounded(at, edits.probabilities(at, weights) * gain, dtype)
    acc = edits.accumulator(at, state.acc * fade[..., None] + _dot(rounded, value, at, edits) / gain)
    return State(m, edits.total(at, state.l * fade + p.sum(-1)), acc)


def _segment(at: At, edits: Edits, query: Tensor) -> State:
    """One program: the tiles of one segment."""
    heads, rows, _ = query.shape
    m = torch.full((heads, rows), -math.inf, device=query.device)
    l = torch.zeros_like(m)
    if at.features.sinks is not None:
        sink = edits.sink(at, at.features.sinks.float())
        m = (sink * LOG2E)[:, None].expand(heads, rows)
        l = torch.where(m > -math.inf, 1.0, 0.0)
    state = State(m, l, torch.zeros(heads, rows, at.batch.value_cache.shape[-1], device=query.device))
    keys = edits.segment(at, at.keys)
    for first in range(keys.start, keys.stop, at.schedule.tile):
        key = torch.arange(first, min(first + at.schedule.tile, keys.stop), device=query.device)
        state = _step(at, edits, query, state, key)
    return state


def _segments(at: At) -> list[At]:
    """The tiles that any query of the sequence can see, shared out among the segments; late segments may be empty."""
    tile, f = at.schedule.tile, at.features
    left = 0
    if f.sliding_window is not None:
        left = at.context_len - f.sliding_window + 1
    elif f.chunk is not None:
        left = (at.context_len // f.chunk - f.chunk_lookback) * f.chunk
    first = max(0, left) // tile if f.spans is None else 0
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
    return State(top, edits.total(at, l), acc)


def _sequence(at: At, edits: Edits, out: Tensor, lse: Tensor | None) -> None:
    query = edits.query(at, at.batch.query[at.tokens].transpose(0, 1))
    states = [_segment(part, edits, query) for part in _segments(at)]
    state = _merge(at, edits, edits.partials(at, states))
    rows = edits.finish(at, state.acc, state.l) * _row_scale(at, edits, "value")
    if at.features.out_scale is not None:
        rows = edits.cut(at, rows / at.features.out_scale, torch.finfo(out.dtype).max)
    edits.store(at, out, rows.transpose(0, 1))
    if lse is not None:
        natural = (state.m + torch.log2(state.l)) / LOG2E
        lse[at.tokens] = edits.lse(at, natural).transpose(0, 1)


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
