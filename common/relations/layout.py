"""Relations of memory: the same attention with other pages, tables, strides, batch mates and cuts of the query."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from common.cases.batch import make_batch
from common.cases.fills import INVISIBLE
from common.oracle.reference import gather
from common.relations.relation import Part, Relation, expect
from common.spec import Features, Layout, PagedBatch
from common.spec.metadata import BatchStats, Lens, lens_of

GARBAGE = 2**31 - 1


@dataclass(frozen=True)
class Sequence:
    """A request's tensors as stored: query [query_len, heads, size], key and value [seq_len, kv_heads, size]."""

    query: Tensor
    key: Tensor
    value: Tensor

    @property
    def lens(self) -> tuple[int, int]:
        return self.query.shape[0], self.key.shape[0]


def lens(batch: PagedBatch) -> Lens:
    return lens_of(batch.query_start_loc, batch.seq_lens)


def unpack(batch: PagedBatch) -> list[Sequence]:
    """The requests of a batch in paged layout."""
    expect(batch.layout is Layout.PAGED and batch.key is None, "pages of the usual layout, without new K and V beside")
    dtype, starts = batch.query.dtype, batch.query_start_loc.tolist()
    keys = [
        [gather(cache, batch.block_table[seq], n).to(dtype) for cache in batch.by_token()]
        for seq, n in enumerate(batch.seq_lens.tolist())
    ]
    return [Sequence(batch.query[starts[i] : starts[i + 1]], k, v) for i, (k, v) in enumerate(keys)]


def pack(sequences: list[Sequence], batch: PagedBatch, **changes: object) -> PagedBatch:
    """A batch of these requests in fresh, shuffled pages, with `batch`'s scale, dtype and sizes, except `changes`."""
    shape = replace(batch.shape, **changes) if changes else batch.shape
    made = make_batch([each.lens for each in sequences], shape, seed=7, device=batch.device, pad_tokens=1)
    at = 0
    for seq, each in enumerate(sequences):
        query_len, seq_len = each.lens
        made.query[at : at + query_len] = each.query
        position = torch.arange(seq_len, device=batch.device)
        pages = made.block_table[seq].long()[position // shape.block_size]
        for cache, rows in zip(made.by_token(), (each.key, each.value), strict=True):
            cache[pages, position % shape.block_size] = rows
        at += query_len
    return made.replace(softmax_scale=batch.softmax_scale)


def rows_of(batch: PagedBatch, seq: int) -> Tensor:
    start, stop = batch.query_start_loc[seq : seq + 2].tolist()
    return torch.arange(start, stop)


def _in_order(batch: PagedBatch, order: list[int]) -> PagedBatch:
    """Some sequences of a batch, in this order, over the same pages."""
    rows = torch.cat([rows_of(batch, seq) for seq in order]) if order else torch.empty(0, dtype=torch.long)
    chosen = [lens(batch)[seq] for seq in order]
    starts = torch.tensor([0, *torch.tensor([q for q, _ in chosen]).cumsum(0).tolist()], dtype=torch.int32)
    pick = torch.tensor(order, dtype=torch.long, device=batch.device)
    new = {} if batch.key is None else {"key": batch.key[rows].clone(), "value": batch.value[rows].clone()}
    return batch.replace(
        query=batch.query[rows].clone(), block_table=batch.block_table[pick].clone(),
        query_start_loc=starts.to(batch.device), seq_lens=batch.seq_lens[pick].clone(), stats=BatchStats.of(chosen),
        **new,
    )  # fmt: skip


def _pages_permuted(batch: PagedBatch, features: Features) -> list[Part]:
    blocks = batch.key_cache.shape[0]
    old = torch.randperm(blocks, generator=torch.Generator().manual_seed(blocks)).to(batch.device)
    expect(blocks > 1, "more than one page")
    new_id, table = torch.argsort(old), batch.block_table.clone()
    for row, (_, seq_len) in zip(table, lens(batch), strict=True):
        used = row[: -(-seq_len // batch.shape.block_size)]
        used.copy_(new_id[used.long()])
    caches = {"key_cache": batch.key_cache[old], "value_cache": batch.value_cache[old]}
    return [Part(batch.replace(block_table=table, **caches), features)]


def _pages_moved(batch: PagedBatch, features: Features) -> list[Part]:
    """Insert five pages of NaN in front of all."""
    caches = {}
    for name in ("key_cache", "value_cache"):
        cache = getattr(batch, name)
        front = torch.full((5, *cache.shape[1:]), float("nan"), dtype=cache.dtype, device=cache.device)
        caches[name] = torch.cat([front, cache])
    table = batch.block_table.clone()
    for row, (_, seq_len) in zip(table, lens(batch), strict=True):
        row[: -(-seq_len // batch.shape.block_size)] += 5
    return [Part(batch.replace(block_table=table, **caches), features)]


def _unseen_poisoned(batch: PagedBatch, features: Features) -> list[Part]:
    names = ("query", "key_cache", "value_cache", "key", "value")
    copied = {name: getattr(batch, name).clone() for name in names if getattr(batch, name) is not None}
    poisoned = batch.replace(**copied)
    INVISIBLE["unseen-nan"](poisoned, features)
    return [Part(poisoned, features)]


def _pages_private(batch: PagedBatch, features: Features) -> list[Part]:
    used = [
        row[: -(-seq_len // batch.shape.block_size)].tolist()
        for row, (_, seq_len) in zip(batch.block_table, lens(batch), strict=True)
    ]
    flat = [page for row in used for page in row]
    expect(len(set(flat)) < len(flat), "a page that two sequences share")
    table, at = batch.block_table.clone(), 0
    for row, pages in zip(table, used, strict=True):
        row[: len(pages)] = torch.arange(at, at + len(pages))
        at += len(pages)
    pick = torch.tensor(flat, device=batch.device)
    caches = {"key_cache": batch.key_cache[pick], "value_cache": batch.value_cache[pick]}
    return [Part(batch.replace(block_table=table, **caches), features)]


def _table_widened(batch: PagedBatch, features: Features) -> list[Part]:
    tail = torch.full_like(batch.block_table[:, :1], GARBAGE).expand(-1, 9)
    return [Part(batch.replace(block_table=torch.cat([batch.block_table, tail], 1)), features)]


def _table_of_64_bits(batch: PagedBatch, features: Features) -> list[Part]:
    other = torch.int32 if batch.block_table.dtype == torch.int64 else torch.int64
    return [Part(batch.replace(block_table=batch.block_table.to(other)), features)]


def _requests_appended(batch: PagedBatch, features: Features) -> list[Part]:
    """Append requests without tokens, and padding rows."""
    end, count = batch.query_start_loc[-1:], 3
    tail = torch.full_like(batch.query[:1], float("nan")).expand(4, -1, -1)
    longer = {name: torch.cat([getattr(batch, name), tail[:, :1].expand(-1, batch.shape.num_kv_heads, -1)])
              for name in ("key", "value") if batch.key is not None}  # fmt: skip
    table = torch.full_like(batch.block_table[:1], GARBAGE) if batch.num_seqs else batch.block_table[:0]
    expect(batch.num_seqs > 0, "at least one sequence")
    return [Part(batch.replace(
        query=torch.cat([batch.query, tail]), query_start_loc=torch.cat([batch.query_start_loc, end.expand(count)]),
        seq_lens=torch.cat([batch.seq_lens, torch.zeros_like(batch.seq_lens[:1]).expand(count)]),
        block_table=torch.cat([batch.block_table, table.expand(count, -1)]),
        stats=BatchStats.of([*lens(batch), *[(0, 0)] * count]), **longer,
    ), features)]  # fmt: skip


def _sequences_reversed(batch: PagedBatch, features: Features) -> list[Part]:
    expect(batch.num_seqs > 1, "two sequences")
    order = list(range(batch.num_seqs))[::-1]
    return [Part(_in_order(batch, order), features, base_rows=torch.cat([rows_of(batch, seq) for seq in order]))]


def _each_alone(batch: PagedBatch, features: Features) -> list[Part]:
    expect(batch.num_seqs > 1, "two sequences")
    return [Part(_in_order(batch, [s]), features, base_rows=rows_of(batch, s)) for s in range(batch.num_seqs)]


def _halves(batch: PagedBatch, features: Features) -> list[Part]:
    expect(batch.num_seqs > 1, "two sequences")
    middle, every = batch.num_seqs // 2, list(range(batch.num_seqs))
    return [
        Part(_in_order(batch, some), features, base_rows=torch.cat([rows_of(batch, seq) for seq in some]))
        for some in (every[:middle], every[middle:])
    ]


def _chunks(size: int, batch: PagedBatch, features: Features) -> list[Part]:
    """Make each chunk of each query a sequence over the same pages, up to its last token."""
    expect(features.causal, "causal attention: without it a chunk would see later keys")
    expect(any(query_len > size for query_len, _ in lens(batch)), f"a query of more than {size} tokens")
    cut, rows = [], []
    for seq, (query_len, seq_len) in enumerate(lens(batch)):
        for first in range(0, query_len, size):
            count = min(size, query_len - first)
            cut.append((count, max(0, seq_len - query_len + first + count)))
            rows.append(seq)
    starts = torch.tensor([0, *torch.tensor([q for q, _ in cut]).cumsum(0).tolist()], dtype=torch.int32)
    lengths = torch.tensor([n for _, n in cut], dtype=torch.int32)
    pick = torch.tensor(rows, device=batch.device)
    return [Part(batch.replace(
        query_start_loc=starts.to(batch.device), seq_lens=lengths.to(batch.device),
        block_table=batch.block_table[pick].clone(), stats=BatchStats.of(cut),
    ), features)]  # fmt: skip


def _in_chunks(name: str, size_of: int | None, plus: int = 0) -> Relation:
    """The relation for chunks of a fixed size, or of a page plus `plus`."""
    return Relation(name, "tolerance", lambda b, f: _chunks(size_of or b.shape.block_size + plus, b, f))


def _heads_permuted(batch: PagedBatch, features: Features) -> list[Part]:
    """Reverse the KV heads, and their query heads with them."""
    shape = batch.shape
    expect(shape.num_kv_heads > 1 and batch.layout is Layout.PAGED, "two KV heads, pages of the usual layout")
    kv = torch.arange(shape.num_kv_heads).flip(0)
    heads = torch.arange(shape.num_query_heads).view(shape.num_kv_heads, -1)[kv].flatten()
    new = {} if batch.key is None else {"key": batch.key[:, kv].clone(), "value": batch.value[:, kv].clone()}
    sinks = None if features.sinks is None else features.sinks[heads]
    caches = {"key_cache": batch.key_cache[:, :, kv], "value_cache": batch.value_cache[:, :, kv]}
    part = batch.replace(query=batch.query[:, heads].clone(), **caches, **new)
    return [Part(part, replace(features, sinks=sinks), base_heads=heads)]


def _heads_of_a_group(batch: PagedBatch, features: Features) -> list[Part]:
    """Reverse the query heads of each KV head."""
    shape = batch.shape
    expect(shape.queries_per_kv > 1, "two query heads a KV head")
    heads = torch.arange(shape.num_query_heads).view(shape.num_kv_heads, -1).flip(1).flatten()
    sinks = None if features.sinks is None else features.sinks[heads]
    part = batch.replace(query=batch.query[:, heads].clone())
    return [Part(part, replace(features, sinks=sinks), base_heads=heads)]


def _value_lanes(batch: PagedBatch, features: Features) -> list[Part]:
    expect(batch.layout is Layout.PAGED and batch.key is None, "pages of the usual layout, without new K and V beside")
    part = batch.replace(value_cache=batch.value_cache.flip(-1).contiguous())
    return [Part(part, features, lanes=torch.arange(batch.shape.head_size).flip(0))]


def _strides(batch: PagedBatch, features: Features) -> list[Part]:
    """Head-major pages, and V behind K in one row."""
    expect(batch.layout is Layout.PAGED, "pages of the usual layout")
    pair = [cache.transpose(1, 2).contiguous().transpose(1, 2) for cache in (batch.key_cache, batch.value_cache)]
    row, size = torch.cat(pair, -1), batch.shape.head_size
    behind = {"key_cache": row[..., :size], "value_cache": row[..., size:]}
    return [
        Part(batch.replace(key_cache=pair[0], value_cache=pair[1]), features), Part(batch.replace(**behind), features),
    ]  # fmt: skip


def _page_doubled(batch: PagedBatch, features: Features) -> list[Part]:
    return [Part(pack(unpack(batch), batch, block_size=2 * batch.shape.block_size), features)]


def _hints(batch: PagedBatch, features: Features) -> list[Part]:
    small = replace(batch.stats, max_query_len=1, max_seq_len=1, total_seq_len=batch.num_seqs)
    large = replace(batch.stats, max_query_len=4096, max_seq_len=131072)
    return [Part(batch.replace(stats=stats), features) for stats in (small, large)]


LAYOUT: tuple[Relation, ...] = (
    Relation("twice", "bitwise", lambda batch, features: [Part(batch, features)]),
    Relation("pages-permuted", "bitwise", _pages_permuted),
    Relation("pages-moved", "bitwise", _pages_moved),
    Relation("pages-private", "bitwise", _pages_private),
    Relation("unseen-slots-poisoned", "bitwise", _unseen_poisoned),
    Relation("table-widened", "bitwise", _table_widened),
    Relation("table-of-other-integers", "bitwise", _table_of_64_bits),
    Relation("cache-of-other-strides", "bitwise", _strides),
    Relation("hints-wrong", "bitwise", _hints),
    Relation("requests-appended", "bitwise", _requests_appended),
    Relation("sequences-reversed", "bitwise", _sequences_reversed),
    Relation("kv-heads-permuted", "bitwise", _heads_permuted),
    Relation("heads-of-a-group-permuted", "tolerance", _heads_of_a_group),
    Relation("value-lanes-permuted", "tolerance", _value_lanes),
    Relation("each-sequence-alone", "tolerance", _each_alone),
    Relation("batch-in-halves", "tolerance", _halves),
    _in_chunks("prefill-token-by-token", 1),
    _in_chunks("prefill-in-pages", None),
    _in_chunks("prefill-in-chunks-under-a-page", None, -1),
    _in_chunks("prefill-in-chunks-over-a-page", None, 1),
    Relation("page-size-doubled", "tolerance", _page_doubled),
)
