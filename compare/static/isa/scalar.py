"""Scalar instructions: 32 and 64 bits a wave, the condition scc, and the one bit of MODE that may change."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from compare.static.isa.errors import NotExecutable
from compare.static.isa.operands import DTYPES, WIDE, bits, constant, register, scalar, wide
from compare.static.isa.state import Waves
from compare.static.isa.text import Instruction
from compare.static.isa.valu import ORDER, carrying, field, high_product, reversed_bits

Step = Callable[[Waves], None]
FP16_OVFL = 23  # the bit of MODE


def _get(text: str, kind: str) -> Callable[[Waves], Any]:
    if kind == "k":  # a signed constant of 16 bits, printed with or without its sign
        word = np.uint16(int(text, 0) & 0xFFFF).view(np.int16).astype(np.int32)
        return lambda w: word
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


def _signed_add(sign: int) -> Callable:
    """A sum or difference of 32 bits, and whether it overflows."""

    def add(a: Any, b: Any) -> tuple[Any, Any]:
        exact = a.astype(np.int64) + sign * b.astype(np.int64)
        return exact.astype(np.uint32).view(np.int32), (exact < -(2**31)) | (exact >= 2**31)

    return add


def _shift_add(count: int) -> Callable:
    def add(a: Any, b: Any) -> tuple[Any, Any]:
        exact = (a.astype(np.uint64) << np.uint64(count)) + b
        return exact.astype(np.uint32), exact >= 2**32

    return add


def _pick(better: Callable) -> Callable:
    return lambda a, b: (np.where(better(a, b), a, b), better(a, b))


def _field(a: Any, b: Any) -> Any:
    """Bit-field extract: offset in bits 4..0 and width in 22..16 of b."""
    return field(a, (b & 31).astype(np.int64), np.minimum(b >> 16 & 127, 32).astype(np.int64))


def _wide_field(a: Any, b: Any) -> Any:
    """Bit-field extract of 64 bits: offset in bits 5..0 and width in 22..16 of b, with the sign that `a` has."""
    width = np.minimum(b >> 16 & 127, 64).astype(a.dtype)
    left = (64 - width) & 63
    return np.where(width == 0, 0, (a >> (b & 63).astype(a.dtype)) << left >> left).astype(a.dtype)


_LOGIC = {"and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b, "andn2": lambda a, b: a & ~b,
          "orn2": lambda a, b: a | ~b, "nand": lambda a, b: ~(a & b), "nor": lambda a, b: ~(a | b),
          "xnor": lambda a, b: ~(a ^ b)}  # fmt: skip
_ORDER = {"lg" if name == "ne" else name: function for name, function in ORDER.items()}
# name: (results, `=`, sources; function; what becomes of scc: "" nothing, "!" whether the last result is not 0, "="
# what the function returns last). Kinds are those of compare.static.isa.operands, E exec and k a constant of 16 bits;
# and of sources that no operand names c scc, e exec, + the result's register.
_TABLE: dict[str, tuple[str, Callable, str]] = {
    "s_mov_b32": ("u=u", lambda a: a, ""), "s_mov_b64": ("U=U", lambda a: a, ""),
    "s_movk_i32": ("i=k", lambda a: a, ""), "s_sext_i32_i16": ("i=i", lambda a: a.astype(np.int16), ""),
    "s_not_b32": ("u=u", lambda a: ~a, "!"), "s_not_b64": ("U=U", lambda a: ~a, "!"),
    "s_brev_b32": ("u=u", reversed_bits, ""), "s_abs_i32": ("i=i", np.abs, "!"),
    "s_sext_i32_i8": ("i=i", lambda a: a.astype(np.int8), ""),
    "s_add_i32": ("i=ii", _signed_add(1), "="), "s_sub_i32": ("i=ii", _signed_add(-1), "="),
    "s_addk_i32": ("i=k+", _signed_add(1), "="), "s_mulk_i32": ("i=k+", lambda a, b: a * b, ""),
    "s_add_u32": ("u=uu", carrying(1), "="), "s_sub_u32": ("u=uu", carrying(-1), "="),
    "s_addc_u32": ("u=uuc", carrying(1), "="), "s_subb_u32": ("u=uuc", carrying(-1), "="),
    "s_mul_i32": ("u=uu", lambda a, b: a * b, ""), "s_mul_hi_u32": ("u=uu", high_product, ""),
    "s_mul_hi_i32": ("i=ii", high_product, ""), "s_bfe_u32": ("u=uu", _field, "!"), "s_bfe_i32": ("i=iu", _field, "!"),
    "s_bfe_u64": ("U=Uu", _wide_field, "!"), "s_bfe_i64": ("I=Iu", _wide_field, "!"),
    "s_bfm_b32": ("u=uu", lambda a, b: ((np.uint32(1) << (a & 31)) - 1) << (b & 31), ""),
    "s_pack_ll_b32_b16": ("u=uu", lambda a, b: (a & 0xFFFF) | (b << 16), ""),
    "s_cselect_b32": ("u=uuc", lambda a, b, c: np.where(c, a, b), ""),
    "s_cselect_b64": ("U=UUc", lambda a, b, c: np.where(c, a, b), ""),
    **{f"s_lshl{n}_add_u32": ("u=uu", _shift_add(n), "=") for n in (1, 2, 3, 4)},
    **{f"s_{name}_{k}32": (f"{k}={k}{k}", _pick(of), "=") for name, of in (("min", np.less), ("max", np.greater))
       for k in "iu"},
    **{f"s_{name}_b{n}": (f"{k}={k}{k}", of, "!") for n, k in ((32, "u"), (64, "U")) for name, of in _LOGIC.items()},
    **{f"s_{name}_saveexec_b64": ("UE=Ue", (lambda of: lambda a, old: (old, of(a, old)))(_LOGIC[name]), "!")
       for name in ("and", "or", "andn2")},
    "s_lshl_b32": ("u=uu", lambda a, b: a << (b & 31), "!"), "s_lshr_b32": ("u=uu", lambda a, b: a >> (b & 31), "!"),
    "s_ashr_i32": ("i=ii", lambda a, b: a >> (b & 31), "!"), "s_lshl_b64": ("U=Uu", lambda a, b: a << (b & 63), "!"),
    "s_lshr_b64": ("U=Uu", lambda a, b: a >> (b & 63), "!"), "s_ashr_i64": ("I=Ii", lambda a, b: a >> (b & 63), "!"),
    "s_bcnt1_i32_b64": ("u=U", np.bitwise_count, "!"), "s_bcnt1_i32_b32": ("u=u", np.bitwise_count, "!"),
    **{f"s_cmp_{name}_{k}32": (f"={k}{k}", of, "=") for name, of in _ORDER.items() for k in "iu"},
    **{f"s_cmp_{name}_u64": ("=UU", _ORDER[name], "=") for name in ("eq", "lg")},
    **{f"s_cmpk_{name}_i32": ("=ik", of, "=") for name, of in _ORDER.items()},
    **{f"s_cmpk_{name}_u32": ("=uu", of, "=") for name, of in _ORDER.items()},
    **{f"s_bitcmp{n}_b32": ("=uu", (lambda bit: lambda a, b: (a >> (b & 31)) & 1 == bit)(n), "=") for n in (0, 1)},
}  # fmt: skip


def _implicit(kind: str, text: str) -> Callable[[Waves], Any]:
    if kind == "+":
        return _get(text, "i")
    return (lambda w: w.scc[w.here].astype(np.uint32)) if kind == "c" else lambda w: w.exec[w.here].copy()


def _table(name: str, operands: list[str]) -> Step:
    kinds, function, condition = _TABLE[name]
    results, _, sources = kinds.partition("=")
    named, own = sources.rstrip("ce+"), sources[len(sources.rstrip("ce+")) :]
    into = operands[: len(results.rstrip("E"))]
    get = [_get(text, kind) for text, kind in zip(operands[len(into) :], named, strict=True)]
    get += [_implicit(kind, operands[0]) for kind in own]
    put = [_put(text, kind) for text, kind in zip([*into, "exec"], results, strict=False)]

    def step(w: Waves) -> None:
        found = function(*[read(w) for read in get])
        found = list(found) if isinstance(found, tuple) else [found]
        if condition:
            w.scc[w.here] = found.pop() if condition == "=" else found[-1] != 0
        for write, value in zip(put, found, strict=True):
            write(w, value)

    return step


def _set_mode(name: str, operands: list[str]) -> Step:
    """s_setreg_imm32_b32 of MODE. Raises NotExecutable for another register, and at run time for a change of a bit of
    MODE that the model assumes."""
    found = re.fullmatch(r"hwreg\(HW_REG_MODE, (\d+), (\d+)\)", operands[0])
    if not found or found[2] != "1" or int(found[1]) != FP16_OVFL:
        raise NotExecutable(name, f"{operands[0]}: allowed bit {FP16_OVFL} of MODE, FP16_OVFL")
    (value,) = (int(text, 0) for text in operands[1:])

    def step(w: Waves) -> None:
        w.clamps[w.here] = value & 1

    return step


DECODERS: dict[str, Callable[[str, list[str]], Step]] = {
    **dict.fromkeys(_TABLE, _table),
    "s_setreg_imm32_b32": _set_mode,
}


def decode(one: Instruction) -> Step:
    """Decode an instruction. Raises NotExecutable for an unknown form."""
    if one.base not in DECODERS:
        raise NotExecutable(one.mnemonic)
    one.finish()
    return DECODERS[one.base](one.base, one.operands)
