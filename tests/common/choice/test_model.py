"""Trees as data: they answer as written down, and a file that is none is refused by name."""

import numpy as np
import pytest

from common.choice import model
from common.choice.model import FINALISTS, Trees, losses, order

STUMP = {"roots": [0], "feature": [0, -1, -1], "threshold": [5.0, 0, 0], "left": [1, 0, 0], "right": [2, 0, 0]}
PLAIN = STUMP | {"value": [0.0, 1.0, 2.0]}


def stumps(count, columns):
    """Trees that each add what one column says."""
    draw = np.random.default_rng(0)
    nodes = [draw.integers(0, columns, count), np.full(count, -1), np.full(count, -1)]
    feature = np.stack(nodes, axis=1).ravel()
    threshold = np.where(feature < 0, 0.0, draw.uniform(0, 1, 3 * count))
    at = np.arange(3 * count)
    left, right = np.where(feature < 0, 0, at + 1), np.where(feature < 0, 0, at + 2)
    return Trees(at[::3], feature, threshold, left, right, np.where(feature < 0, draw.normal(0, 1, 3 * count), 0.0))


def test_a_value_at_the_threshold_goes_left():
    assert list(Trees.of(PLAIN, 1).predict(np.array([[5.0], [5.1]]))) == [1.0, 2.0]


def test_what_was_written_down_answers_as_before():
    trees, table = stumps(80, 7), np.random.default_rng(1).uniform(0, 1, (50, 7))
    assert np.array_equal(Trees.of(trees.plain(), 7).predict(table), trees.predict(table))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"feature": [3, -1, -1]}, "column 3, allowed -1 to 0"),
        ({"left": [0, 0, 0]}, "leads back"),
        ({"right": [9, 0, 0]}, "nowhere"),
        ({"roots": [7]}, "outside of 3 nodes"),
        ({"roots": []}, "outside of 3 nodes"),
        ({"value": [0.0, float("nan"), 2.0]}, "finite"),
        ({"value": [0.0, 1.0]}, "different lengths"),
        ({"value": "many"}, "finite numbers"),
        ({"value": [[0.0], [1.0], [2.0]]}, "in a list"),
        ({"more": []}, "found no trees"),
    ],
)
def test_a_file_that_is_no_trees_is_refused(change, words):
    with pytest.raises(ValueError, match=words):
        Trees.of(PLAIN | change, 1)


def test_the_best_of_many_are_ranked_by_all_trees_and_stand_before_the_others():
    trees, table = stumps(model.FIRST_TREES + 90, 5), np.random.default_rng(2).uniform(0, 1, (3 * 60, 5))
    found, exact = losses(trees, table, 60), trees.predict(table).reshape(3, 60)
    ranked = order(trees, table, 60)
    for batch in range(3):
        first = ranked[batch, :FINALISTS]
        assert np.allclose(found[batch, first], exact[batch, first]) and (np.diff(found[batch, first]) >= 0).all()
        assert found[batch, ranked[batch, FINALISTS:]].min() > found[batch, first].max()


def test_few_candidates_are_ranked_exactly():
    trees, table = stumps(model.FIRST_TREES + 5, 4), np.random.default_rng(3).uniform(0, 1, (9, 4))
    assert np.allclose(losses(trees, table, 9)[0], trees.predict(table))
