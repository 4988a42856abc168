"""Counting instructions in SASS and in AMD assembly, on lines as the tools print them."""

import pytest

from compare.codeobject import _amd_counts, _nvidia_counts
from compare.compiled import NoCodeObject, from_triton

SASS = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;                          /* 0x00000a00ff017b82 */
        /*0010*/              @!P0 LDG.E.128 R4, desc[UR4][R2.64] ;                /* 0x0000000402048981 */
        /*0020*/                   LDG.E R8, desc[UR4][R6.64] ;
        /*0030*/                   LDG.E.U16.CONSTANT R8, desc[UR4][R6.64] ;
        /*0040*/                   LDGSTS.E.BYPASS.LTC128B.128 [R10], desc[UR4][R12.64] ;
        /*0050*/                   UTMALDG.2D [UR8], [UR4] ;
        /*0060*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24 ;
        /*0070*/                   HMMA.16816.F32.BF16 R4, R8, R10, R4 ;
        /*0080*/                   STL.64 [R1+0x8], R14 ;
        /*0090*/                   STL [R1], R16 ;
        /*00a0*/                   LDL R16, [R1] ;
        /*00b0*/             @P1   BRA 0x10 ;
        /*00c0*/                   NOP ;
"""

AMD = """
_kernel:
\ts_load_dwordx4 s[0:3], s[4:5], 0x0
.LBB0_1:
\tbuffer_load_dwordx4 v[2:5], v1, s[0:3], 0 offen
\tbuffer_load_dword v6, v1, s[0:3], 0 offen offset:4
\tglobal_load_ushort v7, v[8:9], off
\tglobal_load_dwordx2 v[10:11], v[8:9], off
\tbuffer_load_dwordx4 v1, s[0:3], 0 offen lds
\tv_mfma_f32_16x16x16_bf16 a[0:3], v[2:3], v[4:5], a[0:3]
\tv_mfma_f32_32x32x8_f16 a[0:15], v[2:3], v[4:5], a[0:15]
\ts_cbranch_scc1 .LBB0_1
\ts_endpgm
.Lfunc_end0:
\tv_mfma_f32_16x16x16_bf16 a[0:3], v[2:3], v[4:5], a[0:3]
"""


def test_sass():
    total, matrix, loads, spills = _nvidia_counts(SASS)
    assert total == 12, "NOPs are padding"
    assert matrix == {"HGMMA 64x128x16": 1, "HMMA 16816": 1}
    assert loads == {"128": 2, "32": 1, "16": 1, "tma": 1}
    assert spills == {"64": 1, "32": 1}


def test_amd_assembly_up_to_the_end_of_the_function():
    total, matrix, loads = _amd_counts(AMD)
    assert total == 10
    assert matrix == {"mfma 16x16x16": 1, "mfma 32x32x8": 1}
    assert loads == {"128": 2, "32": 1, "16": 1, "64": 1}


def test_another_kind_of_code_is_refused_by_name():
    class Compiled:
        asm = {"spirv": b""}  # noqa: RUF012

    with pytest.raises(NoCodeObject, match="spirv"):
        from_triton(Compiled(), "kernel", (1,), (), (), 0.0)
