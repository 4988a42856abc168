"""Floats of 8 bits, and what MODE does to overflow: AMD's pseudocode says what goes where, torch what a code is."""

import numpy as np
import pytest
import torch
from asm import run, waves
from pseudocode import Machine
from pseudonumbers import bits

from compare.static.isa.errors import NotExecutable

PCODE = {key.name.lower(): text for key, text in pytest.importorskip(
    "tinygrad.runtime.autogen.amd.cdna.str_pcode", reason="tinygrad carries AMD's tables").PCODE.items()}  # fmt: skip
TYPES = {
    "gfx942": {"fp8": torch.float8_e4m3fnuz, "bf8": torch.float8_e5m2fnuz},
    "gfx950": {"fp8": torch.float8_e4m3fn, "bf8": torch.float8_e5m2},
}
CLAMPS = "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1"
NAMES = ("fp8", "bf8")


def functions(arch):
    """The conversions that the pseudocode calls by name, by torch; a scale is 2^(code - 127)."""
    calls = {}
    for name, dtype in TYPES[arch].items():

        def decode(code, scale=127, dtype=dtype):
            value = torch.tensor([int(code)], dtype=torch.uint8).view(dtype).float()
            return float(value[0]) * 2.0 ** (scale - 127)

        def encode(value, scale=127, dtype=dtype):
            scaled = torch.tensor([value * 2.0 ** (127 - scale)], dtype=torch.float32)
            return bits(int(scaled.to(dtype).view(torch.uint8)[0]), 8)

        calls |= {f"{name}_to_{to}{scale}": decode for to in ("f32", "f16", "bf16") for scale in ("", "_scale")}
        calls |= {f"f32_to_{name}{scale}": encode for scale in ("", "_scale")}
    return calls


def held(w, arch, line, lane, op_sel=0, select=0, **env):
    """The destination of one lane, as the pseudocode has it."""
    base = line.split()[0].removesuffix("_sdwa")
    text = next(PCODE[name] for name in (base, f"{base}_e32") if name in PCODE)
    text = text.replace("VGPR[laneId][VDST.u32]", "D0").replace("VGPR[laneId][SRC0.u32]", "S0")
    env |= {"OPSEL": op_sel, "SDWA_SRC0_SEL": select, "ROUND_MODE": 0, "ROUND_NEAREST_EVEN": 0, "laneId": lane}
    env |= {f"BYTE{i}": i for i in range(4)} | {"WORD1": 5}
    return int(Machine(text, env, functions(arch)).run()["D0"])


def every_code():
    """256 codes in four registers' worth of lanes: each lane has four neighbours."""
    w = waves()
    w.v[10, 0] = np.arange(256, dtype=np.uint8).view(np.uint32)
    w.v[20:22] = 0x12345678
    return w


def nan_is_nan(found, wanted, dtype):
    a, b = (np.array([x], np.uint64).view(dtype) for x in (found, wanted))
    return np.array_equal(a, b, equal_nan=True)


@pytest.mark.parametrize("arch", TYPES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("part", range(4))
def test_one_code_becomes_a_float(arch, name, part):
    w = every_code()
    run(w, f"v_cvt_f32_{name}_sdwa v20, v10 src0_sel:BYTE_{part}", arch=arch)
    for lane in range(0, 64, 3):
        wanted = held(w, arch, f"v_cvt_f32_{name}", lane, select=part, S0=int(w.v[10, 0, lane]), D0=0)
        assert nan_is_nan(int(w.v[20, 0, lane]), wanted & 0xFFFFFFFF, np.float32), (lane, part)


@pytest.mark.parametrize("arch", TYPES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("top", [0, 1])
def test_two_codes_become_two_floats(arch, name, top):
    w = every_code()
    run(w, f"v_cvt_pk_f32_{name}_sdwa v[20:21], v10 src0_sel:WORD_{top}", arch=arch)
    for lane in range(0, 64, 3):
        wanted = held(w, arch, f"v_cvt_pk_f32_{name}", lane, select=4 + top, S0=int(w.v[10, 0, lane]), D0=0)
        found = int(w.v[20, 0, lane]) | int(w.v[21, 0, lane]) << 32
        assert nan_is_nan(found, wanted, np.float32), lane


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("to", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("top", [0, 1])
def test_two_codes_become_two_scaled_floats(name, to, top):
    w, line = every_code(), f"v_cvt_scalef32_pk_{to}_{name}"
    run(w, f"{line} {'v[20:21]' if to == 'f32' else 'v20'}, v10, 1.0 op_sel:[{top},0,0]", arch="gfx950")
    for lane in range(0, 64, 3):
        one = int(np.float32(1.0).view(np.uint32))
        wanted = held(w, "gfx950", line, lane, op_sel=bits(top, 4), S0=int(w.v[10, 0, lane]), S1=one, D0=0)
        found = int(w.v[20, 0, lane]) | (int(w.v[21, 0, lane]) << 32 if to == "f32" else 0)
        if to == "bf16":  # numpy has none: a bf16 is the top half of a float32
            found, wanted = ((x & 0xFFFF) << 16 | (x & 0xFFFF0000) << 32 for x in (found, wanted))
        assert nan_is_nan(found, wanted, np.float16 if to == "f16" else np.float32), lane


def floats(dtype):
    """Numbers around every code, half way between codes, and none too large."""
    codes = torch.arange(256, dtype=torch.uint8).view(dtype).float().numpy()
    codes = np.unique(codes[np.isfinite(codes)])
    middle = (codes[1:] + codes[:-1]) / 2
    around = [np.nextafter(middle, np.float32(direction)) for direction in (-np.inf, np.inf)]
    every = np.concatenate([codes, middle, *around, [np.nan, -0.0, 1e-30]]).astype(np.float32)
    return np.resize(np.random.default_rng(0).permutation(every), (-(-len(every) // 64), 64))


@pytest.mark.parametrize(("arch", "scaled"), [("gfx942", False), ("gfx950", False), ("gfx950", True)])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("top", [0, 1])
def test_two_floats_become_two_codes(arch, scaled, name, top):
    rows, dtype = floats(TYPES[arch][name]), TYPES[arch][name]
    for row in rows if top else rows[:1]:
        w = waves()
        w.v[10, 0], w.v[11, 0], w.v[20, 0] = row.view(np.uint32), row[::-1].copy().view(np.uint32), 0x12345678
        line = f"v_cvt_{'scalef32_' * scaled}pk_{name}_f32"
        run(w, f"{line} v20, v10, v11{', 1.0' * scaled} op_sel:[0,0,{'0,' * scaled}{top}]", arch=arch)
        codes = torch.from_numpy(row.copy()).to(dtype).view(torch.uint8).numpy()
        for lane in range(64):
            found = int(w.v[20, 0, lane])
            assert found >> 16 * (1 - top) & 0xFFFF == 0x12345678 >> 16 * (1 - top) & 0xFFFF, "the other half is kept"
            both = found >> 16 * top & 0xFF, found >> 16 * top + 8 & 0xFF
            for code, value, wanted in ((both[0], row[lane], codes[lane]), (both[1], row[63 - lane], codes[63 - lane])):
                assert code == wanted or np.isnan(value), (lane, value, code, wanted)
        one = int(np.float32(1.0).view(np.uint32))
        for lane in range(0, 64, 8):
            source = {"S0": int(w.v[10, 0, lane]), "S1": int(w.v[11, 0, lane]), "S2": one, "D0": 0x12345678}
            wanted = held(w, arch, line, lane, op_sel=bits(8 * top, 4), **source)
            if not np.isnan(row[[lane, 63 - lane]]).any():
                assert int(w.v[20, 0, lane]) == wanted & 0xFFFFFFFF, lane


@pytest.mark.parametrize("arch", TYPES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("clamps", [False, True])
def test_what_is_too_large(arch, name, clamps):
    """Without FP16_OVFL infinity where the format has one, else NaN; with it the largest number."""
    w, largest = waves(), torch.finfo(TYPES[arch][name]).max
    w.v[10, 0], w.v[11, 0] = np.float32(1e6).view(np.uint32), np.float32(-1e6).view(np.uint32)
    run(w, *[CLAMPS] * clamps, f"v_cvt_pk_{name}_f32 v20, v10, v11", arch=arch)
    codes = torch.from_numpy(w.v[20, 0, :1].view(np.uint8)[:2].copy()).view(TYPES[arch][name]).float().tolist()
    if clamps:
        assert codes == [largest, -largest]
    elif (arch, name) == ("gfx950", "bf8"):
        assert codes == [np.inf, -np.inf]
    else:
        assert np.isnan(codes).all()


def test_an_infinity_that_would_be_clamped_is_refused():
    w = waves()
    w.v[10, 0, 3] = np.float32(np.inf).view(np.uint32)
    run(w, "v_cvt_pk_fp8_f32 v20, v10, v11", CLAMPS)
    w.set_exec(np.array([0xF7], np.uint64))
    run(w, "v_cvt_pk_fp8_f32 v20, v10, v11")  # that lane is off
    w.set_exec(np.array([0xFF], np.uint64))
    with pytest.raises(NotExecutable, match="infinity"):
        run(w, "v_cvt_pk_fp8_f32 v20, v10, v11")


@pytest.mark.parametrize("clamps", [False, True])
def test_a_half_that_overflows(clamps):
    w = waves(2)
    w.v[10] = np.float32(1e6).view(np.uint32)
    w.v[11] = np.float32(-np.inf).view(np.uint32)
    w.v[12] = 0x7BFF  # 65504
    w.v[20:24] = 0x12345678
    w.select(np.array([1]))  # MODE is a wave's own
    run(w, *[CLAMPS] * clamps, "s_mov_b32 s0, s0")
    w.select(np.array([0, 1]))
    run(w, "v_cvt_f16_f32 v20, v10", "v_cvt_f16_f32 v21, v11", "v_add_f16 v22, v12, v12", "v_sub_f16 v23, 0, v12")
    run(w, "v_fma_mixlo_f16 v24, v10, v10, 0", "v_fma_mixhi_f16 v24, v10, -v10, 0", "v_cvt_pk_f16_f32 v25, v10, v11")
    limit = np.array([0x7C00, 0x7BFF if clamps else 0x7C00])[:, None]
    assert (w.v[20] == limit).all() and (w.v[21] == 0xFC00).all(), "a true infinity stays"
    assert (w.v[22] == limit).all() and (w.v[23] == 0xFBFF).all()
    assert (w.v[24] == limit | (limit | 0x8000) << 16).all() and (w.v[25] == limit | 0xFC00 << 16).all()


@pytest.mark.parametrize("value", [0, 1])
def test_a_bit_of_mode_is_written_as_the_pseudocode_writes_it(value):
    for before in (False, True):
        w = waves()
        w.clamps[:] = before
        run(w, f"s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), {value}")
        text = PCODE["s_setreg_imm32_b32"].replace("HW_REGISTERS[hwRegId]", "MODE").replace("WAVE_STATUS.PRIV", "0")
        env = {"SIMM16": bits(1 | 23 << 6, 16), "SIMM32": bits(value, 32), "MODE": bits(0x3F0 | before << 23, 32)}
        after = int(Machine(text, env, {"HwRegWriteMask": lambda register, privileged: -1}).run()["MODE"])
        assert after == 0x3F0 | bool(w.clamps[0]) << 23
