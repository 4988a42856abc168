"""Numbers of other libraries (numpy's, fractions) as Python's own, which both DSLs take: once, where they come in.

What is no number of the kind stays as it is, for the check that refuses it by its name: a bool is no integer, and a
tensor is no number, since reading one would wait for its device.
"""

from __future__ import annotations

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
    """A float; infinite where the number is beyond its range."""
    if type(value) is float or not isinstance(value, Real) or isinstance(value, bool):
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def flag(value: Any) -> Any:
    return bool(value) if isinstance(value, numpy.bool_) else value


def shown(value: object) -> str:
    """A value as an error says it. Of a tensor its kind alone: to print it is to wait for its device."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of {value.dtype} on {value.device}"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(shown, value[:4]))}{', ...' if len(value) > 4 else ''})"
    try:
        return f"{value!r:.80}"
    except ValueError:  # an integer of more digits than Python prints
        return f"one of {type(value).__name__}"
