"""Shares: every row once, many together first; over seats that are lost, slow or dead nothing is lost or done twice."""

import itertools
import random
import threading
import time
from collections import Counter

import pytest

from compare.fleet.cluster import Lost
from compare.fleet.drive import STARTS, TRIES, Drive, cut, longest_first


class Fake:
    """A seat. dies: before its n-th share, at half of it. lives: how often it comes back. bad: a row that kills it."""

    def __init__(self, name, dies=(), lives=0, slow_s=0.0, bad=None):
        self.name, self.dies, self.lives, self.slow_s, self.bad = name, set(dies), lives, slow_s, bad
        self.starts, self.took = 1, 0

    def do(self, rows):
        self.took += 1
        time.sleep(self.slow_s)
        for number, row in enumerate(rows):
            if row == self.bad or (self.took in self.dies and number == len(rows) // 2):
                raise Lost("the node died")
            yield row

    def again(self):
        self.starts += 1
        self.lives -= 1
        return self.lives >= 0


def driven(*seats, rows=40, repeat=False):
    """(rows whose share was done to its end, by how many; the drive; what was repeated)"""
    drive = Drive(seats, cut([4] * rows, len(seats), 16), repeat=repeat)
    last = {}
    repeated = []
    for found in drive.results():
        if found.share is None:
            repeated.append((found.seat, found.what))
        else:
            last[found.what] = found.seat
    return last, drive, repeated


def test_every_row_is_found_once_over_seats():
    last, drive, _ = driven(Fake("a"), Fake("b"), Fake("c"))
    assert sorted(last) == list(range(40)) and drive.left == 0 and not drive.losses


def test_what_a_dead_seat_loses_another_does_as_a_whole():
    last, drive, _ = driven(Fake("a", dies={1}), Fake("b", slow_s=0.01))
    assert sorted(last) == list(range(40)) and drive.left == 0
    assert len(drive.losses) == 1 and "the node died" in drive.losses[0] and "another seat does it" in drive.losses[0]
    for share in drive.shares:
        assert len({last[row] for row in share.rows}) == 1, "a row's last word is of one seat"


def test_a_seat_that_comes_back_goes_on():
    last, drive, _ = driven(Fake("a", dies={1, 2}, lives=2))
    assert sorted(last) == list(range(40)) and len(drive.losses) == 2


def test_without_seats_what_is_left_is_counted_and_it_ends():
    _, drive, _ = driven(Fake("a", dies={2}), Fake("b", dies={1}))
    assert 0 < drive.left < len(drive.shares)
    _, drive, _ = driven()
    assert drive.left == len(drive.shares)


def test_a_row_that_kills_every_seat_is_given_up():
    seats = [Fake(name, bad=39, lives=9) for name in "abc"]
    last, drive, _ = driven(*seats)
    assert sorted(last) == list(range(39)) and drive.left == 1
    assert len(drive.losses) == TRIES and "given up" in drive.losses[-1]
    assert all(seat.starts <= STARTS for seat in seats)


def test_a_slow_seat_takes_fewer_shares():
    fast, slow = Fake("fast", slow_s=0.001), Fake("slow", slow_s=0.1)
    last, drive, _ = driven(fast, slow)
    taken = Counter(last.values())
    assert drive.left == 0 and taken["slow"] < taken["fast"]


def test_the_last_share_is_repeated_by_every_other_seat():
    last, drive, repeated = driven(Fake("a"), Fake("b", slow_s=0.01), Fake("c", slow_s=0.02), repeat=True)
    (row,) = drive.shares[-1].rows
    assert {what for _, what in repeated} == {row}
    assert sorted(seat for seat, _ in repeated) == sorted({"a", "b", "c"} - {last[row]})


def test_a_drive_that_was_stopped_gives_nothing_back():
    """Seats are killed when the reader stops: what they lose then is not done again."""
    begun = threading.Event()

    class Hanging(Fake):
        def do(self, rows):
            begun.set()
            time.sleep(0.2)
            raise Lost("killed")
            yield

    seat = Hanging("a", lives=5)
    drive = Drive([seat], cut([1] * 4, 1, 1))
    threading.Thread(target=lambda: (begun.wait(), drive.stop()), daemon=True).start()
    assert list(drive.results()) == [] and seat.starts == 1 and drive.left == 4


def test_a_seat_that_got_no_share_repeats_the_last_one_too():
    _, drive, repeated = driven(Fake("a", slow_s=0.05), Fake("b", slow_s=0.05), Fake("c"), rows=1, repeat=True)
    assert len(drive.shares) == 1 and {what for _, what in repeated} == {0} and len(repeated) == 2


@pytest.mark.parametrize("rows", [0, 1, 7, 500])
@pytest.mark.parametrize("seats", [1, 2, 64])
@pytest.mark.parametrize("most", [1, 16])
def test_every_row_is_in_one_share_in_order(rows, seats, most):
    costs = [random.Random(rows).randint(1, 9) for _ in range(rows)]
    shares = cut(costs, seats, most)
    assert list(itertools.chain.from_iterable(share.rows for share in shares)) == list(range(rows))


def test_shares_get_smaller_and_end_with_single_rows():
    shares = cut([4] * 200, 8, 16)
    sizes = [len(share.rows) for share in shares]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 4 and sizes[-8:] == [1] * 8


def test_no_share_has_more_cells_than_are_compiled_ahead_but_for_a_row_that_has():
    shares = cut([5, 30, 5, 5, 5], 1, 16)
    assert [share.rows for share in shares] == [(0,), (1,), (2,), (3,), (4,)]


def test_the_longest_row_comes_first_and_equal_ones_stay_in_order():
    assert longest_first([1.0, 9.0, 0.0, 9.0, 1.0]) == [1, 3, 0, 4, 2]
