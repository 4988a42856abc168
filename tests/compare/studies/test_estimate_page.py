"""The pages that hold the model against measurements: their statistics, and that they are what the command writes."""

import pytest

from common import gpus
from compare.studies.estimates import page
from compare.studies.estimates.stats import Point, summarise


def point(group="w", setup="a", estimate=10.0, measured=10.0, limiter="latency", **more) -> Point:
    shares = {"bytes_us": 0.0, "matrix_us": 0.0, "launch_us": 0.0} | more
    return Point(group, setup, "decode", 1.0, estimate, limiter, measured, **shares)


def test_percentiles_and_floor():
    s = summarise([point(measured=10.0 + i, setup=str(i)) for i in range(11)] + [point(measured=0.5)])
    assert s.n == 12
    assert s.below_floor == 1
    assert 0.9 < s.p10 < s.p50 < s.p90 < 2.0


def test_rank_and_pairs_of_a_perfect_and_of_a_reversed_model():
    right = [point(setup=str(i), estimate=i, measured=2 * i) for i in range(1, 5)]
    wrong = [point(setup=str(i), estimate=i, measured=9 - i) for i in range(1, 5)]
    assert (summarise(right).within, summarise(right).pairs, summarise(right).pairs_n) == (pytest.approx(1.0), 1.0, 6)
    assert (summarise(wrong).within, summarise(wrong).pairs) == (pytest.approx(-1.0), 0.0)


def test_one_factor_mends_a_model_that_is_off_by_one_factor():
    s = summarise([point(estimate=e, measured=3 * e) for e in range(1, 21)])
    assert (s.factor, s.fitted10, s.fitted90) == pytest.approx((3.0, 1.0, 1.0))


@pytest.mark.parametrize(
    ("limiter", "shares", "right"),
    [
        ("bytes", {"bytes_us": 6.0}, True),
        ("bytes", {"bytes_us": 4.0}, False),
        ("issue", {"bytes_us": 4.0}, True),
        ("latency", {"matrix_us": 9.0}, False),
        ("launch", {"launch_us": 5.0}, True),
    ],
)
def test_right_limiter(limiter, shares, right):
    assert point(limiter=limiter, **shares).limiter_is_right is right


def test_pages_are_what_the_command_writes():
    """Seconds: the page and the spread from the committed data."""
    assert len(page.own_points(gpus.resolve("h200"), page.RESULTS / "h200")) >= 40
    found = page.texts()
    assert [path for path, text in found.items() if path.read_text() != text] == []
    assert len(found) == 2
