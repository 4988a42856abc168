"""Operands: registers, constants and their source modifiers, as functions of the waves that read and write them.

A kind is a letter: u uint32, i int32, f float32, x uint32 with the signs of a float; of the low half w uint16, j int16,
h float16; of register pairs U uint64, I int64. A value is broadcast to [n, 64]: constants have no axis, scalar
registers [n, 1].
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from compare.static.isa.errors import NotExecutable
from compare.static.isa.state import M0, VCC, Waves

Getter = Callable[[Waves], Any]
DTYPES = {"u": np.uint32, "x": np.uint32, "i": np.int32, "f": np.float32, "U": np.uint64, "I": np.int64,
          "w": np.uint16, "j": np.int16, "h": np.float16}  # fmt: skip
WIDE, NARROW = "UI", "wjh"
_NAMED = {"vcc_lo": VCC, "vcc_hi": VCC + 1, "vcc": VCC, "m0": M0}
_ONE = re.compile(r"([vsa])(\d+)$")
_RANGE = re.compile(r"([vsa])\[(\d+):(\d+)\]$")
_INTEGER = re.compile(r"-?(0x[0-9a-f]+|\d+)$")
_REAL = re.compile(r"-?\d+\.\d+$")
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


def register(text: str) -> tuple[str, int] | None:
    """("v" | "s" | "a", first index), or None for a constant."""
    if text in _NAMED:
        return "s", _NAMED[text]
    found = _ONE.match(text) or _RANGE.match(text)
    return (found[1], int(found[2])) if found else None


def vector(text: str, arch_vgprs: int) -> int:
    """Row of a vector or accumulation register. Raises NotExecutable for anything else."""
    found = register(text)
    if found is None or found[0] == "s":
        raise NotExecutable(f"operand {text}", "where a vector register is expected")
    return found[1] + (arch_vgprs if found[0] == "a" else 0)


def scalar(text: str) -> int:
    """Index of a scalar register. Raises NotExecutable for anything else."""
    found = register(text)
    if found is None or found[0] != "s":
        raise NotExecutable(f"operand {text}", "where a scalar register is expected")
    return found[1]


def constant(text: str, kind: str) -> Any:
    """An inline constant or literal, as the bits of the operand's kind."""
    real, dtype = bool(_REAL.match(text)), DTYPES[kind]
    if (real and kind in "wjUI") or not (real or _INTEGER.match(text)):
        return _refuse(text)
    if real:
        return (np.float16 if kind == "h" else np.float32)(float(text)).view(dtype)
    value, size = int(text, 0), np.dtype(dtype).itemsize * 8
    if size == 64 and not -(2**31) <= value < 2**31:
        return _refuse(text)  # whether 32 bits are sign-extended depends on the instruction
    return np.array(value & ((1 << size) - 1), f"u{size // 8}").view(dtype)[()]


def _refuse(text: str) -> Any:
    raise NotExecutable(f"operand {text}")


def bits(text: str, arch_vgprs: int) -> Getter:
    """uint32 of one register or constant; `wide` reads 64-bit kinds."""
    if text in ("exec_lo", "exec_hi"):
        shift = np.uint64(32 * (text == "exec_hi"))
        return lambda w: ((w.exec[w.here] >> shift) & _LOW).astype(np.uint32)[:, None]
    found = register(text)
    if found is None:
        value = constant(text, "u")
        return lambda w: value
    if found[0] == "s":
        return lambda w, i=found[1]: w.s[i][w.here][:, None]
    row = vector(text, arch_vgprs)
    return lambda w: w.v[row][w.here]


def wide(text: str, kind: str, arch_vgprs: int) -> Getter:
    """64 bits of a register pair or constant."""
    found = register(text)
    if text == "exec":
        return lambda w: w.exec[w.here][:, None]
    if found is None:
        value = constant(text, kind)
        return lambda w: value
    if found[0] == "s":
        return lambda w, i=found[1]: w.pair(i)[:, None].view(DTYPES[kind])
    row = vector(text, arch_vgprs)

    def read(w: Waves) -> np.ndarray:
        pair = np.empty((w.n, 64, 2), np.uint32)
        pair[..., 0], pair[..., 1] = w.v[row][w.here], w.v[row + 1][w.here]
        return pair.view(DTYPES[kind])[..., 0]

    return read


_SELECT = {"DWORD": (0, 32), "WORD_0": (0, 16), "WORD_1": (16, 16), **{f"BYTE_{i}": (8 * i, 8) for i in range(4)}}


def part(name: str) -> tuple[int, int]:
    """(shift, bits) of an SDWA select."""
    if name not in _SELECT:
        raise NotExecutable(f"select {name}")
    return _SELECT[name]


def _selected(get: Getter, name: str, signed: bool) -> Getter:
    """An SDWA select of uint32, extended by its sign where asked."""
    shift, count = part(name)
    if count == 32:
        return get
    if not signed:
        return lambda w: (get(w) >> shift) & ((1 << count) - 1)
    return lambda w: ((get(w) << (32 - shift - count)).view(np.int32) >> (32 - count)).view(np.uint32)


def source(text: str, kind: str, arch_vgprs: int, select: str = "DWORD", lanes: Callable | None = None) -> Getter:
    """A source operand with its modifiers: -x and |x| of floats, sext(x), an SDWA select, a DPP permutation `lanes`."""
    found = re.fullmatch(r"(-(?![\d.]))?(\|)?(?:(sext)\()?(.*?)\)?\|?", text)
    negative, absolute, signed, text = found[1], found[2], bool(found[3]), found[4]
    if ((negative or absolute) and kind not in "fhx") or (signed and kind not in "ij"):
        return _refuse(found[0])
    if kind in WIDE:
        if select != "DWORD" or lanes:
            return _refuse(f"{text} {select}")
        return wide(text, kind, arch_vgprs)
    if kind in NARROW and register(text) is None and not text.startswith("exec"):
        value = constant(text, kind)
        get = lambda w: value  # noqa: E731
    else:
        raw = _selected(bits(text, arch_vgprs), select, signed)
        raw = lanes(raw) if lanes else raw
        narrow = np.uint16 if kind in NARROW else np.uint32
        get = raw if kind in "ux" else lambda w: raw(w).astype(narrow, copy=False).view(DTYPES[kind])
    if not (negative or absolute):
        return get
    if kind == "x":
        return lambda w: (get(w) & (0x7FFFFFFF if absolute else 0xFFFFFFFF)) ^ (0x80000000 if negative else 0)
    return lambda w: (np.negative if negative else np.positive)(np.abs(get(w)) if absolute else get(w))


def to_registers(value: Any, kind: str) -> list[np.ndarray]:
    """A result as the uint32 of its registers; 16 bits fill the low half and clear the high one."""
    if kind in WIDE:
        raw = np.ascontiguousarray(value, DTYPES[kind]).view(np.uint64)
        return [(raw & _LOW).astype(np.uint32), (raw >> _32).astype(np.uint32)]
    if kind in NARROW:
        return [np.asarray(value).astype(DTYPES[kind]).view(np.uint16).astype(np.uint32)]
    return [np.asarray(value).astype(DTYPES[kind], copy=False).view(np.uint32)]
