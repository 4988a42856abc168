"""Repairs for Triton's interpreter: what it computes wrong, and what it does slowly."""

import dataclasses
import functools
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

LOCK = threading.RLock()
os.register_at_fork(after_in_child=LOCK._at_fork_reinit)  # a thread of the parent may have held it
Patches = list[tuple[Any, str, Any]]  # (owner, attribute, replacement)

_LIBDEVICE = ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "erf", "floor", "ceil", "abs", "fma")


def _bf16_dot() -> Patches:
    """Multiply bf16 operands as float32, which is exact; tl.dot multiplies their bit patterns (triton #11584)."""
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
    """Round float32 to bf16 to nearest even, as hardware does; the interpreter truncates.

    Integers go to bf16 through float32, which is exact for 8 bits; the interpreter keeps their bits.
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
    """Cast fp8 with torch. The interpreter loses the carry of a mantissa that rounds up (31.7 becomes 16), fp8 has no
    NaN and no infinity in it, and e4m3fnuz is not a type.

    Out of range becomes NaN or infinity, as in torch; a GPU may saturate, so kernels clamp first.
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
            result = bits.to(torch.float32).to((types | others)[target])  # through float32, which holds all of them
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
    """Let `int % constexpr` work: constexpr reflects every operator but this one."""
    import triton.language as tl

    def rmod(self: Any, other: Any) -> Any:
        return tl.constexpr(getattr(other, "value", other) % self.value)

    return [(tl.constexpr, "__rmod__", rmod)]


def _libdevice() -> Patches:
    """Bind the libdevice functions that Helion emits to tl's; in the interpreter they return None.

    tl's functions are looked up at the call, because triton.language is patched only while a kernel runs.
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
    """Make programmatic dependent launch a no-op: in the interpreter one launch ends before the next begins."""
    from triton.language.extra import cuda

    def nothing(**_: Any) -> None: ...

    return [(cuda, name, nothing) for name in ("gdc_wait", "gdc_launch_dependents")]


def _patch_once() -> Patches:
    """Patch triton.language once a launch, not for every call between jit functions: this halves the time of a
    launch."""
    import triton.language as tl
    from triton.runtime import interpreter

    original = interpreter._patch_lang
    scopes: list[tuple[frozenset[int], Any]] = []  # of the running launch: patched modules, and how to undo it

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


def _one_launch() -> Patches:
    """Let threads launch one after another: a launch patches triton.language and sets the program's index for the whole
    process."""
    from triton.runtime import interpreter

    original = interpreter.GridExecutor.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        with LOCK:
            original(self, *args, **kwargs)

    return [(interpreter.GridExecutor, "__call__", call)]


def _unseen_overflow() -> Patches:
    """Do not compute each integer operation a second time in 64 bits: the assertion is dropped unless options.debug is
    set. This took two fifths of some launches."""
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    return [(builder, "options", dataclasses.replace(builder.options, sanitize_overflow=builder.options.debug))]


def _known_shapes() -> Patches:
    """Cache the wrapped sizes and the type of a block by its shape; nothing writes to them. This took a fifth of
    Triton's launches."""
    import triton.language as tl

    block, value = tl.block_type.__init__, tl.tensor.__init__
    blocks: dict[tuple[Any, ...], dict[str, Any]] = {}
    values: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def of_block(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple([size.value if type(size) is tl.constexpr else size for size in shape])
        key = (type(element_ty), element_ty.name, getattr(element_ty, "address_space", None), sizes)
        if any(type(size) is not int for size in sizes):
            block(self, element_ty, shape)
        elif key in blocks:
            self.__dict__.update(blocks[key])
        else:
            block(self, element_ty, shape)
            blocks[key] = dict(self.__dict__)

    def of_value(self: Any, handle: Any, type: Any) -> None:
        sizes = tuple(type.shape) if type.is_block() else ()
        if sizes in values:
            self.shape, self.numel = values[sizes]
            self.handle, self.type, self.dtype = handle, type, type.scalar
        else:
            value(self, handle, type)
            values[sizes] = self.shape, self.numel

    return [(tl.block_type, "__init__", of_block), (tl.tensor, "__init__", of_value)]


def _spread_truth() -> Patches:
    """Give the result of a comparison the type bool: Triton 3.9 refuses integers as a mask (`mask has unsupported
    dtype`)."""
    import triton.language as tl
    from triton.runtime import interpreter

    original = interpreter.InterpreterBuilder.create_splat

    def create_splat(self: Any, ret_ty: Any, arg: Any) -> Any:
        if arg.data.dtype != np.bool_:
            return original(self, ret_ty, arg)
        return interpreter.TensorHandle(np.full(ret_ty.shape, arg.data[0]), tl.int1)

    return [(interpreter.InterpreterBuilder, "create_splat", create_splat)]


REPAIRS: dict[str, Callable[[], Patches]] = {
    "bf16_dot": _bf16_dot,
    "bf16_rounding": _bf16_rounding,
    "fp8_casts": _fp8_casts,
    "constexpr_rmod": _constexpr_rmod,
    "libdevice": _libdevice,
    "dependent_launch": _dependent_launch,
    "spread_truth": _spread_truth,
    "patch_once": _patch_once,
    "one_launch": _one_launch,
    "unseen_overflow": _unseen_overflow,
    "known_shapes": _known_shapes,
}
