"""What is asked before there are tensors: a case's forms and a row's, and the words that ids of rows are made of."""

import json
from dataclasses import replace

import pytest
import torch

from common.cases.ask import ENCODERS, FP8_OUT, NO_SPANS, Ask, features_of, spans_tensor
from common.cases.case import FIELDS
from common.cases.named import BY_NAME, CASES, Case

LENS = ((1, 9), (4, 20), (3, 3))
FIRST = {"causal": True, "sliding_window": None, "softcap": None, "sinks": False}


@pytest.mark.parametrize(
    ("ask", "plain", "names"),
    [
        (Ask(), {}, ()),
        (Ask(causal=False), {"causal": False}, ("non_causal",)),
        (Ask(sinks="drawn", softcap=30.0), {"sinks": True, "softcap": 30.0}, ("softcap=30.0", "sinks")),
        (Ask(non_causal=ENCODERS), {"encoders": True}, ("encoders",)),
        (Ask(out_dtype=FP8_OUT), {"fp8_out": True}, ("fp8_out",)),
        (Ask(chunk=8, tree=3), {"chunk": 8, "tree": 3}, ("chunk=8", "tree=3")),
        (Ask(scales="one"), {"scales": "one"}, ("scales=one",)),
    ],
    ids=["nothing", "not causal", "sinks", "encoders", "fp8 out", "numbers", "a word"],
)  # fmt: skip
def test_the_words_of_a_row_are_those_that_its_id_is_made_of(ask, plain, names):
    assert ask.to_dict() == FIRST | plain
    assert ask.names() == names


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.ask.out_dtype in (None, FP8_OUT)], ids=lambda c: c.name
)
def test_what_a_case_asks_survives_json(case):
    assert Ask.from_dict(json.loads(json.dumps(case.ask.to_dict()))) == case.ask


def drawn(**asked):
    return features_of(Ask(**asked), LENS, 4, torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    ("row", "case", "name"),
    [
        ({"spans": 4}, {"spans": (((8, 11),), ((16, 19),), ((0, 3),))}, "spans"),
        ({"non_causal": ENCODERS}, {"non_causal": (0, 2)}, "causal_per_sequence"),
        ({"tree": 5}, {"tree": (-1, 0, 0, 1, 1)}, "tree_bias"),
    ],
)
def test_a_rows_form_is_short_for_a_cases(row, case, name):
    assert torch.equal(getattr(drawn(**row), name), getattr(drawn(**case), name))
    assert Ask(**row).hidden() == Ask(**case).hidden()


def test_the_pairs_of_a_tree_that_no_token_sees_are_counted():
    parents = (-1, 0, 0, 1, 3, 2)
    bias = drawn(tree=parents).tree_bias
    assert Ask(tree=parents).hidden() == int(bias.tril().eq(-torch.inf).sum())


def test_a_case_is_made_and_changed_by_the_fields_of_what_it_asks_too():
    case = Case.of("any", (), LENS, heads=(2, 1), chunk=4, sinks="off")
    assert case.ask == Ask(chunk=4, sinks="off") and case.heads == (2, 1)
    changed = case.but(chunk=None, heads=(4, 1))
    assert changed == replace(case, heads=(4, 1), ask=Ask(sinks="off"))
    assert [case.value(name) for name in ("chunk", "heads", "sinks")] == [4, (2, 1), "off"]
    with pytest.raises(TypeError, match="weather"):
        case.but(weather="fair")
    assert len(set(FIELDS)) == len(FIELDS) and BY_NAME["batch-invariant"].value("batch_invariant")


def test_what_stands_in_place_of_a_span_has_every_form():
    found = spans_tensor((((0, 3), (5, 6), (8, 9)), (), ((1, 2),)))
    none = {(first, last) for first, last in found.flatten(0, 1).tolist() if first >= last}
    assert none == set(NO_SPANS) >= {(0, 0), (-1, -1)}
    assert found[:, 0].tolist() == [[0, 3], [0, 0], [1, 2]]


def test_operands_of_16_bits_have_flags_of_one():
    asked = {"sinks": "near", "tree": 5, "alibi": "linear", "operands": torch.bfloat16}
    found = drawn(**asked)
    assert (found.sinks.dtype, found.tree_bias.dtype, found.alibi_slopes.dtype) == (
        torch.bfloat16, torch.bfloat16, torch.float32,
    )  # fmt: skip
    assert drawn(non_causal=(1,), flag=256, operands=torch.float16).causal_per_sequence.tolist() == [True, False, True]
