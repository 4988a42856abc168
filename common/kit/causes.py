"""Explain a wrong result: known mistakes, recomputed in float64, and named only where one explains every number.

A mistake replaces the inputs, the mask or the softmax of the reference. It is named where the whole result is within
the budgets of what it would give, and not within those of the right one. So a name never contradicts the numbers; two
mistakes that agree here are both named.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from common.oracle.integrity import same_bits
from common.oracle.reference import Expected, Weigh, reference, softmax
from common.oracle.tolerance import check
from common.oracle.visibility import Sight
from common.spec import Features, PagedBatch
from common.spec.metadata import cdiv, lens_of
from common.spec.precision import Precision

LOG2E = math.log2(math.e)
TILES = (16, 32, 64, 128)
MOST_LOGITS = 2**22  # of a batch whose causes are searched: some seconds for all
MOST_NAMED = 3


@dataclass(frozen=True)
class Mistake:
    """What a wrong kernel computes. after: how it changes the result."""

    batch: PagedBatch
    features: Features
    sight: type[Sight] = Sight
    weigh: Weigh = softmax
    after: Callable[[Expected], Expected] = lambda expected: expected

    def expected(self) -> Expected:
        return self.after(reference(self.batch, self.features, sight=self.sight, weigh=self.weigh))


Named = Iterator[tuple[str, Mistake]]  # the words behind "equals what ... would give"


# Mistakes in finding K, V, Q and pages.


def _restrided(tensor: Tensor, strides: tuple[int, ...]) -> Tensor | None:
    """The same storage with other strides; None where they leave it, or are the same."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True))
    inside = tensor.storage_offset() + last < tensor.untyped_storage().nbytes() // tensor.element_size()
    same = strides == tensor.stride()
    return tensor.as_strided(tensor.shape, strides) if inside and tensor.numel() and not same else None


def _packed(tensor: Tensor) -> tuple[int, ...]:
    return torch.empty(tensor.shape, device="meta").stride()


def _strides(batch: PagedBatch, features: Features) -> Named:
    key, value = batch.key_cache, batch.value_cache
    others = {
        "K's strides for V": {"value_cache": _restrided(value, key.stride())},
        "V's strides for K": {"key_cache": _restrided(key, value.stride())},
        "V as if it were contiguous": {"value_cache": _restrided(value, _packed(value))},
        "K as if it were contiguous": {"key_cache": _restrided(key, _packed(key))},
        "a query as if it were contiguous": {"query": _restrided(batch.query, _packed(batch.query))},
    }
    both = {name: others[f"{kind} as if it were contiguous"][name] for kind, name in _CACHES.items()}
    others["K and V as if they were contiguous"] = both
    for words, changed in others.items():
        if all(tensor is not None for tensor in changed.values()):
            yield words, Mistake(batch.replace(**changed), features)


_CACHES = {"K": "key_cache", "V": "value_cache"}


def _of_heads(scale: Tensor | None, heads: Tensor) -> Tensor | None:
    """The scales of K or V for these heads in turn."""
    if scale is None or scale.numel() == 1:
        return scale
    return scale[..., heads]


def _heads(batch: PagedBatch, features: Features) -> Named:
    query, kv = batch.shape.num_query_heads, batch.shape.num_kv_heads
    head = torch.arange(query)
    maps = {
        "KV head = query head modulo KV heads": head % kv,
        "KV head = query head // KV heads": head // kv,
        "KV head 0 for every query head": head * 0,
        "KV head = query head, where there are as many": head.clamp(max=kv - 1),
    }
    for words, heads in maps.items():
        if int(heads.max()) < kv and not torch.equal(heads, head // (query // kv)):
            caches = {name: getattr(batch, name)[:, :, heads] for name in _CACHES.values()}
            scales = {name: _of_heads(getattr(features, name), heads) for name in ("key_scale", "value_scale")}
            # the step's new K and V are also in the cache
            yield words, Mistake(batch.replace(**caches, key=None, value=None), replace(features, **scales))


def _pages(batch: PagedBatch, features: Features) -> Named:
    table, blocks = batch.block_table, batch.key_cache.shape[0]
    page = batch.shape.block_size
    order = torch.arange(table.shape[1], dtype=table.dtype).expand_as(table)
    tables = {
        "the block-table row of the sequence before": table.roll(1, 0),
        "the block-table row of the sequence behind": table.roll(-1, 0),
        "the first block-table row for every sequence": table[:1].expand_as(table),
        "page ids that are one too large": table + 1,
        "page ids that are one too small": table - 1,
        "the next column of the block table": table.roll(-1, 1),
        "page ids cut to 16 bits": table & 0xFFFF,
        "page ids cut to 8 bits": table & 0xFF,
        "no block table: pages in their order": order,
    }
    for words, other in tables.items():
        used = [other[seq, : cdiv(n, page)] for seq, (q, n) in enumerate(lens_of(*_lens(batch))) if q]
        if all(bool(((row >= 0) & (row < blocks)).all()) for row in used) and not torch.equal(other, table):
            yield words, Mistake(batch.replace(block_table=other), features)


def _lens(batch: PagedBatch) -> tuple[Tensor, Tensor]:
    return batch.query_start_loc, batch.seq_lens


def _rows(batch: PagedBatch, features: Features) -> Named:
    starts, tokens = batch.query_start_loc.tolist(), batch.query.shape[0]
    if batch.num_seqs > 1 and tokens:
        rows = torch.cat([torch.arange(b - a) for a, b in pairwise(starts)])
        query = batch.query.clone()
        query[: len(rows)] = batch.query[rows]
        yield (
            "the first rows of the query for every sequence (query_start_loc ignored)",
            Mistake(batch.replace(query=query), features),
        )


# Mistakes in what a query sees.


def _sight(**fields: Any) -> type[Sight]:
    return type("_Changed", (_Changed,), fields)


class _Changed(Sight):
    """shift: of every position, or "rows": positions counted from the first query. diagonal: how many more keys the
    causal mask shows. kept: how many keys of a sequence remain. first: hidden leading keys."""

    shift: int | str = 0
    diagonal = 0
    first = 0

    @staticmethod
    def kept(seq_len: int) -> int:
        return seq_len

    def _position(self, positions: Tensor) -> Tensor:
        return positions - self.context_len if self.shift == "rows" else positions + self.shift

    def visible(self, positions: Tensor, keys: Tensor) -> Tensor:
        place = self._position(positions)
        seen = super().visible(place, keys)
        if self.diagonal and self.causal:
            open_ = replace(self, causal=False)
            seen = Sight.visible(open_, place, keys) & (keys[None] <= place[:, None] + self.diagonal)
        return seen & (keys < self.kept(self.seq_len))[None] & (keys >= self.first)[None]

    def key_range(self, first: int, last: int) -> tuple[int, int]:
        return 0, self.seq_len

    def bias(self, positions: Tensor, keys: Tensor) -> Tensor | None:
        return super().bias(self._position(positions), keys)


def _floor(size: int) -> Any:
    return staticmethod(lambda seq_len: seq_len // size * size)


def _masks(batch: PagedBatch, features: Features) -> Named:
    page = batch.shape.block_size
    lines = {
        "a causal mask that shows one key too many": {"diagonal": 1},
        "a causal mask that hides the query's own key": {"diagonal": -1},
        "positions counted from the first query (a causal mask from the top left)": {"shift": "rows"},
        "query positions one too large": {"shift": 1},
        "query positions one too small": {"shift": -1},
        "sequences without their last key": {"kept": staticmethod(lambda seq_len: seq_len - 1)},
        "sequences without their first key": {"first": 1},
        "whole pages alone, without the last that is not full": {"kept": _floor(page)},
    }
    lines |= {f"whole tiles of {n} keys alone": {"kept": _floor(n)} for n in TILES if n != page}
    for words, fields in lines.items():
        if features.causal or "diagonal" not in fields:
            yield words, Mistake(batch, features, _sight(**fields))
    f, without = features, {}
    if f.causal and not f.cross:
        # other masks stay as they are
        without["no causal mask"] = {"causal": False, "causal_per_sequence": None}
    if f.sliding_window is not None:
        window = f.sliding_window
        without |= {
            "a window that is one key wider": {"sliding_window": window + 1},
            "no window": {"sliding_window": None},
        }
        if window > 1:
            without["a window that is one key narrower"] = {"sliding_window": window - 1}
    if f.chunk is not None:
        without |= {"no chunks": {"chunk": None, "chunk_lookback": 0}, "no lookback": {"chunk_lookback": 0}}
        without["one chunk more of lookback"] = {"chunk_lookback": f.chunk_lookback + 1}
    if f.spans is not None:
        without["no spans"] = {"spans": None}
    if f.tree_bias is not None:
        without["no tree bias"] = {"tree_bias": None}
    if f.causal_per_sequence is not None:
        without["every sequence causal (causal_per_sequence ignored)"] = {"causal_per_sequence": None}
        without["causal_per_sequence with 0 for causal"] = {"causal_per_sequence": 1 - f.causal_per_sequence.int()}
    for words, fields in without.items():
        yield words, Mistake(batch, replace(features, **fields))


# Mistakes in numbers.


def _powers(batch: PagedBatch) -> dict[str, float]:
    scale, size = batch.softmax_scale, batch.shape.head_size
    padded = 1 << (size - 1).bit_length()
    return {
        "no softmax scale": 1.0,
        "the softmax scale applied twice": scale * scale,
        "head_size^-0.5 in place of softmax_scale": size**-0.5,
        f"the scale of a head of {padded} lanes": padded**-0.5,
        "1 / head_size for a scale": 1.0 / size,
        "the logits in base 2: no log2(e) in the exponent": scale / LOG2E,
        "log2(e) in the exponent twice": scale * LOG2E,
    }


def _numbers(batch: PagedBatch, features: Features) -> Named:
    for words, scale in _powers(batch).items():
        if scale != batch.softmax_scale:
            yield words, Mistake(batch.replace(softmax_scale=scale), features)
    f, other = features, {}
    if f.softcap is not None:
        other["no soft cap"] = {"softcap": None}
    if f.sinks is not None:
        other |= {"no sinks": {"sinks": None}, "sinks counted twice": {"sinks": f.sinks + math.log(2.0)}}
        other["sinks in base 2"] = {"sinks": f.sinks / LOG2E}
        other["the sink of head 0 for every head"] = {"sinks": f.sinks[:1].expand_as(f.sinks)}
    if f.alibi_slopes is not None:
        other |= {"no ALiBi": {"alibi_slopes": None, "alibi_sqrt": False}}
        other["ALiBi slopes of the other sign"] = {"alibi_slopes": -f.alibi_slopes}
        other["ALiBi without its root" if f.alibi_sqrt else "ALiBi by a root"] = {"alibi_sqrt": not f.alibi_sqrt}
    for name, words in _SCALES.items():
        if getattr(f, name) is not None:
            other[f"no {words}"] = {name: None}
    if f.key_scale is not None and f.value_scale is not None:
        other["the scales of K and V exchanged"] = {"key_scale": f.value_scale, "value_scale": f.key_scale}
        other["the scale of K for V"] = {"value_scale": f.key_scale}
    for words, fields in other.items():
        yield words, Mistake(batch, replace(features, **fields))


_SCALES = {"key_scale": "scale of K", "value_scale": "scale of V", "query_scale": "scale of the query"}


def _unrescaled(tile: int, *, rows: bool, sums: bool, own: bool = False) -> Weigh:
    """Online softmax over tiles whose accumulator (rows) or sum (sums) is not rescaled to the running maximum. own: the
    tiles of a row begin at the first key that it sees, not at the first of all."""

    def weigh(logits: Tensor, sink: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        right, denominator, peak = softmax(logits, sink)
        first = (logits > -math.inf).int().argmax(-1, keepdim=True) if own else 0
        keys = torch.arange(logits.shape[-1], device=logits.device)
        tiles = ((keys - first).clamp(min=0) // tile).expand_as(logits)
        peaks = logits.new_full((*logits.shape[:-1], cdiv(logits.shape[-1], tile)), -math.inf)
        peaks = peaks.scatter_reduce(-1, tiles, logits, "amax").cummax(-1).values
        running = torch.maximum(peaks, sink[..., None]).gather(-1, tiles)
        kept = torch.exp(logits - running).nan_to_num(nan=0.0)
        total = kept.sum(-1) + torch.exp(sink - torch.maximum(running[..., 0], sink)) if sums else denominator
        weights = kept if rows else right * denominator[..., None]
        return weights / total[..., None], total, peak

    return weigh


def _unnormalised(logits: Tensor, sink: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    weights, denominator, peak = softmax(logits, sink)
    return weights * denominator[..., None], denominator, peak


def _softmaxes(batch: PagedBatch, features: Features) -> Named:
    yield "rows that are not divided by their sums", Mistake(batch, features, weigh=_unnormalised)
    kinds = {"an accumulator": (True, False), "a sum": (False, True), "accumulator and sum": (True, True)}
    # tiles from key 0; where rows do not see it, also from the first key that some row sees, or that each row sees
    hidden = features.sliding_window is not None or features.chunk is not None
    starts = ((_sight(), False), (Sight, False), (Sight, True)) if hidden else ((Sight, False),)
    for tile in TILES:
        for kind, (rows, sums) in kinds.items():
            words = f"{kind} that a greater maximum does not rescale, in tiles of {tile} keys"
            for sight, own in starts:
                yield words, Mistake(batch, features, sight, _unrescaled(tile, rows=rows, sums=sums, own=own))


def _lse(batch: PagedBatch, features: Features) -> Named:
    def of(change: Callable[[Expected], Tensor]) -> Callable[[Expected], Expected]:
        return lambda expected: replace(expected, lse=change(expected))

    logs = {
        "an LSE in base 2": lambda e: e.lse * LOG2E,
        "an LSE without its maximum": lambda e: e.denominator.log(),
        "an LSE that is the maximum alone": lambda e: e.lse - e.denominator.log(),
    }
    for words, change in logs.items():
        yield words, Mistake(batch, features, after=of(change))
    if features.sinks is not None:
        without = replace(features, sinks=None)
        yield "an LSE without the sinks", Mistake(batch, features, after=of(lambda e: reference(batch, without).lse))


HYPOTHESES = (_strides, _heads, _pages, _rows, _masks, _numbers, _softmaxes)


@dataclass(frozen=True)
class Found:
    """What a kernel wrote in one call, and what it is judged by."""

    out: Tensor
    lse: Tensor | None
    batch: PagedBatch
    features: Features
    contract: Precision
    structured: bool

    @property
    def is_the_query(self) -> bool:
        """Whether the output rows have the query's bits, as from a kernel that returns its input."""
        rows = slice(int(self.batch.query_start_loc[-1]))
        query, out = self.batch.query[rows], self.out[rows]
        return (query.shape, query.dtype) == (out.shape, out.dtype) and out.numel() > 0 and same_bits(query, out)

    def is_what(self, mistake: Mistake, right: Expected) -> bool:
        """Whether this is what a mistake gives, and not `right`. Where the mistake reads a NaN of an unowned slot, a
        tile may pass it to rows that do not see the key: then the finite numbers, at least half of all, decide."""
        try:
            expected, given = mistake.expected(), (mistake.batch, mistake.features)
            own = slice(expected.num_tokens)
            if not bool(expected.out[own].any()):  # zeros have many causes: one that hides every key is no finding
                return False
            if not bool(expected.out[own].isfinite().all()):
                finite = self.out[own].float().isfinite()
                for one in (expected, right := replace(right, out=right.out.clone())):
                    one.out[own] = one.out[own].masked_fill(~finite, math.nan)
                if int(finite.sum()) < finite.numel() / 2 or self.holds(right, self.batch, self.features):
                    return False
            return self.holds(expected, *given)
        except (ValueError, IndexError, RuntimeError):  # a mistake that is impossible here
            return False

    def holds(self, expected: Expected, batch: PagedBatch, features: Features) -> bool:
        """Whether the checker accepts this as the expected result."""
        given = (batch, features, self.contract, expected)
        return check(self.out, self.lse, *given, structured=self.structured).ok


def explained(found: Found, only: str | None = None) -> list[str]:
    """The mistakes that explain the whole result, in words; none where more than MOST_NAMED do. only: search for this
    one only. The result is wrong: the true reference does not explain it."""
    shape, lens = found.batch.shape, lens_of(*_lens(found.batch))
    if sum(q * n for q, n in lens) * shape.num_query_heads > MOST_LOGITS:
        return []
    right, out_alone = reference(found.batch, found.features), replace(found, lse=None)
    given = (right, found.batch, found.features)
    if found.holds(*given):
        return []
    kinds, found = ((_lse,), found) if out_alone.holds(*given) else (HYPOTHESES, out_alone)
    names = []
    for kind in kinds:
        for words, mistake in kind(found.batch, found.features):
            if words not in names and (only is None or words == only) and found.is_what(mistake, right):
                names.append(words)
    return names if len(names) <= MOST_NAMED else []


def said(names: list[str]) -> str:
    """The causes as the end of a failure's reason."""
    return f"; equals what {', or '.join(names)} would give" if names else ""


def not_written(name: str, first: Tensor, again: Tensor, poison: float, other: float) -> str:
    """Which part of an output kept its fill, `poison` in one call and `other` in the next; "" for none."""
    one, two = first.float(), again.float()
    kept = ((one.isnan() if math.isnan(poison) else one == poison)
            & (two.isnan() if math.isnan(other) else two == other))  # fmt: skip
    if not bool(kept.any()):
        return ""
    token, head, *lane = kept.nonzero()[0].tolist()
    where = f"token {token}, head {head}" + "".join(f", lane {number}" for number in lane)
    return f"; {int(kept.sum())} numbers of {name} were not written, the first at {where}"
