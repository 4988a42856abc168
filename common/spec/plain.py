"""Numbers of other libraries (numpy's, fractions) as Python's own, which both DSLs take: once, where they come in.

What is no number of the kind stays as it is, for the check that refuses it by its name: a bool is no integer, and a
tensor is no number, since reading one would wait for its device.
"""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import numpy


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
        return math.copysign(math.inf, value)


def flag(value: Any) -> Any:
    return bool(value) if isinstance(value, numpy.bool_) else value
