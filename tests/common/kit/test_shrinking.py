"""A random case that fails shrinks to what made it fail, and its expression reads back."""

import dataclasses

import pytest

from common.cases.fills import FILLS
from common.cases.random_cases import random_case, values_of
from common.kit.levels import read, smallest, write
from common.spec import SpecError

SEED = next(seed for seed in range(300) if values_of(seed)["sinks"] and values_of(seed)["companions"] == "decodes")


def test_a_case_shrinks_to_what_fails():
    case = random_case(SEED)
    small = smallest(case, lambda c: c.ask.sinks is not None and any(query_len == 1 for query_len, _ in c.lens))
    assert small.lens == ((1, 1),) and small.heads == (1, 1) and small.ask.sinks == case.ask.sinks
    assert not (small.fill or small.arrange or small.ask.softcap or small.pad_tokens or small.new_kv)


def test_a_fill_that_fails_stays():
    seed = next(seed for seed in range(300) if values_of(seed)["fill"] == "minus-zeros")
    assert smallest(random_case(seed), lambda c: c.fill is not None).fill is FILLS["minus-zeros"]


def test_no_more_calls_than_allowed():
    asked = []
    smallest(random_case(SEED), lambda c: bool(asked.append(c)) or True, calls=5)
    assert len(asked) == 5


@pytest.mark.parametrize("seed", [SEED, 7, 250])
def test_an_expression_of_a_random_case_reads_back(seed):
    case = random_case(seed)
    assert write(case) == f"random-{seed}" and read(f"random-{seed}") == case
    changed = dataclasses.replace(case, lens=((1, 9),), fill=None, arrange=None)
    assert read(write(changed)) == changed


@pytest.mark.parametrize("expression", ["random-", "random--1", "random-x", "random-3@fill=minus-zeros"])
def test_a_wrong_expression_is_refused(expression):
    with pytest.raises(SpecError, match="case"):
        read(expression)
