"""How far equal GPUs differ on repeated rows."""

from types import SimpleNamespace

import pytest

from compare.analysis.seats import noise


def timed(cell, seat, us):
    return SimpleNamespace(cell_id=cell, seat=seat, timing=SimpleNamespace(median_us=us))


def test_a_seat_that_is_slower_is_above_0():
    rows = [timed("x", "a", 100.0), timed("x", "a", 100.0), timed("y", "b", 50.0)]
    found = noise(rows, [timed("x", "b", 104.04)])
    assert found["b"]["mean"] == pytest.approx(0.02, abs=1e-4) and found["a"]["mean"] == pytest.approx(
        -0.0196, abs=1e-4
    )
    assert found["a"]["cells"] == found["b"]["cells"] == 1, "y was not repeated"


def test_nothing_repeated_is_no_noise():
    assert noise([timed("x", "a", 1.0)], []) == {}
