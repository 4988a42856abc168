"""docs/cases.md: every corner has a case or says where it is tested."""

import pytest

from common.cases.named import CASES
from compare.__main__ import main as diptych
from compare.pages.cases import CORNERS, ELSEWHERE, cases_of

NUMBERS = range(1, 101)


def test_every_corner_has_a_case_or_says_why_not():
    assert len(CORNERS) == len(set(CORNERS)) == 100
    assert [number for number in NUMBERS if bool(cases_of(number)) == (number in ELSEWHERE)] == []
    assert {number for case in CASES for number in case.numbers} <= set(NUMBERS)


def test_a_wrong_argument_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as left:
        diptych(["pages", "features", "--wrong"])
    assert left.value.code == 2 and "--help lists" in capsys.readouterr().err
