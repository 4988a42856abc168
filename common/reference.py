"""The only definition of correct: paged attention in float64, a loop over sequences, from the tensors as stored.

Beside the result it delivers the sums that the checker's budgets are made of (`common.tolerance`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from common.metadata import lens_of
from common.spec import Features, PagedBatch

LIVE_COPIES = (
    6  # logits-sized float64 arrays alive at once: logits, their magnitude, e^s, P, P squared, and one in a matmul
)


@dataclass(frozen=True)
class Expected:
    """What every kernel must return for one batch, and what its rounding may cost. All float64 but `num_visible`.

    With P the softmax of one row (token, query head), its sink included in the denominator:

    out          [num_tokens, num_query_heads, head_size]  sum of P V; 0 where a row sees no key
    lse          [num_tokens, num_query_heads]             natural log of the denominator; -inf where a row sees no key
    weighted     [num_tokens, num_query_heads, head_size]  sum of P |V|
    weighted_rms [num_tokens, num_query_heads, head_size]  sqrt(sum of P^2 V^2)
    visible      [num_tokens, num_kv_heads, head_size]     sum of |V| over the visible keys
    visible_rms  [num_tokens, num_kv_heads, head_size]     sqrt(sum of V^2 over the visible keys)
    denominator  [num_tokens, num_query_heads]             sum of e^(s - max), at least 1; inf where a row sees no key
    logit_size   [num_tokens, num_query_heads]             largest |logit| of the visible ones; or, where that is more,
                 norm(q) norm(k) scale / sqrt(head_size) of the longest visible key: a logit that is near 0 because its
                 products cancel carries no smaller error than its neighbours
    num_visible  int64 [num_tokens]                        how many keys the token sees
    num_tokens   query_start_loc[-1]: rows past it belong to nobody and are NaN above
    """

    out: Tensor
    lse: Tensor
    weighted: Tensor
    weighted_rms: Tensor
    visible: Tensor
    visible_rms: Tensor
    denominator: Tensor
    logit_size: Tensor
    num_visible: Tensor
    num_tokens: int


FLOATS = tuple(f.name for f in fields(Expected) if f.name not in ("num_visible", "num_tokens"))


@dataclass(frozen=True)
class _Sequence:
    begin: int  # its first row of query
    query_len: int
    seq_len: int
    pages: Tensor  # its row of the block table


def _blank(batch: PagedBatch) -> Expected:
    shape = batch.shape
    tokens, heads, kv_heads, size = batch.num_tokens, shape.num_query_heads, shape.num_kv_heads, shape.head_size

    def nan(*sizes: int) -> Tensor:
        return torch.full(sizes, math.nan, dtype=torch.float64, device=batch.device)

    return Expected(
        out=nan(tokens, heads, size),
        lse=nan(tokens, heads),
        weighted=nan(tokens, heads, size),
        weighted_rms=nan(tokens, heads, size),
        visible=nan(tokens, kv_heads, size),
        visible_rms=nan(tokens, kv_heads, size),
        denominator=nan(tokens, heads),
        logit_size=nan(tokens, heads),
        num_visible=torch.zeros(tokens, dtype=torch.int64, device=batch.device),
        num_tokens=int(batch.query_start_loc[-1]),
    )


def gather(cache: Tensor, pages: Tensor, seq_len: int) -> Tensor:
    """One sequence's rows of a cache, float64 [seq_len, num_kv_heads, head_size]: page by page, in order.

    cache: one of `PagedBatch.by_token`.
    """
    used = pages[: -(-seq_len // cache.shape[1])].long()
    return cache[used].flatten(0, 1)[:seq_len].flatten(2).double()


def visible_keys(positions: Tensor, keys: Tensor, features: Features) -> Tensor:
    """bool [queries, keys]: does the query at this position of its sequence see the key at that position?"""
    distance = positions[:, None] - keys[None, :]
    seen = torch.ones_like(distance, dtype=torch.bool)
    if features.causal:
        seen &= distance >= 0
    if features.sliding_window is not None:
        seen &= distance.abs() < features.sliding_window
    return seen


def key_range(first: int, last: int, seq_len: int, features: Features) -> tuple[int, int]:
    """The keys `begin <= k < end` that any query at the positions first..last can see."""
    begin, end = 0, last + 1 if features.causal else seq_len
    if features.sliding_window is not None:
        begin = max(0, first - features.sliding_window + 1)
        end = min(end, last + features.sliding_window)
    return begin, max(begin, min(end, seq_len))


def _chunks(query_len: int, seq_len: int, kv_heads: int, group: int, limit: int) -> Iterator[tuple[slice, slice]]:
    """(rows, KV heads) of one sequence such that `LIVE_COPIES` float64 arrays of logits fit in `limit` bytes."""
    row = max(1, LIVE_COPIES * 8 * group * seq_len)  # bytes per query token and KV head
    heads = max(1, min(kv_heads, limit // row))
    rows = max(1, min(query_len, limit // (row * heads)))
    for first_head in range(0, kv_heads, heads):
        for first_row in range(0, query_len, rows):
            yield slice(first_row, min(first_row + rows, query_len)), slice(first_head, first_head + heads)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, seen: Tensor, sinks: Tensor | None, scale: float, softcap: float | None
) -> dict[str, Tensor]:
    """Attention of some rows and KV heads, float64.

    query [rows, heads, group, size]; key, value [keys, heads, size]; seen bool [rows, keys]; sinks [heads, group].
    Returns the fields of `Expected` for these rows, with the group axis where they have query heads. A NaN or Inf in V
    becomes NaN in the rows that see it and, unlike 0 * NaN in a matmul, in no other.
    """
    rows, heads, group, size = query.shape
    finite = value.isfinite()
    bad, value = ~finite.transpose(0, 1), value.masked_fill(~finite, 0.0)
    key, value = key.permute(1, 2, 0), value.transpose(0, 1)  # [heads, size, keys], [heads, keys, size]
    logits = (query.permute(1, 2, 0, 3).reshape(heads, group * rows, size) @ key).view(heads, group, rows, -1) * scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    longest = key.norm(dim=1)[:, None].masked_fill(~seen, 0.0).amax(-1)  # [heads, rows]
    unrelated = query.norm(dim=-1).permute(1, 2, 0) * longest[:, None] * scale / math.sqrt(size)
    logit_size = torch.maximum(logits.abs().masked_fill(~seen, 0.0).amax(-1), unrelated)
    logits = logits.masked_fill(~seen, -math.inf)
    sink = query.new_full((heads, group), -math.inf) if sinks is None else sinks
    sink = sink[:, :, None].expand(heads, group, rows)
    peak = torch.maximum(logits.amax(-1), sink)
    weights = torch.exp(logits - peak[..., None])
    denominator = weights.sum(-1) + torch.exp(sink - peak)
    weights = (weights / denominator[..., None]).view(heads, group * rows, -1)

    def by_token(array: Tensor) -> Tensor:  # [heads, group * rows, size] -> [rows, heads, group, size]
        return array.view(heads, group, rows, size).permute(2, 0, 1, 3)

    seen_by_all = seen.double().expand(heads, -1, -1)
    out = by_token(weights @ value)
    if bool(bad.any()):
        out = out.masked_fill((seen_by_all @ bad.double() > 0).transpose(0, 1)[:, :, None], math.nan)
    return {
        "out": out,
        "lse": (peak + torch.log(denominator)).permute(2, 0, 1),
        "weighted": by_token(weights @ value.abs()),
        "weighted_rms": by_token((weights.square() @ value.square()).sqrt()),
        "visible": (seen_by_all @ value.abs()).transpose(0, 1),
        "visible_rms": (seen_by_all @ value.square()).sqrt().transpose(0, 1),
        "denominator": denominator.permute(2, 0, 1),
        "logit_size": logit_size.permute(2, 0, 1),
    }


def _store(expected: Expected, tokens: slice, heads: slice, found: dict[str, Tensor]) -> None:
    """Write the fields that `_attend` found for some tokens and KV heads, then those of tokens that see no key."""
    kv_heads = expected.visible.shape[1]
    for name, values in found.items():
        store = getattr(expected, name)[tokens]
        grouped = store if name.startswith("visible") else store.unflatten(1, (kv_heads, -1))
        grouped[:, heads] = values
    blind = expected.num_visible[tokens] == 0
    for name in FLOATS:  # no key: output 0, LSE -inf (a sink alone is no key), and no budget at all
        empty = {"lse": -math.inf, "denominator": math.inf}.get(name, 0.0)
        getattr(expected, name)[tokens][blind] = empty


def _sequence(expected: Expected, batch: PagedBatch, features: Features, seq: _Sequence, limit: int) -> None:
    """Fill in the rows of one sequence."""
    shape = batch.shape
    kv_heads, group = shape.num_kv_heads, shape.queries_per_kv
    context_len = seq.seq_len - seq.query_len
    query = batch.query.unflatten(1, (kv_heads, group))
    sinks = None if features.sinks is None else features.sinks.double().view(kv_heads, group)
    keys, values = (gather(cache, seq.pages, seq.seq_len) for cache in batch.by_token())
    for rows, heads in _chunks(seq.query_len, seq.seq_len, kv_heads, group, limit):
        tokens = slice(seq.begin + rows.start, seq.begin + rows.stop)
        at = range(context_len + rows.start, context_len + rows.stop)
        first, last = key_range(at.start, at.stop - 1, seq.seq_len, features)
        positions = torch.arange(at.start, at.stop, device=batch.device)
        seen = visible_keys(positions, torch.arange(first, last, device=batch.device), features)
        expected.num_visible[tokens] = seen.sum(-1)
        found = {}
        if last > first:
            k, v = keys[first:last, heads], values[first:last, heads]
            sink = None if sinks is None else sinks[heads]
            found = _attend(query[tokens, heads].double(), k, v, seen, sink, batch.softmax_scale, features.softcap)
        _store(expected, tokens, heads, found)


def reference(batch: PagedBatch, features: Features, *, chunk_bytes: int = 1 << 30) -> Expected:
    """Attention over one batch, on its device, with about `chunk_bytes` of logits at most, beside inputs and result.

    Tokens past query_start_loc[-1] are absent from the result: NaN. Expects a validated batch; reads its lengths on
    the host.
    """
    expected = _blank(batch)
    begin = 0
    for seq, (query_len, seq_len) in enumerate(lens_of(batch.query_start_loc, batch.seq_lens)):
        if query_len:
            at = _Sequence(begin, query_len, seq_len, batch.block_table[seq])
            _sequence(expected, batch, features, at, chunk_bytes)
        begin += query_len
    return expected
