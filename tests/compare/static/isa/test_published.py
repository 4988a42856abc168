"""The proof of worth: a miscompilation that others published is seen here by executing the code."""

from pathlib import Path

import pytest

import children

HERE = Path(__file__).parent
RIGHT = [-7, -7, 4, 5, 6, 7, 8, 9]
WRONG = [-7] * 8  # the bound stays 2, so that no count is above 3
AFFECTED = ((3, 7),)  # releases that prune the bound, of those that this was run on


@pytest.fixture(scope="module")
def ran():
    return children.answer([str(HERE / "published_child.py")], children.compiling(HERE.parents[3]), 300)


def test_the_same_loop_with_another_use_of_its_bound_is_right(ran):
    assert ran["read"]["carried"] and ran["read"]["out"] == RIGHT


def test_the_pruned_bound_is_seen(ran):
    """The model and the compiler's last dialect agree: where the bound is no longer carried, the output is wrong."""
    assert ran["pruned"]["out"] == (RIGHT if ran["pruned"]["carried"] else WRONG)
    if tuple(int(part) for part in ran["triton"].split(".")[:2]) in AFFECTED:
        assert not ran["pruned"]["carried"], "triton no longer prunes it: take this release off the list"
