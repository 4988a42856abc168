"""How rows are dealt: every row once, whole, in order; many together first, alone at the end."""

import itertools
import random

import pytest

from compare.fleet.shares import cut, longest_first


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
