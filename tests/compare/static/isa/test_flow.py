"""Branches, barriers, the argument segment and the batches of workgroups, by small kernels written here."""

import numpy as np
import pytest

from compare.static.isa import machine
from compare.static.isa.errors import Fault, ForeignCode, NotExecutable
from compare.static.isa.machine import Kernel, Program, launch
from compare.static.loops import UnreadableCode

HEAD = """	.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
	.text
kernel:
"""
TAIL = """	s_endpgm
	.amdhsa_kernel kernel
		.amdhsa_user_sgpr_count 2
		.amdhsa_system_sgpr_workgroup_id_x 1
		.amdhsa_system_sgpr_workgroup_id_y 1
		.amdhsa_system_sgpr_workgroup_id_z 0
	.end_amdhsa_kernel
.Lfunc_end0:
"""
# v1 = 4 * (x * 128 + thread), s[4:5] = the tensor; two waves a workgroup
PLACE = """
	s_load_dwordx2 s[4:5], s[0:1], 0x0
	s_lshl_b32 s6, s2, 7
	v_add_u32_e32 v1, s6, v0
	v_lshlrev_b32_e32 v1, 2, v1
	s_waitcnt lgkmcnt(0)
"""


def text(body, head=HEAD, tail=TAIL):
    lines = [line if line.startswith(".L") else "\t" + line.strip() for line in body.strip().splitlines()]
    return head + "\n".join(lines) + "\n" + tail


def start(body, grid=(3,), warps=2, lds_bytes=1024):
    """The tensor, int32 [4096] with -1 in it, after running `body`."""
    out = np.full(4096, -1, np.int32)
    block = np.frombuffer(out.ctypes.data.to_bytes(8, "little"), np.uint8)
    launch(Kernel(Program(text(body)), warps, lds_bytes, 0), grid, block, [(out.ctypes.data, out.nbytes)])
    return out


def test_every_thread_of_every_workgroup_runs_once():
    out = start(PLACE + "v_mov_b32_e32 v2, s3\n global_store_dword v1, v2, s[4:5]", grid=(3, 2))
    assert (out[:384] == 1).all() and (out[384:] == -1).all()


def test_the_mode_that_a_kernel_starts_in():
    half = PLACE + "v_mov_b32_e32 v2, 0x49742400\n v_cvt_f16_f32_e32 v2, v2\n global_store_dword v1, v2, s[4:5]"  # 1e6
    for line, wanted in (
        ("", 0x7C00),
        ("\t.amdhsa_fp16_overflow 0\n", 0x7C00),
        ("\t.amdhsa_fp16_overflow 1\n", 0x7BFF),
    ):
        out = np.full(256, -1, np.int32)
        block = np.frombuffer(out.ctypes.data.to_bytes(8, "little"), np.uint8)
        program = Program(text(half, tail=TAIL.replace("\t.end_", line + "\t.end_")))
        launch(Kernel(program, 2, 1024, 0), (1,), block, [(out.ctypes.data, out.nbytes)])
        assert (out[:128] == wanted).all()


LONG = """
s_getpc_b64 s[8:9]
.Lpost_getpc0:
s_add_u32 s8, s8, (.LBB0_9-.Lpost_getpc0)&4294967295
s_addc_u32 s9, s9, (.LBB0_9-.Lpost_getpc0)>>32
s_setpc_b64 s[8:9]
v_mov_b32_e32 v2, 7
.LBB0_9:
global_store_dword v1, v2, s[4:5]
"""


def test_a_branch_that_is_too_far_for_one_instruction():
    out = start(PLACE + "v_mov_b32_e32 v2, 5" + LONG)
    assert (out[:384] == 5).all()
    for other in (LONG.replace("s_setpc_b64 s[8:9]", "s_setpc_b64 s[6:7]"), LONG.replace("s9, s9, (", "s9, s8, (")):
        with pytest.raises(NotExecutable, match="s_getpc_b64"):
            Program(text(PLACE + other))


@pytest.mark.parametrize("line", ["float_round_mode_32 3", "float_denorm_mode_32 0", "dx10_clamp 0"])
def test_a_kernel_that_starts_in_another_mode_is_refused(line):
    with pytest.raises(NotExecutable, match=line):
        Program(text(PLACE, tail=TAIL.replace("\t.end_", f"\t.amdhsa_{line}\n\t.end_")))


def test_more_workgroups_than_run_together(monkeypatch):
    monkeypatch.setattr(machine, "BATCH_WAVES", 4)
    out = start(PLACE + "v_mov_b32_e32 v2, s2\n global_store_dword v1, v2, s[4:5]", grid=(7,))
    assert np.array_equal(out[: 7 * 128], np.repeat(np.arange(7), 128))


def test_waves_that_go_different_ways_meet_again():
    """Workgroup x loops x + 1 times, odd ones over another body."""
    body = (
        PLACE
        + """
	s_mov_b32 s8, 0
	s_mov_b32 s9, 0
	s_bitcmp1_b32 s2, 0
	s_cbranch_scc1 .LBB0_3
.LBB0_1:
	s_add_i32 s9, s9, 10
	s_add_i32 s8, s8, 1
	s_cmp_le_i32 s8, s2
	s_cbranch_scc1 .LBB0_1
	s_branch .LBB0_4
.LBB0_3:
	s_add_i32 s9, s9, 100
	s_add_i32 s8, s8, 1
	s_cmp_gt_i32 s8, s2
	s_cbranch_scc0 .LBB0_3
.LBB0_4:
	v_mov_b32_e32 v2, s9
	global_store_dword v1, v2, s[4:5]
	"""
    )
    out = start(body, grid=(6,))
    wanted = [(x + 1) * (100 if x % 2 else 10) for x in range(6)]
    assert np.array_equal(out[:768], np.repeat(wanted, 128))


@pytest.mark.parametrize(
    ("branch", "taken"),
    [("s_cbranch_vccz", 0), ("s_cbranch_vccnz", 1), ("s_cbranch_execz", 0), ("s_cbranch_execnz", 1)],
)
def test_branches_on_masks(branch, taken):
    body = (
        PLACE
        + f"""
	v_mov_b32_e32 v2, 5
	v_cmp_gt_u32_e32 vcc, 3, v0
	s_mov_b64 s[10:11], exec
	s_and_saveexec_b64 s[12:13], vcc
	{branch} .LBB0_1
	s_mov_b64 exec, s[10:11]
	v_mov_b32_e32 v2, 6
.LBB0_1:
	s_mov_b64 exec, s[10:11]
	global_store_dword v1, v2, s[4:5]
	"""
    )
    out = start(body, grid=(1,))
    first, second = (5, 6) if taken else (6, 5)  # wave 0 has lanes with vcc, wave 1 none
    assert (out[:64] == first).all() and (out[64:128] == second).all()


EXCHANGE = """
	v_lshlrev_b32_e32 v3, 2, v0
	v_xor_b32_e32 v4, 0x100, v3
	ds_write_b32 v3, v0
	{wait}
	{barrier}
	ds_read_b32 v2, v4
	s_waitcnt lgkmcnt(0)
	global_store_dword v1, v2, s[4:5]
"""


def test_two_waves_exchange_through_lds():
    out = start(PLACE + EXCHANGE.format(wait="s_waitcnt lgkmcnt(0)", barrier="s_barrier"))
    assert np.array_equal(out[:128], np.arange(128) ^ 64)


@pytest.mark.parametrize(
    ("wait", "barrier"), [("s_waitcnt lgkmcnt(0)", "s_nop 0"), ("s_nop 0", "s_barrier")], ids=["barrier", "wait"]
)
def test_an_exchange_without_its_barrier_or_its_wait(wait, barrier):
    with pytest.raises(Fault, match="race in LDS"):
        start(PLACE + EXCHANGE.format(wait=wait, barrier=barrier))


def test_a_barrier_that_one_wave_never_reaches():
    skip = "v_readfirstlane_b32 s8, v0\n s_cmp_gt_u32 s8, 63\n s_cbranch_scc1 .LBB0_1\n s_barrier\n.LBB0_1:\n s_nop 0"
    with pytest.raises(Fault, match="barrier"):
        start(PLACE + skip)


def test_a_workgroup_that_waits_for_another():
    """The first one spins until the last has raised a flag, as a device-wide barrier does."""
    body = (
        PLACE
        + """
	v_mov_b32_e32 v3, 0
	v_mov_b32_e32 v5, 1
	s_cmp_eq_u32 s2, 0
	s_cbranch_scc0 .LBB0_2
.LBB0_1:
	global_load_dword v4, v3, s[4:5] offset:4092
	s_waitcnt vmcnt(0)
	v_readfirstlane_b32 s8, v4
	s_cmp_lg_u32 s8, 1
	s_cbranch_scc1 .LBB0_1
	global_store_dword v1, v5, s[4:5]
	s_endpgm
.LBB0_2:
	global_store_dword v3, v5, s[4:5] offset:4092
	"""
    )
    out = start(body, grid=(2,))
    assert (out[:128] == 1).all() and out[1023] == 1


def test_a_fault_names_its_instruction():
    with pytest.raises(Fault, match="at global_store_dword v1, v2"):
        start(PLACE + "v_add_u32_e32 v1, 0x10000, v1\n global_store_dword v1, v2, s[4:5]")


@pytest.mark.parametrize(
    ("assembly", "error"),
    [
        ("", ForeignCode),
        (text("s_nop 0", head=HEAD.replace("gfx942", "gfx1100")), ForeignCode),
        (text("s_nop 0", tail=TAIL.replace(".Lfunc_end0:", "")), UnreadableCode),
        (text("s_nop 0", tail=TAIL.replace("s_endpgm", "s_nop 0")), UnreadableCode),
        (text("s_branch .LBB0_9"), NotExecutable),
        (text("v_wobble_b32 v0, v1"), NotExecutable),
        (text("s_swappc_b64 s[30:31], s[2:3]"), NotExecutable),
        (text("v_add_u32_e32 v0"), NotExecutable),
    ],
    ids=["nothing", "rdna", "torn", "endless", "no label", "unknown", "a call", "short"],
)
def test_code_that_is_not_ours_is_refused(assembly, error):
    with pytest.raises(error):
        Program(assembly)


def test_an_unknown_instruction_is_named():
    with pytest.raises(NotExecutable) as refused:
        Program(text("v_wobble_b32 v0, v1"))
    assert refused.value.mnemonic == "v_wobble_b32"
