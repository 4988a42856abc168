"""Every vector and scalar instruction that AMD's pseudocode defines, bit for bit against that pseudocode."""

import numpy as np
import pytest
from asm import run, waves
from pseudocode import Machine
from pseudonumbers import to_bits, to_number

from compare.static.isa import scalar, valu

PCODE = {key.name.lower(): text for key, text in pytest.importorskip(
    "tinygrad.runtime.autogen.amd.cdna.str_pcode", reason="tinygrad carries AMD's tables").PCODE.items()}  # fmt: skip
SPECIAL_F = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 2.0**-149, -(2.0**-127), 65504.0,
             65520.0, 3e38, -3e38, 2.0**31, 2.0**32, -(2.0**31) - 300, 1e10, 126.0, -126.5, -150.0, 128.0]  # fmt: skip
SPECIAL_U = [
    0, 1, 2, 31, 32, 33, 63, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF, 0xFFFF, 0x8000, 0xFF, 0x00FFFFFF,
    0x01000000,
]  # fmt: skip
WIDTH = {"u": 1, "i": 1, "f": 1, "h": 1, "w": 1, "j": 1, "U": 2, "I": 2}
# What the tables give no meaning to: of two operations, another function's name, or an ordering of lanes.
UNDEFINED = {
    "v_minimum3_f32", "v_maximum3_f32",  # defined by v_minimum_f32, which CDNA's table lacks
    "v_perm_b32",  # a lambda: compared with a table of its own in test_vector
    "v_div_scale_f32", "v_div_fmas_f32",  # whose scales do not fit each other there: test_a_division_is_right
}  # fmt: skip


def text_of(base):
    return next((PCODE[name] for name in (base, base + "_e32", base + "_e64") if name in PCODE), None)


def values(kind, rng):
    """64 raw 32-bit words (two rows for 64 bits): special ones, then random ones."""
    if kind == "f":
        real = np.concatenate([np.array(SPECIAL_F), rng.standard_normal(20) * 10.0 ** rng.integers(-6, 9, 20)])
        words = np.concatenate([real.astype(np.float32).view(np.uint32), rng.integers(0, 2**32, 64, dtype=np.uint32)])[
            :64
        ]
    elif kind == "h":
        words = rng.integers(0, 2**16, 64, dtype=np.uint32)
        words[:8] = [0, 0x8000, 0x7C00, 0xFC00, 0x7E00, 0x3C00, 1, 0x7BFF]
    else:
        words = np.concatenate([np.array(SPECIAL_U, np.uint32), rng.integers(0, 2**32, 64, dtype=np.uint32)])[:64]
    return rng.permutation(words)


def functions():
    """Instructions that other pseudocode calls by name."""

    def called(base, kind):
        def call(*sources):
            env = {f"S{i}": to_bits(value, kind) for i, value in enumerate(sources)} | {"WAVE_MODE": 0, "D0": 0}
            return to_number(Machine(text_of(base).replace("WAVE_MODE.IEEE", "0"), env, functions()).run()["D0"], kind)

        return call

    names = [
        (f"v_{what}{count}_{kind}", kind)
        for what in ("min", "max")
        for kind in ("i32", "u32", "f32")
        for count in ("", "3")
    ]
    return {name: called(name, kind) for name, kind in names}


def expected(base, env):
    text = text_of(base).replace("WAVE_MODE.IEEE", "0").replace("SIMM32", "S1" if base.endswith("mk_f32") else "S2")
    if base == "v_fmamk_f32":
        env = env | {"S1": env["S1"], "S2": env["S2"]}
        text = "D0.f32 = fma(S0.f32, S1.f32, S2.f32)"  # operands are counted as they are written
    return Machine(text, env, functions()).run()


def same(found, wanted, kind):
    if kind in "wj":
        return found == wanted & 0xFFFF
    if kind in "fh":
        dtype, raw = (np.float32, np.uint32) if kind == "f" else (np.float16, np.uint16)
        a, b = raw(found).view(dtype), raw(wanted & (0xFFFFFFFF if kind == "f" else 0xFFFF)).view(dtype)
        return bool(np.isnan(a) and np.isnan(b)) or found == int(raw(wanted & (0xFFFFFFFF if kind == "f" else 0xFFFF)))
    return found == wanted & ((1 << 32 * WIDTH[kind]) - 1)


PLAIN = set("uifhwjUI=+vc")  # kinds without a mask, a choice by op_sel, or an fp8
VECTOR = sorted(
    name for name, (kinds, _) in valu.TABLE.items() if set(kinds) <= PLAIN and text_of(name) and name not in UNDEFINED
)


@pytest.mark.parametrize("base", VECTOR)
def test_a_vector_instruction_computes_what_its_pseudocode_says(base):
    kinds = valu.TABLE[base][0]
    sources, reads_target = kinds[2:].rstrip("+vc"), kinds.endswith("+")
    rng, w = np.random.default_rng(sum(map(ord, base))), waves()
    raw, texts = [], []
    for i, kind in enumerate(sources):
        rows = [values("u" if kind in "UI" else kind, rng) for _ in range(WIDTH[kind])]
        first = 10 + 4 * i
        for k, row in enumerate(rows):
            w.v[first + k, 0] = row
        raw.append([int(rows[0][lane]) | (int(rows[1][lane]) << 32 if WIDTH[kind] == 2 else 0) for lane in range(64)])
        texts.append(f"v{first}" if WIDTH[kind] == 1 else f"v[{first}:{first + 1}]")
    old = values(kinds[0] if kinds[0] in "fh" else "u", rng)
    w.v[4, 0] = old
    vcc = int(rng.integers(0, 2**63))
    w.set_pair(106, np.array([vcc], np.uint64))
    run(w, f"{base} {'v4' if WIDTH[kinds[0]] == 1 else 'v[4:5]'}, " + ", ".join(texts))
    for lane in range(64):
        env = {f"S{i}": column[lane] for i, column in enumerate(raw)}
        env |= {"D0": int(old[lane]) if reads_target else 0, "VCC": vcc, "laneId": lane, "ROUND_MODE": 0,
                "ROUND_NEAREST_EVEN": 0, "tmp": 0, "UNDERFLOW_F32": 0.0, "OVERFLOW_F32": float("inf")}  # fmt: skip
        found = int(w.v[4, 0, lane]) | (int(w.v[5, 0, lane]) << 32 if WIDTH[kinds[0]] == 2 else 0)
        wanted = int(expected(base, dict(env))["D0"])
        if base == "v_rndne_f32" and wanted == 0:
            found &= 0x7FFFFFFF  # floor(x + 0.5) of a small negative x loses the sign that rounding keeps
        assert same(found, wanted, kinds[0]), (lane, [hex(c[lane]) for c in raw], hex(found), hex(wanted))


COMPARES = sorted(name for name in valu.TABLE if name.startswith("v_cmp_") and text_of(name))


@pytest.mark.parametrize("base", COMPARES)
def test_a_comparison_sets_the_bits_that_its_pseudocode_says(base):
    kind = valu.TABLE[base][0][-1]
    rng, w = np.random.default_rng(sum(map(ord, base))), waves()
    for i in (10, 11, 14, 15):
        w.v[i, 0] = values("u" if kind in "UI" else kind, rng)
    same_lanes = rng.integers(0, 2, 64).astype(bool)
    w.v[14:16, 0, same_lanes] = w.v[10:12, 0, same_lanes]
    wide = WIDTH[kind] == 2
    run(w, f"{base} s[8:9], " + ("v[10:11], v[14:15]" if wide else "v10, v14"))
    found = int(w.pair(8)[0])
    for lane in range(64):
        env = {
            f"S{k}": int(w.v[row, 0, lane]) | (int(w.v[row + 1, 0, lane]) << 32 if wide else 0)
            for k, row in ((0, 10), (1, 14))
        }
        wanted = int(expected(base, env | {"D0": 0, "laneId": lane})["D0"]) >> lane & 1
        assert found >> lane & 1 == wanted, (lane, env)


CARRIES = sorted(name for name in valu.TABLE if "_co_u32" in name and text_of(name))


@pytest.mark.parametrize("base", CARRIES)
def test_a_sum_with_carry_is_that_of_its_pseudocode(base):
    rng, w = np.random.default_rng(sum(map(ord, base))), waves()
    a, b, carry = values("u", rng), values("u", rng), int(rng.integers(0, 2**63))
    w.v[10, 0], w.v[11, 0] = a, b
    w.set_pair(106, np.array([carry], np.uint64))
    run(w, f"{base} v4, vcc, v10, v11" + (", vcc" if "addc" in base or "subb" in base else ""))
    for lane in range(64):
        env = expected(base, {"S0": int(a[lane]), "S1": int(b[lane]), "D0": 0, "VCC": carry, "laneId": lane})
        assert int(w.v[4, 0, lane]) == int(env["D0"]) & 0xFFFFFFFF
        assert int(w.pair(106)[0]) >> lane & 1 == int(env["VCC"]) >> lane & 1


@pytest.mark.parametrize("base", ["v_mad_u64_u32", "v_mad_i64_i32"])
def test_a_wide_product_and_its_carry(base):
    rng, w = np.random.default_rng(3), waves()
    for row in (10, 11, 12, 13):
        w.v[row, 0] = values("u", rng)
    run(w, f"{base} v[4:5], s[8:9], v10, v11, v[12:13]")
    for lane in range(64):
        s2 = int(w.v[12, 0, lane]) | int(w.v[13, 0, lane]) << 32
        env = {"S0": int(w.v[10, 0, lane]), "S1": int(w.v[11, 0, lane]), "S2": s2, "D0": 0, "D1": 0}
        env = expected(base, env)
        assert int(w.v[4, 0, lane]) | int(w.v[5, 0, lane]) << 32 == int(env["D0"]) & (2**64 - 1)
        assert int(w.pair(8)[0]) >> lane & 1 == int(env["D1"]) & 1


@pytest.mark.parametrize("n", [2.0**100, 1e-30, 1.0, 3e38, 7.5, 1e-38, 0.0])
def test_what_a_division_scales(n):
    rng, w = np.random.default_rng(5), waves()
    d = (rng.standard_normal(64) * 2.0 ** rng.integers(-60, 60, 64)).astype(np.float32)
    numerator = np.full(64, n, np.float32)
    for which, row in (("d", 10), ("n", 11)):
        w.v[10, 0], w.v[11, 0] = d.view(np.uint32), numerator.view(np.uint32)
        run(w, f"v_div_scale_f32 v4, s[8:9], v{row}, v10, v11")
        for lane in range(64):
            with np.errstate(all="ignore"):
                quotient = numerator[lane].astype(float) / d[lane]
            if (quotient != 0 and abs(quotient) < 2.0**-126) or n == 1e-38:
                continue  # the pseudocode compares with a "denormal" of an unsaid type
            source = {"d": d, "n": numerator}[which][lane]
            env = {"S0": to_bits(source, "f32"), "S1": to_bits(d[lane], "f32"), "S2": to_bits(numerator[lane], "f32")}
            env = expected("v_div_scale_f32", env | {"D0": to_bits(source, "f32"), "VCC": 0, "DENORM": 0x7FF << 52 | 1})
            assert same(int(w.v[4, 0, lane]), int(env["D0"]), "f"), (which, lane, d[lane])
            assert int(w.pair(8)[0]) >> lane & 1 == int(env["VCC"])


@pytest.mark.parametrize("n", [2.0, 1.0, 3e38, -7.5, 1e-38, 1e-30])
def test_a_division_is_right(n):
    """What LLVM makes of n / d, at both ends of float32 and between: the scales undo each other."""
    ends = [2.0**127, 1.5 * 2.0**127, 3.4e38, 2.0**126, 1e-38, 2.0**-126, 1e-5, 7.0]
    w, d = waves(), np.resize(np.array([*ends, *(-x for x in ends)], np.float32), 64)
    w.v[10, 0], w.v[11, 0] = d.view(np.uint32), np.full(64, n, np.float32).view(np.uint32)
    run(
        w, "v_div_scale_f32 v0, s[8:9], v10, v10, v11", "v_div_scale_f32 v1, vcc, v11, v10, v11",
        "v_rcp_f32_e32 v2, v0", "v_fma_f32 v3, -v0, v2, 1.0", "v_fmac_f32_e32 v2, v3, v2",
        "v_mul_f32_e32 v4, v1, v2",
        "v_fma_f32 v5, -v0, v4, v1", "v_fmac_f32_e32 v4, v5, v2", "v_fma_f32 v5, -v0, v4, v1",
        "v_div_fmas_f32 v4, v5, v2, v4", "v_div_fixup_f32 v4, v4, v10, v11",
    )  # fmt: skip
    with np.errstate(all="ignore"):
        wanted = (np.float64(np.float32(n)) / d.astype(np.float64)).astype(np.float32)
    found = w.v[4, 0].view(np.float32)
    assert np.array_equal(np.isfinite(found), np.isfinite(wanted))
    near = np.isfinite(wanted)
    assert (np.abs(found[near].astype(np.float64) - wanted[near]) <= np.spacing(np.abs(wanted[near]))).all()


SCALAR = sorted(
    name
    for name, (kinds, _, _) in scalar._TABLE.items()
    if set(kinds) <= set("uiUI=c") and kinds[0] != "=" and text_of(name)
)


@pytest.mark.parametrize("base", SCALAR)
def test_a_scalar_instruction_and_its_condition(base):
    kinds = scalar._TABLE[base][0]
    rng = np.random.default_rng(sum(map(ord, base)))
    sources = kinds[2:].rstrip("c")
    for _ in range(24):
        w, env = waves(), {"SCC": int(rng.integers(2)), "D0": 0, "tmp": 0}
        w.scc[:] = bool(env["SCC"])
        texts = []
        for i, kind in enumerate(sources):
            pick = [int(rng.choice(values("u", rng))) for _ in range(WIDTH[kind])]
            first = 10 + 4 * i
            for k, word in enumerate(pick):
                w.s[first + k] = word
            env[f"S{i}"] = pick[0] | (pick[1] << 32 if WIDTH[kind] == 2 else 0)
            texts.append(f"s{first}" if WIDTH[kind] == 1 else f"s[{first}:{first + 1}]")
        env["S0"] = env["S0"]
        run(w, f"{base} {'s4' if WIDTH[kinds[0]] == 1 else 's[4:5]'}, " + ", ".join(texts))
        after = expected(base, dict(env))
        found = int(w.s[4, 0]) | (int(w.s[5, 0]) << 32 if WIDTH[kinds[0]] == 2 else 0)
        assert found == int(after["D0"]) & ((1 << 32 * WIDTH[kinds[0]]) - 1), {k: hex(int(v)) for k, v in env.items()}
        assert int(w.scc[0]) == int(bool(after["SCC"])), {k: hex(int(v)) for k, v in env.items()}


SCALAR_COMPARES = sorted(name for name in scalar._TABLE if name.startswith("s_cmp_") and text_of(name))


@pytest.mark.parametrize("base", SCALAR_COMPARES)
def test_a_scalar_comparison(base):
    rng, wide = np.random.default_rng(7), base.endswith("u64")
    for _ in range(24):
        w = waves()
        w.s[10:16, 0] = rng.choice(values("u", rng), 6)
        if rng.integers(2):
            w.s[14:16] = w.s[10:12]
        run(w, f"{base} " + ("s[10:11], s[14:15]" if wide else "s10, s14"))
        env = {f"S{k}": int(w.s[row, 0]) | (int(w.s[row + 1, 0]) << 32 if wide else 0) for k, row in ((0, 10), (1, 14))}
        assert bool(w.scc[0]) == bool(expected(base, env | {"SCC": 0})["SCC"])


def test_how_many_instructions_are_held_to_the_pseudocode():
    assert len(VECTOR) + len(COMPARES) + len(CARRIES) + len(SCALAR) + len(SCALAR_COMPARES) >= 40
