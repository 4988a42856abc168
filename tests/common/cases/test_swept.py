"""Numbers that are swept: every small value and what is near a power of two, each with a result of its own."""

import itertools

import pytest

from common.cases.calls import calls
from common.cases.case import build
from common.cases.swept import SWEPT, values
from common.kit.inside import Asked
from common.mutants.emulation import Schedule
from common.mutants.families import meets, places, wrong_where
from common.oracle.reference import reference
from common.spec.validation import validate
from compare.studies.mutation.worker import judged, reached
from compare.studies.mutation.worker import load as module_of

BY_NAME = {case.name: case for case in SWEPT}


def test_every_small_value_and_what_is_near_a_power_of_two_is_swept():
    found = values(1, 9000, seed=3)
    assert {*range(1, 161), *range(16, 1025, 16)} <= set(found)
    assert {power + step for power in (256, 512, 1024, 2048, 4096, 8192) for step in range(-3, 4)} <= set(found)
    assert found != values(1, 9000, seed=4)


@pytest.mark.parametrize("name", ["swept-window", "swept-chunk"])
def test_each_call_has_a_value_of_its_own_whose_result_is_another(name):
    case = BY_NAME[name]
    results = set()
    for call in itertools.islice(calls(case, *build(case)), 4, None, 9):
        validate(call.batch, call.features)
        results.add(reference(call.batch, call.features).out.numpy().tobytes())
    assert len(results) > 10


@pytest.mark.parametrize("window", [7, 130, 277])
def test_a_kernel_that_is_wrong_at_one_window_is_wrong(window):
    kernel = wrong_where(f"at.features.sliding_window == {window}", 7)
    name = "swept-window"
    case = Asked.of(BY_NAME[name])
    assert not meets(kernel, places(case.batch, case.features, Schedule()))
    assert reached(case, {0: kernel}) == (set(), {0} if window != 277 else set())
    if window != 277:
        assert f"a window of {window}" in judged(case, module_of(kernel.source), later=True)[1]


@pytest.mark.parametrize("name", ["swept-window", "swept-chunk"])
def test_a_kernel_that_is_wrong_where_a_position_plus_the_mask_is_past_31_bits_is_wrong(name):
    case, field = Asked.of(BY_NAME[name]), {"swept-window": "sliding_window", "swept-chunk": "chunk"}[name]
    kernel = wrong_where(f"at.features.{field} >= 2**30", 7)
    assert reached(case, {0: kernel}) == (set(), {0})
    assert f"a {name[6:]} of {2**30}" in judged(case, module_of(kernel.source), later=True)[1]
