"""Every mutant dies under the check that the gate calls; the same case without the edit lives."""

import pytest

from common.mutants import MUTANTS
from common.mutants.emulation import Edits
from common.mutants.known import KNOWN
from common.mutants.mutant import judge


def _case(case) -> str:
    """The features and cuts of a case in one line."""
    return " ".join([case.case.name, *case.case.ask.names(), f"{case.segments}x{case.tile}"])


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_dies(mutant, record_property):
    outcome = mutant.run()
    record_property("mutant", mutant.name)
    record_property("scope", mutant.scope)
    record_property("case", _case(mutant.case))
    record_property("rule", outcome.rule)
    record_property("ratio", f"{outcome.verdict.worst:.3g}")
    assert not outcome.ok, f"{mutant.name} survives: {outcome.verdict}"
    assert outcome.verdict.reason or outcome.damage


CASES = {repr(mutant.case): mutant for mutant in MUTANTS}


@pytest.mark.parametrize("mutant", CASES.values(), ids=lambda mutant: mutant.name)
def test_without_the_mutant_its_case_is_right(mutant):
    outcome = judge(mutant.case, Edits())
    assert outcome.verdict.ok, outcome.verdict.reason
    assert outcome.damage == []


def test_mutants_are_many_and_most_are_narrow():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 85
    assert sum(mutant.scope != "all" for mutant in MUTANTS) >= 32


def test_every_bug_of_a_published_kernel_says_where_it_was_reported():
    assert len(KNOWN) >= 8
    assert all(mutant.report for mutant in KNOWN)
