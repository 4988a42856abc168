"""What a choice loses: nothing where it is the best itself; of many rows the mean, a quantile and the worst."""

from compare.analysis import regret


def test_a_choice_that_nothing_beats_loses_nothing():
    assert [regret.of(12.0, 10.0), regret.of(9.0, 10.0)] == [12.0 / 10.0 - 1, 0.0]


def test_of_many_rows_the_mean_the_ninth_of_ten_and_the_worst_are_told_in_percent():
    assert regret.spread([0.1 * n for n in range(10, -1, -1)]) == "50.0 | 90.0 | 100.0"
