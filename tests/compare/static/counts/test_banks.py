"""Conflicts of banks: which lanes are served together, and what shared and strided words cost."""

import numpy as np
import pytest

from compare.static.counts import banks

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
