"""Operands: registers, constants and their source modifiers, as functions of the waves that read and write them.

A kind is a letter: u uint32, i int32, f float32, h the low half as float16, U uint64, I int64, d float64; those of 64
bits are register pairs. A value is broadcast to [n, 64]: constants have no axis, scalar registers [n, 1].
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from compare.isa.errors import NotExecutable
from compare.isa.state import M0, VCC, Waves

Getter = Callable[[Waves], Any]
DTYPES = {"u": np.uint32, "i": np.int32, "f": np.float32, "U": np.uint64, "I": np.int64, "d": np.float64}
WIDE = "UId"
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
    """An inline constant or literal, as the bits that the operand's kind gives it."""
    if _REAL.match(text):
        real = {"h": np.float16, "d": np.float64}.get(kind, np.float32)(float(text))
        return real if kind in "hd" else real.view(DTYPES[kind]) if kind not in "UI" else _refuse(text)
    if not _INTEGER.match(text):
        return _refuse(text)
    value = int(text, 0)
    if kind in "UI":
        if not -(2**31) <= value < 2**31:
            return _refuse(text)  # whether 32 bits are extended by their sign depends on the instruction
        return np.uint64(value & 0xFFFFFFFFFFFFFFFF).view(DTYPES[kind])
    if kind == "d":
        return _refuse(text)
    if kind == "h":
        return np.uint16(value & 0xFFFF).view(np.float16)
    return np.uint32(value & 0xFFFFFFFF).view(DTYPES[kind])


def _refuse(text: str) -> Any:
    raise NotExecutable(f"operand {text}")


def bits(text: str, arch_vgprs: int) -> Getter:
    """uint32 of one register or constant; 64-bit kinds: `wide`."""
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


def selected(get: Getter, name: str) -> Getter:
    shift, count = part(name)
    if count == 32:
        return get
    low, mask = np.uint32(shift), np.uint32((1 << count) - 1)
    return lambda w: (get(w) >> low) & mask


def source(text: str, kind: str, arch_vgprs: int, select: str = "DWORD", lanes: Callable | None = None) -> Getter:
    """A source operand with its modifiers: -x and |x| of floats, an SDWA select, a DPP permutation `lanes`."""
    negative = absolute = False
    if kind in "fhd":
        if text.startswith("-") and not (_INTEGER.match(text) or _REAL.match(text)):
            negative, text = True, text[1:]
        if text.startswith("|"):
            absolute, text = True, text.strip("|")
    if kind in WIDE:
        get = wide(text, kind, arch_vgprs)
    elif kind == "h" and register(text) is None:
        value = constant(text, "h")
        get = lambda w: value  # noqa: E731
    else:
        raw = selected(bits(text, arch_vgprs), select)
        raw = lanes(raw) if lanes else raw
        if kind == "h":
            get = lambda w: np.asarray(raw(w)).astype(np.uint16).view(np.float16)  # noqa: E731
        else:
            get = raw if kind == "u" else lambda w: raw(w).view(DTYPES[kind])
    if not (negative or absolute):
        return get
    return lambda w: (np.negative if negative else np.positive)(np.abs(get(w)) if absolute else get(w))


def to_registers(value: Any, kind: str) -> list[np.ndarray]:
    """A result as the uint32 that its registers take; a float16 fills the low half and clears the high one."""
    if kind in WIDE:
        raw = np.ascontiguousarray(value, DTYPES[kind]).view(np.uint64)
        return [(raw & _LOW).astype(np.uint32), (raw >> _32).astype(np.uint32)]
    if kind == "h":
        return [np.asarray(value, np.float16).view(np.uint16).astype(np.uint32)]
    return [np.asarray(value, DTYPES[kind]).view(np.uint32)]
