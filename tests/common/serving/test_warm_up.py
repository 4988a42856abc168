"""A plan's warm-up binds every launch that calls of its capacity make (warm_up_child.py)."""

import sys
from pathlib import Path

import pytest

import children
from dsls import HELION_SLOWLY

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("dsl", HELION_SLOWLY)
@pytest.mark.parametrize(
    "capacity",
    [(1024, 2, 1024), *(pytest.param(slow, marks=pytest.mark.slow) for slow in ((300, 7, 700), (64, 8, 4096)))],
    ids=str,
)
def test_a_trace_binds_nothing_that_the_warm_up_did_not(dsl, capacity):
    """A short query beside one of 20 tokens once met partial results that no warm-up had laid by token."""
    environment = children.compiling(HERE.parents[2], *sys.path, PYTHONWARNINGS="ignore")
    said = children.answer([str(HERE / "warm_up_child.py"), dsl, *map(str, capacity)], environment)
    assert said["warm"] > 10 and said["lacked"] == []
