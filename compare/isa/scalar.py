"""Scalar instructions: 32 and 64 bits a wave, and the condition scc."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from compare.isa.errors import NotExecutable
from compare.isa.operands import DTYPES, WIDE, bits, constant, register, scalar, wide
from compare.isa.state import Waves
from compare.isa.text import Instruction
from compare.isa.valu import reversed_bits

Step = Callable[[Waves], None]
_31, _63 = np.uint32(31), np.uint64(63)


def _get(text: str, kind: str) -> Callable[[Waves], Any]:
    if text == "scc":
        return lambda w: w.scc[w.here].astype(np.uint32)
    if kind in WIDE:
        get = wide(text, kind, 0)
        return get if register(text) is None and text != "exec" else lambda w: get(w)[:, 0]
    if register(text) is None and not text.startswith("exec"):
        value = constant(text, kind)
        return lambda w: value
    get = bits(text, 0)
    return lambda w: get(w)[:, 0].view(DTYPES[kind])


def _put(text: str, kind: str) -> Callable[[Waves, Any], None]:
    if text == "exec":
        return lambda w, value: w.set_exec(np.asarray(value).astype(np.uint64))
    i = scalar(text)
    if kind in WIDE:
        return lambda w, value: w.set_pair(i, np.asarray(value, DTYPES[kind]).view(np.uint64))

    def put(w: Waves, value: Any) -> None:
        w.s[i][w.here] = np.asarray(value, DTYPES[kind]).view(np.uint32)

    return put


def _wide_int(a: Any) -> Any:
    return np.asarray(a).astype(np.int64)


def _overflow(exact: Any) -> Any:
    return (exact < -(2**31)) | (exact >= 2**31)


def _add(sign: int, signed: bool) -> Callable:
    """Sum or difference of 32 bits; scc: overflow of signed, carry or borrow of unsigned operands."""

    def add(a: Any, b: Any, carry: Any = 0) -> tuple[Any, Any]:
        exact = _wide_int(a) + sign * (_wide_int(b) + _wide_int(carry))
        lost = _overflow(exact) if signed else (exact < 0) | (exact >= 2**32)
        return exact.astype(np.uint32).view(np.int32) if signed else exact.astype(np.uint32), lost

    return add


def _shift_add(count: int) -> Callable:
    def add(a: Any, b: Any) -> tuple[Any, Any]:
        exact = (np.asarray(a).astype(np.uint64) << np.uint64(count)) + b
        return exact.astype(np.uint32), exact >= 2**32

    return add


def _field(signed: bool) -> Callable:
    """Bit-field extract: offset in bits 4..0 and width in 22..16 of b."""

    def extract(a: Any, b: Any) -> Any:
        start, width = (
            (b & _31).astype(np.int64),
            np.minimum((b >> np.uint32(16)) & np.uint32(127), 32).astype(np.int64),
        )
        value = (_wide_int(a) >> start) & ((np.int64(1) << width) - 1)
        if signed:
            top = np.where(width > 0, np.int64(1) << np.maximum(width - 1, 0), 0)
            value = np.where(width > 0, (value ^ top) - top, 0)
        return value.astype(np.uint32).view(np.int32) if signed else value.astype(np.uint32)

    return extract


def _pick(better: Callable) -> Callable:
    def pick(a: Any, b: Any) -> tuple[Any, Any]:
        first = better(a, b)
        return np.where(first, a, b), first

    return pick


# name: (kinds of destination and sources, function, what becomes of scc: "" nothing, "!" result is not 0, "=" second)
_TABLE: dict[str, tuple[str, Callable, str]] = {
    "s_mov_b32": ("uu", lambda a: a, ""), "s_mov_b64": ("UU", lambda a: a, ""),
    "s_not_b32": ("uu", lambda a: ~a, "!"), "s_not_b64": ("UU", lambda a: ~a, "!"),
    "s_brev_b32": ("uu", reversed_bits, ""), "s_abs_i32": ("ii", lambda a: np.abs(a), "!"),
    "s_sext_i32_i16": ("ii", lambda a: np.asarray(a).astype(np.int16).astype(np.int32), ""),
    "s_sext_i32_i8": ("ii", lambda a: np.asarray(a).astype(np.int8).astype(np.int32), ""),
    "s_add_i32": ("iii", _add(1, True), "="), "s_sub_i32": ("iii", _add(-1, True), "="),
    "s_add_u32": ("uuu", _add(1, False), "="), "s_sub_u32": ("uuu", _add(-1, False), "="),
    "s_addc_u32": ("uuuc", _add(1, False), "="), "s_subb_u32": ("uuuc", _add(-1, False), "="),
    "s_mul_i32": ("uuu", lambda a, b: np.multiply(a, b), ""),
    "s_mul_hi_u32": ("uuu", lambda a, b: (np.asarray(a).astype(np.uint64) * b >> np.uint64(32)).astype(np.uint32), ""),
    "s_mul_hi_i32": ("iii", lambda a, b: ((_wide_int(a) * b) >> np.int64(32)).astype(np.int32), ""),
    "s_bfe_u32": ("uuu", _field(False), "!"), "s_bfe_i32": ("iiu", _field(True), "!"),
    "s_bfm_b32": ("uuu", lambda a, b: ((np.uint32(1) << (a & _31)) - np.uint32(1)) << (b & _31), ""),
    "s_pack_ll_b32_b16": ("uuu", lambda a, b: (a & np.uint32(0xFFFF)) | (b << np.uint32(16)), ""),
    "s_cselect_b32": ("uuus", lambda a, b, c: np.where(c, a, b), ""),
    "s_cselect_b64": ("UUUs", lambda a, b, c: np.where(c, a, b), ""),
    **{f"s_lshl{n}_add_u32": ("uuu", _shift_add(n), "=") for n in (1, 2, 3, 4)},
    **{f"s_{name}_{t}32": (k * 3, _pick(pick), "=")
       for name, pick in (("min", np.less), ("max", np.greater)) for t, k in (("i", "i"), ("u", "u"))},
    **{f"s_{name}_b{size}": (k * 3, function, "!") for size, k in ((32, "u"), (64, "U")) for name, function in (
        ("and", lambda a, b: a & b), ("or", lambda a, b: a | b), ("xor", lambda a, b: a ^ b),
        ("andn2", lambda a, b: a & ~b), ("orn2", lambda a, b: a | ~b), ("nand", lambda a, b: ~(a & b)),
        ("nor", lambda a, b: ~(a | b)), ("xnor", lambda a, b: ~(a ^ b)))},
    "s_lshl_b32": ("uuu", lambda a, b: a << (b & _31), "!"), "s_lshr_b32": ("uuu", lambda a, b: a >> (b & _31), "!"),
    "s_ashr_i32": ("iiu", lambda a, b: a >> (b & _31).view(np.int32), "!"),
    "s_lshl_b64": ("UUu", lambda a, b: a << (np.asarray(b).astype(np.uint64) & _63), "!"),
    "s_lshr_b64": ("UUu", lambda a, b: a >> (np.asarray(b).astype(np.uint64) & _63), "!"),
    "s_ashr_i64": ("IIu", lambda a, b: a >> (_wide_int(b) & 63), "!"),
    "s_bcnt1_i32_b64": ("uU", lambda a: np.bitwise_count(a).astype(np.uint32), "!"),
    "s_bcnt1_i32_b32": ("uu", lambda a: np.bitwise_count(a).astype(np.uint32), "!"),
}  # fmt: skip
_COMPARE = {"eq": np.equal, "lg": np.not_equal, "gt": np.greater, "ge": np.greater_equal, "lt": np.less,
            "le": np.less_equal}  # fmt: skip
_SAVE = {"and": lambda a, e: a & e, "or": lambda a, e: a | e, "andn2": lambda a, e: a & ~e}


def _table(name: str, operands: list[str]) -> Step:
    kinds, function, condition = _TABLE[name]
    put = _put(operands[0], kinds[0])
    get = [_get(text, kind) for text, kind in zip(operands[1:], kinds[1:].rstrip("cs"), strict=True)]
    get += [lambda w: w.scc[w.here]] if kinds[-1] in "cs" else []

    def step(w: Waves) -> None:
        result = function(*[read(w) for read in get])
        if condition == "=":
            result, w.scc[w.here] = result
        elif condition == "!":
            w.scc[w.here] = result != 0
        put(w, result)

    return step


def _signed_word(text: str) -> np.int32:
    """A signed constant of 16 bits, printed with or without its sign."""
    return np.uint16(int(text, 0) & 0xFFFF).view(np.int16).astype(np.int32)


def _compare(name: str, operands: list[str]) -> Step:
    operation, kind = name.removeprefix("s_cmpk_").removeprefix("s_cmp_").split("_")
    kind = {"i32": "i", "u32": "u", "u64": "U"}[kind]
    a, test = _get(operands[0], kind), _COMPARE[operation]
    b = _get(operands[1], kind)
    if name.startswith("s_cmpk_") and kind == "i":
        value = _signed_word(operands[1])
        b = lambda w: value  # noqa: E731

    def step(w: Waves) -> None:
        w.scc[w.here] = test(a(w), b(w))

    return step


def _bit_compare(name: str, operands: list[str]) -> Step:
    a, b, wanted = _get(operands[0], "u"), _get(operands[1], "u"), name[len("s_bitcmp")] == "1"

    def step(w: Waves) -> None:
        w.scc[w.here] = ((a(w) >> (b(w) & _31)) & np.uint32(1)).astype(bool) == wanted

    return step


def _constant_word(name: str, operands: list[str]) -> Step:
    """s_movk, s_addk, s_mulk."""
    value, get, put, add = _signed_word(operands[1]), _get(operands[0], "i"), _put(operands[0], "i"), _add(1, True)

    def step(w: Waves) -> None:
        if name == "s_movk_i32":
            put(w, value)
        elif name == "s_mulk_i32":
            put(w, get(w) * value)
        else:
            result, w.scc[w.here] = add(get(w), value)
            put(w, result)

    return step


def _save_exec(name: str, operands: list[str]) -> Step:
    get, put, function = _get(operands[1], "U"), _put(operands[0], "U"), _SAVE[name.split("_")[1]]

    def step(w: Waves) -> None:
        old, value = w.exec[w.here].copy(), get(w)
        put(w, old)
        w.set_exec(function(value, old))
        w.scc[w.here] = w.exec[w.here] != 0

    return step


DECODERS: dict[str, Callable[[str, list[str]], Step]] = {
    **dict.fromkeys(_TABLE, _table),
    **{f"s_cmp_{op}_{kind}": _compare for op in _COMPARE for kind in ("i32", "u32")},
    **{f"s_cmp_{op}_u64": _compare for op in ("eq", "lg")},
    **{f"s_cmpk_{op}_{kind}": _compare for op in _COMPARE for kind in ("i32", "u32")},
    **dict.fromkeys(("s_bitcmp0_b32", "s_bitcmp1_b32"), _bit_compare),
    **dict.fromkeys(("s_movk_i32", "s_addk_i32", "s_mulk_i32"), _constant_word),
    **{f"s_{name}_saveexec_b64": _save_exec for name in _SAVE},
}  # fmt: skip


def decode(one: Instruction) -> Step:
    """Raises NotExecutable for a form that is not known."""
    if one.base not in DECODERS:
        raise NotExecutable(one.mnemonic)
    one.finish()
    return DECODERS[one.base](one.base, one.operands)
