"""The smallest case that still fails: what is left when nothing more can be left out."""

from __future__ import annotations

from collections.abc import Callable

from common.cases.case import Case
from common.kit.levels import simpler

CALLS = 400  # a case of five sequences with every feature on takes about 100


def smallest(case: Case, fails: Callable[[Case], bool], calls: int = CALLS) -> Case:
    """`case`, or a simpler one for which `fails` holds too and for none of whose simpler ones it does.

    Greedy; calls `fails` at most `calls` times.
    """
    improved = True
    while improved:
        improved = False
        for candidate in simpler(case):
            if calls == 0:
                return case
            calls -= 1
            if fails(candidate):
                case, improved = candidate, True
                break
    return case
