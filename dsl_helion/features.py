"""Features as one argument of a kernel, in Helion, and what of them is loaded once per row.

Kernel files pass both on and never name a feature. dsl_triton/features.py says the same in Triton.
"""

import helion
import helion.language as hl
import torch

from common.spec import Cdna, Features
from common.spec.features import kernel_operands
from dsl_helion.arithmetic import div, int32
from dsl_helion.binding import deals_lanes, is_power_of_two, is_wider

PLAIN = Cdna()
HEADROOM = 2.0**15  # factor of P in fp16, so that small weights do not become 0

_FIELDS = (
    "non_causal",
    "sliding_window",
    "softcap",
    "sinks",  # float [num_query_heads]
    "alibi_slopes",  # f32 [num_query_heads]
    "alibi_sqrt",
    "chunk",
    "chunk_lookback",
    "spans",  # i32 [num_seqs, spans, 2]
    "max_spans",  # a power of two: Helion compiles for it
    "causal_per_sequence",  # i32 or i8 [num_seqs]
    "tree_bias",  # float [tree_size, tree_size]
    "tree_size",
    "key_scale",  # f32 [1] or [num_kv_heads]
    "key_scale_stride",
    "value_scale",  # f32 [1] or [num_kv_heads]
    "value_scale_stride",
    "key_token_scales",  # f32 [num_blocks, block_size, num_kv_heads]
    "value_token_scales",  # f32 [num_blocks, block_size, num_kv_heads]
    "query_scale",  # f32 [1]
    "out_scale",  # f32 [1]
    "transposed_keys",  # of a Config (common.spec.Cdna)
    "split_sums",  # of its rows and tile (primitives.split_sums)
)


def bundle(
    features: Features, config: Cdna = PLAIN, head_size: int = 0, block_m: int = 64
) -> dict[str, int | float | torch.Tensor | hl.constexpr | None]:
    """common.spec.Features as a kernel argument, and how a Config reads tiles of heads of head_size lanes, for
    block_m rows.

    What is off is None, and its branch is not compiled. Helion pads lanes that are no power of two itself, and then in
    rows alone: their K is never transposed.
    """
    f = dict.fromkeys(_FIELDS) | kernel_operands(features)
    if config.transposed_keys and is_power_of_two(head_size):
        f["transposed_keys"] = 1
    if block_m < 64 and 32 <= config.tile_size < 128:
        f["split_sums"] = 1
    if f["spans"] is not None:
        f["max_spans"] = hl.constexpr(helion.next_power_of_2(f["spans"].shape[1]))
    return f


def row_operands(f, seq, kv_head, token, head, live, context_len):
    """What features need of the rows of one Q Block, loaded once; None where its feature is off.

    The rows are query tokens and heads as primitives.q_block_rows gives them. token [block_m]; context_len;
    slope f32 [block_m]; chunk_first [block_m]: first key of the oldest chunk that the row sees; span_first, span_last
    [block_m]: first and last key of the span that holds the row, its own where none does; causal, of the sequence: 0:
    not causal; logit_scale f32: of K and Q, beside the softmax scale; row_scale f32 [block_m]: what query_operand took
    from each row.
    """
    r = dict.fromkeys(("slope", "chunk_first", "span_first", "span_last", "causal", "logit_scale", "row_scale"))
    r |= {"token": token, "context_len": context_len}
    query_pos = context_len + token
    if f["alibi_slopes"] is not None:
        r["slope"] = hl.load(f["alibi_slopes"], [head], extra_mask=live)
    if f["chunk"] is not None:
        chunk = int32(f["chunk"])
        r["chunk_first"] = (div(query_pos, chunk) - int32(f["chunk_lookback"])) * chunk
    if f["spans"] is not None:
        span = hl.arange(f["max_spans"])
        there = span < f["spans"].size(1)
        first = hl.load(f["spans"], [seq, span, 0], extra_mask=there).unsqueeze(0)
        last = hl.load(f["spans"], [seq, span, 1], extra_mask=there).unsqueeze(0)
        position = query_pos.unsqueeze(1)
        inside = (position >= first) & (position <= last) & (first < last) & there.unsqueeze(0)
        r["span_first"] = torch.where(inside, first, position).amin(1)
        r["span_last"] = torch.where(inside, last, position).amax(1)
    if f["causal_per_sequence"] is not None:
        r["causal"] = hl.load(f["causal_per_sequence"], [seq])
    if f["key_scale"] is not None:
        r["logit_scale"] = head_scale(f["key_scale"], f["key_scale_stride"], kv_head)
        if f["query_scale"] is not None:
            r["logit_scale"] = r["logit_scale"] * hl.load(f["query_scale"], [0])
    elif f["query_scale"] is not None:
        r["logit_scale"] = hl.load(f["query_scale"], [0])
    return r


def query_operand(q, r, cache):
    """Q [block_m, head_size] as an operand of products with K of this cache, and r with the scale taken from each row.

    A bf16 query over a cache of 8 bits is multiplied in fp16, which holds each number of such a cache: sm_90 converts
    fp8 to fp16 in a third of the instructions that bf16 takes. A power of two takes the largest |q| of each row to
    [2^14, 2^15), exactly; only elements 2^-31 times smaller lose bits.
    """
    if q.dtype == torch.bfloat16 and cache.dtype.itemsize == 1:
        q = q.to(torch.float32)
        # of float32: 255 for a row with Inf, which stays Inf; from 16 on both factors are normal numbers
        exponent = torch.clamp(q.abs().amax(1).view(torch.int32) >> 23, min=16)
        factor = ((268 - exponent) << 23).view(torch.float32)
        r["row_scale"] = ((exponent - 14) << 23).view(torch.float32)
        q = (q * factor.unsqueeze(1)).to(torch.float16)
    return q, r


def deal_lanes(v):
    """V [tile_size, value_size] of 8 bits with permuted lanes; dsl_triton/features.py says why."""
    tile_size, lanes = v.size(0), v.size(1)
    return v.reshape(tile_size, 32, lanes // 32).permute(0, 2, 1).reshape(tile_size, lanes)


def widen(v, lanes):
    """V as an operand [tile_size, lanes]: lanes // value_size - 1 columns of zeros behind each column of V."""
    times = lanes // v.size(1)
    if is_wider(lanes, v.size(1)):
        own = (hl.arange(times) == 0).unsqueeze(0).unsqueeze(0)
        v = torch.where(own, v.unsqueeze(2), 0.0).to(v.dtype).reshape(v.size(0), lanes)
    return v


def narrow(acc, value_size):
    """acc [block_m, value_size] after the last tile, without the columns that `widen` added."""
    if is_wider(acc.size(1), value_size):
        return acc.reshape(acc.size(0), value_size, acc.size(1) // value_size).sum(2)
    else:
        return acc


def finished(acc, value_cache, f, r):
    """acc [block_m, value_size] after the last tile, with its lanes in order and without HEADROOM."""
    rows, lanes = acc.size(0), acc.size(1)
    if deals_lanes(value_cache.dtype, lanes):
        acc = acc.reshape(rows, lanes // 32, 32).permute(0, 2, 1).reshape(rows, lanes)
    if r["row_scale"] is not None and f["value_token_scales"] is None:
        acc = acc * (1.0 / HEADROOM)
    return acc


def head_scale(scale, stride, kv_head):
    """The scale of one KV head, from [1] or [num_kv_heads]."""
    return hl.load(scale, [hl.full([], kv_head, dtype=torch.int64) * stride])
