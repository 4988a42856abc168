"""Batches made of `(query_len, seq_len)` pairs: shuffled pages, and NaN in every slot that nobody owns."""

from __future__ import annotations

from typing import Literal

import torch

from common import metadata
from common.guards import Guards
from common.metadata import BatchStats, Lens, cdiv
from common.spec import AttentionShape, PagedBatch

CacheStyle = Literal["nhd", "hnd", "stacked", "interleaved"]
_TAIL = (-1, 2**31 - 1, 0x7F7F7F7F, 0)  # what engines leave behind the used part of a block table


def _page_ids(
    lens: Lens, block_size: int, copies: int, shared_pages: int, spare: int, generator: torch.Generator
) -> tuple[list, int]:
    """One list of page-id lists per copy, and the size of the pool; see `make_batches` for `shared_pages`."""
    need = [cdiv(seq_len, block_size) for _, seq_len in lens]
    common_pages = [min(shared_pages, (seq_len - query_len) // block_size) for query_len, seq_len in lens]
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


def _cache_pair(
    style: CacheStyle, shape: AttentionShape, num_blocks: int, guards: Guards
) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V views [num_blocks, block_size, num_kv_heads, head_size] of the storage that `style` names."""
    page, heads, head, dtype = shape.block_size, shape.num_kv_heads, shape.head_size, shape.dtype
    if style == "stacked":  # vLLM 0.25: one tensor, K and V behind each other page by page
        both = guards.empty("cache", (num_blocks, 2, page, heads, head), dtype)
        return both[:, 0], both[:, 1]
    if style == "interleaved":  # vLLM 0.33: head-major, V behind K in one row
        both = guards.empty("cache", (num_blocks, heads, page, 2 * head), dtype).transpose(1, 2)
        return both[..., :head], both[..., head:]
    if style == "hnd":
        pair = [
            guards.empty(name, (num_blocks, heads, page, head), dtype).transpose(1, 2)
            for name in ("key_cache", "value_cache")
        ]
    elif style == "nhd":
        pair = [guards.empty(name, (num_blocks, page, heads, head), dtype) for name in ("key_cache", "value_cache")]
    else:
        raise ValueError(f"style: found {style!r}, allowed nhd, hnd, stacked, interleaved")
    return pair[0], pair[1]


def owned_slots(lens: Lens, tables: list[torch.Tensor], num_blocks: int, block_size: int) -> torch.Tensor:
    """bool [num_blocks, block_size]: the slots that hold a token of some sequence, under any of the block tables."""
    owned = torch.zeros(num_blocks * block_size, dtype=torch.bool)
    for table in tables:
        for seq, (_, seq_len) in enumerate(lens):
            position = torch.arange(seq_len)
            owned[table[seq].cpu().long()[position // block_size] * block_size + position % block_size] = True
    return owned.view(num_blocks, block_size)


def fill_values(batches: list[PagedBatch], seed: int) -> None:
    """New random query, K and V in the same buffers of batches that share one pool; slots of nobody become NaN again.

    Draws in the tensors' device and dtype, so a pool of gigabytes costs no host time.
    """
    first = batches[0]
    generator = torch.Generator(first.device).manual_seed(seed)
    for tensor in (first.query, first.key_cache, first.value_cache):
        tensor.copy_(torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype, device=tensor.device))
    lens = metadata.lens_of(first.query_start_loc, first.seq_lens)
    num_blocks, block_size = first.key_cache.shape[:2]
    nobody = ~owned_slots(lens, [batch.block_table for batch in batches], num_blocks, block_size).to(first.device)
    first.key_cache[nobody] = float("nan")
    first.value_cache[nobody] = float("nan")
    first.query[int(first.query_start_loc[-1]) :] = float("nan")


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
) -> list[PagedBatch]:
    """`copies` batches of the same lengths and query over one pool of pages, each with a block table of its own.

    lens: [(query_len, seq_len), ...]. style: how K and V lie in memory. shared_pages: that many leading pages are the
    same physical pages in all sequences that have them as whole context pages. pad_tokens: rows of query past the last
    sequence (NaN). extra_columns: columns of the block table past the longest sequence; every unused entry is garbage.
    spare_pages: pages nobody owns. guards: where the tensors are allocated; pass one to ask it later who wrote outside.
    Deterministic in `seed` on one device type.
    fill: False leaves query, K and V uninitialised, for a compiler that needs no values: gigabytes then cost nothing
    on a CPU.
    """
    guards = guards or Guards(device)
    generator = torch.Generator().manual_seed(seed)
    pages, num_blocks = _page_ids(lens, shape.block_size, copies, shared_pages, spare_pages, generator)
    num_tokens = sum(query_len for query_len, _ in lens) + pad_tokens
    query = guards.empty("query", (num_tokens, shape.num_query_heads, shape.head_size), shape.dtype)
    key_cache, value_cache = _cache_pair(style, shape, num_blocks, guards)
    starts = guards.copy("query_start_loc", metadata.query_start_loc(lens))
    lengths = guards.copy("seq_lens", metadata.seq_lens(lens))
    batches = [
        PagedBatch(
            query=query,
            key_cache=key_cache,
            value_cache=value_cache,
            block_table=guards.copy(f"block_table_{i}", _block_table(rows, extra_columns, table_dtype)),
            query_start_loc=starts,
            seq_lens=lengths,
            softmax_scale=shape.head_size**-0.5,
            stats=BatchStats.of(lens),
        )
        for i, rows in enumerate(pages)
    ]
    if fill:
        fill_values(batches, seed)
    return batches


def make_batch(lens: Lens, shape: AttentionShape, **options: object) -> PagedBatch:
    """One batch; the options of `make_batches` but `copies`."""
    return make_batches(lens, shape, **options)[0]
