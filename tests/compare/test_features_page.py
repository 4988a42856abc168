"""docs/features.md says what the kernels declare."""

import pytest

from compare import features_page


def test_the_page_is_what_the_kernels_say():
    assert features_page.main([]) == 0


def test_every_member_that_a_case_asks_for_is_on_the_page():
    asked = {member for case in features_page.BY_NAME.values() if case.refused is None for member in case.asked}
    assert asked <= set(features_page.MEMBERS)
    assert all(features_page.counted(m) for m in features_page.MEMBERS if m not in ("lse", "full_graph"))


def test_a_member_that_the_page_lacks_is_refused():
    with pytest.raises(KeyError, match="weather"):
        features_page.matrix({"triton/naive": frozenset({"causal", "weather"})})


def test_a_changed_declaration_makes_the_page_old(monkeypatch):
    declared = features_page.supports()
    declared["triton/naive"] |= {"sinks"}
    monkeypatch.setattr(features_page, "supports", lambda: declared)
    assert features_page.main([]) == 1
