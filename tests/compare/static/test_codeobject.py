"""Reading facts from code objects of the probe, and counting instructions on lines as the tools print them."""

import dataclasses

import pytest
from compiled_child import compiled

from compare.static import amd_code, nvidia_code
from compare.static.codeobject import UnreadableCode, pass_flops, product_flops, read
from compare.static.compiled import from_triton

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
\tv_mfma_f32_4x4x4_16b_f16 a[0:3], v[2:3], v[4:5], a[0:3]
\tds_read_b64 v[2:3], v1 offset:16
\ts_waitcnt vmcnt(0)
\ts_barrier
\tv_exp_f32_e32 v2, v3
\ts_cbranch_scc1 .LBB0_1
\ts_endpgm
.Lfunc_end0:
\tv_mfma_f32_16x16x16_bf16 a[0:3], v[2:3], v[4:5], a[0:3]
"""


@pytest.fixture(scope="module")
def probes():
    return compiled(["gfx942", "gfx1200", "sm_90"])


def test_sass():
    sass = nvidia_code.parse(SASS)
    whole = nvidia_code.whole(sass)
    assert whole.instructions == 12, "NOPs are padding"
    assert whole.matrix == {"HGMMA 64x128x16": 1, "HMMA 16816": 1}
    assert whole.matrix_flops == 2 * 64 * 128 * 16 // 4 + 2 * 16 * 8 * 16, "four warps share an HGMMA"
    assert whole.loads == {"128": 2, "32": 1, "16": 1, "tma": 1}
    assert nvidia_code.spill_stores(sass) == {"64": 1, "32": 1}
    (loop,) = nvidia_code.inner_loops(sass)
    assert loop.instructions == 11, "from 0x10, where the branch leads, to the branch"


def test_amd_assembly_up_to_the_end_of_the_function():
    text = amd_code.parse(AMD)
    whole = amd_code.whole(text)
    assert whole.instructions == 15
    assert whole.matrix == {"mfma 16x16x16": 1, "mfma 32x32x8": 1, "mfma 4x4x4": 1}
    assert whole.matrix_flops == 2 * 16 * 16 * 16 + 2 * 32 * 32 * 8 + 16 * 2 * 4 * 4 * 4
    assert whole.loads == {"128": 2, "32": 1, "16": 1, "64": 1} and whole.to_shared == 1
    assert (whole.barriers, whole.waits, whole.transcendental) == (1, 1, 1)
    (loop,) = amd_code.inner_loops(text)
    assert loop.instructions == 13 and loop.shared_reads == {"64": 1}


@pytest.mark.parametrize(
    ("mnemonic", "flops"),
    [
        ("v_mfma_f32_16x16x16bf16_1k", 2 * 16 * 16 * 16),
        ("v_mfma_f32_4x4x4bf16_1k", 16 * 2 * 4 * 4 * 4),
        ("v_mfma_f32_16x16x4f16", 4 * 2 * 16 * 16 * 4),
        ("v_mfma_f32_16x16x4_f32", 2 * 16 * 16 * 4),
        ("v_mfma_f32_32x32x4_2b_bf16", 2 * 2 * 32 * 32 * 4),
        ("v_mfma_f32_16x16x32_bf16", 2 * 16 * 16 * 32),
        ("v_wmma_f32_16x16x16_bf16", 2 * 16 * 16 * 16),
    ],
)
def test_work_of_a_matrix_instruction(mnemonic, flops):
    """AMD's matrix instruction calculator: M x N x K, times the blocks."""
    assert amd_code.classify(mnemonic, "").flops == flops


@pytest.mark.parametrize(
    ("mnemonic", "kind", "bits"),
    [
        ("ds_read_b64_tr_b16", "shared_read", "64"),
        ("ds_read2st64_b64", "shared_read", "128"),
        ("ds_load_2addr_stride64_b32", "shared_read", "64"),
        ("ds_write_b128", "shared_write", "128"),
        ("global_load_b128", "load", "128"),
        ("buffer_load_d16_b16", "load", "16"),
        ("global_load_ubyte_d16", "load", "8"),
        ("buffer_store_short_d16_hi", "store", "16"),
        ("scratch_store_dword", "spill", ""),
        ("ds_bpermute_b32", "vector", ""),
    ],
)
def test_class_and_width_of_an_access(mnemonic, kind, bits):
    seen = amd_code.classify(mnemonic, "v0, v1")
    assert (seen.kind, seen.key) == (kind, bits)


def test_facts_of_the_probe(probes):
    """Two 32 x 64 x 64 products on four waves: 32 x 32 x 8 repeats the first for half of them, HMMA nothing."""
    amd, nvidia = read(probes["gfx942"]), read(probes["sm_90"])
    asked = 2 * 2 * 32 * 32 * 64
    assert product_flops(probes["gfx942"].ttgir) == product_flops(probes["sm_90"].ttgir) == asked
    assert amd.matrix_redundancy > 1 and nvidia.matrix_redundancy == 1.0
    assert amd.barriers > 0 and amd.waits > 0 and amd.occupancy.programs > 0
    assert read(probes["gfx1200"]).matrix, "RDNA's products are counted too"


@pytest.mark.parametrize("arch", ["gfx942", "sm_90"])
@pytest.mark.parametrize("kept", [0, 40, 1000, -9])
def test_a_truncated_code_object_is_a_typed_error(probes, arch, kept):
    whole = probes[arch].code
    with pytest.raises(UnreadableCode):
        read(dataclasses.replace(probes[arch], code=whole[:kept]))


def test_foreign_code_is_a_typed_error(probes):
    with pytest.raises(UnreadableCode, match="EM_CUDA"):
        read(dataclasses.replace(probes["gfx942"], code=probes["sm_90"].code))
    with pytest.raises(UnreadableCode, match=r"cubin|cuobjdump"):
        read(dataclasses.replace(probes["sm_90"], code=probes["gfx942"].code))


@pytest.mark.parametrize("keep", [0.0, 0.5])
def test_a_truncated_or_foreign_text_is_a_typed_error(probes, keep):
    text = probes["gfx942"].assembly
    with pytest.raises(UnreadableCode, match="without an end"):
        read(dataclasses.replace(probes["gfx942"], assembly=text[: int(keep * len(text))]))
    with pytest.raises(UnreadableCode, match="without an end"):
        read(dataclasses.replace(probes["gfx942"], assembly=probes["sm_90"].assembly))


def test_another_kind_of_code_is_refused_by_name():
    class Compiled:
        asm = {"spirv": b""}  # noqa: RUF012

    with pytest.raises(UnreadableCode, match="spirv"):
        from_triton(Compiled(), "kernel", (1,), (), (), 0.0)


def test_products_are_counted_by_the_pass_of_an_innermost_loop():
    """An iteration that pipelining peeled off, before the loops or between them, is no part of a pass."""
    dot = "%0 = tt.dot %a, %b, %c : tensor<16x32xbf16> * tensor<32x64xbf16> -> tensor<16x64xf32>"
    one = 2 * 16 * 32 * 64
    loops = f"""
    {dot}
    %1 = scf.for %i = %x to %y step %z {{
      {dot}
      scf.while (%k) : {{
        {dot}
      }} do {{
        {dot}
      }}
      {dot}
      scf.for %j = %x to %y step %z {{
        {dot}
      }}
    }}
    scf.for %l = %x to %y step %z {{
      tt.store %p, %q
    }}
    """
    assert product_flops(loops) == 6 * one
    assert pass_flops(loops) == [2 * one, one]
