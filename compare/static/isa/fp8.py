"""8-bit floats: e4m3 and e5m2, in OCP's form (gfx950) or `fnuz`, with one NaN and no infinity (gfx942)."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from compare.static.isa.errors import NotExecutable

MANTISSA = {"fp8": 3, "bf8": 2}  # mantissa bits, by the name in a mnemonic


@functools.cache
def _magnitudes(mantissa: int, fnuz: bool) -> tuple[np.ndarray, int]:
    """float64 [129]: the value of each code without its sign, and the next power of two; the code of the largest
    number."""
    code, bias = np.arange(129), 2 ** (6 - mantissa) - 1 + fnuz
    exponent, digits = code >> mantissa, code & ((1 << mantissa) - 1)
    whole = np.where(exponent > 0, digits + (1 << mantissa), digits)
    largest = 127 if fnuz else 126 if mantissa == 3 else 123
    return np.ldexp(whole.astype(np.float64), np.maximum(exponent, 1) - bias - mantissa), largest


@functools.cache
def _values(mantissa: int, fnuz: bool) -> np.ndarray:
    """float32 [256]: the value of each code."""
    magnitudes, largest = _magnitudes(mantissa, fnuz)
    positive = magnitudes[:128].copy()
    positive[largest + 1 :] = np.nan
    if mantissa == 2 and not fnuz:
        positive[largest + 1] = np.inf
    negative = -positive
    if fnuz:
        negative[0] = np.nan
    return np.concatenate([positive, negative]).astype(np.float32)


def decode(code: Any, name: str, fnuz: bool) -> Any:
    """The low byte of each word -> float32."""
    return _values(MANTISSA[name], fnuz)[np.asarray(code) & 0xFF]


def encode(x: Any, name: str, fnuz: bool, clamps: Any) -> Any:
    """float32 -> uint32 with the code, rounded to nearest even. An overflow becomes the largest number where MODE
    clamps, else infinity where the format has one, else NaN. Raises NotExecutable for a clamped infinity: AMD's texts
    do not define it."""
    if (np.isinf(x) & clamps).any():
        raise NotExecutable(f"v_cvt_pk_{name}_f32", "of an infinity, where MODE clamps")
    magnitudes, largest = _magnitudes(MANTISSA[name], fnuz)
    grid = magnitudes[: largest + 2]
    size, middle = np.abs(np.asarray(x, np.float64)), (grid[1:] + grid[:-1]) / 2
    low, high = (np.searchsorted(middle, size, side) for side in ("left", "right"))
    code = np.where(low % 2 == 0, low, high)  # they differ by one half way between two numbers
    nan = 0x80 if fnuz else 0x7F
    beyond = nan if fnuz or name == "fp8" else largest + 1
    code = np.where(code > largest, np.where(clamps, largest, beyond), code)
    code = np.where(np.isnan(x), nan, code)
    unsigned = fnuz & (code % 0x80 == 0)  # zero has no sign; negative zero's code is NaN
    return (code | np.where(np.signbit(x) & ~unsigned, 0x80, 0)).astype(np.uint32)
