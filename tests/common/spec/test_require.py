"""Outputs that a launch could not write, and features that a kernel does not implement, are refused by name."""

from dataclasses import replace

import pytest
import torch

from common.cases.batch import make_batch
from common.spec import AttentionShape, Features, Layout, SpecError, UnsupportedFeature
from common.spec.kernel import require
from common.spec.validation import validate, validate_output

SHAPE = AttentionShape(num_query_heads=4, num_kv_heads=2, head_size=16, block_size=8, dtype=torch.float32)
LENS = [(1, 9), (3, 20), (0, 0)]


def good():
    return make_batch(LENS, SHAPE)


OUTPUTS = {
    "out-none": (lambda b: (None, None), "out"),
    "out-a-token-short": (lambda b: (b.query[1:].clone(), None), "out"),
    "out-flat": (lambda b: (b.query.flatten(1).clone(), None), "out"),
    "out-half": (lambda b: (b.query.half(), None), "out"),
    "out-elsewhere": (lambda b: (b.query.to("meta"), None), "out"),
    "out-lanes-apart": (lambda b: (b.query.repeat_interleave(2, -1)[..., ::2], None), "out"),
    "out-is-the-query": (lambda b: (b.query, None), "out"),
    "out-one-row-for-all": (lambda b: (b.query[:1].clone().expand_as(b.query), None), "out"),
    "lse-half": (lambda b: (torch.empty_like(b.query), torch.empty(4, 4).half()), "lse"),
    "lse-by-head": (lambda b: (torch.empty_like(b.query), torch.empty(5, 4).t()), "lse"),
    "lse-elsewhere": (lambda b: (torch.empty_like(b.query), torch.empty(4, 4, device="meta")), "lse"),
    "lse-a-list": (lambda b: (torch.empty_like(b.query), [0.0]), "lse"),
    "lse-one-value-for-all": (lambda b: (torch.empty_like(b.query), torch.empty(1, 1).expand(4, 4)), "lse"),
}


@pytest.mark.parametrize("case", OUTPUTS)
def test_a_malformed_output_is_refused(case):
    spoil, argument = OUTPUTS[case]
    batch = good()
    with pytest.raises(SpecError) as refused:
        validate_output(batch, *spoil(batch))
    assert refused.value.argument == argument


UNSUPPORTED = {
    "non_causal": {"features": Features(causal=False)}, "sliding_window": {"features": Features(sliding_window=4)},
    "softcap": {"features": Features(softcap=4.0)}, "sinks": {"features": Features(sinks=torch.zeros(4))},
    "lse": {"lse": torch.empty(4, 4)}, "x_packed": {"batch": make_batch(LENS, SHAPE, layout=Layout.X_PACKED)},
    "fp8_kv": {"batch": make_batch(LENS, replace(SHAPE, dtype=torch.float16, kv_dtype=torch.float8_e4m3fn))},
}  # fmt: skip


@pytest.mark.parametrize("member", UNSUPPORTED)
def test_what_is_outside_supports_is_refused_by_name(member):
    asked = {"batch": good(), "features": Features(), "lse": None} | UNSUPPORTED[member]
    supports, out = frozenset({"causal"}), torch.empty_like(asked["batch"].query)
    with pytest.raises(UnsupportedFeature, match=member) as refused:
        require("some/kernel", supports, asked["batch"], asked["features"], out, asked["lse"])
    assert (refused.value.argument, refused.value.kernel) == (member, "some/kernel")
    require("some/kernel", supports | {member}, asked["batch"], asked["features"], out, asked["lse"])


@pytest.mark.parametrize("name", ["key", "value"])
def test_an_output_in_the_memory_of_the_new_tokens_is_refused(name):
    batch = make_batch(LENS, AttentionShape(2, 2, 16, 8), new_kv=True)
    with pytest.raises(SpecError, match=f"out: found the memory of {name}"):
        validate_output(batch, getattr(batch, name))


def test_wrong_hints_are_no_error():
    batch = good()
    validate(batch.replace(stats=replace(batch.stats, max_query_len=1, max_seq_len=1)), Features())
