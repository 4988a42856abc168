"""Tiles of contiguous keys as blocks of a tensor descriptor (TMA on NVIDIA from sm_90 on), or by plain loads (ours).

K and V are each a Block, and a second one of the lanes behind the first part where a head is multiplied in parts.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from common.spec import Features, PagedBatch
from common.spec.kernel import parts_of
from dsl_triton.binding import padded, value_dtype
from dsl_triton.features import new_tokens
from dsl_triton.head_parts import first_part
from dsl_triton.primitives import base2_scale, dequantise, logits, products, softmax_weights, sum_values


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
def load_values(
    block, row, column, own, f,
    TILE_SIZE: tl.constexpr, LANES: tl.constexpr, DTYPE: tl.constexpr, FOREIGN: tl.constexpr,
):  # fmt: skip
    """V [TILE_SIZE, LANES] as an operand of a product. FOREIGN: zeros for keys that are not the sequence's `own`."""
    v = dequantise(load_block(block, row, column, f, TILE_SIZE, LANES, FOREIGN, False), DTYPE)
    return tl.where(tl.expand_dims(own, 1), v, 0.0) if FOREIGN else v


@triton.jit
def attend_block(
    j, q, m, l, acc, query_pos, seq_len, softmax_scale, f, r, keys, values, key_rest, value_rest, key_scales_ptr,
    value_scales_ptr, row, column,
    TILE_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, MASKED: tl.constexpr, FOREIGN: tl.constexpr,
):  # fmt: skip
    """Tile j of the sequence, which begins at (row, column) of the Blocks. Returns the new m, l, acc.

    q, acc: tuples of as many parts as K has Blocks. key_scales_ptr, value_scales_ptr: scales per token of the same
    rows, or None. FOREIGN: rows behind the sequence's last key hold keys of other sequences, or NaN, not zeros.
    """
    PARTS: tl.constexpr = 1 if key_rest is None else 2
    FIRST: tl.constexpr = VALUE_SIZE if PARTS == 1 else first_part(VALUE_SIZE)
    DTYPE: tl.constexpr = value_dtype(q[0].dtype, f.value_token_scales is not None)
    k = load_block(keys, row, column, f, TILE_SIZE, q[0].shape[1], MASKED and FOREIGN, True)
    s = products(q[0], k, f)
    if PARTS == 2:
        k = load_block(key_rest, row, column + FIRST, f, TILE_SIZE, q[1].shape[1], MASKED and FOREIGN, True)
        s = products(q[1], k, f, s)
    key_pos = j * TILE_SIZE + tl.arange(0, TILE_SIZE)
    scales = load_copied_scales(key_scales_ptr, row, TILE_SIZE)
    s = logits(s, scales, query_pos, key_pos, seq_len, softmax_scale, f, r, MASKED)
    own = key_pos < seq_len
    v = load_values(values, row, column, own, f, TILE_SIZE, padded(FIRST), DTYPE, MASKED and FOREIGN)
    scales = load_copied_scales(value_scales_ptr, row, TILE_SIZE)
    p, alpha, m, l = softmax_weights(s, scales, m, l, base2_scale(softmax_scale, f, r), f, r, MASKED)
    first = sum_values(p, v, alpha, acc[0])
    if PARTS == 1:
        return m, l, (first,)
    else:
        REST: tl.constexpr = padded(VALUE_SIZE - FIRST)
        v = load_values(value_rest, row, column + FIRST, own, f, TILE_SIZE, REST, DTYPE, MASKED and FOREIGN)
        return m, l, (first, sum_values(p, v, alpha, acc[1]))


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

    Blocks of K and of V, then of the lanes behind their first part, or None. new_kv: the step's new K and V in place of
    a copy, where there are such. descriptors: as tensor descriptors.
    """
    parts = parts_of(batch.shape) if key.shape[1] == batch.shape.head_size else 1
    copied = _blocks((key, value), tile_size, key.shape[1], value.shape[1], parts, descriptors)
    new = _new_blocks(batch, features, tile_size, descriptors) if new_kv else None
    if new is not None:
        return {"new": new}, 0
    tiles = key.shape[0] // (batch.shape.num_kv_heads * tile_size)
    return {"copied": copied}, tiles


def _blocks(
    tensors: tuple[torch.Tensor, ...], tile_size: int, lanes: int, value_lanes: int, parts: int, descriptors: bool
) -> tuple[Block | None, ...]:
    """Blocks of K and V [rows, lanes of one head or of several]; a tile has the lanes of one head."""
    first, rest = (lanes, value_lanes), (None, None)
    if parts == 2:
        first = first_part(lanes), first_part(value_lanes)
        rest = lanes - first[0], value_lanes - first[1]
    boxes = zip(tensors * 2, (*first, *rest), strict=True)
    return tuple(size and _block(tensor, [tile_size, size], descriptors) for tensor, size in boxes)


def _block(tensor: torch.Tensor, box: list[int], descriptors: bool) -> Block:
    """The Block of a tensor [rows, lanes], in tiles of `box`."""
    if descriptors:
        return TensorDescriptor.from_tensor(tensor, box)
    return Rows(tensor, tensor.stride(0), tensor.shape[0])


def _new_blocks(batch: PagedBatch, features: Features, tile_size: int, descriptors: bool) -> tuple[Block, ...] | None:
    """Blocks of the step's new K and V; None where they are not given, or no descriptor can describe them.

    A head of one part whose size is no power of two would read lanes of the next head. TMA needs 16-byte addresses. If
    a mask moves a part of 16 lanes through registers, ptxas 12.8.93 loses V's address (nvidia_code.lost_descriptors).
    """
    head_size, parts = batch.query.shape[2], parts_of(batch.shape)
    given = new_tokens(batch, features)
    part, least = (head_size, 16) if parts == 1 else (head_size - first_part(head_size), 32)
    if given[0] is None or part < least or padded(part) != part or not all(map(_is_boxed, given)):
        return None
    rows = tuple(tensor.flatten(1) for tensor in given)
    return _blocks(rows, tile_size, head_size, head_size, parts, descriptors)


def _is_boxed(new: torch.Tensor) -> bool:
    """Whether the heads of a token are contiguous and tokens begin at multiples of 16 bytes, as TMA needs."""
    together = new.shape[1] == 1 or new.stride(1) == new.shape[2]
    return together and new.data_ptr() % 16 == 0 and new.stride(0) * new.element_size() % 16 == 0
