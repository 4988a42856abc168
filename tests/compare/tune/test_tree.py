"""Trees by cost, on synthetic times: regret, few choices, thresholds, held-out rows."""

import numpy as np
import pytest

from common.spec import AttentionShape
from common.spec.metadata import BatchStats
from compare.tune import records
from compare.tune import tree as tune_tree
from compare.tune.tree import Tree

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
    times = records.times(lines, "triton", "triton/q_block")
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
    times = records.times(lines, "triton", "triton/q_block")
    assert times.policies == ("default", "slow")
    assert times.regret[1].tolist() == [1.0, records.LOST]


def test_a_compiler_that_ran_out_of_time_says_nothing_of_a_policy_nor_a_row_without_a_default_of_any():
    ran_out = {"reason": "the compiler's process: timeout: no sign of life for 90 s"}
    lines = [
        *[line(row, "default", screen_us=10.0, final_us=10.0) for row in "ab"],
        *[line(row, "fast", screen_us=8.0, final_us=8.0) for row in "ac"],
        line("b", "fast", "compile_error", **ran_out),
        line("c", "default", "compile_error", **ran_out),
        *done("a", "b", "c"),
    ]
    times = records.times(lines, "triton", "triton/q_block")
    assert times.rows == ("a", "b") and times.policies == ("default", "fast")
    assert times.regret.tolist() == [[1.25, 1.0], [1.0, records.LOST]]


def test_rows_can_be_confined_to_some():
    lines = [*[line(row, "default", screen_us=10.0, final_us=10.0) for row in "ab"], *done("a", "b")]
    assert records.times(lines, "triton", "triton/q_block", {"b"}).rows == ("b",)


def test_a_few_choices_are_the_default_and_those_that_lower_the_summed_regret():
    regret = np.array([[1.0, 3.0, 1.3, 9.0], [3.0, 1.0, 1.3, 9.0], [1.0, 3.0, 1.3, 9.0]])
    assert tune_tree.few(regret, 0) == [0, 1]  # both specialists; the compromise adds nothing to them
    assert tune_tree.few(regret, 3) == [3, 2, 0, 1]  # never the last, but where it is the default


def test_cost_and_not_the_count_of_right_answers_decides():
    """Eight rows lose half a percent with choice 1, which is noise; two, which nothing tells apart, lose 3x without."""
    regret = np.array([[1.0, 1.005]] * 8 + [[3.0, 1.0]] * 2)
    assert tune_tree.grow([asked()] * 10, regret, 4) == Tree(1)


def test_a_departure_is_slower_on_none_of_its_rows():
    regret = np.array([[2.0, 1.0]] * 9 + [[1.0, 1.05]])
    assert tune_tree.grow([asked()] * 10, regret, 4) == Tree(0)
    assert tune_tree.grow([asked()] * 10, regret[:, ::-1], 4) == Tree(0)  # the other as the default: slower on nine


def test_a_departure_gains_enough_and_on_more_than_one_row():
    little, one = np.array([[1.03, 1.0]] * 2), np.array([[3.0, 1.0], [1.0, 1.0]])
    assert tune_tree.grow([asked()] * 2, little, 1) == tune_tree.grow([asked()] * 2, one, 1) == Tree(0)
    assert tune_tree.grow([asked()] * 3, np.array([[1.03, 1.0]] * 3), 1) == Tree(1)


def test_the_split_that_saves_most_comes_first():
    """The longest query sorts all but the last rows right and saves 2% each; the longest sequence saves 3x in four."""
    rows = [asked(max_query_len=1 + i % 2, max_seq_len=100 if i < 6 else 900) for i in range(10)]
    regret = np.array([[1.02, 1.0] if i % 2 else [1.0, 1.02] for i in range(6)] + [[3.0, 1.0]] * 4)
    tree = tune_tree.grow(rows, regret, 1)
    assert (tree.feature, tree(rows[0]), tree(rows[9])) == ("max_seq_len", 0, 1)


def test_a_split_that_pays_is_found_and_its_threshold_is_a_round_number():
    rows = [asked(max_query_len=n) for n in (1, 1, 2, 16, 1024, 1024, 4096, 8192)]
    regret = np.array([[1.0, 2.0]] * 4 + [[2.5, 1.0]] * 4)
    tree = tune_tree.fit(rows, regret).tree
    assert (tree.feature, tree.threshold) == ("max_query_len", 128)  # of 16 .. 1023
    assert [tree(row) for row in rows] == [0] * 4 + [1] * 4


def test_a_departure_ends_where_the_rows_end_that_gain_by_it():
    """Long queries gain: from the power of two below the shortest, without end where no row is longer. A row of more
    keys than those that gain keeps the default, in the same leaf of scikit-learn's tree or not."""
    lens = [(1, 64), (1, 4096), (512, 1024), (512, 2048), (1024, 2048), (1024, 16384)]
    rows = [asked(max_query_len=q, max_seq_len=k) for q, k in lens]
    regret = np.array([[1.0, 3.0]] * 2 + [[2.0, 1.0]] * 3 + [[1.0, 1.0]])
    tree = tune_tree.fit(rows, regret).tree
    ((bounds, choice),) = tune_tree.rules(tree, 0)
    assert choice == 1 and bounds["max_query_len"] == (256, None) and bounds["max_seq_len"] == (512, 2048)
    assert [tree(row) for row in rows] == [0, 0, 1, 1, 1, 0]
    assert tree(asked(max_query_len=2048, max_seq_len=2048)) == 1
    assert tree(asked(max_query_len=256, max_seq_len=2048)) == tree(asked(max_query_len=512, max_seq_len=4096)) == 0


def test_rules_are_the_departures_with_the_bounds_of_their_path():
    low = Tree(1, within=(("max_query_len", 2, 64),), otherwise=0)
    tree = Tree(0, "max_query_len", 32, Tree(0, "num_seqs", 8, low, Tree(0)), Tree(2))
    assert tune_tree.rules(tree, 0) == [
        ({"max_query_len": (2, 32), "num_seqs": (None, 8)}, 1),
        ({"max_query_len": (32, None)}, 2),
    ]
    assert tune_tree.rules(Tree(0), 0) == [] and tune_tree.rules(Tree(3), 0) == [({}, 3)]
    assert tree.choices == (1, 0, 2)


def test_held_out_rows_choose_nothing_for_themselves():
    """Each longest row alone says that the departure reaches so far: held out it gets the default, and pays."""
    rows = [asked(max_seq_len=2**n) for n in range(8)]
    regret = np.array([[1.0, 2.0]] * 4 + [[2.0, 1.0]] * 4)
    fitted = tune_tree.fit(rows, regret)
    assert fitted.training == (1.0, 1.0)
    assert fitted.held_out[0] < 1.5 and fitted.held_out_choice[4] == 0


def test_a_fit_that_does_harm_to_rows_held_out_is_the_default():
    """Gains at random: whatever separates them, a row that was held out loses 3x by it."""
    rows = [asked(max_seq_len=64) for _ in range(8)]
    for number, row in enumerate(rows):
        row["num_seqs"] = number
    regret = np.array([[2.0, 1.0], [2.0, 1.0], [1.0, 9.0]] * 3)[:8]
    fitted = tune_tree.fit(rows, regret)
    assert tune_tree.rules(fitted.tree, 0) == []
    assert fitted.held_out == fitted.training == tune_tree.mean_worst(regret[:, 0])


def test_a_tree_of_one_row_is_the_default():
    fitted = tune_tree.fit([asked()], np.array([[1.5, 1.0]]))
    assert fitted.tree == Tree(0) and fitted.held_out == (1.5, 1.5)


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [(12, 700, 128), (16, 17, 16), (17, 31, 20), (1000, 1020, 1000), (1050, 1200, 1100), (1001, 1023, 1001)],
)
def test_thresholds_lie_in_the_gap(low, high, found):
    assert tune_tree._round_between(low, high) == found and low <= found < high


def test_a_tree_is_asked_what_auto_asks():
    """45 sequences are 45, and 5000 keys 5120."""
    values = tune_tree.features(SHAPE, BatchStats(45, 744, 44, 700, 5000, 99_999))
    assert (values["num_seqs"], values["max_query_len"], values["max_seq_len"]) == (45, 700, 5120)
    assert values["programs"] == 45 * SHAPE.num_kv_heads


def test_a_row_is_held_out_with_all_rows_of_its_shape():
    """A shape that most rows have is held out row by row: without it nothing were left."""
    assert len(set(tune_tree.folds(["a", "a", "b", "b", "c"]))) == 3
    mostly = tune_tree.folds(["a", "a", "a", "b", "b"])
    assert len(set(mostly[:3])) == 3 and mostly[3] == mostly[4] not in mostly[:3]
    rows = [{"max_query_len": n} for n in (1, 1, 64, 64)]
    regret = np.array([[1.5, 1.0], [1.5, 1.0], [1.0, 1.5], [1.0, 1.5]])
    alone, together = (tune_tree.fit(rows, regret, fold=fold) for fold in (None, np.array([0, 0, 1, 1])))
    assert alone.tree != together.tree == tune_tree.Tree(0) and together.held_out_choice == (0, 0, 0, 0)
