"""What a DSL's `merge_states` owes: attention over two parts of the keys merges into attention over all of them."""

import math
from typing import Any

import pytest
import torch

from common.spec import SpecError
from common.spec.states import merged

# float32: exp2 and log2 to 2 units in the last place, six roundings after them
TOLERANCE = {torch.float32: 2.0**-20, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def states(tokens: int, heads: int, size: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """out and lse of two states; rows where the one, the other, or neither saw a key, by -inf and by +inf."""
    generator = torch.Generator().manual_seed(tokens)
    found = []
    for first in range(2):
        out = torch.randn(tokens, heads, size, generator=generator).to(dtype)
        lse = torch.randn(tokens, heads, generator=generator) * 5
        lse[first::3], lse[2::3] = -math.inf, math.inf
        out[first::3] = math.nan  # nobody's numbers: that state saw no key
        found += [out, lse]
    return found


def judge(merge_states: Any, tokens: int, heads: int, size: int, dtype: torch.dtype) -> None:
    given = states(tokens, heads, size, dtype)
    out, lse = torch.full_like(given[0], math.nan), torch.full((tokens, heads), math.nan)
    merge_states(*given, out, lse)
    want, want_lse = merged(*given)
    error = (out.double() - want).abs() - TOLERANCE[dtype] * want.abs()
    assert not out.isnan().any() and float(error.max()) <= 2.0**-20
    assert torch.equal(lse == -math.inf, want_lse == -math.inf)
    seen = want_lse > -math.inf
    assert float((lse.double() - want_lse)[seen].abs().max()) <= 2.0**-18
    alone = torch.full_like(out, math.nan)
    merge_states(*given, alone)
    assert torch.equal(alone, out)


def judge_in_place(merge_states: Any) -> None:
    """A chain of states needs no second buffer for its rows, and two for their LSE."""
    given = states(9, 3, 40, torch.float32)
    out, lse = torch.empty_like(given[0]), torch.empty_like(given[1])
    merge_states(*given, out, lse)
    again = torch.empty_like(lse)
    merge_states(*given, given[0], again)
    assert torch.equal(given[0], out) and torch.equal(again, lse)


def judge_refusals(merge_states: Any) -> None:
    a, lse_a, b, lse_b = states(4, 2, 32, torch.float32)
    c, two = torch.empty_like(a), torch.zeros(5, 2)
    wrong = {
        "out_b": (a, lse_a, b[:3], lse_b, a, None),
        "lse_a": (a, lse_a.double(), b, lse_b, a, None),
        "out": (a, lse_a, b, lse_b, a.half(), None),
        "lse": (a, lse_a, b, lse_b, a, lse_a[:, :1].expand(4, 2)),
        "lse in out": (a, lse_a, b, lse_b, c, c[..., 0]),
        "lse in lse_a": (a, lse_a, b, lse_b, a, lse_a),
        "lse across lse_b": (a, lse_a, b, two[:4], a, two[1:]),
        "lse in out_b": (a, lse_a, b, lse_b, a, b[..., 0]),
        "out_a": (a.to(torch.float64), lse_a, b.double(), lse_b, a.double(), None),
    }
    wrong["out_a on meta"] = *(tensor.to("meta") for tensor in (a, lse_a, b, lse_b, a)), None
    for name, arguments in wrong.items():
        with pytest.raises(SpecError) as refusal:
            merge_states(*arguments)
        assert refusal.value.argument == name.split()[0]
