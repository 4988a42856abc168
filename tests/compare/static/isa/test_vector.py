"""Vector instructions whose shape is their own, and the encodings that change operands: numpy says what is right."""

import numpy as np
import pytest
from asm import AGPRS, LANE, landed, run, waves

from compare.static.isa.errors import NotExecutable
from compare.static.isa.state import VCC

RNG = np.random.default_rng(0)


def random_wave(rows=24, seed=0):
    w = waves()
    w.v[:rows, 0] = np.random.default_rng(seed).integers(0, 2**32, (rows, 64), dtype=np.uint32)
    return w


def floats(w, row, values):
    w.v[row, 0] = np.asarray(values, np.float32).view(np.uint32)


def read(w, row):
    return w.v[row, 0].view(np.float32)


def test_permuted_bytes():
    w = random_wave()
    select = np.resize(np.arange(16), 64).astype(np.uint32)
    w.v[12, 0] = select | (select[::-1] << 8) | ((select * 3 % 16) << 16) | ((select * 5 % 16) << 24)
    run(w, "v_perm_b32 v20, v10, v11, v12")
    for lane in LANE:
        data = int(w.v[10, 0, lane]) << 32 | int(w.v[11, 0, lane])
        sign = {8: 15, 9: 31, 10: 47, 11: 63}
        for k in range(4):
            pick = int(w.v[12, 0, lane]) >> 8 * k & 0xFF
            byte = (data >> 8 * pick & 0xFF if pick < 8 else 0xFF * (data >> sign[pick] & 1) if pick in sign
                    else 0 if pick == 12 else 0xFF)  # fmt: skip
            assert int(w.v[20, 0, lane]) >> 8 * k & 0xFF == byte


ROWS = {  # lane read, whether there is one
    "quad_perm:[2,3,0,1]": (LANE ^ 2, LANE >= 0),
    "row_shr:3": (LANE - 3, LANE % 16 >= 3),
    "row_shl:5": (LANE + 5, LANE % 16 < 11),
    "row_ror:4": (LANE // 16 * 16 + (LANE - 4) % 16, LANE >= 0),
    "row_mirror": (LANE // 16 * 16 + 15 - LANE % 16, LANE >= 0),
    "row_half_mirror": (LANE // 8 * 8 + 7 - LANE % 8, LANE >= 0),
    "row_newbcast:6": (LANE // 16 * 16 + 6, LANE >= 0),
    "row_bcast:15": (LANE // 16 * 16 - 1, LANE >= 16),
    "row_bcast:31": (LANE * 0 + 31, LANE >= 32),
}


@pytest.mark.parametrize("pattern", ROWS)
@pytest.mark.parametrize("bound", ["", " bound_ctrl:1"])
def test_another_lane_of_the_row(pattern, bound):
    w = random_wave()
    lane, there = ROWS[pattern]
    old, source = w.v[20, 0].copy(), w.v[10, 0].copy()
    run(w, f"v_mov_b32_dpp v20, v10 {pattern} row_mask:0xf bank_mask:0xf{bound}")
    moved = source[np.clip(lane, 0, 63)]
    assert np.array_equal(w.v[20, 0], np.where(there, moved, 0 if bound else old))


def test_rows_and_banks_that_are_not_written():
    w = random_wave()
    old = w.v[20, 0].copy()
    run(w, "v_add_u32_dpp v20, v10, v11 quad_perm:[0,1,2,3] row_mask:0xa bank_mask:0x3")
    written = (LANE // 16 % 2 == 1) & (LANE // 4 % 4 < 2)
    assert np.array_equal(w.v[20, 0], np.where(written, w.v[10, 0] + w.v[11, 0], old))


def test_a_lane_that_reads_one_that_is_off_is_refused():
    w = random_wave()
    w.set_exec(np.array([0xFFFFFFFFFFFFFFFE], np.uint64))
    with pytest.raises(NotExecutable, match="switched off"):
        run(w, "v_mov_b32_dpp v20, v10 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf")


def test_parts_of_a_register():
    w = random_wave()
    old = w.v[20, 0].copy()
    run(w, "v_add_u32_sdwa v20, v10, v11 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 src1_sel:BYTE_2")
    assert np.array_equal(w.v[20, 0], (w.v[10, 0] >> 16) + (w.v[11, 0] >> 16 & 0xFF))
    w.v[20, 0] = old
    run(w, "v_or_b32_sdwa v20, v10, v11 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:DWORD src1_sel:DWORD")
    assert np.array_equal(w.v[20, 0], (old & 0xFFFF) | ((w.v[10, 0] | w.v[11, 0]) << 16))
    run(w, "v_or_b32_sdwa v20, v10, v11 dst_sel:BYTE_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD")
    assert np.array_equal(w.v[20, 0], ((w.v[10, 0] | w.v[11, 0]) & 0xFF) << 8)


def test_parts_with_their_sign():
    w = random_wave()
    third = (w.v[10, 0] >> 16).astype(np.int8)
    run(w, "v_cvt_f32_i32_sdwa v20, sext(v10) dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_2")
    assert np.array_equal(read(w, 20), third.astype(np.float32))
    run(w, "v_cvt_f16_i16_sdwa v20, sext(v10) dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_2")
    assert np.array_equal(w.v[20, 0].astype(np.uint16).view(np.float16), third.astype(np.float16))
    run(w, "v_ashrrev_i16_sdwa v20, v11, v10 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:WORD_1")
    high = (w.v[10, 0] >> 16).astype(np.int16) >> (w.v[11, 0] & 15)
    assert np.array_equal(w.v[20, 0], high.astype(np.uint16)), "16 bits, the others are cleared"
    w.s[4] = int(w.v[10, 0, 5] & 0xFF) | 0xAB0000
    run(w, "v_cmp_ne_u16_sdwa s[8:9], v10, s4 src0_sel:BYTE_0 src1_sel:DWORD")
    differ = (w.v[10, 0] & 0xFF) != (w.s[4, 0] & 0xFFFF)
    assert int(w.pair(8)[0]) == sum(int(bit) << lane for lane, bit in enumerate(differ)) and not differ[5]


def test_signs_of_sources():
    w = waves()
    floats(w, 10, RNG.standard_normal(64))
    floats(w, 11, RNG.standard_normal(64))
    run(w, "v_sub_f32_e64 v20, |v10|, -v11")
    assert np.array_equal(read(w, 20), np.abs(read(w, 10)) + read(w, 11))
    run(w, "v_fma_f32 v20, -|v10|, v11, 0.5")
    assert np.allclose(read(w, 20), -np.abs(read(w, 10)) * read(w, 11) + 0.5, atol=1e-6)


def test_clamped_results():
    w = random_wave()
    run(w, "v_sub_u32_e64 v20, v10, v11 clamp", "v_add_u32_e64 v21, v10, v11 clamp")
    a, b = w.v[10, 0].astype(np.int64), w.v[11, 0].astype(np.int64)
    assert np.array_equal(w.v[20, 0], np.maximum(a - b, 0)) and np.array_equal(w.v[21, 0], np.minimum(a + b, 2**32 - 1))
    floats(w, 12, np.linspace(-2, 2, 64))
    run(w, "v_mul_f32_e64 v22, v12, 1.0 clamp")
    assert np.array_equal(read(w, 22), np.clip(np.linspace(-2, 2, 64), 0, 1).astype(np.float32))


def test_a_choice_by_mask():
    w = random_wave()
    mask = 0x123456789ABCDEF0
    w.set_pair(8, np.array([mask], np.uint64))
    run(w, "v_cndmask_b32_e64 v20, v10, v11, s[8:9]")
    picked = np.array([mask >> lane & 1 for lane in range(64)], bool)
    assert np.array_equal(w.v[20, 0], np.where(picked, w.v[11, 0], w.v[10, 0]))


def test_comparisons_report_active_lanes_alone():
    w = random_wave()
    w.set_exec(np.array([0xFF], np.uint64))
    run(w, "v_cmp_ge_u32_e32 vcc, v10, v10")
    assert int(w.pair(VCC)[0]) == 0xFF


def test_inactive_lanes_keep_what_they_had():
    w = random_wave()
    old = w.v[20, 0].copy()
    w.set_exec(np.array([0xF0F0], np.uint64))
    run(w, "v_add_u32_e32 v20, v10, v11")
    active = np.array([0xF0F0 >> lane & 1 for lane in range(64)], bool)
    assert np.array_equal(w.v[20, 0], np.where(active, w.v[10, 0] + w.v[11, 0], old))


def test_pairs_of_floats_and_which_of_a_pair():
    w = waves()
    for row in range(10, 16):
        floats(w, row, RNG.standard_normal(64))
    run(w, "v_pk_mul_f32 v[20:21], v[10:11], v[12:13] op_sel_hi:[1,0]")
    assert np.array_equal(read(w, 20), read(w, 10) * read(w, 12))
    assert np.array_equal(read(w, 21), read(w, 11) * read(w, 12))
    run(w, "v_pk_add_f32 v[20:21], v[10:11], v[12:13] op_sel:[0,1] op_sel_hi:[1,0] neg_lo:[0,1] neg_hi:[1,0]")
    assert np.array_equal(read(w, 20), read(w, 10) - read(w, 13))
    assert np.array_equal(read(w, 21), -read(w, 11) + read(w, 12))
    run(w, "v_pk_fma_f32 v[10:11], v[10:11], v[12:13], v[14:15]")
    run(w, "v_pk_mov_b32 v[20:21], v[12:13], v[14:15] op_sel:[1,0]")
    assert np.array_equal(w.v[20], w.v[13]) and np.array_equal(w.v[21], w.v[14]), "op_sel has one bit a source"


def test_a_mix_of_halves_and_floats():
    w = waves()
    halves = RNG.standard_normal((64, 2)).astype(np.float16)
    w.v[10, 0] = halves.view(np.uint32)[:, 0]
    floats(w, 11, RNG.standard_normal(64))
    run(w, "v_fma_mix_f32 v20, v10, v11, v10 op_sel:[1,0,0] op_sel_hi:[1,0,1]")
    high, low = halves[:, 1].astype(np.float32), halves[:, 0].astype(np.float32)
    assert np.array_equal(read(w, 20), (high.astype(float) * read(w, 11) + low).astype(np.float32))


@pytest.mark.parametrize(("name", "shift"), [("mixlo", 0), ("mixhi", 16)])
def test_a_mix_becomes_a_half_and_leaves_the_other(name, shift):
    w = random_wave()
    halves = RNG.standard_normal((64, 2)).astype(np.float16)
    w.v[10, 0], old = halves.view(np.uint32)[:, 0], w.v[20, 0].copy()
    floats(w, 11, RNG.standard_normal(64))
    run(w, f"v_fma_{name}_f16 v20, v10, -v11, v10 op_sel:[1,0,0] op_sel_hi:[1,0,1]")
    wanted = (-halves[:, 1].astype(float) * read(w, 11) + halves[:, 0]).astype(np.float16).view(np.uint16)
    assert np.array_equal(w.v[20, 0] >> shift & 0xFFFF, wanted)
    assert np.array_equal(w.v[20, 0] >> (16 - shift) & 0xFFFF, old >> (16 - shift) & 0xFFFF)


def test_two_halves_side_by_side():
    w = random_wave()
    run(w, "v_pack_b32_f16 v20, v10, v11", "v_pack_b32_f16 v21, v10, v11 op_sel:[1,0,0]")
    assert np.array_equal(w.v[20, 0], (w.v[10, 0] & 0xFFFF) | (w.v[11, 0] << 16))
    assert np.array_equal(w.v[21, 0], (w.v[10, 0] >> 16) | (w.v[11, 0] << 16))


@pytest.mark.parametrize("table", [0x36, 0xC8, 0x01, 0xFE])
@pytest.mark.parametrize("size", [16, 32])
def test_any_function_of_three_bits(table, size):
    w = random_wave()
    run(w, f"v_bitop3_b{size} v20, v10, v11, v12 bitop3:{table:#x}")
    assert size == 32 or not (w.v[20] >> 16).any()
    for bit in (0, 7, size - 1):
        index = sum((w.v[10 + i, 0] >> bit & 1) << (2 - i) for i in range(3))
        assert np.array_equal(w.v[20, 0] >> bit & 1, table >> index & 1)


def test_one_lane():
    w = random_wave()
    w.s[5], w.s[6] = 17, 99
    w.set_exec(np.array([0xFFFFFFFFFFFFFFF8], np.uint64))
    run(w, "v_readlane_b32 s4, v10, s5", "v_readfirstlane_b32 s7, v10", "v_writelane_b32 v11, s6, 1")
    assert (w.s[4, 0], w.s[7, 0], w.v[11, 0, 1]) == (w.v[10, 0, 17], w.v[10, 0, 3], 99)


def test_rows_are_swapped():
    w = random_wave()
    a, b = w.v[10, 0].reshape(4, 16).copy(), w.v[11, 0].reshape(4, 16).copy()
    run(w, "v_permlane16_swap_b32 v10, v11")
    assert np.array_equal(w.v[10, 0].reshape(4, 16), [a[0], b[0], a[2], b[2]])
    assert np.array_equal(w.v[11, 0].reshape(4, 16), [a[1], b[1], a[3], b[3]])
    w = random_wave()
    a, b = w.v[10, 0].reshape(2, 32).copy(), w.v[11, 0].reshape(2, 32).copy()
    run(w, "v_permlane32_swap_b32 v10, v11")
    assert np.array_equal(w.v[10, 0].reshape(2, 32), [a[0], b[0]])
    assert np.array_equal(w.v[11, 0].reshape(2, 32), [a[1], b[1]])


def test_through_other_lanes():
    w = random_wave()
    w.v[12, 0] = (LANE * 7 % 64 * 4).astype(np.uint32)
    landed(w, "ds_bpermute_b32 v20, v12, v10", "ds_swizzle_b32 v21, v10 offset:swizzle(SWAP,16)")
    assert np.array_equal(w.v[20, 0], w.v[10, 0][LANE * 7 % 64]) and np.array_equal(w.v[21, 0], w.v[10, 0][LANE ^ 16])
    w.set_exec(np.array([0xFFFFFFFF], np.uint64))
    landed(w, "ds_bpermute_b32 v22, v12, v10")
    assert np.array_equal(w.v[22, 0, :32], np.where(LANE * 7 % 64 < 32, w.v[10, 0][LANE * 7 % 64], 0)[:32])


def test_accumulation_registers():
    w = random_wave()
    run(w, "v_accvgpr_write_b32 a3, v10", "v_accvgpr_read_b32 v20, a3", "v_accvgpr_mov_b32 a4, a3")
    assert all(np.array_equal(w.v[row], w.v[10]) for row in (AGPRS + 3, AGPRS + 4, 20))
