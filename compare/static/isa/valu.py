"""What vector instructions compute: one table from mnemonic to kinds and function.

Kinds are results, `=`, sources. A kind is one of compare.static.isa.operands, or
- of a result: M a lane mask in a scalar pair; l, t a float16 in the low or top half, p 16 bits in the half that op_sel
  names, the other half kept;
- of a source: m a lane mask; W the half that op_sel names; o a float32 or, where op_sel_hi says so, such a half as
  float16; 1 the constant 1.0, which is not passed on;
- of a source that no operand names: + what the result's register held; v the lane mask vcc; c the lanes where MODE
  clamps what overflows; z whether an fp8 is `fnuz`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from compare.static.isa import fp8
from compare.static.isa.convert import (
    F,
    U,
    exact_fma,
    f32_to_bf16,
    fma,
    halves,
    overflowing,
    pack,
    pair,
    to_f16,
    to_int,
)

_U64, _I64 = np.uint64, np.int64
ORDER = {"eq": np.equal, "ne": np.not_equal, "gt": np.greater, "ge": np.greater_equal, "lt": np.less,
         "le": np.less_equal}  # fmt: skip


def _in_double(function: Callable) -> Callable:
    return lambda a: function(np.asarray(a, np.float64)).astype(F)


def _dot2(kind: str) -> Callable:
    def dot(a: Any, b: Any, c: Any) -> Any:
        (a0, a1), (b0, b1) = halves(a, kind), halves(b, kind)
        return (a0.astype(np.float64) * b0 + a1.astype(np.float64) * b1 + c).astype(F)

    return dot


def _perm(a: Any, b: Any, select: Any) -> Any:
    """v_perm_b32: each byte of `select` picks a byte of {a, b} (b low), a sign (8 to 11), 0x00 (12) or 0xff."""
    both = (np.asarray(a).astype(_U64) << _U64(32)) | b
    out = np.zeros(np.broadcast_shapes(np.shape(both), np.shape(select)), U)
    for k in range(4):
        pick = (np.asarray(select) >> U(8 * k)) & 0xFF
        byte = (both >> (np.minimum(pick, 7).astype(_U64) * _U64(8))) & _U64(0xFF)
        sign = ((both >> ((pick & 3).astype(_U64) * _U64(16) + _U64(15))) & _U64(1)) * _U64(0xFF)
        byte = np.where(pick >= 8, np.where(pick >= 12, np.where(pick == 12, 0, 0xFF), sign), byte)
        out |= byte.astype(U) << U(8 * k)
    return out


def field(a: Any, start: Any, width: Any) -> Any:
    """`width` (up to 32) bits of `a` from `start` on, with their sign where `a` has one."""
    value = (a.astype(_I64) >> start) & ((_I64(1) << width) - 1)
    top = (_I64(1) << width) >> 1 if a.dtype == np.int32 else 0
    return ((value ^ top) - top).astype(a.dtype)


def reversed_bits(a: Any) -> Any:
    for shift, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF), (16, 0x0000FFFF)):
        a = ((a >> shift) & U(mask)) | ((a & U(mask)) << shift)
    return a


def _first_change(a: Any) -> Any:
    """v_ffbh_i32: how many leading bits equal the sign; -1 where all do."""
    differ = (a ^ (a >> 31)).view(U)
    return np.where(differ == 0, -1, 31 - np.floor(np.log2(np.maximum(differ, 1).astype(np.float64)))).astype(np.int32)


def _exponent(x: Any) -> Any:
    return ((np.asarray(x).view(U) >> 23) & 255).astype(int)


def _div_fixup(q: Any, d: Any, n: Any) -> Any:
    """The special cases of a quotient, by AMD's pseudocode; q is |quotient| otherwise."""
    sign = np.signbit(n) ^ np.signbit(d)
    plain = np.where(_exponent(n) - _exponent(d) < -150, F(0), np.abs(q))
    value = np.where(np.isinf(n) | (d == 0), F(np.inf), np.where(np.isinf(d) | (n == 0), F(0), plain))
    bad = np.isnan(n) | np.isnan(d) | ((d == 0) & (n == 0)) | (np.isinf(d) & np.isinf(n))
    return np.where(bad, F(np.nan), np.where(sign, -value, value)).astype(F)


def _div_scale(a: Any, d: Any, n: Any) -> tuple[Any, Any]:
    """v_div_scale_f32, by AMD's pseudocode: a (which is d or n), scaled where n / d would lose bits, and the lanes
    whose quotient v_div_fmas scales back. The pseudocode does not say of which type its denormals are; where 1 / d and
    n / d are some of float32, d is scaled down, without which no step behind makes n / d of it."""
    tiny = lambda x: (x != 0) & (np.abs(x) < 2.0**-126)  # noqa: E731
    a, d, n = np.broadcast_arrays(a, d, n)
    quotient, inverse = tiny(np.asarray(n, np.float64) / d), tiny(1.0 / np.asarray(d, np.float64))
    large = _exponent(n) - _exponent(d) >= 96
    cases = [(n == 0) | (d == 0), large, tiny(d), inverse & quotient, inverse, quotient, _exponent(n) <= 23]
    up, down = np.ldexp(a, 64), np.ldexp(a, -64)
    denominator = np.where(a == d, up, a)
    values = [F(np.nan), denominator, up, np.where(a == d, down, a), down, np.where(a == n, up, a), up]
    back = np.select(cases, [False, True, False, True, False, True, False], False)
    return np.select(cases, values, a).astype(F), back


def _div_fmas(a: Any, b: Any, c: Any, back: Any) -> Any:
    """v_div_fmas_f32: undoes the 2^64 of `_div_scale`, up for large quotients and down for small ones. AMD's pseudocode
    says 2^32, by which no scale of v_div_scale is undone: a quotient would be wrong."""
    scale = np.where(back, np.where(_exponent(c) > 127, 2.0**64, 2.0**-64), 1.0)
    return (scale * np.asarray(fma(a, b, c), np.float64)).astype(F)


def _least(a: Any, b: Any) -> Any:
    return np.where((a == 0) & (b == 0), np.where(np.signbit(a), a, b), np.fmin(a, b))


def _most(a: Any, b: Any) -> Any:
    return np.where((a == 0) & (b == 0), np.where(np.signbit(a), b, a), np.fmax(a, b))


def _of_three(two: Callable) -> Callable:
    return lambda a, b, c: two(two(a, b), c)


def _median(a: Any, b: Any, c: Any) -> Any:
    return np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))


def high_product(a: Any, b: Any) -> Any:
    """Bits 63 to 32 of a product of 32 bits by 32."""
    wide = _I64 if a.dtype == np.int32 else _U64
    return ((a.astype(wide) * b.astype(wide)) >> wide(32)).astype(a.dtype)


def _24(x: Any) -> Any:
    """The low 24 bits, with their sign where x has one."""
    return (x << 8) >> 8


def _count_into(first: int) -> Callable:
    """v_mbcnt: set bits of `a` below this lane, among the 32 lanes from `first` on, plus b."""
    below = ((_U64(1) << np.clip(np.arange(64) - first, 0, 32).astype(_U64)) - _U64(1)).astype(U)
    return lambda a, b: np.bitwise_count(a & below).astype(U) + b


def carrying(sign: int, swapped: bool = False) -> Callable:
    """Sum or difference of 32 bits, and whether it has a carry or borrow."""

    def add(a: Any, b: Any, carry: Any = 0) -> tuple[Any, Any]:
        a, b = (np.asarray(x).astype(_I64) for x in ((b, a) if swapped else (a, b)))
        exact = a + sign * (b + carry)
        return exact.astype(U), (exact < 0) | (exact >= 2**32)

    return add


def _mad64(a: Any, b: Any, c: Any) -> tuple[Any, Any]:
    """a * b + c in 64 bits, and its 65th bit."""
    product = a.astype(c.dtype) * b.astype(c.dtype)
    total = product + c
    if c.dtype == _U64:
        return total, total < c
    return total, (((product ^ total) & (c ^ total)) < 0) ^ (total < 0)


def _from_fp8(name: str, join: Callable, to: Callable = F) -> Callable:
    """Two fp8 of a half word, converted and joined as another type."""
    return lambda a, fnuz: join(to(fp8.decode(a, name, fnuz)), to(fp8.decode(a >> 8, name, fnuz)))


def _to_fp8(name: str) -> Callable:
    return lambda a, b, clamps, fnuz: fp8.encode(a, name, fnuz, clamps) | (fp8.encode(b, name, fnuz, clamps) << U(8))


_FLOAT = {**{name: ORDER[name] for name in ("eq", "gt", "ge", "lt", "le")}, "neq": np.not_equal,
          "lg": lambda a, b: (a < b) | (a > b), "nlg": lambda a, b: ~((a < b) | (a > b)),
          "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)), "u": lambda a, b: np.isnan(a) | np.isnan(b),
          **{f"n{name}": (lambda f: lambda a, b: ~f(a, b))(ORDER[name]) for name in ("gt", "ge", "lt", "le")},
          }  # fmt: skip
_KINDS = {"i16": "j", "u16": "w", "i32": "i", "u32": "u", "i64": "I", "u64": "U"}
# Shifts named `rev` take the count first.
TABLE: dict[str, tuple[str, Callable]] = {
    "v_mov_b32": ("u=u", lambda a: a), "v_mov_b64": ("U=U", lambda a: a), "v_not_b32": ("u=u", lambda a: ~a),
    **{f"v_accvgpr_{name}_b32": ("u=u", lambda a: a) for name in ("read", "write", "mov")},
    **{f"v_cmp_{name}_{t}": (f"M={k}{k}", f) for name, f in _FLOAT.items() for t, k in (("f32", "f"), ("f16", "h"))},
    **{f"v_cmp_{name}_{t}": (f"M={k}{k}", f) for name, f in ORDER.items() for t, k in _KINDS.items()},
    "v_cndmask_b32": ("x=xxm", lambda a, b, second: np.where(second, b, a)),
    **{f"v_{name}{c}_co_u32": ("uM=uum" if c or name.startswith("subb") else "uM=uu", carrying(sign, "rev" in name))
       for name, c, sign in (("add", "", 1), ("add", "c", 1), ("sub", "", -1), ("subb", "", -1), ("subrev", "", -1),
                             ("subbrev", "", -1))},
    "v_mad_u64_u32": ("UM=uuU", _mad64), "v_mad_i64_i32": ("IM=iiI", _mad64), "v_div_scale_f32": ("fM=fff", _div_scale),
    "v_add_u32": ("u=uu", lambda a, b: a + b), "v_sub_u32": ("u=uu", lambda a, b: a - b),
    "v_subrev_u32": ("u=uu", lambda a, b: b - a), "v_add3_u32": ("u=uuu", lambda a, b, c: a + b + c),
    "v_add_lshl_u32": ("u=uuu", lambda a, b, c: (a + b) << (c & 31)),
    "v_xad_u32": ("u=uuu", lambda a, b, c: (a ^ b) + c),
    "v_lshl_add_u32": ("u=uuu", lambda a, b, c: (a << (b & 31)) + c),
    "v_lshl_or_b32": ("u=uuu", lambda a, b, c: (a << (b & 31)) | c),
    "v_and_b32": ("u=uu", lambda a, b: a & b), "v_or_b32": ("u=uu", lambda a, b: a | b),
    "v_xor_b32": ("u=uu", lambda a, b: a ^ b), "v_or3_b32": ("u=uuu", lambda a, b, c: a | b | c),
    "v_and_or_b32": ("u=uuu", lambda a, b, c: (a & b) | c), "v_bfi_b32": ("u=uuu", lambda a, b, c: (a & b) | (~a & c)),
    "v_lshlrev_b32": ("u=uu", lambda a, b: b << (a & 31)), "v_lshrrev_b32": ("u=uu", lambda a, b: b >> (a & 31)),
    "v_ashrrev_i32": ("i=ii", lambda a, b: b >> (a & 31)), "v_lshlrev_b64": ("U=uU", lambda a, b: b << (a & 63)),
    "v_lshrrev_b64": ("U=uU", lambda a, b: b >> (a & 63)), "v_ashrrev_i64": ("I=iI", lambda a, b: b >> (a & 63)),
    "v_lshlrev_b16": ("w=ww", lambda a, b: b << (a & 15)), "v_lshrrev_b16": ("w=ww", lambda a, b: b >> (a & 15)),
    "v_ashrrev_i16": ("j=jj", lambda a, b: b >> (a & 15)), "v_add_u16": ("w=ww", lambda a, b: a + b),
    "v_sub_u16": ("w=ww", lambda a, b: a - b), "v_mul_lo_u16": ("w=ww", lambda a, b: a * b),
    "v_lshl_add_u64": ("U=UuU", lambda a, b, c: (a << (b & 7)) + c),
    "v_mul_lo_u32": ("u=uu", lambda a, b: a * b), "v_mul_u32_u24": ("u=uu", lambda a, b: _24(a) * _24(b)),
    "v_mul_i32_i24": ("i=ii", lambda a, b: _24(a) * _24(b)),
    "v_mad_u32_u24": ("u=uuu", lambda a, b, c: _24(a) * _24(b) + c),
    "v_mul_hi_u32": ("u=uu", high_product), "v_mul_hi_i32": ("i=ii", high_product),
    "v_bfe_u32": ("u=uuu", lambda a, b, c: field(a, b & 31, c & 31)),
    "v_bfe_i32": ("i=iuu", lambda a, b, c: field(a, b & 31, c & 31)),
    "v_bfm_b32": ("u=uu", lambda a, b: ((U(1) << (a & 31)) - 1) << (b & 31)),
    "v_bfrev_b32": ("u=u", reversed_bits), "v_perm_b32": ("u=uuu", _perm), "v_ffbh_i32": ("i=i", _first_change),
    "v_bcnt_u32_b32": ("u=uu", lambda a, b: np.bitwise_count(a).astype(U) + b),
    "v_mbcnt_lo_u32_b32": ("u=uu", _count_into(0)), "v_mbcnt_hi_u32_b32": ("u=uu", _count_into(32)),
    "v_alignbit_b32": ("u=uuu", lambda a, b, c: ((a.astype(_U64) << _U64(32)) | b) >> (c & 31)),
    **{f"v_{name}_{t}": (f"{k}={k}{k}", f) for name, f in (("min", np.minimum), ("max", np.maximum))
       for t, k in _KINDS.items() if k in "iu"},
    **{f"v_{name}3_{t}": (f"{k}={k}{k}{k}", f) for t, k in _KINDS.items() if k in "iu" for name, f in (
        ("min", _of_three(np.minimum)), ("max", _of_three(np.maximum)), ("med", _median))},
    "v_add_f32": ("f=ff", lambda a, b: a + b), "v_sub_f32": ("f=ff", lambda a, b: a - b),
    "v_subrev_f32": ("f=ff", lambda a, b: b - a), "v_mul_f32": ("f=ff", lambda a, b: a * b),
    **{f"v_{name}_{t}": (f"{k}={k}{k}", f) for name, f in (("min", _least), ("max", _most))
       for t, k in (("f32", "f"), ("f16", "h"))},
    "v_min3_f32": ("f=fff", _of_three(_least)), "v_max3_f32": ("f=fff", _of_three(_most)),
    "v_minimum3_f32": ("f=fff", _of_three(np.minimum)), "v_maximum3_f32": ("f=fff", _of_three(np.maximum)),
    **{f"v_fma{letters}_f32": ("f=fff", fma) for letters in ("", "mk", "ak")}, "v_fmac_f32": ("f=ff+", fma),
    "v_fma_mix_f32": ("f=ooo", fma), "v_fma_mixlo_f16": ("l=oooc", overflowing(exact_fma)),
    "v_fma_mixhi_f16": ("t=oooc", overflowing(exact_fma)), "v_div_fixup_f32": ("f=fff", _div_fixup),
    "v_div_fmas_f32": ("f=fffv", _div_fmas),
    "v_ldexp_f32": ("f=fi", lambda a, b: np.ldexp(a, np.clip(b, -400, 400)).astype(F)),
    "v_exp_f32": ("f=f", _in_double(np.exp2)), "v_log_f32": ("f=f", _in_double(np.log2)),
    "v_rcp_f32": ("f=f", _in_double(np.reciprocal)), "v_rcp_iflag_f32": ("f=f", _in_double(np.reciprocal)),
    "v_sqrt_f32": ("f=f", np.sqrt), "v_rsq_f32": ("f=f", _in_double(lambda a: 1.0 / np.sqrt(a))),
    "v_floor_f32": ("f=f", np.floor), "v_ceil_f32": ("f=f", np.ceil), "v_trunc_f32": ("f=f", np.trunc),
    "v_rndne_f32": ("f=f", np.rint), "v_fract_f32": ("f=f", lambda a: a - np.floor(a)),
    **{f"v_{name}_f16": ("h=hhc", overflowing(f))
       for name, f in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply))},
    "v_pack_b32_f16": ("u=WW", pack), **{f"v_dot2c_f32_{kind}": ("f=uu+", _dot2(kind)) for kind in ("f16", "bf16")},
    "v_cvt_f16_f32": ("h=fc", to_f16), "v_cvt_f16_i16": ("h=j", lambda a: a.astype(np.float16)),
    "v_cvt_f16_u16": ("h=wc", overflowing(lambda a: a)),
    **{f"v_cvt_f32_{t}": (f"f={k}", lambda a: a.astype(F)) for t, k in (("f16", "h"), ("i32", "i"), ("u32", "u"))},
    **{f"v_cvt_f32_ubyte{i}": ("f=u", (lambda s: lambda a: ((a >> s) & 255).astype(F))(U(8 * i))) for i in range(4)},
    "v_cvt_u32_f32": ("u=f", to_int(U)), "v_cvt_i32_f32": ("i=f", to_int(np.int32)),
    "v_cvt_pk_bf16_f32": ("u=ff", lambda a, b: pack(f32_to_bf16(a), f32_to_bf16(b))),
    "v_cvt_pk_f16_f32": ("u=ffc", lambda a, b, clamps: pack(to_f16(a, clamps), to_f16(b, clamps))),
    **{row: of for name in fp8.NAMES for row, of in {
        f"v_cvt_f32_{name}": ("f=uz", lambda a, fnuz, n=name: fp8.decode(a, n, fnuz)),
        f"v_cvt_pk_f32_{name}": ("U=uz", _from_fp8(name, pair)),
        f"v_cvt_scalef32_pk_f32_{name}": ("U=W1z", _from_fp8(name, pair)),
        f"v_cvt_scalef32_pk_f16_{name}": ("u=W1z", _from_fp8(name, pack, np.float16)),
        f"v_cvt_scalef32_pk_bf16_{name}": ("u=W1z", _from_fp8(name, pack, f32_to_bf16)),
        f"v_cvt_pk_{name}_f32": ("p=ffcz", _to_fp8(name)),
        f"v_cvt_scalef32_pk_{name}_f32": ("p=ff1cz", _to_fp8(name))}.items()},
}  # fmt: skip
