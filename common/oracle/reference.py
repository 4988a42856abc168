"""The definition of a correct result: paged attention in float64, sequence by sequence, from the tensors as stored.

It also returns the sums from which the checker computes its budgets (`common.oracle.tolerance`).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from common.oracle.visibility import Sight
from common.spec import Features, PagedBatch, is_per_token
from common.spec.metadata import lens_of

# Dense attention of a few rows and KV heads in float64: the reference's arithmetic.


@dataclass(frozen=True)
class Rows:
    """What some rows and KV heads of a sequence attend to, float64.

    query [rows, heads, group, size]; key [keys, heads, size]; value [keys, heads, value size]; seen bool [rows, keys];
    bias [heads, group, rows, keys] or None, where heads and group may be 1; sinks [heads, group] or None.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    seen: Tensor
    bias: Tensor | None
    sinks: Tensor | None


def _logits(at: Rows, scale: float, softcap: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [heads, group, rows, keys] with -inf where a key is hidden, `logit_size` and `bias_size`."""
    rows, heads, group, size = at.query.shape
    key = at.key.permute(1, 2, 0)  # [heads, size, keys]
    logits = (at.query.permute(1, 2, 0, 3).reshape(heads, group * rows, size) @ key).view(heads, group, rows, -1)
    logits *= scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    hidden = ~at.seen
    longest = key.norm(dim=1)[:, None].masked_fill(hidden, 0.0).amax(-1)  # [heads, rows]
    unrelated = at.query.norm(dim=-1).permute(1, 2, 0) * longest[:, None] * scale / math.sqrt(size)
    logit_size = torch.maximum(logits.abs().masked_fill(hidden, 0.0).amax(-1), unrelated)
    bias_size = torch.zeros_like(logit_size)
    if at.bias is not None:
        logits = logits + at.bias
        bias_size += at.bias.abs().masked_fill(hidden, 0.0).amax(-1)
    return logits.masked_fill(hidden, -math.inf), logit_size, bias_size


def softmax(logits: Tensor, sink: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """P [heads, group, rows, keys], the sum of e^(s - max), and that max. sink: one more logit per row, -inf for
    none."""
    peak = torch.maximum(logits.amax(-1), sink)
    weights = torch.exp(logits - peak[..., None])
    denominator = weights.sum(-1) + torch.exp(sink - peak)
    return weights / denominator[..., None], denominator, peak


Weigh = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


def attend(at: Rows, scale: float, softcap: float | None, weigh: Weigh = softmax) -> dict[str, Tensor]:
    """The fields of `Expected` for some rows and KV heads; fields with query heads have the group axis.

    A NaN or Inf in V becomes NaN in the rows that must show it (`OWED`) and in no other, unlike 0 * NaN in a matmul.
    """
    rows, heads, group, _ = at.query.shape
    finite = at.value.isfinite()
    bad, value = ~finite.transpose(0, 1), at.value.masked_fill(~finite, 0.0).transpose(0, 1)  # [heads, keys, size]
    logits, logit_size, bias_size = _logits(at, scale, softcap)
    sink = at.query.new_full((heads, group), -math.inf) if at.sinks is None else at.sinks
    sink = sink[:, :, None].expand(heads, group, rows)
    weights, denominator, peak = weigh(logits, sink)
    weights = weights.view(heads, group * rows, -1)
    owed = weights * denominator.view(heads, group * rows, 1) >= OWED if bool(bad.any()) else None

    def by_token(array: Tensor) -> Tensor:  # [heads, group * rows, size] -> [rows, heads, group, size]
        return array.view(heads, group, rows, -1).permute(2, 0, 1, 3)

    seen_by_all = at.seen.double().expand(heads, -1, -1)
    product = weights @ value
    square = product.square().sum(-1, keepdim=True)
    along = (product / square.sqrt()) @ value.transpose(1, 2)  # V of each key projected onto o, over o's norm
    out = by_token(product)
    if owed is not None:
        out = out.masked_fill(by_token(owed.double() @ bad.double()) > 0, math.nan)
    squares = weights.square()
    along = ((squares * along.square()).sum(-1) / square[..., 0]).sqrt()
    return {
        "out": out,
        "lse": (peak + torch.log(denominator)).permute(2, 0, 1),
        "weighted": by_token(weights @ value.abs()),
        "weighted_rms": by_token((squares @ value.square()).sqrt()),
        "visible": (seen_by_all @ value.abs()).transpose(0, 1),
        "visible_rms": (seen_by_all @ value.square()).sqrt().transpose(0, 1),
        "denominator": denominator.permute(2, 0, 1),
        "logit_size": logit_size.permute(2, 0, 1),
        "bias_size": bias_size.permute(2, 0, 1),
        "squares": squares.sum(-1).view(heads, group, rows).permute(2, 0, 1),
        "along": along.view(heads, group, rows).permute(2, 0, 1),
    }


# A row must show a NaN or Inf in V if P is at least this share of the row's largest P. Such a P is nonzero in every
# declared dtype: the narrowest, e4m3fn and e4m3fnuz, round it to zero below 2^-17 if a maximum was rounded up.
OWED = 2.0**-16
LIVE_COPIES = (
    6  # logits-sized float64 arrays alive at once: logits, their magnitude, e^s, P, P squared, and one in a matmul; a
    # bias of every head comes instead of the magnitude
)


@dataclass(frozen=True)
class Expected:
    """What every kernel must return for one batch, and what its rounding may cost. All float64 but `num_visible`.

    With P the softmax of one row (token, query head), its sink included in the denominator:

    out          [num_tokens, num_query_heads, value size] sum of P V; 0 where a row sees no key
    lse          [num_tokens, num_query_heads]             natural log of the denominator: of a row that sees no
                 key the logit of its sink, or -inf
    weighted     [num_tokens, num_query_heads, value size] sum of P |V|
    weighted_rms [num_tokens, num_query_heads, value size] sqrt(sum of P^2 V^2)
    visible      [num_tokens, num_kv_heads, value size]    sum of |V| over the visible keys
    visible_rms  [num_tokens, num_kv_heads, value size]    sqrt(sum of V^2 over the visible keys)
    denominator  [num_tokens, num_query_heads]             sum of e^(s - max), at least 1; inf where a row has neither
                 key nor sink
    logit_size   [num_tokens, num_query_heads]             largest |logit| of the visible ones, before any bias; or,
                 where that is more, norm(q) norm(k) scale / sqrt(head_size) of the longest visible key: a logit that is
                 near 0 because its products cancel carries no smaller error than its neighbours
    bias_size    [num_tokens, num_query_heads]             largest |bias| that ALiBi and a tree add to a visible key
    squares      [num_tokens, num_query_heads]             sum of P^2
    along        [num_tokens, num_query_heads]             sqrt(sum of P^2 (V . out)^2) / (out . out): what errors of P
                 that are independent, and of one part of each, make of a row along itself, as a part of it
    num_visible  int64 [num_tokens]                        how many keys the token sees
    unsaid       bool, as out, or None where all of V is finite: whether out may be NaN or Inf though it is a number
                 here. So in a KV head and lane where some row of the sequence sees a NaN or Inf, in rows that do not
                 owe it: they do not see it, or their P is under `OWED`; a product makes NaN of 0 * NaN or skips it
    With `out_scale` the five sums of V are divided by it; none is cut to the range of a type.
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
    bias_size: Tensor
    squares: Tensor
    along: Tensor
    num_visible: Tensor
    num_tokens: int
    unsaid: Tensor | None = None


_SUMS = ("out", "weighted", "weighted_rms", "visible", "visible_rms")  # of V
FLOATS = tuple(f.name for f in fields(Expected) if f.name not in ("num_visible", "num_tokens", "unsaid"))


@dataclass(frozen=True)
class _Sequence:
    """begin: its first row of the query. keys, values: float64 [seq_len, num_kv_heads, size], after scaling."""

    begin: int
    sight: Sight
    keys: Tensor
    values: Tensor


def _blank(batch: PagedBatch) -> Expected:
    shape = batch.shape
    tokens, heads, kv_heads, size = batch.num_tokens, shape.num_query_heads, shape.num_kv_heads, shape.value_lanes

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
        bias_size=nan(tokens, heads),
        squares=nan(tokens, heads),
        along=nan(tokens, heads),
        num_visible=torch.zeros(tokens, dtype=torch.int64, device=batch.device),
        num_tokens=int(batch.query_start_loc[-1]),
    )


def gather(cache: Tensor, pages: Tensor, seq_len: int, scale: Tensor | None = None) -> Tensor:
    """One sequence's rows of a cache, float64 [seq_len, num_kv_heads, head_size], in order.

    cache: one of `PagedBatch.by_token`. scale: the factor of its elements, in a form of `Features.key_scale`.
    """
    used = pages[: -(-seq_len // cache.shape[1])].long()
    rows = cache[used].flatten(0, 1)[:seq_len].flatten(2).double()
    if scale is None:
        return rows
    if is_per_token(scale):
        scale = scale[used].flatten(0, 1)[:seq_len]
    return rows * scale.double()[..., None]


def _chunks(query_len: int, seq_len: int, kv_heads: int, group: int, limit: int) -> Iterator[tuple[slice, slice]]:
    """(rows, KV heads) of one sequence for which `LIVE_COPIES` float64 arrays of logits fit in `limit` bytes."""
    row = max(1, LIVE_COPIES * 8 * group * seq_len)  # bytes per query token and KV head
    heads = max(1, min(kv_heads, limit // row))
    rows = max(1, min(query_len, limit // (row * heads)))
    for first_head in range(0, kv_heads, heads):
        for first_row in range(0, query_len, rows):
            yield slice(first_row, min(first_row + rows, query_len)), slice(first_head, first_head + heads)


def _store(expected: Expected, tokens: slice, heads: slice, found: dict[str, Tensor], sinks: Tensor | None) -> None:
    """Write the fields that `attend` found for some tokens and KV heads, then those of tokens that see no key.

    sinks: float64 [num_query_heads] or None.
    """
    kv_heads = expected.visible.shape[1]
    for name, values in found.items():
        store = getattr(expected, name)[tokens]
        grouped = store if name.startswith("visible") else store.unflatten(1, (kv_heads, -1))
        grouped[:, heads] = values
    blind = expected.num_visible[tokens] == 0
    alone = expected.lse.new_full((expected.lse.shape[1],), -math.inf) if sinks is None else sinks
    empty = {"lse": alone, "denominator": torch.ones_like(alone).masked_fill(alone == -math.inf, math.inf)}
    for name in FLOATS:  # no key: output and budget are 0; only the sink is in the softmax's sum
        getattr(expected, name)[tokens][blind] = empty.get(name, 0.0)


def _scaled(found: dict[str, Tensor], features: Features) -> dict[str, Tensor]:
    """The sums of V divided by `out_scale`."""
    if features.out_scale is None:
        return found
    return found | {name: found[name] / features.out_scale.double() for name in _SUMS if name in found}


def _rows(batch: PagedBatch, features: Features, seq: _Sequence, rows: slice, heads: slice) -> Rows:
    """What some query tokens of a sequence and some KV heads attend to."""
    kv_heads, group = batch.shape.num_kv_heads, batch.shape.queries_per_kv
    positions = torch.arange(rows.start, rows.stop, device=batch.device) + seq.sight.context_len
    first, last = seq.sight.key_range(seq.sight.context_len + rows.start, seq.sight.context_len + rows.stop - 1)
    keys = torch.arange(first, last, device=batch.device)
    bias, sinks = seq.sight.bias(positions, keys), features.sinks
    if bias is not None:  # [heads or 1, rows, keys] -> [KV heads, group, rows, keys]
        bias = bias.expand(kv_heads * group, -1, -1).unflatten(0, (kv_heads, group))[heads]
    tokens = batch.query[seq.begin + rows.start : seq.begin + rows.stop]
    return Rows(
        query=tokens.unflatten(1, (kv_heads, group))[:, heads].double(),
        key=seq.keys[first:last, heads],
        value=seq.values[first:last, heads],
        seen=seq.sight.visible(positions, keys),
        bias=bias,
        sinks=None if sinks is None else sinks.double().view(kv_heads, group)[heads],
    )


def _unsaid(expected: Expected, seq: _Sequence) -> Tensor | None:
    """Fill in `Expected.unsaid` for one sequence, once all its rows are known."""
    sight, bad = seq.sight, ~seq.values.isfinite()
    if not bool(bad.any()):
        return expected.unsaid
    positions = torch.arange(sight.context_len, sight.seq_len, device=bad.device)
    first, last = sight.key_range(sight.context_len, sight.seq_len - 1)
    seen = sight.visible(positions, torch.arange(first, last, device=bad.device)).any(0)
    lanes = (bad[first:last] & seen[:, None, None]).any(0)  # [KV heads, size]
    tokens = slice(seq.begin, seq.begin + sight.query_len)
    unsaid = torch.zeros_like(expected.out, dtype=torch.bool) if expected.unsaid is None else expected.unsaid
    group = expected.out.shape[1] // lanes.shape[0]
    unsaid[tokens] = lanes.repeat_interleave(group, 0) & ~expected.out[tokens].isnan()
    return unsaid


def _sequence(
    expected: Expected, batch: PagedBatch, features: Features, seq: _Sequence, limit: int, weigh: Weigh
) -> None:
    """Fill in the rows of one sequence."""
    sight, shape = seq.sight, batch.shape
    scale = batch.softmax_scale * (1.0 if features.query_scale is None else float(features.query_scale))
    for rows, heads in _chunks(sight.query_len, sight.seq_len, shape.num_kv_heads, shape.queries_per_kv, limit):
        at = _rows(batch, features, seq, rows, heads)
        tokens = slice(seq.begin + rows.start, seq.begin + rows.stop)
        expected.num_visible[tokens] = at.seen.sum(-1)
        found = attend(at, scale, features.softcap, weigh) if at.seen.shape[1] else {}
        sinks = None if features.sinks is None else features.sinks.double()
        _store(expected, tokens, heads, _scaled(found, features), sinks)


def reference(
    batch: PagedBatch,
    features: Features,
    *,
    chunk_bytes: int = 1 << 30,
    sight: type[Sight] = Sight,
    weigh: Weigh = softmax,
) -> Expected:
    """Attention over one batch, on its device. Logits take at most about `chunk_bytes`, beside inputs and result.

    Tokens past query_start_loc[-1] are NaN in the result. The batch must be valid; its lengths are read on the host.
    sight, weigh: another mask or softmax, to compute what a kernel with a known mistake would return.
    """
    expected = _blank(batch)
    scales = features.key_scale, features.value_scale
    begin = 0
    for number, (query_len, seq_len) in enumerate(lens_of(batch.query_start_loc, batch.seq_lens)):
        if query_len:
            pages = batch.block_table[number]
            rows = [gather(c, pages, seq_len, s) for c, s in zip(batch.by_token(), scales, strict=True)]
            sequence = _Sequence(begin, sight.of(features, number, query_len, seq_len), *rows)
            _sequence(expected, batch, features, sequence, chunk_bytes, weigh)
            expected = replace(expected, unsaid=_unsaid(expected, sequence))
        begin += query_len
    return expected
