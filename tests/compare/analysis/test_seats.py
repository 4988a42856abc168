"""How far equal GPUs differ on repeated rows."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from compare.analysis.runs import RunData
from compare.analysis.seats import noise
from compare.report import seats as section


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


def test_the_report_says_which_gpu_timed_what():
    seat = {"address": "GPU-1", "rows": 12, "noise": {"mean": 0.0012, "most": -0.004, "cells": 9}}
    fleet = {
        "seats": {"a:0": seat, "b:0": {"address": "", "rows": 3, "noise": None}},
        "losses": ["b:0: died"],
        "unfit": {},
    }
    made = section.section(RunData(Path("run"), {"fleet": fleet}, []))
    assert ["`a:0`", "GPU-1", 12, "+0.12%", "-0.40%", 9] in made.blocks[2].body
    assert "b:0: died" in made.blocks[3].lines[0]
    assert section.section(RunData(Path("run"), {}, [])) is None
