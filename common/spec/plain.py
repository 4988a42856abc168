"""Convert numbers of other libraries (numpy, fractions) to Python's own, once, where they enter.

What is no number of the kind is returned unchanged, for the check that refuses it by name: a bool is no integer, and a
tensor is no number, because reading it would wait for its device.
"""

import math
from numbers import Integral, Real
from typing import Any

import numpy
import torch


def integer(value: Any) -> Any:
    if type(value) is int or not isinstance(value, Integral) or isinstance(value, bool):
        return value
    return int(value)


def real(value: Any) -> Any:
    """A float; infinite where the number exceeds its range."""
    if type(value) is float or not isinstance(value, Real) or isinstance(value, bool):
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def flag(value: Any) -> Any:
    return bool(value) if isinstance(value, numpy.bool_) else value


def shown(value: object) -> str:
    """A value as error messages show it. A tensor is shown by its kind only: printing it would wait for its device."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of {value.dtype} on {value.device}"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(shown, value[:4]))}{', ...' if len(value) > 4 else ''})"
    try:
        return f"{value!r:.80}"
    except ValueError:  # an integer with more digits than Python prints
        return f"one of {type(value).__name__}"
