"""docs/cases.md: every corner has a case or says where it is tested."""

from common.cases.named import CASES
from compare.pages.cases import CORNERS, ELSEWHERE, cases_of

NUMBERS = range(1, 101)


def test_every_corner_has_a_case_or_says_why_not():
    assert len(CORNERS) == len(set(CORNERS)) == 100
    assert [number for number in NUMBERS if bool(cases_of(number)) == (number in ELSEWHERE)] == []
    assert {number for case in CASES for number in case.numbers} <= set(NUMBERS)
