"""Merge two attentions over disjoint keys by their LSE (common/spec/states.py): cascades, context parallelism.

Grid: rows / BLOCK_ROWS, one axis. A row is a query token under a query head.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from common.spec.states import check_states
from dsl_triton.binding import strides
from dsl_triton.primitives import LOG2E, load_rows, store_lse, store_rows


@dataclass(frozen=True)
class Config:
    """block_rows: rows of a program."""

    block_rows: int = 8
    num_warps: int = 4
    num_stages: int = 1


DEFAULT = Config()


@triton.jit
def load_state(out_ptr, lse_ptr, out_strides, lse_strides, token, head, live, VALUE_SIZE: tl.constexpr):
    """A state's rows, float32 [BLOCK_ROWS, VALUE_PADDED], and base-2 LSE: -inf where it saw no key, as is +inf."""
    x = load_rows(out_ptr, out_strides, token, head, live, VALUE_SIZE).to(tl.float32)
    at = token.to(tl.int64) * lse_strides[0] + head.to(tl.int64) * lse_strides[1]
    lse = tl.load(lse_ptr + at, mask=live, other=float("-inf"))
    return x, tl.where(lse == float("inf"), float("-inf"), lse) * LOG2E


@triton.jit
def weighted(x, weight):
    """x times the weight of its rows; zeros where the weight is 0, even if x holds NaN."""
    weight = tl.expand_dims(weight, 1)
    return tl.where(weight > 0.0, x * weight, 0.0)


@triton.jit(do_not_specialize=["num_rows"])
def _merge_states_kernel(
    out_a_ptr,  # [num_tokens, num_query_heads, VALUE_SIZE]
    lse_a_ptr,  # f32 [num_tokens, num_query_heads]
    out_b_ptr,  # [num_tokens, num_query_heads, VALUE_SIZE]
    lse_b_ptr,  # f32 [num_tokens, num_query_heads]
    out_ptr,  # [num_tokens, num_query_heads, VALUE_SIZE]
    lse_ptr,  # f32 [num_tokens, num_query_heads] or None
    num_rows,
    out_a_strides, lse_a_strides, out_b_strides, lse_b_strides, out_strides, lse_strides,
    NUM_QUERY_HEADS: tl.constexpr, VALUE_SIZE: tl.constexpr, BLOCK_ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    live = row < num_rows
    token = row // NUM_QUERY_HEADS
    head = row % NUM_QUERY_HEADS
    a, lse_a = load_state(out_a_ptr, lse_a_ptr, out_a_strides, lse_a_strides, token, head, live, VALUE_SIZE)
    b, lse_b = load_state(out_b_ptr, lse_b_ptr, out_b_strides, lse_b_strides, token, head, live, VALUE_SIZE)
    m = tl.maximum(lse_a, lse_b)
    shift = tl.where(m == float("-inf"), 0.0, m)
    of_a = tl.exp2(lse_a - shift)
    of_b = tl.exp2(lse_b - shift)
    l = of_a + of_b
    x = (weighted(a, of_a) + weighted(b, of_b)) / tl.expand_dims(tl.where(l > 0.0, l, 1.0), 1)
    store_rows(out_ptr, out_strides, token, head, live, x, VALUE_SIZE)
    store_lse(lse_ptr, lse_strides, token, head, live, m, l)


def merge_states(
    out_a: torch.Tensor,
    lse_a: torch.Tensor,
    out_b: torch.Tensor,
    lse_b: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None = None,
    config: Config = DEFAULT,
) -> None:
    """Write what attention over the keys of both states is into out (and lse). Raises SpecError before any launch."""
    check_states(out_a, lse_a, out_b, lse_b, out, lse)
    num_tokens, num_query_heads, value_size = out.shape
    num_rows = num_tokens * num_query_heads
    if out.numel() == 0:
        return
    _merge_states_kernel[(triton.cdiv(num_rows, config.block_rows),)](
        out_a, lse_a, out_b, lse_b, out, lse, num_rows,
        out_a.stride(), lse_a.stride(), out_b.stride(), lse_b.stride(), out.stride(), strides(lse),
        NUM_QUERY_HEADS=num_query_heads, VALUE_SIZE=value_size, BLOCK_ROWS=config.block_rows,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
