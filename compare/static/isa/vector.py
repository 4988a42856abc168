"""Vector instructions: the table of valu.py with source modifiers, SDWA, DPP and op_sel; and those of other shapes."""

from collections.abc import Callable
from typing import Any

import numpy as np

from compare.static.isa.convert import F, U, fma
from compare.static.isa.dpp import permutation
from compare.static.isa.errors import NotExecutable
from compare.static.isa.operands import WIDE, bits, part, register, scalar, source, to_registers, vector, wide
from compare.static.isa.state import VCC, Waves, to_bits, to_mask
from compare.static.isa.text import Instruction
from compare.static.isa.valu import TABLE

Step = Callable[[Waves], None]
Getter = Callable[[Waves], Any]
_IMPLICIT = "+vcz"


def _put(one: Instruction, kind: str, text: str, agprs: int, lanes: np.ndarray | None, top: int) -> Callable:
    """Write a result, with SDWA's selection of bits, DPP's of lanes, or (`top`) op_sel's of a half."""
    if kind == "M":
        if lanes is not None:
            raise NotExecutable(one.mnemonic, "lanes of other lanes make no mask")
        to = scalar(text)
        return lambda w, value: w.set_pair(to, to_bits(np.broadcast_to(value, (w.n, 64)) & w.mask))
    row, (shift, count) = vector(text, agprs), part(one.take("dst_sel", "DWORD"))
    unused = one.take("dst_unused", "UNUSED_PAD")
    if count < 32 and (unused not in ("UNUSED_PAD", "UNUSED_PRESERVE") or kind in WIDE):
        raise NotExecutable(one.mnemonic, f"dst_unused:{unused}")
    if kind in "ltp":
        shift, count, unused = 16 * (kind == "t" or top), 16, "UNUSED_PRESERVE"
        kind = "w" if kind == "p" else "h"
    bits_written = U(((1 << count) - 1) << shift)

    def put(w: Waves, value: Any) -> None:
        for k, raw in enumerate(to_registers(value, kind)):
            if count < 32:
                old = w.v[row][w.here] & ~bits_written if unused == "UNUSED_PRESERVE" else U(0)
                raw = ((raw << shift) & bits_written) | old
            if lanes is not None:
                raw = np.where(lanes, raw, w.v[row + k][w.here])
            w.put(row + k, raw)

    return put


def _get(one: Instruction, kind: str, text: str, agprs: int, half: int, is_half: int, **how: Any) -> Getter:
    """Read a source of one of valu.py's kinds. half, is_half: what op_sel and op_sel_hi say of it."""
    if kind == "m":
        mask = wide(text, "U", agprs)
        return lambda w: to_mask(mask(w)[:, 0])
    if kind == "o" and not is_half:
        kind, half = "f", 0
    if half and (kind not in "oW" or register(text.strip("-|")) is None):
        raise NotExecutable(one.mnemonic, f"op_sel of {text}")
    if kind in "oW":
        how["select"] = f"WORD_{half}"
    get = source(text, {"o": "h", "W": "u"}.get(kind, kind), agprs, **how)
    return get if kind != "o" else lambda w: get(w).astype(F)


def _implicit(one: Instruction, kind: str, result: str, agprs: int) -> Getter:
    """A source that no operand names."""
    if kind == "+":
        return source(one.operands[0], result, agprs)
    if kind == "v":
        return lambda w: to_mask(w.pair(VCC))
    if kind == "c":
        return lambda w: w.clamps[w.here][:, None] & w.mask
    fnuz = one.arch != "gfx950"
    return lambda w: fnuz


def _table(one: Instruction, agprs: int) -> Step:
    kinds, function = TABLE[one.base]
    results, _, sources = kinds.partition("=")
    named, own = sources.rstrip(_IMPLICIT), sources[len(sources.rstrip(_IMPLICIT)) :]
    into, texts = one.operands[: len(results)], one.operands[len(results) :]
    permute, lanes = permutation(one) if one.form == "dpp" else (None, None)
    op_sel = one.numbers("op_sel", []) if set(kinds) & set("oWp") else []
    op_sel = op_sel + [0] * (len(named) + 1 - len(op_sel))
    halves = one.numbers("op_sel_hi", [0] * len(named)) if "o" in named else [0] * len(named)
    if any(op_sel[len(named) + ("p" in results) :]):
        raise NotExecutable(one.mnemonic, f"op_sel:{op_sel}")
    get = [
        _get(
            one, kind, text, agprs, half, is_half, select=one.take(f"src{i}_sel", "DWORD"), lanes=None if i else permute
        )
        for i, (kind, text, half, is_half) in enumerate(zip(named, texts, op_sel[: len(named)], halves, strict=True))
        if kind != "1" or _is_one(one, text, half)
    ]
    get += [_implicit(one, kind, results[0], agprs) for kind in own]
    put = [_put(one, kind, text, agprs, lanes, op_sel[-1]) for kind, text in zip(results, into, strict=True)]
    clamped = _clamped(one, results[0])

    def step(w: Waves) -> None:
        values = [read(w) for read in get]
        found = clamped(function(*values), values)
        for write, value in zip(put, found if len(put) > 1 else [found], strict=True):
            write(w, value)

    return step


def _is_one(one: Instruction, text: str, half: int) -> bool:
    """False for the scale 1.0, which is not passed on. Raises NotExecutable for another scale."""
    if text != "1.0" or half:
        raise NotExecutable(one.mnemonic, f"a scale of {text}")
    return False


def _clamped(one: Instruction, kind: str) -> Callable[[Any, list], Any]:
    """`clamp`: floats to [0, 1], a difference of unsigned numbers to 0, their sum to 2^32 - 1."""
    if not one.flags("clamp"):
        return lambda result, values: result
    if kind == "f" and one.base != "v_div_scale_f32":
        return lambda result, values: np.clip(np.nan_to_num(result, nan=0.0), np.float32(0), np.float32(1))
    if one.base == "v_sub_u32":
        return lambda result, values: np.where(values[1] > values[0], U(0), result)
    if one.base == "v_add_u32":
        return lambda result, values: np.where(result < values[0], U(0xFFFFFFFF), result)
    raise NotExecutable(one.mnemonic, "clamp")


def _packed(one: Instruction, agprs: int) -> Step:
    """v_pk_{add,mul,fma}_f32, v_pk_mov_b32: two results, each from the register of a pair that op_sel names.

    A move's second result takes its second source; op_sel names its register too, and op_sel_hi is ignored.
    """
    texts, row = one.operands[1:], vector(one.operands[0], agprs)
    count, move = len(texts), one.base == "v_pk_mov_b32"
    which = one.numbers("op_sel", [0] * count), one.numbers("op_sel_hi", [1] * count)
    negative = one.numbers("neg_lo", [0] * count), one.numbers("neg_hi", [0] * count)
    function = {"add": np.add, "mul": np.multiply, "fma": fma, "mov": None}[one.base.split("_")[2]]

    def half(text: str, upper: int, minus: int) -> Getter:
        found = register(text)
        name = text if found is None else f"{found[0]}{found[1] + upper}"
        get = source(name, "u" if move else "f", agprs)
        return (lambda w: -get(w)) if minus else get

    get = [[half(*each) for each in zip(texts, which[k], negative[k], strict=True)] for k in (0, 1)]

    def step(w: Waves) -> None:
        if move:
            results = np.array(get[0][0](w)), np.array(get[0][1](w))
        else:
            results = [np.asarray(function(*[read(w) for read in side]), np.float32).view(U) for side in get]
        for k, value in enumerate(results):
            w.put(row + k, value)

    return step


def _bitop3(one: Instruction, agprs: int) -> Step:
    """v_bitop3: any function of three bits, by its truth table; the 16-bit form clears the high half."""
    table, row, used = one.number("bitop3"), vector(one.operands[0], agprs), 0xFFFFFFFF >> 16 * one.base.endswith("16")
    get = [bits(text, agprs) for text in one.operands[1:]]

    def step(w: Waves) -> None:
        x, y, z = (np.broadcast_to(read(w), (w.n, 64)) for read in get)
        result = np.zeros((w.n, 64), U)
        for i in (i for i in range(8) if table >> i & 1):
            result |= (x if i & 4 else ~x) & (y if i & 2 else ~y) & (z if i & 1 else ~z)
        w.put(row, result & used)

    return step


def _one_lane(one: Instruction, agprs: int) -> Step:
    """v_readlane, v_readfirstlane (the first active one, else 0), v_writelane."""
    to, get = one.operands[0], bits(one.operands[1], agprs)
    first = one.base == "v_readfirstlane_b32"
    lane = (lambda w: w.mask.argmax(1).astype(U)[:, None]) if first else bits(one.operands[2], 0)
    at = lambda w: (np.broadcast_to(lane(w), (w.n, 1)) & 63)[:, 0]  # noqa: E731
    if one.base == "v_writelane_b32":
        row = vector(to, agprs)

        def write(w: Waves) -> None:
            w.v[row, w.waves, at(w)] = np.broadcast_to(get(w), (w.n, 1))[:, 0]

        return write
    row = scalar(to)

    def read(w: Waves) -> None:
        w.s[row][w.here] = np.broadcast_to(get(w), (w.n, 64))[np.arange(w.n), at(w)]

    return read


def _row_swap(one: Instruction, agprs: int) -> Step:
    """v_permlane16_swap, v_permlane32_swap: the odd rows of the first register against the even ones of the second."""
    a, b = (vector(text, agprs) for text in one.operands)
    size = 16 if "16" in one.base else 32

    def step(w: Waves) -> None:
        if not w.full:
            raise NotExecutable(one.mnemonic, "with lanes switched off")
        x, y = (w.v[row][w.here].reshape(w.n, -1, size).copy() for row in (a, b))
        x[:, 1::2], y[:, 0::2] = y[:, 0::2].copy(), x[:, 1::2].copy()
        w.put(a, x.reshape(w.n, 64))
        w.put(b, y.reshape(w.n, 64))

    return step


DECODERS: dict[str, Callable[[Instruction, int], Step]] = {
    **dict.fromkeys(TABLE, _table), **dict.fromkeys(("v_bitop3_b32", "v_bitop3_b16"), _bitop3),
    **dict.fromkeys(("v_pk_add_f32", "v_pk_mul_f32", "v_pk_fma_f32", "v_pk_mov_b32"), _packed),
    **dict.fromkeys(("v_readlane_b32", "v_readfirstlane_b32", "v_writelane_b32"), _one_lane),
    **dict.fromkeys(("v_permlane16_swap_b32", "v_permlane32_swap_b32"), _row_swap),
}  # fmt: skip
