"""Two attentions over parts of the keys merge into one over all; in place, and where a part saw nothing."""

import pytest
import torch

from common.cases.batch import make_batch
from common.oracle.reference import reference
from common.spec import AttentionShape, Features
from common.spec.states import merged
from dsl_triton import merge_states as module
from dsl_triton.merge_states import Config, merge_states
from merge_cases import judge, judge_in_place, judge_refusals


@pytest.mark.parametrize(
    ("tokens", "heads", "size", "dtype"),
    [(7, 3, 40, torch.float32), (9, 8, 128, torch.bfloat16), (4, 5, 16, torch.float16), (6, 1, 512, torch.float32)],
)
def test_merged_rows_are_the_definitions(tokens, heads, size, dtype):
    judge(merge_states, tokens, heads, size, dtype)


def test_a_state_may_take_the_result():
    judge_in_place(merge_states)


def test_bad_input_is_refused_by_name_before_a_launch():
    judge_refusals(merge_states)


def test_no_rows_launch_nothing():
    out, lse = torch.empty(0, 4, 32), torch.empty(0, 4)
    merge_states(out, lse, out, lse, out, lse)


@pytest.mark.parametrize("config", [Config(1, 1), Config(16, 8)])
def test_rows_of_a_program_change_no_bit(config):
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(*size, generator=generator) for size in ((5, 3, 24), (5, 3)) * 2]
    outs = [torch.empty(5, 3, 24) for _ in range(2)]
    for out, one in zip(outs, (module.DEFAULT, config), strict=True):
        merge_states(*given, out, config=one)
    assert torch.equal(*outs)


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
