"""Loads, stores and atomics: addresses of global memory, LDS and scratch, with the range check of buffers."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from compare.static.isa.errors import NotExecutable
from compare.static.isa.operands import bits, register, scalar, vector, wide
from compare.static.isa.state import LANES, M0, Pending, Waves
from compare.static.isa.text import Instruction

Step = Callable[[Waves], None]
_SIZES = {"dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16, "ushort": 2, "sshort": 2, "short": 2, "ubyte": 1,
          "sbyte": 1, "byte": 1, "short_d16": 2, "short_d16_hi": 2, "lds_dword": 4, "lds_dwordx4": 16}  # fmt: skip
_LDS_SIZES = {"b8": 1, "u8": 1, "i8": 1, "b16": 2, "u16": 2, "i16": 2, "b32": 4, "b64": 8, "b96": 12, "b128": 16,
              "u16_d16": 2, "u16_d16_hi": 2, "b16_d16_hi": 2, "u8_d16": 1, "u8_d16_hi": 1, "b8_d16_hi": 1}  # fmt: skip
_ATOMICS = ("add", "sub", "swap", "or", "and", "xor", "umax", "umin", "smax", "smin")
_CACHE = ("sc1", "nt", "glc", "slc")  # cache hints; a functional model has no caches


def _registers(data: np.ndarray, kind: str, w: Waves, first: int) -> np.ndarray:
    """uint8 [m, size] of the active lanes -> uint32 [registers, n, 64], old values in the others."""
    if data.shape[1] >= 4:
        words = np.ascontiguousarray(data).view(np.uint32).T
    else:
        signed = kind in ("sshort", "sbyte", "i16", "i8")
        whole = np.ascontiguousarray(data).view(f"{'i' if signed else 'u'}{data.shape[1]}")[:, 0]
        words = whole.astype(np.int32 if signed else np.uint32).view(np.uint32)[None]
        if "d16" in kind:
            shift = np.uint32(16 * kind.endswith("hi"))
            old = w.v[first][w.here][w.mask] & ~(np.uint32(0xFFFF) << shift)
            words = old[None] | (words << shift)
    if w.full:
        return words.reshape(len(words), w.n, 64)
    out = np.zeros((len(words), w.n, 64), np.uint32)
    out[:, w.mask] = words
    return out


def _bytes(w: Waves, first: int, size: int, high: bool = False) -> np.ndarray:
    """uint8 [m, size]: what the active lanes store."""
    words = w.v[first : first + max(size // 4, 1), w.here]
    words = words.reshape(len(words), -1) if w.full else words[:, w.mask]
    words = words >> np.uint32(16) if high else words
    return np.ascontiguousarray(words.T).view(np.uint8)[:, :size]


def scalar_load(one: Instruction, agprs: int) -> Step:
    count = int(one.base.partition("dwordx")[2] or 1)
    base, first, last = wide(one.operands[1], "U", 0), scalar(one.operands[0]), one.operands[2]
    offset = bits(last, 0)
    one.flags(*_CACHE)

    def step(w: Waves) -> None:
        address = (base(w)[:, 0] + np.broadcast_to(offset(w), (w.n, 1))[:, 0].astype(np.uint64)) & ~np.uint64(3)
        data = w.memory.gather(address, 4 * count).view(np.uint32).T
        w.issue("smem", first, data, scalar=True)

    return step


def _buffer_address(one: Instruction, texts: list[str], size: int) -> Callable[[Waves], tuple[np.ndarray, np.ndarray]]:
    """A raw buffer: lanes at or beyond num_records read zero and write nothing (CDNA3 ISA 9.1.5)."""
    lane, resource, soffset = texts
    offset, at, base = one.number("offset"), bits(soffset, 0), scalar(resource)
    vaddr = bits(lane, 0) if one.flags("offen") else None

    def address(w: Waves) -> tuple[np.ndarray, np.ndarray]:
        inside = (vaddr(w).astype(np.uint64) if vaddr else np.zeros((w.n, 64), np.uint64)) + np.uint64(offset)
        start = w.pair(base)
        if ((start >> np.uint64(48)) & np.uint64(0x3FFF)).any():
            raise NotExecutable(one.mnemonic, "a buffer with a stride")
        records = w.s[base + 2][w.here].astype(np.uint64)[:, None]
        begin = (start & np.uint64((1 << 48) - 1))[:, None] + np.asarray(at(w)).astype(np.uint64)
        return begin + inside, w.mask & (inside + np.uint64(size) <= records)

    return address


def _global_address(one: Instruction, lane: str, base: str) -> Callable[[Waves], tuple[np.ndarray, np.ndarray]]:
    offset = np.uint64(one.number("offset") & 0xFFFFFFFFFFFFFFFF)
    if base == "off":
        full = wide(lane, "U", 0)
        return lambda w: (np.broadcast_to(full(w), (w.n, 64)) + offset, w.mask)
    low, start = bits(lane, 0), wide(base, "U", 0)
    return lambda w: (low(w).astype(np.uint64) + start(w) + offset, w.mask)


def _lds_block(w: Waves, size: int) -> tuple[np.ndarray, np.ndarray]:
    """(waves, address) of every lane for a load straight to LDS: m0, then lane after lane."""
    at = w.s[M0][w.here].astype(np.int64)[:, None] + LANES * size
    return np.repeat(w.waves, 64), at.reshape(-1)


def _load(one: Instruction, kind: str, address: Callable, first: int, to_lds: int | None) -> Step:
    size = _SIZES[kind]

    def step(w: Waves) -> None:
        where, inside = address(w)
        data = np.zeros((w.n, 64, size), np.uint8)
        data[inside] = w.memory.gather(where[inside], size)
        if w.watch:
            w.watch.touched("load", size, w.groups, w.memory.placed(where), inside)
        if to_lds is None:
            w.issue("vm", first, _registers(data[w.mask], kind, w, first))
            return
        waves, at = _lds_block(w, size)
        flat, at = data.reshape(-1, size), at + to_lds

        def land(access: Pending) -> None:
            keep = np.isin(waves, access.waves)
            w.lds.store(waves[keep], at[keep], flat[keep])

        if not w.full:
            raise NotExecutable(one.mnemonic, "to LDS with lanes switched off")
        w.issue("vm", land=land)

    return step


def vector_memory(one: Instruction, agprs: int) -> Step:
    """buffer_ and global_ loads and stores; loads may go straight to LDS."""
    space, way, kind = re.fullmatch(r"(buffer|global)_(load|store)_(\w+)", one.base).groups()
    one.flags(*_CACHE, "sc0")
    to_lds = one.flags("lds") or kind.startswith("lds_")
    texts, size = list(one.operands), _SIZES[kind]
    first = 0 if to_lds else vector(texts.pop(1 if space == "global" and way == "store" else 0), agprs)
    offset = one.modifiers.get("offset", "0")
    address = _buffer_address(one, texts, size) if space == "buffer" else _global_address(one, *texts)
    if way == "load":
        return _load(one, kind, address, first, int(offset, 0) if to_lds else None)

    def step(w: Waves) -> None:
        where, inside = address(w)
        if w.watch:
            w.watch.touched("store", size, w.groups, w.memory.placed(where), inside)
        w.memory.scatter(where[inside], _bytes(w, first, size, kind.endswith("hi"))[inside[w.mask]])
        w.issue("vm")

    return step


def atomic(one: Instruction, agprs: int) -> Step:
    """global_atomic_*: lane after lane; with sc0 the old value is returned."""
    operation, returns = one.base.removeprefix("global_atomic_"), one.flags("sc0")
    one.flags("sc1", "nt")
    texts = list(one.operands)
    first = vector(texts.pop(0), agprs) if returns else 0
    value = bits(texts.pop(1), agprs)
    address = _global_address(one, *texts)

    def step(w: Waves) -> None:
        where, inside = address(w)
        values, old = np.broadcast_to(value(w), (w.n, 64)), np.zeros((1, w.n, 64), np.uint32)
        for wave, lane in np.argwhere(inside):
            old[0, wave, lane] = w.memory.atomic(operation, int(where[wave, lane]), int(values[wave, lane]))
        w.issue("vm", first, old if returns else None)

    return step


def scratch(one: Instruction, agprs: int) -> Step:
    """scratch_load and scratch_store of whole words, in a lane's own memory."""
    way, kind = re.fullmatch(r"scratch_(load|store)_(\w+)", one.base).groups()
    count, texts = _SIZES[kind] // 4, list(one.operands)
    row = vector(texts.pop(0 if way == "load" else 1), agprs)
    lane, base = (None if text == "off" else bits(text, 0) for text in texts)
    offset = one.number("offset")

    def step(w: Waves) -> None:
        at = np.full((w.n, 64), offset, np.int64)
        for part in (lane, base):
            at = at + (part(w).astype(np.int64) if part else 0)
        words = at // 4 + np.arange(count)[:, None, None]
        spot = (w.waves[:, None], words, LANES)
        if way == "load":
            w.issue("vm", row, w.scratch[spot])
        else:
            w.scratch[spot] = np.where(w.mask, w.v[row : row + count, w.here], w.scratch[spot])
            w.issue("vm")

    return step


def lds(one: Instruction, agprs: int) -> Step:
    """ds_read and ds_write of one or two places (offset0 and offset1, in elements or, for st64, in 64 of them)."""
    way, two, strided, kind = re.fullmatch(r"ds_(read|write)(2)?(st64)?_(\w+)", one.base).groups()
    size, at = _LDS_SIZES[kind], bits(one.operands[0 if way == "write" else 1], agprs)
    unit = size * (64 if strided else 1)
    offsets = [unit * one.number(f"offset{i}") for i in (0, 1)] if two else [one.number("offset")]
    rows = [vector(text, agprs) for text in (one.operands[1:] if way == "write" else one.operands[:1])]

    def spots(w: Waves) -> tuple[np.ndarray, np.ndarray]:
        where = np.broadcast_to(at(w), (w.n, 64)).astype(np.int64)
        for offset in offsets if w.watch else ():
            w.watch.shared(way, size, where + offset, w.mask)
        active = where[w.mask]
        return np.broadcast_to(w.waves[:, None], (w.n, 64))[w.mask], active

    def read(w: Waves) -> None:
        waves, where = spots(w)
        parts = [_registers(w.lds.load(waves, where + offset, size), kind, w, rows[0]) for offset in offsets]
        w.issue("lds", rows[0], np.concatenate(parts), note=w.lds.latest)

    def write(w: Waves) -> None:
        waves, where = spots(w)
        for row, offset in zip(rows, offsets, strict=True):
            w.lds.store(waves, where + offset, _bytes(w, row, size, kind.endswith("hi")))
        w.issue("lds", note=w.lds.latest)

    return read if way == "read" else write


def transposed(one: Instruction, agprs: int) -> Step:
    """ds_read_b64_tr_b16, _b8: 16 lanes fetch rows of 16 elements, as many rows as a lane fetches elements; each lane
    gets one column."""
    at, row, offset = bits(one.operands[1], agprs), vector(one.operands[0], agprs), one.number("offset")
    size = int(one.base.rpartition("b")[2]) // 8
    rows = 8 // size
    lane = LANES[:, None] // 16 * 16 + np.arange(rows) * (16 // rows) + LANES[:, None] % 16 // rows

    def step(w: Waves) -> None:
        if not w.full:
            raise NotExecutable(one.mnemonic, "with lanes switched off")
        where = np.broadcast_to(at(w), (w.n, 64)).astype(np.int64) + offset
        if w.watch:
            w.watch.shared("read", 8, where, w.mask)
        fetched = w.lds.load(np.repeat(w.waves, 64), where.reshape(-1), 8).view(f"u{size}").reshape(w.n, 64, rows)
        words = np.ascontiguousarray(fetched[:, lane, LANES[:, None] % rows]).view(np.uint32)
        w.issue("lds", row, np.moveaxis(words, 2, 0))

    return step


def across_lanes(one: Instruction, agprs: int) -> Step:
    """ds_bpermute_b32 and ds_swizzle_b32: a lane reads another's register, through LDS hardware but not LDS memory."""
    row, value = vector(one.operands[0], agprs), bits(one.operands[-1], agprs)
    if one.base == "ds_swizzle_b32":
        found = re.fullmatch(r"swizzle\(SWAP,\s*(\d+)\)", one.take("offset", ""))
        if not found:
            raise NotExecutable(one.mnemonic, "a pattern other than SWAP")
        swapped = LANES ^ int(found[1])
        lane: Any = lambda w: np.broadcast_to(swapped, (w.n, 64))  # noqa: E731
    else:
        at, offset = bits(one.operands[1], agprs), one.number("offset")
        lane = lambda w: (np.broadcast_to(at(w), (w.n, 64)).astype(np.int64) + offset) // 4 % 64  # noqa: E731

    def step(w: Waves) -> None:
        source, wave = lane(w), np.arange(w.n)[:, None]
        data = np.broadcast_to(value(w), (w.n, 64))[wave, source]
        w.issue("lds", row, np.where(w.mask[wave, source], data, np.uint32(0))[None])

    return step


DECODERS: dict[str, Callable[[Instruction, int], Step]] = {
    **{f"s_load_dword{n}": scalar_load for n in ("", "x2", "x4", "x8", "x16")},
    **{f"{space}_load_{kind}": vector_memory for space in ("buffer", "global") for kind in _SIZES if kind[0] != "b"},
    **{f"{space}_store_{kind}": vector_memory for space in ("buffer", "global")
       for kind in ("byte", "short", "short_d16_hi", "dword", "dwordx2", "dwordx3", "dwordx4")},
    **{f"scratch_{way}_dword{n}": scratch for way in ("load", "store") for n in ("", "x2", "x3", "x4")},
    **{f"global_atomic_{name}": atomic for name in _ATOMICS},
    **{f"ds_read_{kind}": lds for kind in _LDS_SIZES if kind[:2] != "b8" and kind[:3] != "b16"},
    **{f"ds_write_{kind}": lds for kind in _LDS_SIZES if kind[0] == "b"},
    **{f"ds_{way}2{st}_b{size}": lds for way in ("read", "write") for st in ("", "st64") for size in (32, 64)},
    **dict.fromkeys(("ds_read_b64_tr_b16", "ds_read_b64_tr_b8"), transposed),
    **dict.fromkeys(("ds_bpermute_b32", "ds_swizzle_b32"), across_lanes),
}  # fmt: skip


def counters(text: str) -> Step:
    """s_waitcnt: which accesses it completes. LDS answers in order, scalar loads in any order: only a wait for zero
    completes those."""
    limits = {name: int(value) for name, value in re.findall(r"(vmcnt|lgkmcnt|expcnt)\((\d+)\)", text)}
    if not limits or register(text):
        raise NotExecutable("s_waitcnt", text)

    def step(w: Waves) -> None:
        if "vmcnt" in limits:
            if w.watch:
                w.watch.waited(w.under_way("vm"), limits["vmcnt"])
            w.wait("vm", limits["vmcnt"])
        if "lgkmcnt" in limits:
            w.wait("lds", limits["lgkmcnt"])
            if limits["lgkmcnt"] == 0:
                w.wait("smem", 0)

    return step
