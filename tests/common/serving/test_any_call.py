"""Any call of the public function on a CPU ends in a typed error or in the right result, whatever was spoiled."""

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calls import TENSORS, tensors
from common.cases.batch import make_batch
from common.oracle.reference import reference
from common.oracle.tolerance import check
from common.spec import AttentionShape, Features, SpecError
from common.spec.precision import Precision
from dsl_triton.auto import paged_attention

SHAPE = AttentionShape(4, 2, 32, 16)
LENS = [(1, 40), (3, 17), (1, 0)]
INTEGER = st.integers(-2, 50) | st.sampled_from([2**31 - 1, -(2**31)])


def cut(dim, size):
    return lambda t: t.narrow(dim, 0, min(size, t.shape[dim])) if dim < t.dim() else t


def set_entry(at, value):
    def spoil(t):
        if t.numel() and not t.dtype.is_floating_point:
            t.view(-1)[at % t.numel()] = value
        return t

    return spoil


SPOIL = st.one_of(
    st.builds(cut, st.integers(0, 3), st.integers(0, 3)),
    st.builds(set_entry, st.integers(0, 30), INTEGER),
    st.sampled_from([torch.float16, torch.int64, torch.int32, torch.float64]).map(lambda d: lambda t: t.to(d)),
    st.sampled_from([lambda t: t.t() if t.dim() == 2 else t, lambda t: t[None], lambda t: None, lambda t: t.tolist()]),
)
HINTS = st.fixed_dictionaries({
    "max_query_len": st.none() | INTEGER, "max_seq_len": st.none() | INTEGER, "num_decodes": st.none() | INTEGER,
})  # fmt: skip
OPTIONS = st.fixed_dictionaries({}, optional={
    "softmax_scale": st.floats() | st.none(), "sliding_window": st.none() | INTEGER,
    "causal": st.booleans() | st.none(),
    "validate": st.sampled_from(["host", "full", "no"]), "out": st.sampled_from([None, 7, torch.empty(0)]),
})  # fmt: skip


def property_of(examples):
    @settings(max_examples=examples, deadline=None, derandomize=True)
    @given(st.lists(st.tuples(st.sampled_from(TENSORS), SPOIL), max_size=2), HINTS, OPTIONS)
    def holds(spoiled, hints, options):
        batch = make_batch(LENS, SHAPE)
        given_ = tensors(batch)
        for name, spoil in spoiled:
            given_[name] = spoil(given_[name]) if isinstance(given_[name], torch.Tensor) else given_[name]
        try:
            out = paged_attention(**given_, **hints, **options)
        except SpecError as error:
            assert error.argument and error.allowed
            return
        scale = options.get("softmax_scale")
        read = batch.replace(**given_, softmax_scale=SHAPE.head_size**-0.5 if scale is None else scale)
        features = Features(options.get("causal", True), options.get("sliding_window"))
        verdict = check(out, None, read, features, Precision(), reference(read, features), structured=True)
        assert verdict.ok, (spoiled, hints, options, verdict.reason)

    return holds


pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are not interpreted here")
test_any_call_is_right_or_refused = property_of(60)
test_any_of_ten_thousand_calls_is_right_or_refused = pytest.mark.slow(property_of(10_000))
