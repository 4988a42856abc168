"""Repairs of Triton's CPU interpreter (TRITON_INTERPRET=1), each undoable, each with a canary test.

Without them a bf16 kernel gives noise or is rejected though right, and hardly any Triton code of Helion runs.
Private names of Triton and Helion are touched here and nowhere else: `triton.runtime.interpreter.InterpreterBuilder`,
`tl.constexpr`, `triton.language.extra.libdevice`, `helion.runtime.get_num_sm`.

What stays wrong: arithmetic on bf16 values (they are carried as bit patterns), so kernels cast to float32 first.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Patches = list[tuple[Any, str, Any]]  # (owner, attribute, replacement)

_LIBDEVICE = ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "erf", "floor", "ceil", "abs", "fma")
_units = 1
_originals: dict[str, Patches] = {}  # name of an active repair -> what to put back


def wanted() -> bool:
    """Whether this process interprets kernels instead of compiling them."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _bf16_dot() -> Patches:
    """tl.dot multiplies the bit patterns of bf16 operands (triton #11584): widen them to float32, which is exact."""
    import triton.language as tl
    from triton.runtime import interpreter

    original = interpreter.InterpreterBuilder.create_dot

    def widen(handle: Any) -> Any:
        if handle.dtype.scalar == tl.bfloat16:
            return interpreter.TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)
        return handle

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        return original(self, widen(a), widen(b), d, *rest)

    return [(interpreter.InterpreterBuilder, "create_dot", create_dot)]


def _bf16_rounding() -> Patches:
    """float32 to bf16 truncates; hardware rounds to nearest, ties to even. The way back is upstream's, as one shift.

    An integer to bf16 keeps its bits: it goes through float32, which is exact for 8 bits.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    original = interpreter.InterpreterBuilder.cast_impl

    def to_bf16(values: np.ndarray) -> np.ndarray:
        bits = np.ascontiguousarray(values).view(np.uint32).astype(np.uint64).reshape(values.shape)
        nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return np.where(np.isnan(values), np.uint16(0x7FC0), nearest)

    def to_float32(bits: np.ndarray) -> np.ndarray:
        return (np.ascontiguousarray(bits).astype(np.uint32) << 16).view(np.float32).reshape(bits.shape)

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        pair = (src.dtype.scalar, dst_type.scalar)
        if pair == (tl.float32, tl.bfloat16):
            return interpreter.TensorHandle(to_bf16(src.data), tl.bfloat16)
        if pair == (tl.bfloat16, tl.float32):
            return interpreter.TensorHandle(to_float32(src.data), tl.float32)
        if pair[1] == tl.bfloat16 and pair[0].is_int():
            return interpreter.TensorHandle(to_bf16(src.data.astype(np.float32)), tl.bfloat16)
        return original(self, src, dst_type)

    return [(interpreter.InterpreterBuilder, "cast_impl", cast_impl)]


def _fp8_casts() -> Patches:
    """float32 to fp8 loses the carry of a mantissa that rounds up (31.7 becomes 16) and 2-4% of values with it; fp8 to
    others has no NaN, no infinity, and in fp16 no subnormals; e4m3fnuz is no type at all. torch's casts instead.

    Out of range is NaN or infinity, as in torch: a GPU may saturate, so kernels clamp first.
    """
    import torch
    import triton.language as tl
    from triton.runtime import interpreter

    types = {tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2, tl.float8e4b8: torch.float8_e4m3fnuz}
    others = {tl.float16: torch.float16, tl.float32: torch.float32, tl.bfloat16: torch.bfloat16}
    convert, core = interpreter._convert_float, interpreter._patch_lang_core

    def convert_float(values: Any, source: Any, target: Any, rounding: Any) -> Any:
        if (source in types and target in others) or (source in others and target in types):
            bits = torch.from_numpy(np.ascontiguousarray(values)).view((types | others)[source])
            result = bits.to(torch.float32).to((types | others)[target])  # by way of float32, which holds all of them
            integer = torch.uint8 if target in types else torch.int16 if target != tl.float32 else torch.float32
            return result.view(integer).numpy().reshape(values.shape)
        return convert(values, source, target, rounding)

    def patch_lang_core(lang: Any, scope: Any) -> None:
        core(lang, scope)
        known = lang.dtype.to_ir

        def to_ir(self: Any, builder: Any) -> Any:
            return builder.get_fp8e4b8_ty() if self.name == "fp8e4b8" else known(self, builder)

        scope.set_attr(lang.dtype, "to_ir", to_ir)

    return [(interpreter, "_convert_float", convert_float), (interpreter, "_patch_lang_core", patch_lang_core)]


def _constexpr_rmod() -> Patches:
    """`int % constexpr` raises: constexpr reflects every operator but this one."""
    import triton.language as tl

    def rmod(self: Any, other: Any) -> Any:
        return tl.constexpr(getattr(other, "value", other) % self.value)

    return [(tl.constexpr, "__rmod__", rmod)]


def _libdevice() -> Patches:
    """Every libdevice function returns None: bind the ones Helion emits to tl.

    tl's are looked up at the call, because triton.language itself is patched only while a kernel runs.
    """
    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.runtime import interpreter

    def late(name: str) -> Callable[..., Any]:
        return lambda *args: getattr(tl, name)(*args)

    def tanh(x: Any) -> Any:
        handle = interpreter.TensorHandle(np.tanh(x.handle.data), x.handle.dtype)
        return tl.tensor(handle, x.type)

    return [(libdevice, name, late(name)) for name in _LIBDEVICE] + [(libdevice, "tanh", tanh)]


def _dependent_launch() -> Patches:
    """Programmatic dependent launch orders two grids of a GPU; here one launch ends before the next begins."""
    from triton.language.extra import cuda

    def nothing(**_: Any) -> None: ...

    return [(cuda, name, nothing) for name in ("gdc_wait", "gdc_launch_dependents")]


def _patch_once() -> Patches:
    """Every call of one jit function by another patches triton.language anew: do so once a launch, and undo it after.

    A launch of Helion's parallel_softmax over 56 query tokens: 11.9 s before, 5.7 s after. Looking a numpy dtype up
    builds a table of 18 each time: the next on the list.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    original = interpreter._patch_lang
    scopes: list[tuple[frozenset[int], Any]] = []  # of the launch that is running: patched modules, and how to undo it

    @functools.cache
    def modules(function: Any) -> frozenset[int]:
        return frozenset(id(value) for value in function.__globals__.values() if value is tl or value is tl.core)

    class Scope:
        def restore(self) -> None:  # called once, at the end of a launch
            while scopes:
                scopes.pop()[1].restore()

    def patch_lang(function: Any) -> Scope:
        wanted = modules(function)
        if not any(wanted <= patched for patched, _ in scopes):
            scopes.append((wanted, original(function)))
        return Scope()

    lookup = interpreter._get_np_dtype
    table: dict[Any, np.dtype] = {}  # scalar types alone: block and pointer types have no hash

    def get_np_dtype(dtype: Any) -> np.dtype:
        scalar = dtype.scalar
        if isinstance(scalar, tl.pointer_type):
            return lookup(scalar)
        if scalar not in table:
            table[scalar] = lookup(scalar)
        return table[scalar]

    return [(interpreter, "_patch_lang", patch_lang), (interpreter, "_get_np_dtype", get_np_dtype)]


def _helion_units() -> Patches:
    """Helion asks how many units a device has, and raises on a CPU: answer what `units(n)` says, 1 outside of it."""
    try:
        import helion.runtime as runtime
    except ImportError:
        return []
    original = runtime.get_num_sm

    def get_num_sm(device: Any, **options: Any) -> int:
        return _units if device.type == "cpu" else original(device, **options)

    return [(runtime, "get_num_sm", get_num_sm)]


def _helion_products() -> Patches:
    """Helion raises a tile to what a product takes, on a CPU 16 keys: answer 32 of 8 bits, as NVIDIA's compiler does.

    Unseen, a kernel counted in tiles of 32 keys where its host counted in 16, and was right on a CPU alone.
    """
    try:
        import helion._compat as compat
    except ImportError:
        return []
    original = compat._min_dot_size

    def min_dot_size(device: Any, left: Any, right: Any) -> tuple[int, int, int]:
        rows, lanes, keys = original(device, left, right)
        return rows, lanes, 32 if device.type == "cpu" and left.itemsize == right.itemsize == 1 else keys

    return [(compat, "_min_dot_size", min_dot_size)]


REPAIRS: dict[str, Callable[[], Patches]] = {
    "bf16_dot": _bf16_dot,
    "bf16_rounding": _bf16_rounding,
    "fp8_casts": _fp8_casts,
    "constexpr_rmod": _constexpr_rmod,
    "libdevice": _libdevice,
    "dependent_launch": _dependent_launch,
    "patch_once": _patch_once,
    "helion_units": _helion_units,
    "helion_products": _helion_products,
}


def _apply(name: str) -> None:
    if name in _originals:
        return
    patches = REPAIRS[name]()
    _originals[name] = [(owner, attribute, getattr(owner, attribute, None)) for owner, attribute, _ in patches]
    for owner, attribute, replacement in patches:
        setattr(owner, attribute, replacement)


def _undo(name: str) -> None:
    for owner, attribute, original in _originals.pop(name):
        if original is None:
            delattr(owner, attribute)
        else:
            setattr(owner, attribute, original)


def install() -> None:
    """Apply all repairs, once, before the first launch; nothing unless TRITON_INTERPRET=1. Works without Helion."""
    if wanted():
        for name in REPAIRS:
            _apply(name)


@contextlib.contextmanager
def without(name: str) -> Iterator[None]:
    """The installed repairs less one: what a canary test needs."""
    _undo(name)
    try:
        yield
    finally:
        _apply(name)


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
