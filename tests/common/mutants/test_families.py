"""Wrong kernels of one value of one axis: drawn by a seed, right elsewhere, wrong there."""

import random

import pytest
import torch

from common.cases.case import named
from common.kit.inside import Asked
from common.mutants import emulation
from common.mutants.emulation import Schedule
from common.mutants.families import BETWEEN, EXPRESSIONS, FAULTS, families, limit, meets, places, wrong_where
from common.mutants.operators import load

KERNELS = families(110, seed=3)
PLAIN = named("plain", lens=((1, 90), (17, 40), (2, 150)), dtype=torch.float32)


def launcher(module):
    return lambda batch, features, out, lse: module.emulate(batch, features, out, module.Schedule(64, 2), lse=lse)


def test_they_are_a_function_of_the_seed_and_hold_every_axis():
    assert KERNELS == families(110, seed=3) != families(110, seed=4)
    assert {one.operator.removeprefix("axis ") for one in KERNELS} == {*EXPRESSIONS, "between"}


def test_a_value_is_drawn_by_the_seed_within_its_range():
    drawn = [limit("head_size", random.Random(seed)) for seed in range(60)]
    values = {int(text.split()[-1]) for text in drawn if "% " not in text}
    assert len(values) > 15 and all(8 <= value <= 512 and value % 8 == 0 for value in values)


@pytest.mark.parametrize("fault", range(len(FAULTS)))
def test_each_fault_is_wrong_where_it_is_and_right_elsewhere(fault):
    right, wrong = (load(wrong_where(f"at.batch.num_seqs == {count}", fault).source) for count in (4, 3))
    assert Asked.of(PLAIN).why_not(launcher(wrong)) and not Asked.of(PLAIN).why_not(launcher(right))


@pytest.mark.parametrize("where", BETWEEN)
def test_what_stands_between_axes_differs_nowhere_else_than_it_says(where):
    one, case = wrong_where(where, 0), Asked.of(PLAIN)
    differs = not case.same_as_right(launcher(load(one.source)), launcher(emulation))
    assert differs == meets(one, places(case.batch, case.features, Schedule(64, 2)))
