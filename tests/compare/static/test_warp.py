"""A warp's clocks: each belongs to what is issued or waited for."""

import pytest

from compare.static import warp

LOAD = 500


def clocks(text, load=LOAD):
    """Of a loop, a line an instruction."""
    loop = [(i, *line.strip().partition(" ")[::2]) for i, line in enumerate(text.strip().splitlines())]
    return warp.clocks(loop, load)


CHAIN = """
LDG.E.128 R4, desc[UR4][R2.64]
FADD R8, R4, R9
LDG.E.128 R12, desc[UR4][R20.64]
FADD R9, R12, R8
"""
TOGETHER = """
LDG.E.128 R4, desc[UR4][R2.64]
LDG.E.128 R12, desc[UR4][R20.64]
FADD R8, R4, R9
FADD R9, R12, R8
"""


def test_loads_one_after_another_are_waited_for_one_after_another():
    one, both = clocks(CHAIN), clocks(TOGETHER)
    assert one["loads"] >= 2 * LOAD > both["loads"] >= LOAD
    assert {kind: one[kind] for kind in ("arithmetic",)} == {"arithmetic": pytest.approx(both["arithmetic"], abs=8)}


def test_a_copy_is_waited_for_where_its_group_is_and_not_where_one_may_stay_in_flight():
    copy = "LDGSTS.E.BYPASS.128 [R1], desc[UR4][R2.64]\nLDGDEPBAR\n"
    alu = "\n".join(f"FFMA R{8 + i % 4}, R8, R9, R{8 + i % 4}" for i in range(100))
    none, one = (clocks(f"{copy}DEPBAR.LE SB0, {left}\n{alu}")["loads"] for left in ("0x0", "0x1"))
    assert none >= LOAD > one + 50


def test_a_page_id_comes_from_a_near_cache():
    word = clocks("LDG.E R4, desc[UR4][R2.64]\nIADD3 R2, R4, R5, RZ")
    assert word["loads"] < 2 * warp.NEAR < LOAD


def test_a_wait_after_each_product_costs_its_start_each_time():
    product = "HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], R24, gsb0\n"
    wait = "WARPGROUP.DEPBAR.LE gsb0, 0x0\n"
    apart, together = clocks((product + wait) * 8), clocks(product * 8 + wait)
    assert apart["matrix"] > together["matrix"] + 6 * warp.GROUP_START


def test_more_latency_never_takes_less_and_every_clock_has_a_kind():
    for text in (CHAIN, TOGETHER):
        totals = [sum(clocks(text, load).values()) for load in (50, 300, 1000)]
        assert totals == sorted(totals) and set(clocks(text)) <= set(warp.KINDS)


SASS = {
    "HMMA.16816.F32.BF16": "matrix", "MUFU.EX2": "exp", "F2FP.BF16.F32.PACK_AB": "convert", "IMAD.WIDE": "address",
    "FSEL": "mask", "ISETP.GE.AND": "mask", "FFMA": "arithmetic", "SHFL.BFLY": "exchange", "STL": "spill",
    "LDSM.16.M88.4": "shared", "LDGSTS.E.BYPASS.128": "loads", "BAR.SYNC.DEFER_BLOCKING": "barrier",
}  # fmt: skip
AMDGCN = {
    "v_mfma_f32_16x16x16_bf16": "matrix", "v_exp_f32_e32": "exp", "v_cvt_pk_bf16_f32": "convert",
    "v_cndmask_b32_e32": "mask", "v_fma_f32": "arithmetic", "ds_bpermute_b32": "exchange", "ds_read_b128": "shared",
    "buffer_load_dwordx4": "loads", "s_barrier": "barrier", "scratch_load_dword": "spill", "v_add_u32_e32": "address",
}  # fmt: skip


@pytest.mark.parametrize("opcode", SASS)
def test_kinds_of_sass(opcode):
    assert warp.kind_of(opcode) == SASS[opcode]


@pytest.mark.parametrize("mnemonic", AMDGCN)
def test_kinds_of_amdgcn(mnemonic):
    assert warp.counts_amd([(mnemonic, "")]) == {AMDGCN[mnemonic]: 1}
