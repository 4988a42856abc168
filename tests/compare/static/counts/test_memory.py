"""Conflicts of banks, and L2 caches of several dies: which lanes are served together, and who fetches a line."""

import numpy as np
import pytest

from compare.static.counts import banks
from compare.static.counts.l2 import L2, LINE, fetches

LANE = np.arange(64)[None]
ALL = np.ones((1, 64), bool)


@pytest.mark.parametrize("arch", banks.BANKS)
@pytest.mark.parametrize("way", ["read", "write"])
@pytest.mark.parametrize("size", [1, 2, 4, 8, 12, 16])
def test_each_lane_is_served_once(arch, way, size):
    assert sorted(banks.lanes(arch, way, size).ravel().tolist()) == list(range(64))


@pytest.mark.parametrize("arch", banks.BANKS)
@pytest.mark.parametrize("size", [4, 8, 16])
@pytest.mark.parametrize("way", ["read", "write"])
def test_neighbouring_lanes_do_not_conflict(arch, way, size):
    taken, fewest = banks.clocks(arch, way, size, LANE * size, ALL)
    assert taken == fewest == len(banks.lanes(arch, way, size))


def test_rows_that_begin_in_one_bank_are_read_one_after_another():
    """16 lanes of 8 bytes, 256 bytes apart, as an unswizzled tile of 128 lanes of bf16 lies."""
    at = LANE % 16 * 256 + LANE // 16 * 8
    assert banks.clocks("gfx942", "read", 8, at, ALL) == (64, 4)
    swizzled = LANE % 16 * 256 + (LANE // 16 ^ LANE % 16) * 8
    assert banks.clocks("gfx942", "read", 8, swizzled, ALL) == (4, 4)


def test_lanes_that_want_the_same_word_share_it():
    assert banks.clocks("gfx942", "read", 4, LANE * 0, ALL) == (2, 2)


def test_64_banks_serve_reads_of_rows_twice_as_fast():
    at = LANE % 16 * 256 + LANE // 16 * 8
    assert banks.clocks("gfx950", "read", 8, at, ALL)[1] == banks.clocks("gfx942", "read", 8, at, ALL)[1] // 2


def test_lanes_that_are_switched_off_want_nothing():
    assert banks.clocks("gfx942", "read", 4, LANE * 128, LANE < 3) == (3, 1)
    assert banks.clocks("gfx942", "read", 4, LANE * 128, LANE < 0) == (0, 0)


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
