"""Convert between number types; fused products, overflows, and several numbers in one register."""

from collections.abc import Callable
from typing import Any

import numpy as np

U, F, _U64, _I64 = np.uint32, np.float32, np.uint64, np.int64


def exact_fma(a: Any, b: Any, c: Any) -> Any:
    """a * b + c in float64, so that rounding it to fewer bits rounds once.

    The product of two float32 is exact there, and the sum nearly is: where it may lie half way between two narrower
    numbers, its last bit records that something was dropped.
    """
    product, c = np.broadcast_arrays(np.asarray(a, np.float64) * b, np.asarray(c, np.float64))
    total = np.asarray(product + c)
    round_ = ((total.view(_U64) & _U64(0x0FFFFFFF)) == 0) & (total != 0)
    if round_.any():
        back = total - product
        dropped = (product - (total - back)) + (c - back)
        step = np.where(np.signbit(dropped) == np.signbit(total), 1, -1).astype(_I64)
        total = np.where(round_ & (np.abs(dropped) > 0), (total.view(_I64) + step).view(np.float64), total)
    return total


def fma(a: Any, b: Any, c: Any) -> Any:
    return exact_fma(a, b, c).astype(F)


def bf16_to_f32(x: Any) -> Any:
    """uint32 or uint16 with bf16 in the low half -> float32."""
    return (np.asarray(x).astype(U) << 16).view(F)


def f32_to_bf16(x: Any) -> Any:
    """float32 -> uint32 with bf16 in the low half, to nearest even."""
    raw = np.asarray(x, F).view(U)
    rounded = (raw.astype(_U64) + 0x7FFF + ((raw >> 16) & 1)) >> 16
    return np.where(np.isnan(x), (raw >> 16) | 0x40, rounded.astype(U))


def overflowing(function: Callable) -> Callable:
    """A float16 result: where MODE clamps, an infinity that no source had becomes the largest number."""

    def clamped(*values: Any) -> Any:
        *sources, clamps = values
        result = np.asarray(function(*sources)).astype(np.float16)
        new = np.isinf(result) & clamps & np.logical_and.reduce(np.broadcast_arrays(*map(np.isfinite, sources)))
        return np.where(new, np.copysign(np.float16(65504), result), result)

    return clamped


def pack(low: Any, high: Any) -> Any:
    """Two values of 16 bits, float16 or whole, in one word."""
    low, high = (x.view(np.uint16) if x.dtype == np.float16 else x for x in map(np.asarray, (low, high)))
    return low.astype(U) | (high.astype(U) << 16)


def pair(low: Any, high: Any) -> Any:
    """Two float32 in a register pair."""
    return np.asarray(low).view(U).astype(_U64) | (np.asarray(high).view(U).astype(_U64) << _U64(32))


def halves(x: Any, kind: str) -> tuple[Any, Any]:
    """Both halves of a word as float32."""
    x = np.asarray(x)
    if kind == "bf16":
        return (x << 16).view(F), (x & 0xFFFF0000).view(F)
    return tuple((x >> s).astype(np.uint16).view(np.float16).astype(F) for s in (0, 16))


def to_int(dtype: Any) -> Callable:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max

    def convert(a: Any) -> Any:
        a = np.trunc(np.nan_to_num(np.asarray(a, np.float64), nan=0.0, posinf=high, neginf=low))
        return np.clip(a, low, high).astype(_I64).astype(dtype)

    return convert


to_f16 = overflowing(lambda a: np.asarray(a, F))
