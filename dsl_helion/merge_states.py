"""Merge two attentions over disjoint keys by their LSE (common/spec/states.py): cascades, context parallelism.

Grid: rows / block_rows, one axis. A row is a query token under a query head.
"""

from dataclasses import dataclass

import helion.language as hl
import torch

from common.spec.states import check_states
from dsl_helion.arithmetic import div, mod
from dsl_helion.binding import kernel, run
from dsl_helion.primitives import LOG2E, load_rows, store_lse, store_rows


@dataclass(frozen=True)
class Config:
    """block_rows: rows of a program."""

    block_rows: int = 8
    num_warps: int = 4
    num_stages: int = 1


DEFAULT = Config()


def load_state(out, lse, token, head, live):
    """A state's rows, float32 [block_rows, value_size], and base-2 LSE: -inf where it saw no key, as is +inf."""
    x = load_rows(out, token, head, live).to(torch.float32)
    at = [token.to(torch.int64).unsqueeze(1), head.to(torch.int64).unsqueeze(1)]
    lse = hl.load(lse, at, extra_mask=live.unsqueeze(1)).squeeze(1)
    return x, torch.where(live & (lse < float("inf")), lse, float("-inf")) * LOG2E


def weighted(x, weight):
    """x times the weight of its rows; zeros where the weight is 0, even if x holds NaN."""
    weight = weight.unsqueeze(1)
    return torch.where(weight > 0.0, x * weight, 0.0)


def _merge_states_kernel(
    out_a: torch.Tensor,  # [num_tokens, num_query_heads, value_size]
    lse_a: torch.Tensor,  # f32 [num_tokens, num_query_heads]
    out_b: torch.Tensor,  # [num_tokens, num_query_heads, value_size]
    lse_b: torch.Tensor,  # f32 [num_tokens, num_query_heads]
    out: torch.Tensor,  # [num_tokens, num_query_heads, value_size]
    lse: torch.Tensor | None,  # f32 [num_tokens, num_query_heads]
) -> None:
    num_query_heads = hl.specialize(out.size(1))
    hl.specialize((out_a.size(2), out_b.size(2), out.size(2)))
    num_rows = out.size(0) * num_query_heads
    block_rows = hl.register_block_size(1, 256)
    for block in hl.grid((num_rows + block_rows - 1) // block_rows):
        row = block * block_rows + hl.arange(block_rows)
        live = row < num_rows
        token = div(row, num_query_heads)
        head = mod(row, num_query_heads)
        a, m_a = load_state(out_a, lse_a, token, head, live)
        b, m_b = load_state(out_b, lse_b, token, head, live)
        m = torch.maximum(m_a, m_b)
        shift = torch.where(m == float("-inf"), 0.0, m)
        of_a = torch.exp2(m_a - shift)
        of_b = torch.exp2(m_b - shift)
        l = of_a + of_b
        x = (weighted(a, of_a) + weighted(b, of_b)) / torch.where(l > 0.0, l, 1.0)[:, None]
        store_rows(out, token, head, live, x)
        store_lse(lse, token, head, live, m, l)


_merge_states = kernel(_merge_states_kernel)


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
    if out.numel() > 0:
        run(_merge_states, config, (out_a, lse_a, out_b, lse_b, out, lse), block_sizes=[config.block_rows])
