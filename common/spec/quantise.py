"""One-byte numbers: the largest of each type, rounding to them, and the content of unowned places."""

import torch
from torch import Tensor

from common.spec.paged_batch import QUANTISED

LEAST_SCALE = 1e-6  # of a token and head, so that a row of zeros does not divide by 0
# Standard deviation of the elements that a random cache holds: int8 with 5 of them inside its range. Scales of about
# 1 / SPREAD make them numbers of about 1.
SPREAD = dict.fromkeys(QUANTISED, 1.0) | {torch.int8: 25.0}
_NAN = {torch.float8_e4m3fn: 0x7F, torch.float8_e4m3fnuz: 0x80, torch.float8_e5m2: 0x7F}


def largest(dtype: torch.dtype) -> float:
    """448 for e4m3fn, 240 for e4m3fnuz, 57344 for e5m2, 127 for int8."""
    return float(torch.iinfo(dtype).max) if dtype == torch.int8 else torch.finfo(dtype).max


def scale_limit(dtype: torch.dtype) -> float:
    """What the largest element of a token and head becomes: 224 for e4m3fnuz, as vLLM writes it, else `largest`."""
    return 224.0 if dtype == torch.float8_e4m3fnuz else largest(dtype)


def quantise(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x, clamped to the range of `dtype` and rounded to nearest: to even in fp8, half away from zero in int8. NaN stays
    NaN in fp8 and becomes 0 in int8."""
    x = x.float()
    if dtype != torch.int8:
        return x.clamp(-largest(dtype), largest(dtype)).to(dtype)
    rounded = torch.sign(x) * torch.floor(x.abs() + 0.5)
    return rounded.nan_to_num(nan=0.0).clamp(-128, 127).to(dtype)


def fill_where(cache: Tensor, mask: Tensor, value: float) -> None:
    """Assign cache[mask] = value; mask: bool, or row numbers.

    NaN becomes the largest number of int8, which has no NaN. Torch has no such assignment in fp8.
    """
    if cache.dtype not in QUANTISED:
        cache[mask] = value
        return
    stored = quantise(torch.tensor([value]), cache.dtype).view(torch.uint8)
    if value != value:
        stored.fill_(_NAN.get(cache.dtype, 127))
    cache.view(torch.uint8)[mask] = stored.to(cache.device)


def negate(tensor: Tensor) -> None:
    """Negate in place. Twice restores the bits, except for zero in e4m3fnuz, which has no sign, and -128 in int8."""
    if tensor.dtype in QUANTISED:
        tensor.copy_((-tensor.float()).to(tensor.dtype) if tensor.dtype != torch.int8 else -tensor.clamp(min=-127))
    else:
        tensor.neg_()


def draw(tensor: Tensor, generator: torch.Generator) -> None:
    """Fill with random normal numbers, directly where the type supports it, else clamped and rounded, some rows at a
    time: a pool may be half of the GPU's memory."""
    options = {"generator": generator, "device": tensor.device}
    plain = tensor.dtype not in QUANTISED
    rows = max(1, 2 ** (28 if plain else 24) // max(1, tensor[:1].numel()))
    for part in tensor.split(rows) if tensor.numel() else ():
        values = torch.randn(part.shape, dtype=tensor.dtype if plain else torch.float32, **options)
        if not plain:
            values = values * SPREAD[tensor.dtype]
            if tensor.dtype == torch.int8:  # replaces int8's least number, which is outside the range of a draw
                values.view(-1)[::251] = -128.0
            values = quantise(values, tensor.dtype)
        part.copy_(values)
