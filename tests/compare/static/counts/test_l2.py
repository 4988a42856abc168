"""L2 caches of several dies: who fetches a line, and when it is fetched again."""

import numpy as np

from compare.static.counts.l2 import L2, LINE, fetches


def lines(*numbers):
    return [np.array([number]) for number in numbers]


def test_programs_of_different_dies_fetch_a_line_each():
    found = fetches([lines(1, 2), lines(1, 2), lines(1)], L2(dies=2))
    assert found.each == (2, 2) and found.distinct == 2 and found.asked == 5
    assert found.times == 2.0 and round(found.hits, 3) == 0.2


def test_neighbours_of_one_die_share_a_line():
    found = fetches([lines(1), lines(9), lines(1), lines(9)], L2(dies=2))
    assert found.each == (1, 1) and found.times == 1.0


def test_programs_at_once_share_lines_where_one_after_another_lose_them():
    """Two programs over the same four lines; the cache holds two."""
    programs = [lines(0, 1, 2, 3)] * 2
    assert fetches(programs, L2(dies=1, size=2 * LINE, slots=2)).each == (4,)
    assert fetches(programs, L2(dies=1, size=2 * LINE, slots=1)).each == (8,)


def test_the_line_that_was_used_last_stays():
    assert fetches([lines(0, 1, 0, 2, 0)], L2(dies=1, size=2 * LINE)).each == (3,)


def test_nothing_is_fetched_of_nothing():
    found = fetches([[], []], L2())
    assert found.times == 0.0 and found.hits == 0.0
