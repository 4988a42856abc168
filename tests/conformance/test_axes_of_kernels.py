"""Cases of the axes that an interpreter can run, on our own kernels; every day three on each of Triton's, in turn."""

import os
from functools import cache

import pytest

from common.cases.by_axes import axes_case, num_axes, num_smoke
from common.cases.trial import ready
from common.kit.fitting import fitted
from common.kit.inside import Asked
from compare.competitors import registry
from conformance_cells import HELION, TRITON

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("a GPU is here: tests/gpu runs random cases on it", allow_module_level=True)

STEPS, FEW_STEPS = 60, 20  # of programs and tiles in one call: 60 are a second and a half in the interpreter
ROWS, KEYS = 16, 32  # of a program and of a tile
FEW_SEQUENCES = 64  # some kernels launch programs for each, also without queries: 500 take the interpreter ten seconds


def steps(case):
    """Tiles that the programs of a launch go through, about: a program has 16 rows of a KV head's query heads."""
    group = case.heads[0] // case.heads[1]
    return case.heads[1] * sum(-(-query * group // ROWS) * (keys // KEYS + 1) for query, keys in case.lens)


@cache
def cheap(kernel_id, numbers, most=STEPS):
    supports = registry.load(kernel_id).SUPPORTS
    cases = (fitted(axes_case(number), supports, {}) for number in numbers)
    return [case for case in cases if steps(case) <= most]


def why_not(kernel_id, case):
    kernel = registry.load(kernel_id)

    def launch(batch, features, out, lse):
        workspace = ready(kernel, batch, features, kernel.DEFAULT)
        kernel.launch(batch, features, out, kernel.DEFAULT, workspace, lse=lse)

    return Asked.of(case).why_not(launch, kernel.CONTRACT)


@pytest.mark.conformance
@pytest.mark.parametrize("turn", range(len(TRITON)), ids=lambda turn: TRITON[turn])
def test_some_cases_meet_each_kernel_of_triton_every_day(turn):
    cases = cheap(TRITON[turn], range(num_smoke()), FEW_STEPS)
    cases = [case for case in cases if len(case.lens) <= FEW_SEQUENCES]
    assert len(cases) >= 25
    assert {case.name: why for case in cases[turn :: len(TRITON)][:3] if (why := why_not(TRITON[turn], case))} == {}


@pytest.mark.slow
@pytest.mark.parametrize("kernel_id", TRITON)
def test_each_case_of_smoke_meets_every_kernel_of_triton(kernel_id):
    cases = cheap(kernel_id, range(num_smoke()))
    assert {case.name: why for case in cases if (why := why_not(kernel_id, case))} == {}


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(len(HELION)), ids=lambda turn: HELION[turn])
def test_some_cases_meet_each_kernel_of_helion(turn):
    cases = cheap(HELION[turn], range(num_smoke()))[turn :: len(HELION)]
    assert {case.name: why for case in cases if (why := why_not(HELION[turn], case))} == {}


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_pairs_and_triples_meet_the_first_kernel_of_triton(part):
    cases = cheap(TRITON[0], range(num_smoke() + part, num_axes(), 16))
    assert {case.name: why for case in cases if (why := why_not(TRITON[0], case))} == {}
