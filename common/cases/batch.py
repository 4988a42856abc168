"""Batches made from `(query_len, seq_len)` pairs: shuffled pages, and NaN in every unowned slot and row."""

from typing import Literal

import torch

from common.oracle.integrity import Guards
from common.spec import AttentionShape, Layout, PagedBatch, metadata
from common.spec.metadata import BatchStats, Lens, cdiv
from common.spec.paged_batch import ALIGNMENT
from common.spec.quantise import draw, fill_where

CacheStyle = Literal["nhd", "hnd", "stacked", "interleaved"]
_TAIL = (-1, 2**31 - 1, 0x7F7F7F7F, 0)  # what engines leave after the used part of a block table


def _page_ids(
    lens: Lens, block_size: int, copies: int, shared_pages: int, spare: int, generator: torch.Generator
) -> tuple[list, int]:
    """One list of page-id lists per copy, and the size of the pool; see `make_batches` for `shared_pages`."""
    need = [cdiv(seq_len, block_size) for _, seq_len in lens]
    common_pages = [min(shared_pages, max(0, seq_len - query_len) // block_size) for query_len, seq_len in lens]
    per_copy = max(common_pages, default=0) + sum(n - c for n, c in zip(need, common_pages, strict=True))
    num_blocks = per_copy * copies + spare
    order = torch.randperm(num_blocks, generator=generator).tolist()
    tables, at = [], 0
    for _ in range(copies):
        shared = order[at : at + max(common_pages, default=0)]
        at += len(shared)
        rows = []
        for n, c in zip(need, common_pages, strict=True):
            rows.append(shared[:c] + order[at : at + n - c])
            at += n - c
        tables.append(rows)
    return tables, num_blocks


def _block_table(rows: list[list[int]], extra_columns: int, dtype: torch.dtype) -> torch.Tensor:
    width = max((len(row) for row in rows), default=0) + extra_columns
    table = torch.empty(len(rows), max(width, 1), dtype=dtype)
    for i, row in enumerate(rows):
        table[i] = _TAIL[i % len(_TAIL)]
        table[i, : len(row)] = torch.tensor(row, dtype=dtype)
    return table


def _packed_pair(shape: AttentionShape, num_blocks: int, guards: Guards) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of Layout.X_PACKED."""
    page, heads, head, dtype = shape.block_size, shape.num_kv_heads, shape.head_size, shape.cache_dtype
    x = ALIGNMENT // dtype.itemsize
    key_cache = guards.empty("key_cache", (num_blocks, heads, head // x, page, x), dtype)
    return key_cache, guards.empty("value_cache", (num_blocks, heads, shape.value_lanes, page), dtype)


def _cache_pair(
    layout: Layout, style: CacheStyle, shape: AttentionShape, num_blocks: int, guards: Guards
) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V. Paged ones are views [num_blocks, block_size, num_kv_heads, head_size] of the layout that `style`
    names."""
    if layout is Layout.X_PACKED:
        if style != "nhd":
            raise ValueError(f"style: found {style!r}, allowed none beside {layout}")
        return _packed_pair(shape, num_blocks, guards)
    page, heads, dtype = shape.block_size, shape.num_kv_heads, shape.cache_dtype
    head, values = shape.head_size, shape.value_lanes
    sizes = (("key_cache", head), ("value_cache", values))
    if style == "stacked":  # vLLM 0.25: one tensor, in which each page holds K and then V
        if head != values:
            raise ValueError(
                f"style: found {style!r} with value size {values}, allowed one that K and V need not share"
            )
        both = guards.empty("cache", (num_blocks, 2, page, heads, head), dtype)
        return both[:, 0], both[:, 1]
    if style == "interleaved":  # vLLM 0.33: head-major, with V after K in one row
        both = guards.empty("cache", (num_blocks, heads, page, head + values), dtype).transpose(1, 2)
        return both[..., :head], both[..., head:]
    if style == "hnd":
        pair = [guards.empty(name, (num_blocks, heads, page, size), dtype).transpose(1, 2) for name, size in sizes]
    elif style == "nhd":
        pair = [guards.empty(name, (num_blocks, page, heads, size), dtype) for name, size in sizes]
    else:
        raise ValueError(f"style: found {style!r}, allowed nhd, hnd, stacked, interleaved")
    return pair[0], pair[1]


def owned_slots(lens: Lens, tables: list[torch.Tensor], num_blocks: int, block_size: int) -> torch.Tensor:
    """bool [num_blocks, block_size]: the slots that hold a token of a sequence under any of the block tables."""
    owned = torch.zeros(num_blocks * block_size, dtype=torch.bool)
    for table in tables:
        for seq, (_, seq_len) in enumerate(lens):
            position = torch.arange(seq_len)
            owned[table[seq].cpu().long()[position // block_size] * block_size + position % block_size] = True
    return owned.view(num_blocks, block_size)


def _new_slots(batch: PagedBatch, lens: Lens) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """int64 row of query, page and slot of each new token that has a key. Tokens before the first key have none."""
    block_size = batch.shape.block_size
    rows, positions, seqs, begin = [], [], [], 0
    for seq, (query_len, seq_len) in enumerate(lens):
        count = min(query_len, seq_len)
        rows += range(begin + query_len - count, begin + query_len)
        positions += range(seq_len - count, seq_len)
        seqs += [seq] * count
        begin += query_len
    row, position, seq = (
        torch.tensor(values, dtype=torch.long, device=batch.device) for values in (rows, positions, seqs)
    )
    return row, batch.block_table[seq, position // block_size].long(), position % block_size


def fill_new_tokens(batches: list[PagedBatch]) -> None:
    """Make `key` and `value`, where batches of one pool have them, agree with the caches.

    They become what the first batch's pages hold, and so do those pages' copies in the other batches. Unowned rows
    become NaN. Beside quantised caches both are NaN throughout, because the caches are authoritative.
    """
    first = batches[0]
    if first.key is None:
        return
    if first.shape.quantised:
        first.key.fill_(float("nan"))
        first.value.fill_(float("nan"))
        return
    lens = metadata.lens_of(first.query_start_loc, first.seq_lens)
    for number, batch in enumerate(batches):
        row, page, slot = _new_slots(batch, lens)
        for new, cache in zip((first.key, first.value), batch.by_token(), strict=True):
            if number == 0:
                new.fill_(float("nan"))
                new[row] = cache[page, slot].flatten(2)
            else:
                cache[page, slot] = new[row].view(-1, *cache.shape[2:])


def fill_values(batches: list[PagedBatch], seed: int) -> None:
    """Draw a new query, K and V into the same buffers of batches that share one pool. Unowned slots become NaN again,
    or the largest int8.

    Draws in the tensors' device and dtype, so that a pool of gigabytes takes no host time.
    """
    first = batches[0]
    generator = torch.Generator(first.device).manual_seed(seed)
    for tensor in (first.query, first.key_cache, first.value_cache):
        draw(tensor, generator)
    lens = metadata.lens_of(first.query_start_loc, first.seq_lens)
    caches = first.by_token()
    num_blocks, block_size = caches[0].shape[:2]
    nobody = ~owned_slots(lens, [batch.block_table for batch in batches], num_blocks, block_size).to(first.device)
    for cache in caches:
        fill_where(cache, nobody, float("nan"))
    first.query[int(first.query_start_loc[-1]) :] = float("nan")
    fill_new_tokens(batches)


def make_batches(
    lens: Lens,
    shape: AttentionShape,
    *,
    copies: int = 1,
    seed: int = 0,
    device: torch.device | str = "cpu",
    style: CacheStyle = "nhd",
    shared_pages: int = 0,
    pad_tokens: int = 0,
    extra_columns: int = 3,
    spare_pages: int = 3,
    table_dtype: torch.dtype = torch.int32,
    guards: Guards | None = None,
    fill: bool = True,
    new_kv: bool = False,
    layout: Layout = Layout.PAGED,
) -> list[PagedBatch]:
    """`copies` batches of the same lengths and query over one pool of pages, each with a block table of its own.

    lens: [(query_len, seq_len), ...]. style: how K and V lie in memory. shared_pages: that many leading pages are the
    same physical pages in all sequences that have them as whole context pages. pad_tokens: rows of query past the last
    sequence (NaN). extra_columns: columns of the block table past the longest sequence; every unused entry is garbage.
    spare_pages: pages nobody owns. guards: where the tensors are allocated; pass one to ask it later who wrote outside.
    Deterministic in `seed` on one device type.
    fill: False leaves query, K and V uninitialised, for a compiler that needs no values: gigabytes then cost nothing
    on a CPU.
    new_kv: also the step's new K and V, contiguous, bit for bit what the pages hold; rows of padding and of tokens
    before the first key are NaN, and all beside quantised pages.
    layout: X_PACKED pages lie in one way; `style` is of paged ones.
    """
    guards = guards or Guards(device)
    generator = torch.Generator().manual_seed(seed)
    pages, num_blocks = _page_ids(lens, shape.block_size, copies, shared_pages, spare_pages, generator)
    num_tokens = sum(query_len for query_len, _ in lens) + pad_tokens
    query = guards.empty("query", (num_tokens, shape.num_query_heads, shape.head_size), shape.dtype)
    pair = _cache_pair(layout, style, shape, num_blocks, guards)
    lanes = {"key": shape.head_size, "value": shape.value_lanes} if new_kv else {}
    sizes = {name: (num_tokens, shape.num_kv_heads, size) for name, size in lanes.items()}
    new = {name: guards.empty(name, size, shape.dtype) for name, size in sizes.items()}
    starts = guards.copy("query_start_loc", metadata.query_start_loc(lens))
    lengths = guards.copy("seq_lens", metadata.seq_lens(lens))
    batches = [
        PagedBatch(
            query=query,
            key_cache=pair[0],
            value_cache=pair[1],
            block_table=guards.copy(f"block_table_{i}", _block_table(rows, extra_columns, table_dtype)),
            query_start_loc=starts,
            seq_lens=lengths,
            softmax_scale=shape.head_size**-0.5,
            stats=BatchStats.of(lens),
            layout=layout,
            **new,
        )
        for i, rows in enumerate(pages)
    ]
    if fill:
        fill_values(batches, seed)
    return batches


def make_batch(lens: Lens, shape: AttentionShape, **options: object) -> PagedBatch:
    """One batch; takes the options of `make_batches` except `copies`."""
    return make_batches(lens, shape, **options)[0]
