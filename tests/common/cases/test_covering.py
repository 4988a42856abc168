"""Covering arrays hold what they promise, of one value, two and three, and nothing that is forbidden."""

import itertools

import pytest

from common.cases.covering import Rule, both, covering, legal_pairs

AXES = {"a": (0, 1, 2), "b": (0, 1, 2, 3), "c": (0, 1), "d": (0, 1, 2)}
RULES = (both("a", {2}.__contains__, "b", bool), Rule("c", "d", lambda c, d: c + d == 3))


def broken(row):
    return any(rule.broken(row) for rule in RULES)


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_rows_hold_every_legal_combination(strength):
    rows = covering(AXES, RULES, strength=strength)
    assert not any(map(broken, rows))
    for names in itertools.combinations(AXES, strength):
        wanted = set(itertools.product(*(AXES[name] for name in names)))
        wanted = {one for one in wanted if not broken(dict(zip(names, one, strict=True)))}
        assert {tuple(row[name] for name in names) for row in rows} >= wanted


def test_the_rows_are_few():
    everything = 3 * 4 * 2 * 3
    assert len(covering(AXES, RULES, strength=1)) <= 5
    assert len(covering(AXES, RULES)) <= 16 < len(covering(AXES, RULES, strength=3)) < everything


def test_of_equals_the_first_value_is_taken():
    rows = covering(AXES, (), strength=1, plain=True)
    assert sum(row["c"] == 0 for row in rows) > sum(row["c"] == 1 for row in rows)
    assert rows == covering(AXES, (), strength=1, plain=True)


def test_a_value_is_held_by_rows_that_tell():
    def tells(row):
        return row["a"] != 1 and row["b"] > 0

    rows = covering(AXES, RULES, strength=1, tells=tells)
    for axis, values in AXES.items():
        alone = {("a", 1), ("a", 2), ("b", 0)}
        assert {row[axis] for row in rows if tells(row)} >= {one for one in values if (axis, one) not in alone}
        assert {row[axis] for row in rows} == set(values)


def test_only_what_is_asked_for_need_be_held():
    legal = legal_pairs(AXES, RULES)
    rows = covering(AXES, RULES, of={"c"})
    held = {(a, row[a], b, row[b]) for row in rows for a, b in itertools.combinations(AXES, 2)}
    assert {pair for pair in legal if "c" in (pair[0], pair[2])} <= held and len(rows) < len(covering(AXES, RULES))
