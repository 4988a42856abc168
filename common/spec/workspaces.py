"""Scratch of both DSLs' kernels, and the refusal of batches that exceed it.

Segments share the tiles of one Q Block (parallel_softmax) and leave sums that a later launch merges. `unpaged` copies K
and V out of their pages first. A static grid's scratch stands beside its plan (step_plan.py).
"""

from dataclasses import dataclass, replace

import torch

from common.spec.kernel import Capacity
from common.spec.metadata import ANY_QUERY, SHORT_QUERY, cdiv
from common.spec.paged_batch import FP8, AttentionShape, PagedBatch, SpecError


@dataclass(frozen=True)
class SegmentScratch:
    """What the segments leave for the reduction, float32: unnormalised sums, base-2 row maxima, row sums."""

    acc: torch.Tensor  # [num_segments, rows, num_query_heads, value_lanes]
    m: torch.Tensor  # [num_segments, rows, num_query_heads]
    l: torch.Tensor  # [num_segments, rows, num_query_heads]

    @classmethod
    def of(cls, shape: AttentionShape, num_segments: int, rows: int, device: torch.device) -> "SegmentScratch":
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
    ) -> "SegmentScratch | None":
        """Scratch for any batch up to `capacity`, for its sequences of at most `longest_query` query tokens.

        None with one segment, which needs no reduction.
        """
        if num_segments == 1:
            return None
        rows = min(capacity.num_tokens, capacity.num_seqs * longest_query)
        return cls.of(shape, num_segments, rows, capacity.device)


def partials(workspace: SegmentScratch | None) -> tuple[torch.Tensor | None, ...]:
    """Return acc, m and l as a kernel's operands; three times None without scratch."""
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
    ) -> "CopyScratch":
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


def of_lanes(
    batch: PagedBatch, out: torch.Tensor, scratch: CopyScratch, lanes: slice, padded: int
) -> tuple[PagedBatch, torch.Tensor, CopyScratch]:
    """Batch, output and scratch of some lanes of V alone, as views, without the step's new V. padded: so many lanes of
    the scratch hold them."""
    parts = scratch.parts and replace(scratch.parts, acc=scratch.parts.acc[..., lanes])
    value = scratch.value[:, lanes.start : lanes.start + padded]
    batch = batch.replace(value_cache=batch.value_cache[..., lanes], key=None, value=None)
    return batch, out[..., lanes], replace(scratch, value=value, parts=parts)


def may_overflow(batch: PagedBatch, tiles: int, tile_size: int) -> bool:
    """Whether the shapes allow more keys than the scratch holds: lengths are on the device."""
    longest = min(batch.num_seqs, batch.num_tokens // (SHORT_QUERY + 1))
    return longest * cdiv(batch.block_table.shape[1] * batch.shape.block_size, tile_size) > tiles
