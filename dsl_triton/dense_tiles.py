"""Tiles of contiguous keys as blocks of a tensor descriptor (TMA on NVIDIA from sm_90 on), or by plain loads (ours)."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from common.spec import Features, PagedBatch
from common.spec.metadata import SHORT_QUERY, cdiv
from dsl_triton.binding import padded, value_dtype
from dsl_triton.features import new_tokens
from dsl_triton.primitives import base2_scale, dequantise, logits, products, softmax_step


class Rows(NamedTuple):
    """A tensor [rows, lanes] for plain loads, where a TensorDescriptor would be."""

    ptr: torch.Tensor
    stride: int
    count: int


Block = TensorDescriptor | Rows


@triton.jit
def load_block(
    block, row, column, f,
    TILE_SIZE: tl.constexpr, LANES: tl.constexpr, MASKED: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """[TILE_SIZE, LANES] from (row, column) on. KEYS: K for a product, which `f` may want transposed.

    MASKED: rows may lie behind the last one; they give zeros.
    """
    TRANSPOSED: tl.constexpr = KEYS and f.transposed_keys is not None
    if isinstance(block, tl.tuple):  # noqa: SIM114  Rows, of whose fields Triton 3.6 forgets the names
        return _load_plainly(block, row, column, TILE_SIZE, LANES, MASKED, TRANSPOSED)
    elif hasattr(block, "count"):  # Rows as the interpreter has them; Triton must not ask both
        return _load_plainly(block, row, column, TILE_SIZE, LANES, MASKED, TRANSPOSED)
    else:
        x = block.load([row, column])
        return tl.trans(x) if TRANSPOSED else x


@triton.jit
def _load_plainly(
    block, row, column,
    TILE_SIZE: tl.constexpr, LANES: tl.constexpr, MASKED: tl.constexpr, TRANSPOSED: tl.constexpr,
):  # fmt: skip
    ptr, stride, count = block
    ALONG: tl.constexpr = 0 if TRANSPOSED else 1
    at = tl.arange(0, TILE_SIZE)
    lane = tl.expand_dims(tl.arange(0, LANES), 1 - ALONG)
    ptrs = ptr + row.to(tl.int64) * stride + column
    ptrs = ptrs + tl.expand_dims(at * stride, ALONG) + lane
    if MASKED:
        return tl.load(ptrs, mask=tl.expand_dims(row + at < count, ALONG), other=0.0)
    else:
        return tl.load(ptrs)


@triton.jit
def masked_tile(i, left, lo, full_hi):
    """The i-th tile that needs a mask: `left` of them begin at lo, the others at full_hi.

    One loop for both edges, after the tiles between: with a third loop ptxas 12.8 crashes on TMA loads.
    """
    return tl.where(i < left, lo + i, full_hi + i - left)


@triton.jit
def load_copied_scales(scales_ptr, row, TILE_SIZE: tl.constexpr):
    """float32 [TILE_SIZE] of the keys from `row` of the scratch on; 0 where there are no such scales."""
    if scales_ptr is not None:
        return tl.load(scales_ptr + row + tl.arange(0, TILE_SIZE))
    else:
        return 0


@triton.jit
def attend_block(
    j, q, m, l, acc, query_pos, seq_len, softmax_scale, f, r, keys, values, key_scales_ptr, value_scales_ptr, row,
    column,
    TILE_SIZE: tl.constexpr, VALUE_PADDED: tl.constexpr, MASKED: tl.constexpr, FOREIGN: tl.constexpr,
):  # fmt: skip
    """Tile j of the sequence, which begins at (row, column) of the Blocks. Returns the new m, l, acc.

    key_scales_ptr, value_scales_ptr: scales per token of the same rows, or None.
    FOREIGN: rows behind the sequence's last key hold keys of other sequences, or NaN, not zeros.
    """
    k = load_block(keys, row, column, f, TILE_SIZE, q.shape[1], MASKED and FOREIGN, True)
    s = products(q, k, f)
    key_pos = j * TILE_SIZE + tl.arange(0, TILE_SIZE)
    scales = load_copied_scales(key_scales_ptr, row, TILE_SIZE)
    s = logits(s, scales, query_pos, key_pos, seq_len, softmax_scale, f, r, MASKED)
    v = load_block(values, row, column, f, TILE_SIZE, VALUE_PADDED, MASKED and FOREIGN, False)
    v = dequantise(v, value_dtype(q.dtype, f.value_token_scales is not None))
    if MASKED and FOREIGN:
        v = tl.where(tl.expand_dims(key_pos < seq_len, 1), v, 0.0)
    scales = load_copied_scales(value_scales_ptr, row, TILE_SIZE)
    return softmax_step(s, v, scales, m, l, acc, base2_scale(softmax_scale, f, r), f, r, MASKED)


def tile_sources(
    batch: PagedBatch,
    features: Features,
    key: torch.Tensor,
    value: torch.Tensor,
    tile_size: int,
    new_kv: bool,
    descriptors: bool,
) -> tuple[dict[str, tuple[Block, ...]], int]:
    """Blocks for each launch of unpaged.py, by source, and how many tiles of the scratch (key, value) are used.

    new_kv: the step's new K and V in place of a copy, where there are such. descriptors: as tensor descriptors.
    """
    copied = tuple(_block(tensor, [tile_size, tensor.shape[1]], descriptors) for tensor in (key, value))
    new = _new_blocks(batch, features, tile_size, descriptors) if new_kv else None
    if new is not None:
        return {"context": copied, "new": new}, 0
    tiles = key.shape[0] // (batch.shape.num_kv_heads * tile_size)
    sources = {"copied": copied}
    if _may_overflow(batch, tiles, tile_size):
        sources["paged"] = copied
    return sources, tiles


def _block(tensor: torch.Tensor, box: list[int], descriptors: bool) -> Block:
    """Of a tensor [rows, lanes], in tiles of `box`."""
    if descriptors:
        return TensorDescriptor.from_tensor(tensor, box)
    return Rows(tensor, tensor.stride(0), tensor.shape[0])


def _new_blocks(batch: PagedBatch, features: Features, tile_size: int, descriptors: bool) -> tuple[Block, ...] | None:
    """Blocks of the step's new K and V; None where they are not given, or no descriptor can describe them.

    A block is HEAD_PADDED lanes wide: a head of another size would read its neighbour's. TMA wants 16-byte addresses.
    """
    head_size = batch.query.shape[2]
    given = new_tokens(batch, features)
    if given[0] is None or padded(head_size) != head_size or not all(map(_is_boxed, given)):
        return None
    return tuple(_block(tensor.flatten(1), [tile_size, head_size], descriptors) for tensor in given)


def _is_boxed(new: torch.Tensor) -> bool:
    """Whether the heads of a token are contiguous and tokens begin at multiples of 16 bytes, as TMA needs."""
    together = new.shape[1] == 1 or new.stride(1) == new.shape[2]
    return together and new.data_ptr() % 16 == 0 and new.stride(0) * new.element_size() % 16 == 0


def _may_overflow(batch: PagedBatch, tiles: int, tile_size: int) -> bool:
    """Whether the shapes allow more keys than the scratch holds: lengths are on the device."""
    longest = min(batch.num_seqs, batch.num_tokens // (SHORT_QUERY + 1))
    return longest * cdiv(batch.block_table.shape[1] * batch.shape.block_size, tile_size) > tiles
