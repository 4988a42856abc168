"""Numbers of AMD's pseudocode: bits read and written as a type, and the functions that the text calls by name."""

import math
from fractions import Fraction
from typing import Any

import numpy as np

FLOATS = {"f32": (np.float32, np.uint32), "f16": (np.float16, np.uint16), "f64": (np.float64, np.uint64)}


class Bits(int):
    """An integer that knows how many bits were read: what { a, b } needs."""

    width = 0


def bits(value: int, width: int) -> Bits:
    found = Bits(value & ((1 << width) - 1))
    found.width = width
    return found


def to_number(raw: Any, kind: str) -> Any:
    """Bits (or a number) read as `u32`, `i16`, `f32`, `b64`, `bf16`, `u24` ..."""
    if isinstance(raw, float):
        return raw
    if kind in ("fp8", "bf8"):
        return bits(raw, 8)
    if kind == "bf16":
        return float(np.uint32((raw & 0xFFFF) << 16).view(np.float32))
    if kind in FLOATS:
        real, whole = FLOATS[kind]
        return float(whole(raw & ((1 << int(kind[1:])) - 1)).view(real))
    width = int(kind[1:])
    value = bits(raw, width)
    return value - (1 << width) if kind[0] == "i" and value >> (width - 1) else value


def to_bits(value: Any, kind: str) -> Bits:
    """A number as the bits of `kind`. A float keeps its sign of zero; NaN is one NaN."""
    if kind == "bf16":
        raw = int(np.float32(value).view(np.uint32))
        return bits((raw >> 16) | 0x40 if math.isnan(value) else (raw + 0x7FFF + (raw >> 16 & 1)) >> 16, 16)
    if kind in FLOATS:
        real, whole = FLOATS[kind]
        with np.errstate(all="ignore"):
            return bits(int(real(float(value)).view(whole)), int(kind[1:]))
    return bits(int(value), int(kind[1:]))


def _fma(a: float, b: float, c: float) -> float:
    if not all(map(math.isfinite, (a, b, c))):
        return a * b + c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return a * b + c
    with np.errstate(over="ignore"):
        near = np.float32(float(exact))
    if not np.isfinite(near):
        return float(near)
    around = [near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))]
    finite = [x for x in around if np.isfinite(x)]
    return float(min(finite, key=lambda x: (abs(Fraction(float(x)) - exact), int(x.view(np.uint32)) & 1)))


def divide(a: Any, b: Any) -> Any:
    if isinstance(a, float) or isinstance(b, float):
        with np.errstate(all="ignore"):
            return float(np.float64(a) / np.float64(b))
    return a // b


def _saturating(low: int, high: int) -> Any:
    return lambda x: 0 if math.isnan(x) else int(min(max(math.trunc(x) if math.isfinite(x) else x, low), high))


def _quiet(function: Any) -> Any:
    def call(*values: Any) -> float:
        with np.errstate(all="ignore"):
            return float(function(*(np.float64(value) for value in values)))

    return call


FUNCTIONS = {
    "fma": _fma, "pow": _quiet(lambda a, b: a**b), "log2": _quiet(np.log2), "sqrt": _quiet(np.sqrt), "abs": abs,
    "trunc": _quiet(np.trunc), "floor": _quiet(np.floor), "fract": _quiet(lambda x: x - np.floor(x)),
    "isEven": lambda x: x % 2 == 0, "isNAN": math.isnan, "isSignalNAN": lambda x: False, "cvtToQuietNAN": lambda x: x,
    "sign": lambda x: int(math.copysign(1, x) < 0), "ldexp": _quiet(lambda x, n: np.ldexp(x, int(n))),
    "exponent": lambda x: int(np.float32(x).view(np.uint32)) >> 23 & 255, "signext": lambda x: x,
    "signext_from_bit": lambda x, n: (x & ((1 << n) - 1)) - (1 << n) if n and x >> (n - 1) & 1 else x & ((1 << n) - 1),
    "f32_to_i32": _saturating(-(2**31), 2**31 - 1), "f32_to_u32": _saturating(0, 2**32 - 1),
    **{name: float for name in ("f16_to_f32", "f32_to_f16", "bf16_to_f32", "f32_to_bf16", "i32_to_f32", "u32_to_f32",
                               "i16_to_f16", "u16_to_f16")},
}  # fmt: skip
