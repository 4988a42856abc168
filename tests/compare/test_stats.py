"""Synthetic samples whose truth is known: intervals cover it, and what does not count does not move them."""

import math

import numpy as np
import pytest

from compare import stats

ROUNDS = 32


def process(generator, mean_us=10.0, within=0.01, between=0.0, drift=0.0, spikes=0.0, rounds=ROUNDS):
    """Two kernels of equal speed in one process: each its own offset, a common drift, and rare spikes."""
    common = drift * np.linspace(-1, 1, rounds)
    rows = []
    for _ in range(2):
        row = common + generator.normal(generator.normal(0, between), within, rounds)
        row += (generator.random(rounds) < spikes) * generator.uniform(0.1, 1.0, rounds)
        rows.append(mean_us * np.exp(row))
    return rows


def pair(generator, processes=3, factor=1.0, **how):
    a, b = zip(*[process(generator, **how) for _ in range(processes)], strict=True)
    return [factor * row for row in a], list(b)


@pytest.mark.parametrize(("processes", "between"), [(1, 0.0), (3, 0.0), (3, 0.002), (10, 0.01)])
def test_the_interval_covers_the_true_ratio(processes, between):
    """At least 95 of 100 at a nominal 99%; where it is less (three processes that scatter), the next test says so."""
    generator = np.random.default_rng(7)
    found = [stats.paired_ratio(*pair(generator, processes, 1.05, between=between), draws=600) for _ in range(150)]
    assert sum(r.low <= 1.05 <= r.high for r in found) >= 0.95 * len(found)


def test_three_scattered_processes_cover_less_than_they_say_and_more_than_four_of_five():
    generator = np.random.default_rng(8)
    found = [stats.paired_ratio(*pair(generator, 3, between=0.01), draws=600) for _ in range(200)]
    share = sum(r.low <= 1 <= r.high for r in found) / len(found)
    assert 0.8 < share < 0.97


def test_a_drift_common_to_both_does_not_widen_a_paired_ratio():
    still, drifting = (stats.paired_ratio(*pair(np.random.default_rng(3), drift=d)) for d in (0.0, 0.2))
    assert still.ratio == pytest.approx(drifting.ratio) and still.high == pytest.approx(drifting.high)


def test_spikes_in_one_round_of_twenty_move_nothing_by_more_than_half_a_percent():
    ratio = stats.paired_ratio(*pair(np.random.default_rng(4), spikes=0.05))
    assert ratio.ratio == pytest.approx(1.0, abs=0.005) and ratio.high < 1.01


def test_the_quick_bootstrap_of_a_median_is_the_slow_one():
    for rounds in (23, 32):
        logs = np.random.default_rng(5).normal(0, 0.01, rounds)
        quick = stats._bootstrap([logs], 20_000)
        drawn = logs[np.random.default_rng(6).integers(rounds, size=(20_000, rounds))]
        slow = np.median(drawn, axis=1)
        at = np.unique(slow)
        below = [np.searchsorted(np.sort(values), at + 1e-12) / len(values) for values in (quick, slow)]
        # Kolmogorov and Smirnov's critical distance of two samples of 20,000 at 1% is 0.0163
        assert np.abs(below[0] - below[1]).max() < 0.0163


def test_a_ratio_and_its_inverse_agree():
    a, b = pair(np.random.default_rng(9), factor=1.3)
    there, back = stats.paired_ratio(a, b), stats.paired_ratio(b, a).inverse()
    assert there.ratio == pytest.approx(back.ratio) and there.low == pytest.approx(back.low, rel=1e-3)


def test_between_processes_counts_and_one_process_says_that_it_is_one():
    generator = np.random.default_rng(10)
    a, b = pair(generator, 3, between=0.02)
    wide, narrow = stats.paired_ratio(a, b), stats.paired_ratio(a[:1], b[:1])
    assert (wide.processes, narrow.processes) == (3, 1)
    assert math.log(wide.high / wide.low) > 2 * math.log(narrow.high / narrow.low)


def test_runs_are_compared_without_pairing_and_with_other_numbers_of_rounds():
    a, b = pair(np.random.default_rng(11), 3, 1.1)
    found = stats.unpaired_ratio(a, [row[:20] for row in b][:2])
    assert found.low < 1.1 < found.high and found.processes == 2


def test_a_mean_over_cells_is_narrower_than_a_cell_where_rounds_scatter_and_not_where_processes_do():
    generator = np.random.default_rng(15)
    cells = [pair(generator, 3, 1.2) for _ in range(25)]
    mean, one = stats.geomean_ratio(cells), stats.paired_ratio(*cells[0])
    assert mean.low < 1.2 < mean.high and mean.processes == 3
    assert math.log(mean.high / mean.low) < 0.4 * math.log(one.high / one.low)
    shift = [0.98, 1.0, 1.02]  # a process is slow in every cell
    shifted = [([s * row for s, row in zip(shift, a, strict=True)], b) for a, b in cells]
    found = stats.geomean_ratio(shifted)
    assert math.log(found.high / found.low) > 0.03


def test_the_same_samples_give_the_same_interval():
    a, b = pair(np.random.default_rng(12))
    assert stats.paired_ratio(a, b) == stats.paired_ratio(a, b)


def test_the_median_of_a_cell_is_the_geometric_mean_of_its_processes():
    median, low, high = stats.median_interval([[1.0, 2.0, 9.0], [8.0] * 3])
    assert median == pytest.approx(4.0) and low < 4.0 < high


def test_half_a_width_shrinks_with_rounds_and_needs_eight():
    generator = np.random.default_rng(13)
    a, b = process(generator, rounds=200)
    assert stats.half_width(a[:7], b[:7]) == math.inf
    assert stats.half_width(a[:10], b[:10]) > stats.half_width(a[:40], b[:40]) > stats.half_width(a, b)
    pairs = [process(generator) for _ in range(200)]
    assert sum(abs(np.median(np.log(x / y))) <= stats.half_width(x, y) for x, y in pairs) > 190


def test_half_a_width_is_that_of_the_bootstrap():
    a, b = process(np.random.default_rng(14), rounds=64)
    drawn = stats.paired_ratio([a], [b])
    assert stats.half_width(a, b) == pytest.approx(math.log(drawn.high / drawn.low) / 2, rel=0.35)


@pytest.mark.parametrize(
    "bad", [[], [[]], [[1.0, 0.0]], [[1.0, math.nan]], [[1.0], [-2.0]]], ids=["none", "empty", "0", "nan", "minus"]
)
def test_what_is_no_time_is_refused(bad):
    with pytest.raises(ValueError, match="samples"):
        stats.median_interval(bad)


def test_unequal_rounds_are_no_pairs():
    with pytest.raises(ValueError, match="rounds per process"):
        stats.paired_ratio([[1.0, 2.0]], [[1.0]])


def test_the_geometric_mean_refuses_what_it_cannot_average():
    assert stats.geomean([1.0, 4.0]) == pytest.approx(2.0)
    for bad in ([], [1.0, 0.0], [1.0, math.inf]):
        with pytest.raises(ValueError, match="values"):
            stats.geomean(bad)
