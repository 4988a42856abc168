"""Repairs for Helion: what it asks of a device that a CPU lacks, and code of its that Triton's interpreter runs
slowly."""

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .of_triton import Patches

_units = 1


@contextlib.contextmanager
def units(n: int) -> Iterator[None]:
    """In this context the interpreted device has `n` units, for kernels whose grid is a fixed number of programs.

    Programs run one after another, so a kernel with `hl.barrier` hangs unless n is 1.
    """
    global _units
    before, _units = _units, n
    try:
        yield
    finally:
        _units = before


def num_units() -> int:
    """The number of units of the interpreted device."""
    return _units


@contextlib.contextmanager
def light_import() -> Iterator[None]:
    """In this context Helion imports faster; every process that interprets or compiles a kernel pays for its import.

    The garbage collector would scan modules that all stay, and Helion imports scikit-learn, scipy and pandas only for
    its own searches, which raise without them. Both are restored afterwards.
    """
    hidden, collects = "sklearn" not in sys.modules, gc.isenabled()
    if hidden:
        sys.modules["sklearn"] = None  # makes its import raise ImportError
    gc.disable()
    try:
        yield
    finally:
        if hidden:
            sys.modules.pop("sklearn", None)
        if collects:
            gc.enable()


def _helion_units() -> Patches:
    """Answer Helion's question for the number of units, which raises on a CPU, with the number of `units(n)`, or 1."""
    import helion.runtime as runtime

    original = runtime.get_num_sm

    def get_num_sm(device: Any, **options: Any) -> int:
        return _units if device.type == "cpu" else original(device, **options)

    return [(runtime, "get_num_sm", get_num_sm)]


def _helion_products() -> Patches:
    """Answer 32 keys of 8 bits for the smallest operand of a product, as NVIDIA's compiler does; on a CPU Helion takes
    16.

    Otherwise a kernel that counts in tiles of 32 keys, on a host that counts in 16, would be right on a CPU only.
    """
    import helion._compat as compat

    original = compat._min_dot_size

    def min_dot_size(device: Any, left: Any, right: Any) -> tuple[int, int, int]:
        rows, lanes, keys = original(device, left, right)
        return rows, lanes, 32 if device.type == "cpu" and left.itemsize == right.itemsize == 1 else keys

    return [(compat, "_min_dot_size", min_dot_size)]


def _helion_extrema() -> Patches:
    """Replace amax and amin, which combine two elements at a time through tl.maximum, by numpy's: 29 times faster.
    numpy's maximum is NaN too where any element is."""
    from helion.runtime.triton import helpers
    from triton.runtime import interpreter

    original = interpreter.ReduceOps.apply_impl

    def apply_impl(self: Any, values: Any) -> Any:
        if self.combine_fn is helpers._maximum_propagate_nan:
            return self.min_max(values[0], val_reduce_op=np.max)
        if self.combine_fn is helpers._minimum_propagate_nan:
            return self.min_max(values[0], val_reduce_op=np.min)
        return original(self, values)

    return [(interpreter.ReduceOps, "apply_impl", apply_impl)]


REPAIRS: dict[str, Callable[[], Patches]] = {
    "helion_units": _helion_units,
    "helion_products": _helion_products,
    "helion_extrema": _helion_extrema,
}
