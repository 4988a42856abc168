"""A right kernel in plain torch: tiles through the block table, base-2 online softmax, segments merged at the end.

It rounds where a kernel on a GPU rounds (operands, P, output; float32 sums) and shares no line with
`common.oracle.reference`, so it stands in for a kernel where the checker itself is tested. Every place where a kernel
may go wrong is a method of `Edits`; a mutant (`common.mutants`) is an `Edits` with one of them overridden.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from common.mutants.emulation_edits import At, Edits, Kind, Schedule, State, tf32
from common.spec import Features, PagedBatch, is_per_token

__all__ = ["At", "Edits", "Schedule", "State", "emulate", "tf32"]

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
    p = torch.exp2(scores - shift[..., None])
    fade = torch.exp2(state.m - shift)
    value, of_values = _load(at, edits, "value", key)
    wanted = edits.wanted(at, key, seen)
    value = torch.where(wanted[:, None], value, 0.0)
    weights = p if of_values is None else p * torch.where(wanted, of_values, 0.0)[:, None]
    dtype = _p_dtype(at, of_values is not None)
    gain = _FP8_GAIN.get(dtype, 1.0)
    rounded = edits.rounded(at, edits.probabilities(at, weights) * gain, dtype)
    acc = edits.accumulator(at, state.acc * fade[..., None] + _dot(rounded, value, at, edits) / gain)
    return State(m, state.l * fade + p.sum(-1), acc)


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
    return State(top, l, acc)


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
