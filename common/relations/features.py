"""Relations of features: settings without effect, two ways to ask for the same, and the effect of scales."""

from __future__ import annotations

from dataclasses import replace

import torch

from common.relations.layout import Sequence, lens, pack, unpack
from common.relations.relation import Part, Relation, expect
from common.spec import Features, PagedBatch
from common.spec.paged_batch import DTYPES, QUANTISED
from common.spec.quantise import largest


def _expect_plain_mask(features: Features) -> None:
    expect(features.sliding_window is None, "no window")


def _chunk_beyond_the_keys(batch: PagedBatch, features: Features) -> list[Part]:
    """One chunk that holds every key, and chunks of one key that look back at all keys."""
    _expect_plain_mask(features)
    expect(features.causal, "causal attention")
    return [
        Part(batch, replace(features, chunk=2**30)),
        Part(batch, replace(features, chunk=1, chunk_lookback=2**30)),
    ]


def _chunks_as_sequences(batch: PagedBatch, features: Features) -> list[Part]:
    """Every chunk's queries as a request of its own, whose keys are the chunk's."""
    expect(features.chunk is not None and features.chunk_lookback == 0, "chunks that do not look back")
    pieces, base, token = [], [], 0
    for each, (query_len, seq_len) in zip(unpack(batch), lens(batch), strict=True):
        context = seq_len - query_len  # rows before the first key are not covered
        for chunk in sorted({position // features.chunk for position in range(max(0, context), seq_len)}):
            begin, end = chunk * features.chunk, min((chunk + 1) * features.chunk, seq_len)
            rows = slice(max(begin, context) - context, end - context)
            pieces.append(Sequence(each.query[rows], each.key[begin:end], each.value[begin:end]))
            base += range(token + rows.start, token + rows.stop)
        token += query_len
    index = torch.tensor(base, dtype=torch.long)
    return [Part(pack(pieces, batch), replace(features, chunk=None), base_rows=index)]


def _slopes_of_zero(batch: PagedBatch, features: Features) -> list[Part]:
    return [Part(batch, replace(features, alibi_slopes=torch.zeros(batch.query.shape[1], device=batch.device)))]


def _tree_of_one_branch(batch: PagedBatch, features: Features) -> list[Part]:
    """A bias of zeros; and one of -inf for the keys behind each query, which it does not see anyway."""
    expect(features.causal, "causal attention")
    zeros = torch.zeros(max([q for q, _ in lens(batch)] + [1]), device=batch.device)
    square = zeros[:, None] + zeros
    hidden = square.masked_fill(torch.ones_like(square).triu(1).bool(), float("-inf"))
    return [Part(batch, replace(features, tree_bias=bias)) for bias in (square, hidden)]


def _span_of_everything(batch: PagedBatch, features: Features) -> list[Part]:
    """Causal, with one span over the whole sequence."""
    _expect_plain_mask(features)
    expect(not features.causal, "attention that is not causal")
    expect(all(n == 0 or n >= q for q, n in lens(batch)), "no row before the first key, which no span holds")
    spans = torch.tensor([[[0, max(1, n - 1)]] for _, n in lens(batch)], dtype=torch.int32, device=batch.device)
    return [Part(batch, replace(features, causal=True, spans=spans))]


def _spans_of_nothing(batch: PagedBatch, features: Features) -> list[Part]:
    """Spans of one token, of none, and of keys before all queries."""
    expect(features.causal, "causal attention")
    nothing = torch.tensor([[0, 0], [5, 5], [7, 3]], dtype=torch.int32, device=batch.device)
    spans = nothing.expand(batch.num_seqs, -1, -1).contiguous()
    return [Part(batch, replace(features, spans=spans))]


def _flag_for_each_sequence(batch: PagedBatch, features: Features) -> list[Part]:
    """All ones for causal attention, all zeros for the other."""
    flags = torch.full((batch.num_seqs,), int(features.causal), dtype=torch.int32, device=batch.device)
    return [
        Part(batch, replace(features, causal=True, causal_per_sequence=flags)),
        Part(batch, replace(features, causal=True, causal_per_sequence=flags.bool())),
    ]


def _cross(batch: PagedBatch, features: Features) -> list[Part]:
    _expect_plain_mask(features)
    expect(not features.causal and batch.key is None, "attention that is not causal, without new K and V beside")
    return [Part(batch, replace(features, cross=True))]


def _invariant(batch: PagedBatch, features: Features) -> list[Part]:
    return [Part(batch, replace(features, batch_invariant=True))]


def _values_widened(batch: PagedBatch, features: Features) -> list[Part]:
    """Eight more lanes of V."""
    size = batch.shape.value_lanes
    expect(
        batch.value is None and batch.value_cache.shape[-1] == size, "pages of the usual layout, without new K and V"
    )
    lanes = torch.full((*batch.value_cache.shape[:3], 8), 3.0, dtype=batch.query.dtype, device=batch.device)
    wide = torch.cat([batch.value_cache, lanes.to(batch.value_cache.dtype)], -1)
    return [Part(batch.replace(value_cache=wide), features, lanes=torch.arange(size))]


def _expect_quantised(batch: PagedBatch, features: Features) -> None:
    expect(batch.key_cache.dtype in QUANTISED and batch.query.dtype in DTYPES, "quantised caches, and no query of fp8")


def _scales_of_one(batch: PagedBatch, features: Features) -> list[Part]:
    """No scales, one, one per head, and one per token and head."""
    _expect_quantised(batch, features)
    expect(features.key_scale is None and features.value_scale is None, "caches without scales")
    sizes = (1,), (batch.shape.num_kv_heads,), tuple(batch.key_cache.shape[:3])
    ones = [torch.ones(size, device=batch.device) for size in sizes]
    return [Part(batch, replace(features, key_scale=one, value_scale=one.clone())) for one in ones]


def _value_scale_doubled(batch: PagedBatch, features: Features) -> list[Part]:
    _expect_quantised(batch, features)
    scale = torch.full((1,), 2.0, device=batch.device) if features.value_scale is None else features.value_scale * 2
    return [Part(batch, replace(features, value_scale=scale), gain=0.5)]


def _key_scale_as_softmax_scale(batch: PagedBatch, features: Features) -> list[Part]:
    """K's scale of 4 equals a softmax scale four times as large."""
    _expect_quantised(batch, features)
    expect(features.key_scale is None, "caches without scales")
    quarter = batch.replace(softmax_scale=batch.softmax_scale / 4)
    return [Part(quarter, replace(features, key_scale=torch.full((1,), 4.0, device=batch.device)))]


def _caches_of_floats(batch: PagedBatch, features: Features) -> list[Part]:
    """Values stored as fp8 are exact in the query's dtype too."""
    _expect_quantised(batch, features)
    expect(features.key_scale is None and features.value_scale is None, "caches without scales")
    caches = {name: getattr(batch, name).to(batch.query.dtype) for name in ("key_cache", "value_cache")}
    expect(largest(batch.key_cache.dtype) <= torch.finfo(batch.query.dtype).max, "a range that the query's dtype holds")
    return [Part(batch.replace(**caches), features)]


FEATURES: tuple[Relation, ...] = (
    Relation("chunk-beyond-the-keys", "tolerance", _chunk_beyond_the_keys),
    Relation("chunks-as-sequences", "tolerance", _chunks_as_sequences, speaks_of=frozenset({"chunked_local"})),
    Relation("slopes-of-zero", "tolerance", _slopes_of_zero),
    Relation("tree-of-one-branch", "tolerance", _tree_of_one_branch),
    Relation("span-of-everything", "tolerance", _span_of_everything),
    Relation("spans-of-nothing", "tolerance", _spans_of_nothing),
    Relation("flag-for-each-sequence", "tolerance", _flag_for_each_sequence),
    Relation("cross-as-non-causal", "tolerance", _cross),
    Relation("batch-invariant", "tolerance", _invariant),
    Relation("values-widened", "tolerance", _values_widened),
    Relation("scales-of-one", "tolerance", _scales_of_one, speaks_of=frozenset({"fp8_kv"})),
    Relation("value-scale-doubled", "bitwise", _value_scale_doubled, speaks_of=frozenset({"fp8_kv"})),
    Relation("key-scale-as-softmax-scale", "tolerance", _key_scale_as_softmax_scale, speaks_of=frozenset({"fp8_kv"})),
    Relation("caches-of-floats", "tolerance", _caches_of_floats, speaks_of=frozenset({"fp8_kv"})),
)
