"""Counts of a compiled kernel that is executed in the model, against what its source says."""

from pathlib import Path

import numpy as np
import pytest
from asm import run, waves

from children import answer
from compare.process.crew import environment
from compare.static.amd_code import flights, parse
from compare.static.counts.counting import Counts

CHILD = Path(__file__).with_name("counting_child.py")


def test_a_kernel_that_copies_rows():
    """16 programs of 4 waves, each of which reads 4 KiB in one access; four rows, each for programs of two dies."""
    found = answer([str(CHILD)], environment("compile"))
    assert found["out"] == 16 * 1024 and found["programs"] == 16
    assert found["loads"] == {"16": 64} and found["lines"] == 16 * 32 and found["waits"] == 64
    assert found["fetched"] == 2.0 and found["each"] == [32] * 8
    assert found["instructions"] == found["kinds"] > 64


def watched(count=1, **given):
    w = waves(count=count, **given)
    w.watch = Counts("gfx942")
    return w, w.watch


def test_loads_that_a_wait_leaves_in_flight():
    x = np.zeros(64, np.uint32)
    w, watch = watched(tensors=[x])
    w.v[1, 0], w.v[2, 0] = x.ctypes.data & 0xFFFFFFFF, x.ctypes.data >> 32
    run(w, *["global_load_dword v3, v[1:2], off"] * 3, "s_waitcnt vmcnt(2)", "s_waitcnt vmcnt(0)", "s_waitcnt vmcnt(0)")
    assert (watch.waits, watch.ahead) == (2, 2)
    assert watch.of("load") == {4: 3} and watch.of("load bytes") == {4: 3 * 4 * 64} and watch.lines == 3


def test_a_load_of_scattered_lanes_touches_a_line_a_lane():
    x = np.zeros(64 * 32, np.uint32)
    w, watch = watched(tensors=[x])
    at = x.ctypes.data + np.arange(64, dtype=np.uint64) * 128
    w.v[1, 0], w.v[2, 0] = at & 0xFFFFFFFF, at >> np.uint64(32)
    run(w, "global_load_dword v3, v[1:2], off")
    assert watch.lines == 64


def test_conflicts_of_an_executed_access():
    w, watch = watched(lds_bytes=16384)
    w.v[1, 0] = np.arange(64) * 128
    run(w, "ds_read_b32 v3, v1")
    assert (watch.lds_clocks, watch.lds_fewest) == (64, 2)


LOOP = """
kernel:
.LBB0_1:
	buffer_load_dword v1, v2, s[0:3], 0 offen
	v_mov_b32 v3, v4
	s_waitcnt vmcnt(0)
	v_mov_b32 v3, v4
	buffer_load_dwordx4 v[4:7], v1, s[0:3], 0 offen
	buffer_load_dwordx4 v[8:11], v1, s[0:3], 0 offen
	v_mfma_f32_16x16x16_bf16 v[12:15], v[4:5], v[6:7], 0
	s_waitcnt vmcnt(1)
	s_cbranch_scc1 .LBB0_1
	s_endpgm
.Lfunc_end0:
"""


def test_the_instructions_between_a_load_and_its_wait():
    """The id is waited for two instructions behind its load; of two tiles one waits until the next pass."""
    assert flights(parse(LOOP)) == {"32": 2.0, "128": pytest.approx((3 + 6) / 2, abs=0.2)}
    assert flights(parse(LOOP.replace("v_mfma_f32_16x16x16_bf16", "v_fma_f32"))) == {}
