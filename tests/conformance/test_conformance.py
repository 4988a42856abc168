"""Every own kernel on every named case that a CPU can run, interpreted; conformance_cells.py says which every day."""

import os

import pytest

from common.cases.named import CASES, Case
from compare.competitors import registry
from conformance_cells import FULL, SMOKE, cells, form, gpu_daily, helion_daily, on_gpu_daily, supported
from kernel_cases import cell, conform

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("a GPU is here: tests/gpu runs these cases on it", allow_module_level=True)

CELLS = list(cells())
MARKS = {SMOKE: pytest.mark.conformance, FULL: pytest.mark.slow}


@pytest.mark.parametrize(
    ("kernel_id", "case"), [pytest.param(x.kernel, x.case, marks=MARKS[x.level], id=x.name) for x in CELLS]
)
def test_conformance(kernel_id, case, record_property):
    kernel = registry.load(kernel_id)
    record_property("conformance", cell(kernel_id, case))
    record_property("conformance", cell(kernel_id, case, conform(kernel, case, kernel.DEFAULT)))


def test_every_day_and_slow_are_all_pairs_each_once():
    small = {case.name for case in CASES if not case.large}
    pairs = [(x.kernel, x.case.name) for x in CELLS]
    assert len(pairs) == len(set(pairs)) and set(pairs) == {(kernel, name) for kernel in registry.OWN for name in small}
    assert {x.level for x in CELLS} == set(MARKS)


def _able(kernels: str, level: str | None = None) -> list[Case]:
    """The cases that come to kernels that support them, at one level or at any."""
    mine = [x for x in CELLS if x.kernel.startswith(kernels) and level in (None, x.level)]
    return [x.case for x in mine if supported(x.kernel, x.case)]


def test_each_case_is_met_every_day_by_a_triton_kernel_that_supports_it():
    assert {case.name for case in _able("triton/", SMOKE)} == {case.name for case in _able("triton/")}


def test_each_capability_is_met_every_day_by_helion():
    assert {case.name for case in _able("helion/", SMOKE)} == helion_daily() & {case.name for case in _able("helion/")}
    asked = [set().union(*(case.asked for case in _able("helion/", level) if not case.refused)) for level in MARKS]
    assert asked[0] >= asked[1]


def test_each_capability_is_met_every_day_on_a_gpu():
    asked = [set().union(*(case.asked for case in CASES if not case.refused and case.name in names))
             for names in (gpu_daily(), {case.name for case in CASES})]  # fmt: skip
    assert asked[0] == asked[1]
    for dsl in ("triton/", "helion/"):
        assert {name for kernel, name in on_gpu_daily() if kernel.startswith(dsl)} == gpu_daily()


def test_every_kernel_is_met_every_day_and_in_every_dtype_over_all():
    for kernel in registry.OWN:
        mine = [x for x in CELLS if x.kernel == kernel]
        assert sum(x.level == SMOKE for x in mine) >= 10
        assert len({x.case.dtype for x in mine}) == 3


def test_cases_of_one_form_come_to_a_helion_kernel_in_one_dtype():
    seen = {}
    for x in CELLS:
        if x.kernel.startswith("helion/"):
            assert seen.setdefault((x.kernel, form(x.case)), x.case.dtype) == x.case.dtype
