"""Scratch of both DSLs' kernels, and the refusal of batches that exceed it.

Segments share the tiles of one Q Block (parallel_softmax); a static grid cuts items between programs into parts. Both
leave sums that a later launch merges. `unpaged` first copies K and V out of their pages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from common.spec.kernel import Capacity
from common.spec.metadata import ANY_QUERY, SHORT_QUERY, cdiv
from common.spec.paged_batch import FP8, AttentionShape, PagedBatch, SpecError

RECORD = 8  # int32: cuts of the item, number of this one, scratch row of the first part, rows of a part,
#             first query row, real rows, KV head, nothing


@dataclass(frozen=True)
class SegmentScratch:
    """What the segments leave for the reduction, float32: unnormalised sums, base-2 row maxima, row sums."""

    acc: torch.Tensor  # [num_segments, rows, num_query_heads, value_lanes]
    m: torch.Tensor  # [num_segments, rows, num_query_heads]
    l: torch.Tensor  # [num_segments, rows, num_query_heads]

    @classmethod
    def of(cls, shape: AttentionShape, num_segments: int, rows: int, device: torch.device) -> SegmentScratch:
        """Scratch for `rows` query tokens."""
        sizes = (num_segments, rows, shape.num_query_heads)
        floats = {"dtype": torch.float32, "device": device}
        return cls(
            torch.empty((*sizes, shape.value_lanes), **floats),
            torch.empty(sizes, **floats),
            torch.empty(sizes, **floats),
        )

    @classmethod
    def up_to(
        cls, capacity: Capacity, shape: AttentionShape, num_segments: int, longest_query: int = ANY_QUERY
    ) -> SegmentScratch | None:
        """Scratch for any batch up to `capacity`, for its sequences of at most `longest_query` query tokens.

        None with one segment, which needs no reduction.
        """
        if num_segments == 1:
            return None
        rows = min(capacity.num_tokens, capacity.num_seqs * longest_query)
        return cls.of(shape, num_segments, rows, capacity.device)


def partials(workspace: SegmentScratch | None) -> tuple[torch.Tensor | None, ...]:
    """acc, m and l as a kernel's operands; three times None without scratch."""
    return (None, None, None) if workspace is None else (workspace.acc, workspace.m, workspace.l)


def has_room(acc: torch.Tensor | None, batch: PagedBatch, num_segments: int, longest_query: int = ANY_QUERY) -> bool:
    """Whether the scratch holds the partial results of so many segments for the sequences of at most `longest_query`
    query tokens.

    acc: its float32 [segments, tokens, query heads, value lanes], or None.
    """
    if acc is None:
        return False
    segments, tokens, *row = acc.shape
    enough = segments >= num_segments and tokens >= _tokens(batch, longest_query)
    return enough and row == [batch.shape.num_query_heads, batch.shape.value_lanes]


def ensure_room(acc: torch.Tensor | None, batch: PagedBatch, num_segments: int, longest_query: int = ANY_QUERY) -> None:
    """Raise SpecError where segments would write outside their scratch. One segment needs none."""
    if num_segments > 1 and not has_room(acc, batch, num_segments, longest_query):
        found = "none" if acc is None else f"scratch {list(acc.shape)}"
        sizes = num_segments, _tokens(batch, longest_query), batch.shape.num_query_heads, batch.shape.value_lanes
        raise SpecError("workspace", found, f"at least {list(sizes)}: segments, tokens, heads, lanes")


def _tokens(batch: PagedBatch, longest_query: int) -> int:
    return min(batch.num_tokens, batch.num_seqs * longest_query)


@dataclass(frozen=True)
class CopyScratch:
    """K and V of long queries, copied out of their pages: a region of whole tiles for each sequence, consecutively."""

    key: torch.Tensor  # [num_kv_heads * tokens, lanes of K], the query's dtype
    value: torch.Tensor  # [num_kv_heads * tokens, lanes of V]; fp16 beside an fp8 query
    scales: torch.Tensor  # f32 [2, num_kv_heads * tokens], of K and V; [2, 0] for 16 bits
    parts: SegmentScratch | None  # for segments of long queries
    decode: SegmentScratch | None  # for segments of short queries

    @classmethod
    def up_to(
        cls,
        capacity: Capacity,
        shape: AttentionShape,
        tile_size: int,
        num_segments: int,
        most_parts: int,
        lanes: tuple[int, int],
        decode: SegmentScratch | None,
    ) -> CopyScratch:
        """Scratch for `capacity.num_keys` keys of long queries.

        most_parts: segments x query tokens that may leave parts. lanes: of K and V, as the kernel pads them.
        """
        longest = min(capacity.num_seqs, capacity.num_tokens // (SHORT_QUERY + 1))  # the most long queries
        tiles = max(cdiv(capacity.num_keys, tile_size) + longest, 1)
        rows = shape.num_kv_heads * tiles * tile_size
        parts, device = None, capacity.device
        if num_segments > 1:
            # a multiple of 16: compilers specialise on strides that 16 divides
            tokens = min(capacity.num_tokens, cdiv(most_parts // num_segments, 16) * 16)
            parts = SegmentScratch.of(shape, num_segments, tokens, device)
        values = torch.float16 if shape.dtype in FP8 else shape.dtype  # the dtype of V as an operand
        return cls(
            torch.empty((rows, lanes[0]), dtype=shape.dtype, device=device),
            torch.empty((rows, lanes[1]), dtype=values, device=device),
            torch.empty((2, rows if shape.cache_dtype.itemsize == 1 else 0), dtype=torch.float32, device=device),
            parts,
            decode,
        )


@dataclass(frozen=True)
class PartScratch:
    """Scratch of a static grid, float32 except records and overflow.

    A part has the rows of its item: unnormalised sums, base-2 row maxima, row sums. Every program has two parts: of an
    item that it continues, and of one that it begins. overflow: 1 where the last launch met a sequence beyond the
    capacity, else 0.
    """

    acc: torch.Tensor  # [rows, 1, value_lanes]
    m: torch.Tensor  # [rows]
    l: torch.Tensor  # [rows]
    records: torch.Tensor  # i32 [programs, RECORD]
    overflow: torch.Tensor  # i32 [1]
    num_tokens: int
    num_seqs: int

    @classmethod
    def up_to(cls, capacity: Capacity, shape: AttentionShape, grids: Iterable[tuple[int, int]]) -> PartScratch:
        """Scratch of the same size for every capacity. grids: programs and rows of a Q Block, for each launch."""
        grids = list(grids)
        programs, rows = sum(count for count, _ in grids), sum(2 * count * block_m for count, block_m in grids)
        floats = {"dtype": torch.float32, "device": capacity.device}
        ints = {"dtype": torch.int32, "device": capacity.device}
        return cls(
            torch.empty((rows, 1, shape.value_lanes), **floats),
            torch.empty(rows, **floats),
            torch.empty(rows, **floats),
            torch.empty((programs, RECORD), **ints),
            torch.zeros(1, **ints),
            capacity.num_tokens,
            capacity.num_seqs,
        )


def ensure_served(workspace: PartScratch) -> None:
    """Raise SpecError where the last launch met a sequence beyond the capacity. Waits for the device."""
    if int(workspace.overflow.item()):
        raise SpecError(
            "query_start_loc, seq_lens",
            "a sequence with query tokens past the tensors, or more keys than its row of the block table has pages for",
            "what the captured batch's shapes hold; rows of such a sequence are NaN",
        )


def ensure_capacity(batch: PagedBatch, workspace: PartScratch, grids: Iterable[tuple[int, int, int]]) -> None:
    """Raise SpecError for a batch with more tokens, sequences or tiles than the workspace allows.

    grids: programs, rows of a Q Block and keys of a tile, for each launch; kernels count tiles in 32 bits.
    """
    for name in ("num_tokens", "num_seqs"):
        found, most = getattr(batch, name), getattr(workspace, name)
        if found > most:
            raise SpecError(name, found, f"at most {most}, the capacity of the workspace")
    shape, keys = batch.shape, batch.block_table.shape[1] * batch.shape.block_size
    for programs, block_m, tile_size in grids:
        items = cdiv(batch.num_tokens, block_m // shape.queries_per_kv) + batch.num_seqs
        tiles = items * shape.num_kv_heads * (cdiv(keys, tile_size) + 1)
        if tiles >= 2**31 - programs:
            raise SpecError("block_table", f"room for {tiles} tiles", "less than 2^31: larger tiles or Q Blocks")
