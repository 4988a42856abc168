"""Features as one argument of a kernel, in Triton, and what of them is loaded once per row.

Kernel files pass both on and never name a feature. dsl_helion/features.py says the same in Helion.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from common.spec import Cdna, Features, PagedBatch, kernel
from common.spec.features import kernel_operands
from dsl_triton.binding import deals_lanes, padded, strides

PLAIN = Cdna()
HEADROOM = tl.constexpr(2.0**15)  # factor of P in fp16, so that small weights do not become 0


class Bundle(NamedTuple):
    """common.spec.Features as a kernel argument, and how a Config reads tiles.

    What is off is None, and its branch is not compiled.
    """

    non_causal: int | None
    sliding_window: int | None
    softcap: float | None
    sinks: torch.Tensor | None  # float [num_query_heads]
    alibi_slopes: torch.Tensor | None  # f32 [num_query_heads]
    alibi_sqrt: int | None
    chunk: int | None
    chunk_lookback: int | None
    spans: torch.Tensor | None  # i32 [num_seqs, max_spans, 2]
    spans_strides: tuple[int, ...] | None
    max_spans: int | None
    causal_per_sequence: torch.Tensor | None  # i32 or i8 [num_seqs]
    tree_bias: torch.Tensor | None  # float [tree_size, tree_size]
    tree_strides: tuple[int, ...] | None
    tree_size: int | None
    key_scale: torch.Tensor | None  # f32 [1] or [num_kv_heads]
    key_scale_stride: int | None
    value_scale: torch.Tensor | None  # f32 [1] or [num_kv_heads]
    value_scale_stride: int | None
    key_token_scales: torch.Tensor | None  # f32 [num_blocks, BLOCK_SIZE, num_kv_heads]
    key_token_strides: tuple[int, ...] | None
    value_token_scales: torch.Tensor | None  # f32 [num_blocks, BLOCK_SIZE, num_kv_heads]
    value_token_strides: tuple[int, ...] | None
    query_scale: torch.Tensor | None  # f32 [1]
    out_scale: torch.Tensor | None  # f32 [1]
    # of a Config (common.spec.Cdna)
    xcds: int | None
    transposed_keys: int | None
    stream: int | None


def bundle(features: Features, config: Cdna = PLAIN) -> Bundle:
    """What a launch asks of every tile. config: how tiles are dealt and read."""
    f = kernel_operands(features)
    return Bundle(
        **f, spans_strides=strides(f["spans"]), max_spans=None if f["spans"] is None else f["spans"].shape[1],
        tree_strides=strides(f["tree_bias"]), key_token_strides=strides(f["key_token_scales"]),
        value_token_strides=strides(f["value_token_scales"]), xcds=config.xcds if config.xcds > 1 else None,
        transposed_keys=1 if config.transposed_keys else None, stream=1 if config.stream else None,
    )  # fmt: skip


def new_tokens(batch: PagedBatch, features: Features) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """common.spec.kernel.new_tokens, but None if K and V differ in size or strides: kernels take one size and one set
    of strides.
    """
    if batch.shape.value_size is not None or batch.key is None or batch.key.stride() != batch.value.stride():
        return None, None
    return kernel.new_tokens(batch, features, strided=True)


class RowOperands(NamedTuple):
    """What features need of the rows of one Q Block, loaded once; 0 where its feature is off."""

    slope: tl.tensor  # f32 [BLOCK_M]
    chunk_first: tl.tensor  # [BLOCK_M]: first key of the oldest chunk that the row sees
    span_first: tl.tensor  # [BLOCK_M]: first and last key of the span that holds the row, its own where none does
    span_last: tl.tensor
    causal: tl.tensor  # of the sequence: 0: not causal
    token: tl.tensor  # [BLOCK_M]
    context_len: tl.tensor
    logit_scale: tl.tensor  # f32: of K and Q, beside the softmax scale
    row_scale: tl.tensor  # f32 [BLOCK_M]: what query_operand took from each row; an integer where it took nothing


@triton.jit
def row_operands(f, seq, kv_head, token, head, live, context_len):
    """RowOperands of the Q Block with these rows: query tokens and heads as primitives.q_block_rows gives them."""
    query_pos = context_len + token
    slope = 0
    if f.alibi_slopes is not None:
        slope = tl.load(f.alibi_slopes + head, mask=live, other=0.0)
    chunk_first = 0
    if f.chunk is not None:
        chunk_first = (query_pos // f.chunk - f.chunk_lookback) * f.chunk
    span_first = 0
    span_last = 0
    if f.spans is not None:
        span_first = query_pos
        span_last = query_pos
        span_ptr = f.spans + seq.to(tl.int64) * f.spans_strides[0]
        for _ in range(f.max_spans):
            first = tl.load(span_ptr)
            last = tl.load(span_ptr + f.spans_strides[2])
            inside = (query_pos >= first) & (query_pos <= last) & (first < last)
            span_first = tl.where(inside, first, span_first)
            span_last = tl.where(inside, last, span_last)
            span_ptr += f.spans_strides[1]
    causal = 0
    if f.causal_per_sequence is not None:
        causal = tl.load(f.causal_per_sequence + seq)
    logit_scale = 0
    if f.key_scale is not None:
        logit_scale = tl.load(f.key_scale + kv_head * f.key_scale_stride)
        if f.query_scale is not None:
            logit_scale *= tl.load(f.query_scale)
    elif f.query_scale is not None:
        logit_scale = tl.load(f.query_scale)
    whole = tl.cast(0, tl.int32)  # a tensor, because Triton 3.6 cannot return None or a constant
    return RowOperands(slope, chunk_first, span_first, span_last, causal, token, context_len, logit_scale, whole)


@triton.jit
def query_operand(q, r, cache_ptr):
    """Q [BLOCK_M, HEAD_PADDED] as an operand of products with K of this cache, and r with the scale taken from each
    row.

    A bf16 query over a cache of 8 bits is multiplied in fp16, which holds each number of such a cache: sm_90 converts
    fp8 to fp16 in a third of the instructions that bf16 takes. A power of two takes the largest |q| of each row to
    [2^14, 2^15), exactly; only elements 2^-31 times smaller lose bits.
    """
    if q.dtype == tl.bfloat16 and cache_ptr.dtype.element_ty.primitive_bitwidth == 8:
        q = q.to(tl.float32)
        # of float32: 255 for a row with Inf, which stays Inf; from 16 on both factors are normal numbers
        exponent = tl.maximum(tl.max(tl.abs(q), 1).to(tl.int32, bitcast=True) >> 23, 16)
        factor = ((268 - exponent) << 23).to(tl.float32, bitcast=True)
        row_scale = ((exponent - 14) << 23).to(tl.float32, bitcast=True)
        q = (q * tl.expand_dims(factor, 1)).to(tl.float16)
        r = RowOperands(
            r.slope, r.chunk_first, r.span_first, r.span_last, r.causal, r.token, r.context_len, r.logit_scale,
            row_scale,
        )  # fmt: skip
    return q, r


@triton.jit
def deal_lanes(v):
    """V [TILE_SIZE, VALUE_PADDED] of 8 bits with permuted lanes: of 128 lanes, 4 x + i moves to 32 i + x.

    A thread of sm_90 multiplies every 32nd lane of V. Permuted, these lie side by side in shared memory, and one load
    of a word replaces four loads of a byte.
    """
    TILE_SIZE: tl.constexpr = v.shape[0]
    LANES: tl.constexpr = v.shape[1]
    if LANES > 32:
        v = tl.reshape(tl.trans(tl.reshape(v, [TILE_SIZE, 32, LANES // 32]), 0, 2, 1), [TILE_SIZE, LANES])
    return v


@triton.jit
def widen_pairs(v):
    """V of e4m3fn as fp16, four neighbouring keys at once, by NVIDIA's instruction.

    A product takes two neighbouring keys of a lane in one register. Inline assembly on four bytes at once needs three
    instructions to bring them together, Triton's cast four.
    """
    return tl.inline_asm_elementwise(
        "{ .reg .b16 a, b; mov.b32 {a, b}, $2; cvt.rn.f16x2.e4m3x2 $0, a; cvt.rn.f16x2.e4m3x2 $1, b; }",
        "=r,=r,r", [v], dtype=tl.float16, is_pure=True, pack=4,
    )  # fmt: skip


@triton.jit
def widen(v, LANES: tl.constexpr):
    """V as an operand [TILE_SIZE, LANES]: LANES // VALUE_PADDED - 1 columns of zeros behind each column of V."""
    TILE_SIZE: tl.constexpr = v.shape[0]
    TIMES: tl.constexpr = LANES // v.shape[1]
    if TIMES > 1:
        own = tl.expand_dims(tl.expand_dims(tl.arange(0, TIMES) == 0, 0), 0)
        v = tl.reshape(tl.where(own, tl.expand_dims(v, 2), 0.0).to(v.dtype), [TILE_SIZE, LANES])
    return v


@triton.jit
def narrow(acc, VALUE_SIZE: tl.constexpr):
    """acc [BLOCK_M, VALUE_PADDED] after the last tile, without the columns that `widen` added."""
    ROWS: tl.constexpr = acc.shape[0]
    TIMES: tl.constexpr = acc.shape[1] // padded(VALUE_SIZE)
    if TIMES > 1:
        acc = tl.sum(tl.reshape(acc, [ROWS, padded(VALUE_SIZE), TIMES]), 2)
    return acc


@triton.jit
def finished(acc, value_cache_ptr, f, r):
    """acc [BLOCK_M, VALUE_PADDED] after the last tile, with its lanes in order and without HEADROOM."""
    if deals_lanes(value_cache_ptr.dtype.element_ty, acc.shape[0]):
        ROWS: tl.constexpr = acc.shape[0]
        LANES: tl.constexpr = acc.shape[1]
        if LANES > 32:
            acc = tl.reshape(tl.trans(tl.reshape(acc, [ROWS, LANES // 32, 32]), 0, 2, 1), [ROWS, LANES])
    if r.row_scale.dtype.is_floating() and f.value_token_scales is None:
        acc *= 1.0 / HEADROOM
    return acc
