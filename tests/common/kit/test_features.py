"""Features reach a kernel from outside, by their names, and a wrong one is found out."""

import pytest
import torch

from common.cases.named import FEATURE_CASES
from common.kit import levels
from common.kit.kit import Kit
from common.spec.paged_batch import QUANTISED
from common.spec.quantise import negate

pytestmark = pytest.mark.usefixtures("kernels_are_importable")

CASES = [case.name for case in FEATURE_CASES if case.refused is None]
DAILY = (
    "alibi-slopes-of-4-heads", "alibi-sqrt", "chunk-of-16-lookback-1", "spans-over-pages-and-tiles", "tree-of-8",
    "per-sequence-with-spans", "fp8-scales-of-heads", "fp8-scales-of-tokens", "int8", "fp8-value-64-head-96",
)  # fmt: skip


def kit_of(name, child):
    return Kit(f"kit_features:{name}", 7, child)


@pytest.mark.parametrize("cases", [DAILY, pytest.param(tuple(CASES), marks=pytest.mark.slow)], ids=len)
def test_a_right_callable_passes(cases, child):
    kit = kit_of("right", child)
    results = {case: kit.once(case) for case in cases}
    assert not {case: r for case, r in results.items() if r.failed and r.status != "too_large"}
    assert sum(r.status == "ok" for r in results.values()) >= len(DAILY)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("span_end_exclusive", "spans-of-2-tokens"),
        ("scale_of_the_first_head", "fp8-scales-of-heads"),
        ("slope_of_the_next_head", "alibi-slopes-of-4-heads"),
        ("flags_of_32_bits_alone", "per-sequence-mixed@operands=bfloat16"),
        ("tree_of_32_bits_alone", "tree-of-8@operands=bfloat16"),
    ],
)
def test_a_wrong_one_fails(name, case, child):
    result = kit_of(name, child).once(case)
    assert (result.status, result.failed) == ("incorrect", True), result


def test_a_feature_without_its_parameter_fails(child):
    result = kit_of("silent", child).once("alibi-slopes-of-4-heads")
    assert result.failed and "SUPPORTS names alibi_slopes" in result.reason


@pytest.mark.parametrize("names", [CASES[::4], pytest.param(CASES, marks=pytest.mark.slow)], ids=len)
def test_cases_and_their_simpler_ones_are_expressions(names):
    for case in map(levels.BY_NAME.get, names):
        assert all(levels.read(levels.write(each)) == each for each in (case, *levels.simpler(case)))


def test_a_case_of_fewer_sequences_keeps_what_it_says_of_each():
    case = levels.BY_NAME["per-sequence-with-spans"]
    kept = [each for each in levels.simpler(case) if each.lens == case.lens[1:]]
    assert kept and {(each.ask.spans, each.ask.non_causal) for each in kept} == {(case.ask.spans[1:], (1,))}


@pytest.mark.parametrize("dtype", [*QUANTISED, torch.bfloat16], ids=str)
def test_other_values_at_the_same_addresses_are_negated_in_place(dtype):
    stored = torch.tensor([0.5, -3.0, 7.0, -127.0]).to(dtype)
    tensor = stored.clone()
    negate(tensor)
    assert torch.equal(tensor.float(), -stored.float())
    negate(tensor)
    assert torch.equal(tensor.float(), stored.float())
