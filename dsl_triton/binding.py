"""Which Configs fit a shape and a GPU, which dtypes and lanes operands have, and how tensors become arguments."""

from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from common.choice.legal import fits_one
from common.spec import AttentionShape, PagedBatch
from common.spec.workspaces import SegmentScratch, partials


@triton.constexpr_function
def padded(head_size):
    """Lanes that hold a head: a power of two, and at least the 16 that a matrix product needs."""
    return max(16, triton.next_power_of_2(head_size))


@triton.constexpr_function
def value_dtype(query_dtype, token_scales):
    """Dtype of P and V as operands: the query's, but fp16 beside an fp8 query.

    bf16 if V has a scale per token, because P times it may exceed fp16. Never fp8: sm_90 sums products of fp8 in 14
    bits, which loses 13% over long contexts. fp16 holds each fp8 number, and V needs no transposition for it.
    """
    dtype = tl.float16 if query_dtype.is_fp8() else query_dtype
    return tl.bfloat16 if token_scales and dtype == tl.float16 else dtype


@triton.constexpr_function
def deals_lanes(dtype, rows):
    """Whether products of `rows` rows take stored V of this dtype with permuted lanes (features.deal_lanes).

    From 64 rows on sm_90 reads V from shared memory in words of 16 bits, so no permutation is needed.
    """
    return dtype.primitive_bitwidth == 8 and rows < 64


def is_ptx(_semantic=None):
    """Whether the kernel compiles to PTX, as a constant. False in the interpreter, which has no inline assembly."""
    options = getattr(getattr(_semantic, "builder", None), "options", None)
    return tl.constexpr(getattr(options, "backend_name", "") == "cuda")


is_ptx.__triton_builtin__ = True  # so that Triton passes it `_semantic`


@triton.constexpr_function
def widens_pairs(dtype, wanted, rows, ptx):
    """Whether products of `rows` rows take stored V of this dtype by features.widen_pairs.

    From 64 rows on sm_90 V lies in shared memory in 16 bits, and no bytes of neighbouring keys are paired.
    """
    return ptx and dtype.name == "fp8e4nv" and wanted == tl.float16 and rows < 64


@triton.constexpr_function
def product_lanes(value_size, head_lanes, rows, dtype):
    """Lanes of V and of the accumulator in products of `rows` rows beside a query of `dtype`.

    Those of V, padded. If the product reads V from shared memory, at least as many bytes as K has, up to 64 lanes: with
    fewer ptxas 12.8.93 (triton 3.6 and 3.7) loses V's address (nvidia_code.lost_descriptors).
    """
    lanes = padded(value_size)
    if rows < 64 or dtype.primitive_bitwidth > 16:
        return lanes
    return max(lanes, min(head_lanes * dtype.primitive_bitwidth // 16, 64))


@triton.constexpr_function
def largest(dtype):
    """The largest number of an 8-bit dtype."""
    return {"fp8e4nv": 448.0, "fp8e4b8": 240.0, "fp8e5": 57344.0, "int8": 127.0}[dtype.name]


def smallest_block_m(shape: AttentionShape) -> int:
    """Fewest rows of a Q Block: one token under all query heads of a KV head, rounded up to a power of two."""
    return triton.next_power_of_2(shape.queries_per_kv)


def block_m_of(config: Any, shape: AttentionShape) -> int:
    """Rows of a Q Block: the config's, or smallest_block_m where that is larger."""
    return max(config.block_m, smallest_block_m(shape))


fits = fits_one  # Helion's also asks whether the gather form applies


class Tensor(NamedTuple):
    """A tensor as a kernel argument: its pointer and its strides in elements; both None for a missing tensor."""

    ptr: Any
    strides: Any


def as_tensor(tensor: torch.Tensor | None) -> Tensor:
    """A tensor, or None, as a kernel's argument."""
    return Tensor(tensor, strides(tensor))


class Partial(NamedTuple):
    """Partial results of segments as a kernel argument: f32 acc [num_segments, rows, num_query_heads, VALUE_SIZE], and
    m, l [num_segments, rows, num_query_heads]; strides in elements. l has the strides of m."""

    acc: Any
    m: Any
    l: Any
    acc_strides: Any
    m_strides: Any


def as_partial(workspace: SegmentScratch | None) -> Partial | None:
    """The scratch of segments, or None, as a kernel's argument."""
    return None if workspace is None else Partial(*partials(workspace), workspace.acc.stride(), workspace.m.stride())


def strides(tensor: torch.Tensor | None) -> tuple[int, ...] | None:
    """Strides as a kernel argument; None for an operand that is None, whose branch is not compiled."""
    return None if tensor is None else tensor.stride()


def cache_strides(batch: PagedBatch, run: int = 1) -> tuple[tuple[Any, ...], tuple[int, ...] | None]:
    """Strides of K and of V as kernel arguments. V's are None if they equal K's, as in the caches of serving engines:
    both loads then share their offsets, which saves registers, and the stride of a slot is a constant.

    For tiles that are loaded key by key (run 1), K's are (rows per page, elements per row, elements per head). A row is
    one slot of all KV heads. This needs pages of whole rows, and 32 bits to number all rows (primitives.row_offset).
    """
    strides, of_values = batch.key_cache.stride(), batch.value_cache.stride()
    return (strides, of_values) if of_values != strides else (_constant(strides, batch.key_cache.shape[0], run), None)


@lru_cache(maxsize=1024)
def _constant(strides: tuple[int, ...], num_blocks: int, run: int) -> tuple[Any, ...]:
    page, row, *others = strides
    if run == 1 and row > 0 and page % row == 0 and num_blocks * (page // row) < 2**31:
        return page // row, tl.constexpr(row), others[0]
    return page, tl.constexpr(row), *others
