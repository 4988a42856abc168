"""The level first: cases by what they reject a second, and each by its fields."""

import pytest

from common.kit import levels
from compare.studies.mutation import first


def test_the_case_with_most_new_kills_a_second_comes_next():
    kills, cost = {"slow": {*"abcdef"}, "quick": {*"abc"}, "other": {*"de"}}, {"slow": 10.0, "quick": 1.0, "other": 2.0}
    assert first.chosen(kills, cost, 20.0) == [("quick", 3), ("other", 2), ("slow", 1)]
    assert first.chosen(kills, cost, 3.0) == [("quick", 3), ("other", 2)]
    assert first.chosen({"none": set()}, {"none": 1.0}, 5.0) == []
    assert first.chosen(kills, cost, 20.0, ["other"]) == [("other", 2), ("quick", 3), ("slow", 1)]


def test_where_nothing_is_new_what_was_rejected_once_comes_before_what_was_twice():
    kills = {"a": {1, 2, 3, 4}, "b": {1, 2, 3}, "c": {1, 2}, "d": {3, 4}}
    assert [name for name, _ in first.chosen(kills, dict.fromkeys(kills, 1.0), 3.0)] == ["a", "b", "d"]


def test_candidates_are_cheap_cases_of_smoke():
    cases = [levels.read(name) for name in first.candidates()]
    assert len(cases) > 50 and all(first.seconds(case) <= first.FAR_S and not case.large for case in cases)
    assert first.candidates()[: len(levels.quick())] == levels.quick()


@pytest.mark.parametrize("name", ["axes-3", "drawn-0-1"])
def test_a_case_of_the_axes_is_kept_by_its_fields(name):
    own, told = first.kept(name)
    case = levels.thawed(own, told)
    assert own.startswith("first-") and case.name == own
    assert levels.frozen(case) == levels.frozen(levels.read(name)) == told


def test_a_named_case_is_kept_by_its_name():
    assert first.kept("window-page") == ("window-page", None)


def test_the_level_holds_what_was_chosen():
    chosen = levels.CHOSEN
    assert len(chosen["cases"]) >= 20 and chosen["chosen_by"].startswith("python -m compare study mutation ")
    assert chosen["rejected"] >= 0.95 * chosen["of_wrong_kernels_that_one_of_them_rejects"]
    assert chosen["seconds_of_a_naive_interpreted_kernel"] <= 400
    assert list(levels.level("first")) == [*levels.quick(), *chosen["cases"]]
    assert {*levels.level("first")} <= {*levels.level("smoke"), *levels.BY_NAME}
