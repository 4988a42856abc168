"""What Features say of themselves follows from their fields: a new one is not forgotten."""

from dataclasses import fields, make_dataclass

import pytest
import torch

from common.oracle.visibility import Sight
from common.spec import Features
from common.spec.features import OPERANDS, is_per_token, operands_of
from common.spec.kernel import MEMBERS
from common.spec.metadata import EVERY_KEY

ONE = torch.ones(1)
ASKED = {name: ONE for name in OPERANDS} | {
    "causal": False, "sliding_window": 3, "softcap": 2.0, "alibi_sqrt": True, "chunk": 4, "chunk_lookback": 1,
    "cross": True, "batch_invariant": True,
}  # fmt: skip
FIRST = {"causal", "sliding_window", "softcap", "sinks"}
BESIDE = {"alibi_sqrt": {"alibi_slopes": ONE}, "cross": {"causal": False}}  # what a field is a part of
# what a batch's dtypes ask for says enough of these, and a kernel with chunks has any lookback
SILENT = {"key_scale", "value_scale", "query_scale", "chunk_lookback"}


def test_a_field_that_holds_a_tensor_is_an_operand() -> None:
    added = [("radius", int | None, None), ("rotary", torch.Tensor | None, None)]
    more = make_dataclass("More", added, bases=(Features,), frozen=True)
    assert operands_of(more) == (*OPERANDS, "rotary")
    assert {"sinks", "spans", "out_scale"} < set(OPERANDS) and not {"causal", "softcap", "chunk"} & set(OPERANDS)


@pytest.mark.parametrize("name", [field.name for field in fields(Features)])
def test_a_field_that_asks_for_something_needs_a_member(name: str) -> None:
    beside = BESIDE.get(name, {})
    plain, asked = Features(**beside).names(), Features(**beside | {name: ASKED[name]}).names()
    assert (asked != plain) == (name not in SILENT)
    assert plain | asked <= MEMBERS


@pytest.mark.parametrize("name", [field.name for field in fields(Features)])
def test_nothing_behind_the_first_fields_is_plain(name: str) -> None:
    assert Features().plain
    assert Features(**{name: ASKED[name]}).plain == (name in FIRST)


def test_a_scale_of_three_dimensions_is_per_token() -> None:
    assert is_per_token(torch.ones(2, 8, 1))
    assert not any(is_per_token(scale) for scale in (None, ONE, torch.ones(8)))


@pytest.mark.parametrize(
    ("asked", "keys"),
    [
        ({}, EVERY_KEY),
        ({"sliding_window": 5}, 5),
        ({"sliding_window": 5, "causal": False}, 9),
        ({"sliding_window": 5, "causal_per_sequence": torch.tensor([1, 0], dtype=torch.int32)}, 9),
        ({"chunk": 4}, 4),
        ({"chunk": 4, "chunk_lookback": 2}, 12),
        ({"sliding_window": 5, "spans": torch.tensor([[[0, 8]]])}, EVERY_KEY),
        ({"sliding_window": 5, "tree_bias": torch.zeros(2, 2), "sinks": ONE}, 5),
    ],
    ids=["plain", "window", "both-sides", "flags", "chunk", "lookback", "spans", "tree"],
)
def test_what_a_query_token_sees_at_most(asked: dict, keys: int) -> None:
    features = Features(**asked)
    assert features.sees == keys
    if keys < EVERY_KEY:  # as the reference has it, at every position of a sequence
        sight = Sight(features, 40, 40, features.causal and "causal_per_sequence" not in asked)
        positions = torch.arange(40)
        assert int(sight.visible(positions, positions).sum(1).max()) == keys
