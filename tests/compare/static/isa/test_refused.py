"""What the model does not know is refused by a typed error, and executed by no guess."""

import pytest
from asm import run, waves

from compare.static.isa.errors import NotExecutable

WITHOUT_A_MEANING = """
v_add_u32_e32 v1, v2, v3 op_sel:[1,0]
v_pack_b32_f16 v1, v2, v3 op_sel:[0,0,1]
v_pack_b32_f16 v1, v2, 1.0 op_sel:[0,1,0]
v_add_u32_e64 v1, -v2, v3
v_cvt_f32_u32_sdwa v1, sext(v2) dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_0
v_mov_b64_dpp v[0:1], v[2:3] row_shr:1 row_mask:0xf bank_mask:0xf
v_cmp_eq_u32_dpp vcc, v2, v3 row_shr:1 row_mask:0xf bank_mask:0xf
v_mov_b32_sdwa v1, v2 dst_sel:DWORD dst_unused:UNUSED_SEXT src0_sel:WORD_0 mul:2
v_lshl_add_u32 v1, v2, v3, v4 clamp
v_mov_b32_dpp v1, v2 row_share:1 row_mask:0xf bank_mask:0xf
v_frexp_mant_f32 v1, v2
v_add_f64 v[0:1], v[2:3], v[4:5]
s_add_i32 s1, s2
v_lshrrev_b64 v[0:1], 2, 0x123456789
ds_swizzle_b32 v1, v2 offset:swizzle(BROADCAST,32,1)
"""
UNKNOWN = """
s_mov_b64 s[4:5], 0x80000000
s_mov_b32 s4, src_shared_base
s_getreg_b32 s4, hwreg(HW_REG_MODE)
buffer_load_dword v20, v1, s[8:11], 0 idxen
buffer_load_format_x v20, v1, s[8:11], 0 offen
flat_load_dword v20, v[2:3]
global_atomic_add_f32 v1, v2, s[4:5]
global_atomic_cmpswap v20, v1, v[2:3], s[4:5] sc0
ds_add_u32 v1, v2
ds_read_b32 v20, v1 gds
s_load_dword s4, s[8:9], 0x0 dlc
s_waitcnt depctr
v_mfma_f32_16x16x16_f16 v[0:3], v[4:5], v[6:7], v[8:11] cbsz:1
v_mfma_f32_4x4x4_16b_f16 v[0:3], v[4:5], v[6:7], v[8:11] cbsz:2 abid:1
v_mfma_f32_16x16x16_f16 v[0:3], v[4:5], v[6:7], v[8:11] blgp:1
v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[4:11], v[12:19], v[20:23] cbsz:4
v_mfma_f32_16x16x32_fp8_fp8 v[0:3], v[4:5], v[6:7], v[8:11] blgp:1
v_mfma_i32_16x16x32_i8 v[0:3], v[4:5], v[6:7], v[8:11]
v_smfmac_f32_16x16x32_bf16 v[0:3], v[4:5], v[6:9], v1
"""
UNKNOWN_ON_GFX950 = """
s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), 3
s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 4), 0
s_setreg_imm32_b32 hwreg(HW_REG_MODE), 1
s_setreg_imm32_b32 hwreg(HW_REG_TRAPSTS, 23, 1), 1
s_setreg_b32 hwreg(HW_REG_MODE, 23, 1), s4
v_cvt_scalef32_pk_f32_fp8 v[20:21], v10, 2.0
v_cvt_scalef32_pk_f32_fp8 v[20:21], v10, 1.0 op_sel:[0,1,0]
v_cvt_scalef32_pk_f32_fp8 v[20:21], v10, 1.0 op_sel:[0,0,1]
v_cvt_pk_fp8_f32 v20, v10, v11 op_sel:[1,0,0]
v_cvt_pk_fp8_f32 v20, v10, v11 clamp
v_cvt_sr_fp8_f32 v20, v10, v11
v_fma_mixlo_f16 v20, v10, v11, v12 clamp
"""


@pytest.mark.parametrize("line", WITHOUT_A_MEANING.split("\n")[1:-1])
def test_what_means_nothing_is_refused(line):
    with pytest.raises((NotExecutable, ValueError, IndexError)):
        run(waves(), line)


@pytest.mark.parametrize("line", UNKNOWN.split("\n")[1:-1])
def test_what_is_not_known_is_refused(line):
    with pytest.raises(NotExecutable):
        run(waves(), line)


@pytest.mark.parametrize("line", UNKNOWN_ON_GFX950.split("\n")[1:-1])
def test_a_mode_or_modifier_that_is_not_modelled_is_refused(line):
    with pytest.raises(NotExecutable):
        run(waves(), line, arch="gfx950")
