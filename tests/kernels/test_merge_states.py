"""Two attentions over parts of the keys merge into one over all; in place, and where a part saw nothing."""

import math

import pytest
import torch

from common.cases.batch import make_batch
from common.oracle.reference import reference
from common.spec import AttentionShape, Features, SpecError
from common.spec.states import merged
from dsls import slow_in_helion

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


@pytest.mark.parametrize(
    ("tokens", "heads", "size", "dtype"),
    [
        (7, 3, 40, torch.float32),
        slow_in_helion((9, 8, 128, torch.bfloat16)),
        slow_in_helion((4, 5, 16, torch.float16)),
        slow_in_helion((6, 1, 512, torch.float32)),
    ],
)
def test_merged_rows_are_the_definitions(dsl, tokens, heads, size, dtype):
    merge_states = dsl.module("merge_states").merge_states
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


def test_a_state_may_take_the_result(dsl):
    """A chain of states needs no second buffer for its rows, and two for their LSE."""
    merge_states = dsl.module("merge_states").merge_states
    given = states(9, 3, 40, torch.float32)
    out, lse = torch.empty_like(given[0]), torch.empty_like(given[1])
    merge_states(*given, out, lse)
    again = torch.empty_like(lse)
    merge_states(*given, given[0], again)
    assert torch.equal(given[0], out) and torch.equal(again, lse)


def test_bad_input_is_refused_by_name_before_a_launch(dsl):
    merge_states = dsl.module("merge_states").merge_states
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


def test_no_rows_launch_nothing(dsl):
    out, lse = torch.empty(0, 4, 32), torch.empty(0, 4)
    dsl.module("merge_states").merge_states(out, lse, out, lse, out, lse)


@pytest.mark.parametrize("sizes", [(1, 1), (16, 8)], ids=str)
def test_rows_of_a_program_change_no_bit(dsl, sizes):
    module = dsl.module("merge_states")
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(*size, generator=generator) for size in ((5, 3, 24), (5, 3)) * 2]
    outs = [torch.empty(5, 3, 24) for _ in range(2)]
    for out, one in zip(outs, (module.DEFAULT, module.Config(*sizes)), strict=True):
        module.merge_states(*given, out, config=one)
    assert torch.equal(*outs)


@pytest.mark.slow_in_helion
def test_the_part_with_the_sink_may_have_no_key(dsl):
    """Keys and sinks as two states: merged, they are attention with sinks."""
    shape, sinks = AttentionShape(4, 2, 32, 16, torch.float32), torch.tensor([0.0, 2.0, -math.inf, 1.0])
    whole = make_batch([(1, 20), (3, 9)], shape)
    kernel, merge_states = dsl.module("q_block"), dsl.module("merge_states").merge_states
    found = []
    for batch, features in ((whole.replace(seq_lens=whole.seq_lens * 0), Features(sinks=sinks)), (whole, Features())):
        out, lse = torch.empty_like(whole.query), torch.empty(4, 4)
        kernel.launch(batch, features, out, kernel.DEFAULT, None, lse=lse)
        found += [out, lse]
    out, lse = torch.empty_like(whole.query), torch.empty(4, 4)
    merge_states(*found, out, lse)
    expected = reference(whole, Features(sinks=sinks))
    torch.testing.assert_close(out, expected.out.float(), rtol=0, atol=2.0**-18)
    torch.testing.assert_close(lse, expected.lse.float(), rtol=0, atol=2.0**-18)


def test_the_definition_merges_a_prefix_and_the_rest_into_the_whole():
    """The last token's keys cut in two: each half is a sequence of its own, which an encoder's rows see whole."""
    shape, cross = AttentionShape(4, 2, 32, 8, torch.float32), Features(causal=False, cross=True)
    whole = make_batch([(3, 24)], shape)
    table = whole.block_table
    parts = [
        whole.replace(block_table=table[:, first:], seq_lens=torch.tensor([length], dtype=torch.int32))
        for first, length in ((0, 16), (2, 8))
    ]
    a, b = (reference(part, cross) for part in parts)
    out, lse = merged(a.out, a.lse, b.out, b.lse)
    want = reference(whole, cross)
    assert torch.allclose(out, want.out, atol=1e-12, rtol=0) and torch.allclose(lse, want.lse, atol=1e-12, rtol=0)
