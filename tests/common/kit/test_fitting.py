"""What a kernel does not declare is off in the cases of the axes; what it has is still asked in pairs."""

import itertools

import pytest
import torch

from common.cases.axes import AXES, RULES
from common.cases.by_axes import axes_case, num_axes, num_smoke
from common.cases.case import build, named
from common.cases.covering import legal_pairs
from common.kit.fitting import fitted
from common.kit.levels import read, write
from common.spec.validation import validate

LIMITS = {"dtype": ["bfloat16"], "head_size": [64, 128], "block_size": [16, 32], "queries_per_kv": [1, 4, 8]}
SMALL = {"causal"}
SOME = {"causal", "sliding_window", "softcap", "sinks", "lse", "fp8_kv"}


@pytest.mark.parametrize("count", [num_smoke, pytest.param(num_axes, marks=pytest.mark.slow)])
@pytest.mark.parametrize("supports", [SMALL, SOME, {"non_causal", "cross"}], ids=len)
def test_nothing_is_left_that_is_not_declared(supports, count):
    for number in range(count()):
        assert fitted(axes_case(number), supports, {}).asked <= supports, number


def test_every_feature_that_is_declared_is_asked_at_smoke():
    asked = set().union(*(fitted(axes_case(number), SOME, {}).asked for number in range(num_smoke())))
    assert asked == SOME - {"lse"}


@pytest.mark.slow
def test_pairs_of_what_a_kernel_has_are_still_held():
    fields = {"window": "sliding_window", "softcap": "softcap", "sinks": "sinks", "causal": "causal"}
    cases = [fitted(axes_case(number), SOME | {"non_causal"}, {}) for number in range(num_axes())]
    own = {axis: tuple(v for v in AXES[axis] if not isinstance(v, str) or axis == "sinks") for axis in fields}
    for one, other in itertools.combinations(fields, 2):
        held = {(case.value(fields[one]), case.value(fields[other])) for case in cases}
        for a, i, b, j in legal_pairs({name: own[name] for name in (one, other)}, RULES):
            assert (own[a][i], own[b][j]) in held


def test_limits_give_other_sizes():
    for number in range(0, num_smoke(), 3):
        case = fitted(axes_case(number), SOME, LIMITS | {"max_query_len": 1})
        assert case.head_size in (64, 128) and case.block_size in (16, 32) and case.dtype == torch.bfloat16
        assert case.heads[0] // case.heads[1] in (1, 4, 8) and max(q for q, _ in case.lens) <= 1


@pytest.mark.parametrize("number", range(0, 110, 12))
def test_a_fitted_case_is_an_expression_and_can_be_built(number):
    case = fitted(axes_case(number), SOME, LIMITS)
    assert read(write(case)) == case
    validate(*build(case))


def test_a_pool_that_other_sizes_would_make_dear_has_fewer_pages_of_nobody():
    far = named("far", spare_pages=33_000, block_size=8, head_size=8)
    assert fitted(far, SOME, {}).spare_pages == 33_000
    assert fitted(far, SOME, {"head_size": [128], "block_size": [16]}).spare_pages == 40


def test_operands_are_of_a_dtype_that_a_kernel_takes():
    wide = {"operands": ["float32"]}
    found = [fitted(axes_case(number), SOME, wide).ask.operands for number in range(20)]
    assert {axes_case(number).ask.operands for number in range(20)} > {None} == set(found)
