"""Scalar instructions with a constant of 16 bits, with exec, and the operands that are not plain registers."""

import numpy as np
import pytest
from asm import run, waves

from compare.static.isa.state import M0, VCC


@pytest.mark.parametrize(("word", "value"), [("0x7fff", 32767), ("0xffc0", -64), ("-3", -3), ("5", 5)])
def test_a_constant_of_16_bits_has_a_sign(word, value):
    w = waves()
    w.s[4], w.s[5] = 100, 7
    run(w, f"s_movk_i32 s3, {word}", f"s_addk_i32 s4, {word}", f"s_mulk_i32 s5, {word}")
    assert w.s[3:6, 0].view(np.int32).tolist() == [value, 100 + value, 7 * value]


@pytest.mark.parametrize(("start", "overflow"), [(2**31 - 1, True), (2**31 - 2, False), (-5, False)])
def test_the_condition_of_a_sum_with_a_constant(start, overflow):
    w = waves()
    w.s[4] = np.int32(start).view(np.uint32) if start < 0 else start
    run(w, "s_addk_i32 s4, 0x1")
    assert bool(w.scc[0]) is overflow


@pytest.mark.parametrize("word", ["0xffc0", "0x40"])
@pytest.mark.parametrize(
    ("name", "test"),
    [("eq", np.equal), ("lg", np.not_equal), ("gt", np.greater), ("ge", np.greater_equal), ("lt", np.less),
     ("le", np.less_equal)],
)  # fmt: skip
def test_a_comparison_with_a_constant(name, test, word):
    for value in (-64, 0x40, 0xFFC0, 0, -(2**31)):
        w = waves()
        w.s[4] = value & 0xFFFFFFFF
        run(w, f"s_cmpk_{name}_i32 s4, {word}")
        assert bool(w.scc[0]) == test(value, -64 if word == "0xffc0" else 0x40)
        run(w, f"s_cmpk_{name}_u32 s4, {word}")
        assert bool(w.scc[0]) == test(value & 0xFFFFFFFF, int(word, 0))


@pytest.mark.parametrize(
    ("name", "function"),
    [("and", lambda a, e: a & e), ("or", lambda a, e: a | e), ("andn2", lambda a, e: a & ~e & (2**64 - 1))],
)
def test_exec_is_saved_and_narrowed(name, function):
    w, mask, old = waves(), 0xF0F0F0F0FFFF0000, 0x00FF00FF00FF00FF
    w.set_exec(np.array([old], np.uint64))
    w.set_pair(4, np.array([mask], np.uint64))
    run(w, f"s_{name}_saveexec_b64 s[6:7], s[4:5]")
    assert (int(w.pair(6)[0]), int(w.exec[0])) == (old, function(mask, old)) and w.scc[0]
    assert w.mask.sum() == bin(function(mask, old)).count("1")


@pytest.mark.parametrize(("offset", "width"), [(0, 16), (5, 0), (12, 40), (60, 8), (0, 64), (63, 1), (3, 100)])
@pytest.mark.parametrize("value", [0x8123456789ABCDEF, 0x00000000FFFF8000])
def test_a_field_of_64_bits_has_the_sign_that_its_name_says(value, offset, width):
    w = waves()
    w.set_pair(4, np.array([value], np.uint64))
    w.s[6] = offset | width << 16
    run(w, "s_bfe_u64 s[8:9], s[4:5], s6", "s_bfe_i64 s[10:11], s[4:5], s6")
    width = min(width, 64)
    signed = (value - 2**64 if value >> 63 else value) >> offset & (2**width - 1)
    plain = value >> offset & (2**width - 1)
    assert int(w.pair(8)[0]) == plain
    assert int(w.pair(10)[0].view(np.int64)) == (signed - 2**width if width and signed >> width - 1 else signed)
    assert bool(w.scc[0]) == (signed != 0)


def test_bits_are_compared():
    w = waves()
    w.s[4], w.s[5] = 0b1000, 35  # bit 3: the index counts modulo 32
    run(w, "s_bitcmp1_b32 s4, s5")
    assert w.scc[0]
    run(w, "s_bitcmp0_b32 s4, 3")
    assert not w.scc[0]


def test_named_registers_and_the_condition_as_operands():
    w = waves()
    w.set_exec(np.array([0xABCDEF0123456789], np.uint64))
    run(
        w, "s_mov_b32 m0, 0x40", "s_mov_b64 vcc, exec", "s_mov_b32 s4, vcc_hi", "s_cmp_eq_u32 0, 0", "s_mov_b32 s5, scc"
    )
    assert w.s[M0, 0] == 0x40 and int(w.pair(VCC)[0]) == 0xABCDEF0123456789
    assert w.s[4:6, 0].tolist() == [0xABCDEF01, 1]
    run(w, "s_not_b64 exec, exec")
    assert int(w.exec[0]) == 0xABCDEF0123456789 ^ (2**64 - 1)


def test_what_need_not_be_done_is_not():
    w = waves()
    before = w.s.copy()
    run(w, "s_nop 5", "s_setprio 1", "s_sleep 2", "s_sched_barrier 0", "buffer_inv sc1", "buffer_wbl2 sc1")
    assert np.array_equal(w.s, before)
