"""Relations of numbers and keys: scaled operands, split values, keys without effect, features without effect, and NaN
that must not spread."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from common.relations.features import FEATURES
from common.relations.layout import LAYOUT, Sequence, lens, pack, rows_of, unpack
from common.relations.relation import Part, Relation, expect, minus_infinity
from common.spec import Features, PagedBatch

OFFSET = 4.0  # V in eighths up to 3 plus 4 has at most six bits
NEARLY_NO_CAP = 4096.0  # x - c tanh(x / c) is 1e-5 for logits of 8, within rounding


def _scaled_values(batch: PagedBatch, features: Features) -> list[Part]:
    expect(batch.value is None, "no new V beside")
    return [Part(batch.replace(value_cache=batch.value_cache * 8), features, gain=1 / 8)]


def _negated(batch: PagedBatch, features: Features) -> list[Part]:
    expect(batch.key is None, "no new K beside")
    return [Part(batch.replace(query=-batch.query, key_cache=-batch.key_cache), features)]


def _doubled_and_halved(batch: PagedBatch, features: Features) -> list[Part]:
    halved = batch.query / 2
    exact = torch.equal((halved * 2).nan_to_num(0.0), batch.query.nan_to_num(0.0))
    expect(batch.key is None and exact, "no new K beside, and queries whose half is a number of their dtype")
    return [Part(batch.replace(query=halved, key_cache=batch.key_cache * 2), features)]


def _scale_for_query(batch: PagedBatch, features: Features) -> list[Part]:
    return [Part(batch.replace(query=batch.query * 4, softmax_scale=batch.softmax_scale / 4), features)]


def _eighths(batch: PagedBatch) -> PagedBatch:
    expect(batch.value is None, "no new V beside")
    return batch.replace(value_cache=(batch.value_cache * 8).round().clamp(-24, 24) / 8)


def _offset_values(batch: PagedBatch, features: Features) -> list[Part]:
    expect(features.sinks is None, "no sinks, which take their share of an offset")
    expect(all(seq_len >= query_len for query_len, seq_len in lens(batch)), "rows that see a key")
    return [Part(batch.replace(value_cache=batch.value_cache + OFFSET), features, shift=OFFSET)]


def _split_values(batch: PagedBatch, features: Features) -> list[Part]:
    """V is the sum of its even and its odd slots."""
    expect(batch.value is None, "no new V beside")
    even = (torch.arange(batch.value_cache.shape[1], device=batch.device) % 2 == 0)[:, None, None]
    owned = batch.value_cache
    zero = torch.where(owned.isnan(), owned, torch.zeros_like(owned))
    both = torch.where(even, owned, zero), torch.where(even, zero, owned)
    return [Part(batch.replace(value_cache=value), features) for value in both]


def _expect_every_key_seen(batch: PagedBatch, features: Features) -> None:
    one = all(query_len <= 1 for query_len, _ in lens(batch))
    expect(features.sliding_window is None and (one or not features.causal), "rows that see all keys")


def _keys_twice(batch: PagedBatch, features: Features) -> list[Part]:
    _expect_every_key_seen(batch, features)
    expect(features.sinks is None, "no sinks")
    twice = [replace(s, key=torch.cat([s.key] * 2), value=torch.cat([s.value] * 2)) for s in unpack(batch)]
    return [Part(pack(twice, batch), features, lse_shift=math.log(2.0))]


def _keys_split(ways: int, batch: PagedBatch, features: Features) -> list[Part]:
    """Ranges of keys, one launch each; the last, which has the sink, is empty in every second sequence."""
    _expect_every_key_seen(batch, features)
    expect(all(seq_len >= ways * max(query_len, 1) for query_len, seq_len in lens(batch)), "keys for every part")
    parts = []
    for way in range(ways):
        cut = []
        for seq, each in enumerate(unpack(batch)):
            count = max(1, ways - seq % 2)
            bounds = [len(each.key) * i // count for i in range(count + 1)] + [len(each.key)] * ways
            keys = slice(bounds[way], bounds[way + 1])
            cut.append(Sequence(each.query, each.key[keys], each.value[keys]))
        sinks = features.sinks if way == ways - 1 else None
        parts.append(Part(pack(cut, batch), replace(features, causal=False, sinks=sinks)))
    return parts


def _noise(batch: PagedBatch, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape, generator = batch.shape, torch.Generator().manual_seed(rows)
    size = (rows, shape.num_kv_heads, shape.head_size)
    key, value = (torch.randn(size, generator=generator).to(batch.device, shape.dtype) for _ in range(2))
    return key, value


def _keys_left_of_the_window(batch: PagedBatch, features: Features) -> list[Part]:
    """Seven keys, and then two pages of keys, before every sequence, hidden by the window."""
    expect(features.sliding_window is not None, "a window")
    expect(all(n >= features.sliding_window + q for q, n in lens(batch) if n), "windows that begin inside")
    parts = []
    for count in (7, 2 * batch.shape.block_size):
        key, value = _noise(batch, count)
        longer = [
            replace(s, key=torch.cat([key, s.key]), value=torch.cat([value, s.value])) if len(s.key) else s
            for s in unpack(batch)
        ]
        parts.append(Part(pack(longer, batch), features))
    return parts


def _keys_of_the_future(batch: PagedBatch, features: Features) -> list[Part]:
    """Five more tokens behind every sequence, hidden by the causal mask."""
    expect(features.causal, "causal attention")
    (key, value), longer, rows, at = _noise(batch, 5), [], [], 0
    for s in unpack(batch):
        more = 5 if len(s.key) and len(s.query) else 0
        query = torch.cat([s.query, s.query[:1].expand(more, -1, -1)])
        longer.append(Sequence(query, torch.cat([s.key, key[:more]]), torch.cat([s.value, value[:more]])))
        rows += range(at, at + len(s.query))
        at += len(query)
    return [Part(pack(longer, batch), features, rows=torch.tensor(rows, dtype=torch.long))]


def _heads_expanded(batch: PagedBatch, features: Features) -> list[Part]:
    """Repeat K and V of a KV head for each of its query heads."""
    group = batch.shape.queries_per_kv
    expect(group > 1, "two query heads a KV head")
    expanded = [
        replace(s, key=s.key.repeat_interleave(group, 1), value=s.value.repeat_interleave(group, 1))
        for s in unpack(batch)
    ]
    return [Part(pack(expanded, batch, num_kv_heads=batch.shape.num_query_heads), features)]


def _window_of_all_keys(batch: PagedBatch, features: Features) -> list[Part]:
    expect(features.sliding_window is None, "no window")
    longest = max((max(each) for each in lens(batch)), default=1)  # no key is farther from a row
    return [Part(batch, replace(features, sliding_window=max(1, longest) + more)) for more in (0, 1000)]


def _softcap_out_of_reach(batch: PagedBatch, features: Features) -> list[Part]:
    expect(features.softcap is None, "no softcap")
    return [Part(batch, replace(features, softcap=NEARLY_NO_CAP))]


def _sinks_of_nothing(batch: PagedBatch, features: Features) -> list[Part]:
    expect(features.sinks is None, "no sinks")
    return [Part(batch, replace(features, sinks=minus_infinity(batch.shape.num_query_heads, batch.device)))]


def _nan_stays(batch: PagedBatch, features: Features) -> list[Part]:
    """Put NaN into V of the first sequence's last key, under the first KV head.

    It must reach the last row of that sequence in the head's group, and no row of other sequences or KV heads. Earlier
    rows of that sequence and group are not covered: in a tile shared with a row that sees the key, 0 * NaN is NaN.
    """
    (query_len, seq_len), shape = lens(batch)[0], batch.shape
    expect(query_len > 0 and seq_len > 0 and batch.value is None, "a first sequence with tokens, no new V beside")
    page = int(batch.block_table[0, (seq_len - 1) // shape.block_size])
    expect(bool((batch.block_table == page).sum() == 1), "a last page of one sequence alone")
    value = batch.value_cache.clone()
    value[page, (seq_len - 1) % shape.block_size, 0] = float("nan")
    poisoned = batch.replace(value_cache=value)
    own, group = rows_of(batch, 0), torch.arange(shape.queries_per_kv)
    others = torch.arange(query_len, int(batch.query_start_loc[-1]))
    rest = torch.arange(shape.queries_per_kv, shape.num_query_heads)
    return [
        Part(poisoned, features, rows=own[-1:], heads=group, poisoned=True),
        Part(poisoned, features, rows=others, base_rows=others),
        Part(poisoned, features, rows=own, base_rows=own, heads=rest, base_heads=rest),
    ]


MATH: tuple[Relation, ...] = (
    Relation("values-times-8", "bitwise", _scaled_values),
    Relation("query-and-keys-negated", "bitwise", _negated),
    Relation("query-halved-keys-doubled", "bitwise", _doubled_and_halved),
    Relation("query-times-4-scale-over-4", "bitwise", _scale_for_query),
    Relation("values-offset", "tolerance", _offset_values, prepare=_eighths),
    Relation("values-split", "tolerance", _split_values, combine="sum"),
    Relation("keys-twice", "tolerance", _keys_twice),
    Relation("keys-in-2-parts-merged", "tolerance", lambda b, f: _keys_split(2, b, f), combine="merge"),
    Relation("keys-in-3-parts-merged", "tolerance", lambda b, f: _keys_split(3, b, f), combine="merge"),
    Relation("keys-left-of-the-window", "tolerance", _keys_left_of_the_window),
    Relation("keys-of-the-future", "tolerance", _keys_of_the_future),
    Relation("heads-expanded", "tolerance", _heads_expanded),
    Relation("window-of-all-keys", "tolerance", _window_of_all_keys),
    Relation("softcap-out-of-reach", "tolerance", _softcap_out_of_reach),
    Relation("sinks-of-nothing", "tolerance", _sinks_of_nothing),
    Relation("nan-stays-where-it-is-seen", "bitwise", _nan_stays),
)
RELATIONS: tuple[Relation, ...] = (*LAYOUT, *MATH, *FEATURES)
