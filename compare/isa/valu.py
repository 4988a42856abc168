"""What vector instructions compute: one table from mnemonic to kinds and function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

U, F, _U64, _I64 = np.uint32, np.float32, np.uint64, np.int64
_31, _63 = U(31), _U64(63)


def fma(a: Any, b: Any, c: Any) -> Any:
    """One rounding. The product of two float32 is exact in float64, and their sum there nearly is: only where it lies
    half way between two float32 can what it dropped decide, so there it is moved towards that."""
    product, c = np.broadcast_arrays(np.asarray(a, np.float64) * b, np.asarray(c, np.float64))
    total = np.asarray(product + c)
    half = (total.view(_U64) & _U64(0x1FFFFFFF)) == _U64(0x10000000)
    if half.any():
        back = total - product
        dropped = (product - (total - back)) + (c - back)
        step = np.where(np.signbit(dropped) == np.signbit(total), 1, -1).astype(_I64)
        total = np.where(half & (dropped != 0), (total.view(_I64) + step).view(np.float64), total)
    return total.astype(F)


def _in_double(function: Callable) -> Callable:
    return lambda a: function(np.asarray(a, np.float64)).astype(F)


def bf16_to_f32(x: Any) -> Any:
    """uint32 or uint16 with bf16 in the low half -> float32."""
    return (np.asarray(x).astype(U) << U(16)).view(F)


def f32_to_bf16(x: Any) -> Any:
    """float32 -> uint32 with bf16 in the low half, to nearest even."""
    raw = np.asarray(x, F).view(U)
    rounded = (raw.astype(_U64) + _U64(0x7FFF) + ((raw >> U(16)) & U(1))) >> _U64(16)
    return np.where(np.isnan(x), (raw >> U(16)) | U(0x40), rounded.astype(U))


def _f16(x: Any) -> Any:
    return np.asarray(x, F).astype(np.float16).view(np.uint16).astype(U)


def halves_f16(x: Any) -> tuple[Any, Any]:
    x = np.asarray(x)
    return tuple(((x >> U(s)).astype(np.uint16)).view(np.float16).astype(F) for s in (0, 16))


def _halves_bf16(x: Any) -> tuple[Any, Any]:
    return (np.asarray(x) << U(16)).view(F), (np.asarray(x) & U(0xFFFF0000)).view(F)


def _dot2(halves: Callable) -> Callable:
    def dot(a: Any, b: Any, c: Any) -> Any:
        (a0, a1), (b0, b1) = halves(a), halves(b)
        return (a0.astype(np.float64) * b0 + a1.astype(np.float64) * b1 + c).astype(F)

    return dot


def _perm(a: Any, b: Any, select: Any) -> Any:
    """v_perm_b32: each byte of `select` picks a byte of {a, b} (b low), a sign (8 to 11), 0x00 (12) or 0xff."""
    both = (np.asarray(a).astype(_U64) << _U64(32)) | b
    out = np.zeros(np.broadcast_shapes(np.shape(both), np.shape(select)), U)
    for k in range(4):
        pick = (np.asarray(select) >> U(8 * k)) & U(0xFF)
        byte = (both >> (np.minimum(pick, 7).astype(_U64) * _U64(8))) & _U64(0xFF)
        sign = ((both >> ((pick & U(3)).astype(_U64) * _U64(16) + _U64(15))) & _U64(1)) * _U64(0xFF)
        byte = np.where(pick >= 8, np.where(pick >= 12, np.where(pick == 12, 0, 0xFF), sign), byte)
        out |= byte.astype(U) << U(8 * k)
    return out


def _field_i32(a: Any, b: Any, c: Any) -> Any:
    start, width = (b & _31).astype(np.int64), (c & _31).astype(np.int64)
    value = (np.asarray(a).astype(np.int64) >> start) & ((_I64(1) << width) - 1)
    top = np.where(width > 0, _I64(1) << np.maximum(width - 1, 0), 0)
    return ((value ^ top) - top).astype(np.int32)


def reversed_bits(a: Any) -> Any:
    a = np.asarray(a, U)
    for shift, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF), (16, 0x0000FFFF)):
        a = ((a >> U(shift)) & U(mask)) | ((a & U(mask)) << U(shift))
    return a


def _div_fixup(q: Any, d: Any, n: Any) -> Any:
    """The quotient's special cases, as AMD's pseudocode gives them; q is |quotient| otherwise."""
    sign = np.signbit(n) ^ np.signbit(d)
    exponent = lambda x: ((np.asarray(x).view(U) >> U(23)) & U(255)).astype(int)  # noqa: E731
    plain = np.where(exponent(n) - exponent(d) < -150, F(0), np.abs(q))
    value = np.where(np.isinf(n) | (d == 0), F(np.inf), np.where(np.isinf(d) | (n == 0), F(0), plain))
    value = np.where(sign, -value, value)
    bad = np.isnan(n) | np.isnan(d) | ((d == 0) & (n == 0)) | (np.isinf(d) & np.isinf(n))
    return np.where(bad, F(np.nan), value).astype(F)


def _to_int(low: float, high: float, dtype: Any) -> Callable:
    def convert(a: Any) -> Any:
        a = np.trunc(np.nan_to_num(np.asarray(a, np.float64), nan=0.0, posinf=high, neginf=low))
        return np.clip(a, low, high).astype(np.int64).astype(dtype)

    return convert


def _least(a: Any, b: Any) -> Any:
    return np.where((a == 0) & (b == 0), np.where(np.signbit(a), a, b), np.fmin(a, b))


def _most(a: Any, b: Any) -> Any:
    return np.where((a == 0) & (b == 0), np.where(np.signbit(a), b, a), np.fmax(a, b))


def _of_three(two: Callable) -> Callable:
    return lambda a, b, c: two(two(a, b), c)


def _median(a: Any, b: Any, c: Any) -> Any:
    return np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))


def _high(a: Any, b: Any, wide: Any, shift: Any) -> Any:
    return (np.asarray(a).astype(wide) * np.asarray(b).astype(wide)) >> shift


def _24(x: Any) -> Any:
    return x & U(0xFFFFFF)


def _count_into(a: Any, b: Any, lanes: range) -> Any:
    """v_mbcnt: set bits of `a` below this lane, among 32 lanes, plus b."""
    here = np.clip(np.arange(64) - lanes.start, 0, 32)
    below = ((_U64(1) << here.astype(_U64)) - _U64(1)).astype(U)
    return np.bitwise_count(a & below).astype(U) + b


# name: (kinds of destination and sources, function). Shifts named `rev` take the count first.
TABLE: dict[str, tuple[str, Callable]] = {
    "v_mov_b32": ("uu", lambda a: a), "v_mov_b64": ("UU", lambda a: a), "v_not_b32": ("uu", lambda a: ~a),
    **{f"v_accvgpr_{name}_b32": ("uu", lambda a: a) for name in ("read", "write", "mov")},
    "v_add_u32": ("uuu", lambda a, b: a + b), "v_sub_u32": ("uuu", lambda a, b: a - b),
    "v_subrev_u32": ("uuu", lambda a, b: b - a), "v_add3_u32": ("uuuu", lambda a, b, c: a + b + c),
    "v_add_lshl_u32": ("uuuu", lambda a, b, c: (a + b) << (c & _31)),
    "v_xad_u32": ("uuuu", lambda a, b, c: (a ^ b) + c),
    "v_lshl_add_u32": ("uuuu", lambda a, b, c: (a << (b & _31)) + c),
    "v_lshl_or_b32": ("uuuu", lambda a, b, c: (a << (b & _31)) | c),
    "v_and_b32": ("uuu", lambda a, b: a & b), "v_or_b32": ("uuu", lambda a, b: a | b),
    "v_xor_b32": ("uuu", lambda a, b: a ^ b), "v_or3_b32": ("uuuu", lambda a, b, c: a | b | c),
    "v_and_or_b32": ("uuuu", lambda a, b, c: (a & b) | c), "v_bfi_b32": ("uuuu", lambda a, b, c: (a & b) | (~a & c)),
    "v_lshlrev_b32": ("uuu", lambda a, b: b << (a & _31)), "v_lshrrev_b32": ("uuu", lambda a, b: b >> (a & _31)),
    "v_ashrrev_i32": ("iui", lambda a, b: b >> (a & _31).view(np.int32)),
    "v_lshlrev_b64": ("UuU", lambda a, b: b << (np.asarray(a).astype(_U64) & _63)),
    "v_lshrrev_b64": ("UuU", lambda a, b: b >> (np.asarray(a).astype(_U64) & _63)),
    "v_ashrrev_i64": ("IuI", lambda a, b: b >> (np.asarray(a).astype(_I64) & 63)),
    "v_lshlrev_b16": ("uuu", lambda a, b: (b << (a & U(15))) & U(0xFFFF)),
    "v_lshrrev_b16": ("uuu", lambda a, b: (b & U(0xFFFF)) >> (a & U(15))),
    "v_add_u16": ("uuu", lambda a, b: (a + b) & U(0xFFFF)), "v_sub_u16": ("uuu", lambda a, b: (a - b) & U(0xFFFF)),
    "v_mul_lo_u16": ("uuu", lambda a, b: (a * b) & U(0xFFFF)),
    "v_lshl_add_u64": ("UUuU", lambda a, b, c: (a << (np.asarray(b).astype(_U64) & _U64(7))) + c),
    "v_mul_lo_u32": ("uuu", lambda a, b: a * b), "v_mul_u32_u24": ("uuu", lambda a, b: _24(a) * _24(b)),
    "v_mul_i32_i24": ("iii", lambda a, b: ((a << np.int32(8)) >> np.int32(8)) * ((b << np.int32(8)) >> np.int32(8))),
    "v_mad_u32_u24": ("uuuu", lambda a, b, c: _24(a) * _24(b) + c),
    "v_mul_hi_u32": ("uuu", lambda a, b: _high(a, b, _U64, _U64(32)).astype(U)),
    "v_mul_hi_i32": ("iii", lambda a, b: _high(a, b, _I64, _I64(32)).astype(np.int32)),
    "v_bfe_u32": ("uuuu", lambda a, b, c: (a >> (b & _31)) & ((U(1) << (c & _31)) - U(1))),
    "v_bfe_i32": ("iiuu", _field_i32),
    "v_bfm_b32": ("uuu", lambda a, b: ((U(1) << (a & _31)) - U(1)) << (b & _31)),
    "v_bfrev_b32": ("uu", reversed_bits), "v_perm_b32": ("uuuu", _perm),
    "v_bcnt_u32_b32": ("uuu", lambda a, b: np.bitwise_count(a).astype(U) + b),
    "v_mbcnt_lo_u32_b32": ("uuu", lambda a, b: _count_into(a, b, range(0, 32))),
    "v_mbcnt_hi_u32_b32": ("uuu", lambda a, b: _count_into(a, b, range(32, 64))),
    "v_alignbit_b32": ("uuuu", lambda a, b, c: (((np.asarray(a).astype(_U64) << _U64(32)) | b)
                                                >> (np.asarray(c).astype(_U64) & _U64(31))).astype(U)),
    "v_min_i32": ("iii", np.minimum), "v_max_i32": ("iii", np.maximum),
    "v_min_u32": ("uuu", np.minimum), "v_max_u32": ("uuu", np.maximum),
    **{f"v_{name}3_{t}32": (k * 4, _of_three(f))
       for name, f in (("min", np.minimum), ("max", np.maximum)) for t, k in (("i", "i"), ("u", "u"))},
    "v_med3_i32": ("iiii", _median), "v_med3_u32": ("uuuu", _median),
    "v_add_f32": ("fff", lambda a, b: a + b), "v_sub_f32": ("fff", lambda a, b: a - b),
    "v_subrev_f32": ("fff", lambda a, b: b - a), "v_mul_f32": ("fff", lambda a, b: a * b),
    "v_min_f32": ("fff", _least), "v_max_f32": ("fff", _most),
    "v_min3_f32": ("ffff", lambda a, b, c: _least(_least(a, b), c)),
    "v_max3_f32": ("ffff", lambda a, b, c: _most(_most(a, b), c)),
    "v_minimum3_f32": ("ffff", lambda a, b, c: np.minimum(np.minimum(a, b), c)),
    "v_maximum3_f32": ("ffff", lambda a, b, c: np.maximum(np.maximum(a, b), c)),
    **{f"v_fma{letters}_f32": ("ffff", fma) for letters in ("", "mk", "ak")},
    "v_div_fmas_f32": ("ffffm", lambda a, b, c, back: np.where(back, F(2.0**32), F(1)) * fma(a, b, c)),
    "v_fmac_f32": ("fff+", fma),
    "v_div_fixup_f32": ("ffff", _div_fixup),
    "v_ldexp_f32": ("ffi", lambda a, b: np.ldexp(a, np.clip(b, -400, 400)).astype(F)),
    "v_exp_f32": ("ff", _in_double(np.exp2)), "v_log_f32": ("ff", _in_double(np.log2)),
    "v_rcp_f32": ("ff", _in_double(np.reciprocal)), "v_rcp_iflag_f32": ("ff", _in_double(np.reciprocal)),
    "v_sqrt_f32": ("ff", np.sqrt), "v_rsq_f32": ("ff", _in_double(lambda a: 1.0 / np.sqrt(a))),
    "v_floor_f32": ("ff", np.floor), "v_ceil_f32": ("ff", np.ceil), "v_trunc_f32": ("ff", np.trunc),
    "v_rndne_f32": ("ff", np.rint), "v_fract_f32": ("ff", lambda a: a - np.floor(a)),
    **{f"v_{name}_f16": ("hhh", f) for name, f in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply))},
    "v_min_f16": ("hhh", _least), "v_max_f16": ("hhh", _most),
    "v_dot2c_f32_f16": ("fuu+", _dot2(halves_f16)), "v_dot2c_f32_bf16": ("fuu+", _dot2(_halves_bf16)),
    "v_cvt_f16_f32": ("hf", lambda a: np.asarray(a, F).astype(np.float16)),
    **{f"v_cvt_f32_{name}": ("f" + kind, lambda a: np.asarray(a).astype(F))
       for name, kind in (("f16", "h"), ("i32", "i"), ("u32", "u"))},
    **{f"v_cvt_f32_ubyte{i}": ("fu", (lambda s: lambda a: ((a >> s) & U(255)).astype(F))(U(8 * i))) for i in range(4)},
    "v_cvt_u32_f32": ("uf", _to_int(0, 2**32 - 1, U)), "v_cvt_i32_f32": ("if", _to_int(-(2**31), 2**31 - 1, np.int32)),
    "v_cvt_pk_bf16_f32": ("uff", lambda a, b: f32_to_bf16(a) | (f32_to_bf16(b) << U(16))),
    "v_cvt_pk_f16_f32": ("uff", lambda a, b: _f16(a) | (_f16(b) << U(16))),
}  # fmt: skip


def div_scale(a: Any, d: Any, n: Any) -> tuple[Any, Any]:
    """v_div_scale_f32 of AMD's pseudocode: a (which is d or n), scaled where n / d would lose bits, and the lanes whose
    quotient v_div_fmas scales back."""
    exponent = lambda x: (np.asarray(x).view(U) >> U(23)) & U(255)  # noqa: E731
    tiny = lambda x: (x != 0) & (np.abs(x) < 2.0**-126)  # noqa: E731
    a, d, n = np.broadcast_arrays(a, d, n)
    quotient, inverse = tiny(np.asarray(n, np.float64) / d), tiny(1.0 / np.asarray(d, np.float64))
    large = exponent(n).astype(int) - exponent(d) >= 96
    cases = [(n == 0) | (d == 0), large, tiny(d), inverse & quotient, inverse, quotient, exponent(n) <= 23]
    up, down = np.ldexp(a, 64), np.ldexp(a, -64)
    denominator = np.where(a == d, up, a)
    values = [F(np.nan), denominator, up, denominator, down, np.where(a == n, up, a), up]
    back = np.select(cases, [False, True, False, True, False, True, False], False)
    return np.select(cases, values, a).astype(F), back
