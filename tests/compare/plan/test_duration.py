"""How long a plan takes, in words; never from a clock."""

import pytest

from compare.plan import duration
from compare.plan.plan import Plan
from compare.run.options import parse


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "about 1 second"), (7, "about 7 seconds"), (44, "about 40 seconds"), (170, "about 3 minutes"),
     (7200, "about 2 hours"), (400000, "about 5 days"), (1.6e8, "about 5 years")],
)  # fmt: skip
def test_seconds_are_said_in_the_largest_unit_that_fits(seconds, words):
    assert duration.in_words(seconds) == words


def test_cells_above_the_budget_are_counted_apart_and_take_no_time():
    options = parse(["--suite", "peers", "--device", "cpu", "--kernels", "triton/naive"])
    plan = Plan.of(options.rows, options.where, options.timing)
    line = duration.line(plan)
    assert "left out: each is above --set cpu-budget=30" in line and "a GPU runs them" in line
    assert duration.seconds(plan) < 30 * len(plan.cells)


def test_a_resumed_run_counts_what_is_left():
    options = parse(["--suite", "smoke", "--device", "cpu", "--kernels", "triton/naive", "--set", "cpu-budget=1e9"])
    plan = Plan.of(options.rows, options.where, options.timing)
    done = {(cell.id, 0) for cell in plan.cells[2:]}
    assert duration.line(plan, done).startswith(f"2 of {len(plan.cells)} cells to run, about ")
    assert duration.seconds(plan, done) < duration.seconds(plan)
    assert duration.line(plan).startswith(f"{len(plan.cells)} cells to run")
    assert duration.line(plan, {(cell.id, 0) for cell in plan.cells}) == "no cell to run"
