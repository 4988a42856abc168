"""Trees by cost, on synthetic times: regret, few choices, thresholds, held-out rows."""

import numpy as np
import pytest

from common.metadata import BatchStats
from common.spec import AttentionShape
from compare import tune_records, tune_tree
from compare.tune_tree import Tree

SHAPE = AttentionShape()


def asked(**values):
    """A row's features; those that are not named are the same for all."""
    return {name: values.get(name, 1) for name, _, _ in tune_tree.FEATURES}


def line(row, policy, status="ok", **fields):
    kernel = {"arm": "triton", "kernel": "triton/q_block", "row": row, "t": 1.0}
    return kernel | {"policy": policy, "status": status} | fields


def done(*rows):
    return [line(row, "", done=True) for row in rows]


def test_regret_is_time_over_the_best_final_of_the_row():
    lines = [
        line("a", "default", screen_us=21.0, final_us=20.0),
        line("a", "fast", screen_us=9.0, final_us=10.0),
        line("a", "lucky", screen_us=9.5),  # lost the screening, so no better than the worst final
        line("a", "slow", screen_us=50.0),
        line("a", "same", "duplicate", of="fast"),
        line("a", "later", "raced"),
        line("b", "default", screen_us=5.0, final_us=5.0),
        line("b", "slow", screen_us=5.0, final_us=5.5),
        *done("a"),
    ]
    times = tune_records.times(lines, "triton", "triton/q_block")
    assert times.rows == ("a",)  # b is not done
    regret = dict(zip(times.policies, times.regret[0], strict=True))
    assert regret == {"default": 2.0, "fast": 1.0, "lucky": 2.0, "slow": 5.0}


def test_what_is_slow_costs_a_lot_and_what_was_wrong_once_is_no_choice():
    lines = [
        *[line(row, "default", screen_us=10.0, final_us=10.0) for row in "ab"],
        line("a", "slow", screen_us=11.0, final_us=11.0),
        line("b", "slow", "hopeless"),
        line("a", "wrong", screen_us=5.0, final_us=5.0),
        line("b", "wrong", "incorrect"),
        *done("a", "b"),
    ]
    times = tune_records.times(lines, "triton", "triton/q_block")
    assert times.policies == ("default", "slow")
    assert times.regret[1].tolist() == [1.0, tune_records.LOST]


def test_a_few_choices_are_those_that_lower_the_summed_regret():
    regret = np.array([[1.0, 3.0, 1.3, 9.0], [3.0, 1.0, 1.3, 9.0], [1.0, 3.0, 1.3, 9.0]])
    assert tune_tree.few(regret) == [2, 0, 1]  # the compromise first, then the two specialists; never the last


def test_cost_and_not_the_count_of_right_answers_decides():
    """Nine rows lose 1% with choice 1; one row, which no feature tells apart, loses 3x with choice 0."""
    regret = np.array([[1.0, 1.01]] * 9 + [[3.0, 1.0]])
    right = [(regret[:, choice] == 1.0).mean() for choice in (0, 1)]
    assert right[0] > right[1]  # by accuracy choice 0 would be the tree
    assert tune_tree.grow([asked()] * 10, regret, 4) == Tree(1)


def test_the_split_that_saves_most_comes_first():
    """The longest query sorts eight of ten rows right but saves 1% each; the longest sequence saves 3x in four."""
    rows = [asked(max_query_len=1 + i % 2, max_seq_len=100 if i < 6 else 900) for i in range(10)]
    regret = np.array([[1.0, 1.01] if i % 2 else [1.01, 1.0] for i in range(6)] + [[1.0, 3.0]] * 4)
    assert tune_tree.grow(rows, regret, 1).feature in ("", "max_seq_len")
    regret[:6] = [2.0, 1.0]
    tree = tune_tree.grow(rows, regret, 1)
    assert (tree.feature, tree(rows[0]), tree(rows[9])) == ("max_seq_len", 1, 0)


def test_a_split_that_pays_is_found_and_its_threshold_is_a_round_number():
    rows = [asked(max_query_len=n) for n in (1, 1, 2, 12, 700, 900, 3000, 8000)]
    regret = np.array([[1.0, 2.0]] * 4 + [[2.5, 1.0]] * 4)
    tree = tune_tree.fit(rows, regret).tree
    assert (tree.feature, tree.threshold) == ("max_query_len", 128)  # of 12 .. 699
    assert [tree(row) for row in rows] == [0] * 4 + [1] * 4


def test_held_out_rows_choose_nothing_for_themselves():
    """The fourth row alone says where the border is: in training it is right, held out it pays 3x."""
    rows = [asked(max_seq_len=2**n) for n in range(8)]
    regret = np.array([[1.0, 2.0]] * 3 + [[3.0, 1.0]] + [[2.0, 1.0]] * 4)
    fitted = tune_tree.fit(rows, regret)
    assert fitted.training == (1.0, 1.0)
    assert fitted.held_out == (1.25, 3.0)


def test_a_tree_of_one_row_is_its_best():
    fitted = tune_tree.fit([asked()], np.array([[1.5, 1.0]]))
    assert fitted.tree == Tree(1) and fitted.held_out == (1.0, 1.0)


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [(12, 700, 128), (16, 17, 16), (17, 31, 20), (1000, 1020, 1000), (1050, 1200, 1100), (1001, 1023, 1001)],
)
def test_thresholds_lie_in_the_gap(low, high, found):
    assert tune_tree._round_between(low, high) == found and low <= found < high


def test_a_tree_is_asked_what_auto_asks():
    """45 sequences are 48 on the grid, a longest query of 700 is 1024."""
    values = tune_tree.features(SHAPE, BatchStats(45, 744, 44, 700, 5000, 99_999))
    assert (values["num_seqs"], values["max_query_len"], values["max_seq_len"]) == (48, 1024, 6144)
    assert values["programs"] == 48 * SHAPE.num_kv_heads
