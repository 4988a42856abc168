"""The simulation of a large fleet: a virtual clock, never below its bound, and near it where GPUs are equal."""

import random

import pytest

from compare.studies import fleet


@pytest.mark.parametrize("case", fleet.CASES, ids=lambda case: case.name)
def test_time_is_above_the_bound_and_near_it(case):
    draw = random.Random(0)
    costs = [draw.lognormvariate(0, fleet.SPREAD) * fleet.CELL_S * fleet.KERNELS for _ in range(208)]
    last, bound = fleet.makespan(costs, 16, case)
    assert bound < last < bound * (1.6 if case.lost or case.slow > 1 else 1.35)


def test_the_driver_sees_every_record_once():
    _, _, memory = fleet.driven(20, 4, keep=True)
    assert len(memory) == 10


def test_the_page_says_all_of_it():
    text = fleet.page(480, 8, 0, 0, "a command")
    assert all(case.name in text for case in fleet.CASES) and "ms of its processor a record" in text
