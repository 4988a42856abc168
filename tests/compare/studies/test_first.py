"""The level first: cases by what they reject a second, and each by its fields."""

from common.kit import levels
from compare.studies import first


def found(name, seconds, *kills):
    return {"case": name, "seconds": seconds, "kills": list(kills)}


def test_the_case_with_most_new_kills_a_second_comes_next():
    cases = [found("slow", 10.0, *"abcdef"), found("quick", 1.0, *"abc"), found("other", 2.0, *"de")]
    chosen = first.greedy(cases, 20.0)
    assert [(one["case"], one["new"]) for one in chosen] == [("quick", 3), ("other", 2), ("slow", 1)]
    assert [one["case"] for one in first.greedy(cases, 3.0)] == ["quick", "other"]
    assert first.greedy([found("none", 1.0)], 5.0) == []


def test_a_candidate_is_cheap_and_comes_back_from_its_fields():
    candidates = first.candidates()
    assert len(candidates) > 50
    for name, told in candidates.items():
        case = first.read(name, told)
        assert case.name == name and first.seconds(case) <= first.MOST_S
        assert told is None or levels.frozen(case) == told


def test_kills_are_of_the_kernels_that_are_asked():
    nothing = {"writes nothing": lambda: lambda batch, features, out, lse: None}
    assert first.kills("sequence-1", None, nothing)["kills"] == ["writes nothing"]


def test_the_level_holds_what_was_chosen():
    chosen = levels.CHOSEN
    assert 20 <= len(chosen["cases"]) <= first.MOST and chosen["chosen_by"].startswith("python -m compare study first")
    assert chosen["rejected"] >= 0.95 * chosen["of_wrong_kernels_that_one_of_them_rejects"]
    assert chosen["seconds_of_a_naive_interpreted_kernel"] <= 150
    assert list(levels.level("first")) == list(chosen["cases"])
