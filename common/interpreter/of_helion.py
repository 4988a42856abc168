"""What Helion asks of a device that a CPU is not, and what of its code Triton's interpreter is slow at."""

from __future__ import annotations

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
    """Inside: the interpreted device has `n` units, for kernels whose grid is a fixed number of programs.

    Programs run one after another, so a kernel with `hl.barrier` hangs with any n but 1.
    """
    global _units
    before, _units = _units, n
    try:
        yield
    finally:
        _units = before


def num_units() -> int:
    """How many units the interpreted device has now."""
    return _units


@contextlib.contextmanager
def light_import() -> Iterator[None]:
    """Inside: Helion is imported in 7.1 s of one core where it took 9.5, which each process that interprets or compiles
    a kernel pays.

    1.2 s were looks of gc at modules that all stay. As much were scikit-learn with scipy and pandas: Helion imports
    them for its own searches alone, which raise without them. Afterwards both are as before.
    """
    hidden, collects = "sklearn" not in sys.modules, gc.isenabled()
    if hidden:
        sys.modules["sklearn"] = None  # type: ignore[assignment]  # importing it raises ImportError
    gc.disable()
    try:
        yield
    finally:
        if hidden:
            sys.modules.pop("sklearn", None)
        if collects:
            gc.enable()


def _helion_units() -> Patches:
    """Helion asks how many units a device has, and raises on a CPU: answer what `units(n)` says, 1 outside of it."""
    import helion.runtime as runtime

    original = runtime.get_num_sm

    def get_num_sm(device: Any, **options: Any) -> int:
        return _units if device.type == "cpu" else original(device, **options)

    return [(runtime, "get_num_sm", get_num_sm)]


def _helion_products() -> Patches:
    """Helion raises a tile to what a product takes, on a CPU 16 keys: answer 32 of 8 bits, as NVIDIA's compiler does.

    Unseen, a kernel counted in tiles of 32 keys where its host counted in 16, and was right on a CPU alone.
    """
    import helion._compat as compat

    original = compat._min_dot_size

    def min_dot_size(device: Any, left: Any, right: Any) -> tuple[int, int, int]:
        rows, lanes, keys = original(device, left, right)
        return rows, lanes, 32 if device.type == "cpu" and left.itemsize == right.itemsize == 1 else keys

    return [(compat, "_min_dot_size", min_dot_size)]


def _helion_extrema() -> Patches:
    """amax and amin combine two elements at a time, through tl.maximum: a launch over 16 rows of 64 keys took 23 ms,
    and takes 0.8 by numpy, whose max is NaN too where any element is.
    """
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
