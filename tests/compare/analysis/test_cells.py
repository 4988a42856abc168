"""Rows of several processes as one cell: statuses, times, and what stays as it was."""

import dataclasses

import pytest

from compare.analysis.cells import by_cell, combined
from compare.record.records import Status
from synthetic_run import failed, timed, workload

LOAD = workload("q1s512", "decode", 1, 1, 512)


def row(process, us=10.0, spread=0.01, **changes):
    """One process's row with ten rounds around `us`."""
    record = timed(LOAD, "triton/naive", us)
    samples = tuple(us * (1 + spread * (i - 4.5) / 10) for i in range(10))
    timing = dataclasses.replace(record.timing, samples_us=samples, rounds=10, **changes)
    return record.replace(timing=timing, process=process, seconds=1.0)


def test_the_time_of_a_cell_lies_between_those_of_its_processes():
    (cell,) = combined([row(0, 10.0), row(1, 10.4), row(2, 10.2)])
    taken = cell.timing
    assert taken.median_us == pytest.approx((10.0 * 10.4 * 10.2) ** (1 / 3))
    assert taken.low_us < taken.median_us < taken.high_us
    assert (taken.processes, taken.rounds, taken.samples_us, cell.seconds) == (3, 30, (), 3.0)


def test_processes_that_differ_widen_the_interval_more_than_rounds_do():
    alike = combined([row(process, 10.0, spread=0.02) for process in range(3)])[0].timing
    apart = combined([row(process, 10.0 + 0.2 * process, spread=0.02) for process in range(3)])[0].timing
    assert apart.high_us - apart.low_us > 3 * (alike.high_us - alike.low_us)


def test_figures_follow_the_time_of_the_cell():
    first = row(0, 10.0)
    (cell,) = combined([first, row(1, 12.0)])
    assert cell.derived.gbps * cell.timing.median_us == pytest.approx(first.derived.gbps * 10.0)


def test_noise_in_one_process_is_noise_of_the_cell():
    assert combined([row(0), row(1, noisy=True, half_width=0.02)])[0].timing.noisy
    assert combined([row(0, half_width=0.001), row(1)])[0].timing.half_width is None, "unknown in one, unknown in all"


def test_a_failure_in_one_process_takes_the_cells_time():
    broken = failed(LOAD, "triton/naive", Status.TIMEOUT).replace(process=1)
    (cell,) = combined([row(0), broken, row(2)])
    assert cell.status is Status.TIMEOUT and cell.timing is None
    assert "in process 1; 2 of 3 ended otherwise" in cell.reason


def test_a_failure_outweighs_what_could_not_run():
    away = failed(LOAD, "triton/naive", Status.UNAVAILABLE)
    wrong = failed(LOAD, "triton/naive", Status.INCORRECT).replace(process=1)
    assert combined([away, wrong])[0].status is Status.INCORRECT
    assert combined([away, away.replace(process=1)])[0].reason == away.reason


def test_one_process_and_one_put_together_before_stay_as_they_are():
    alone = row(0)
    together = combined([row(0), row(1)])
    assert combined([alone]) == [alone] and combined(together) == together


def test_cells_keep_their_order_and_rows_that_of_their_processes():
    other = row(0).replace(cell_id="another")
    found = by_cell([row(2), other, row(0), row(1)])
    assert [[r.process for r in rows] for rows in found] == [[0, 1, 2], [0]]
