"""Vector instructions: the table of valu.py behind source modifiers, SDWA and DPP, and those of another shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from compare.isa import valu
from compare.isa.dpp import permutation
from compare.isa.errors import NotExecutable
from compare.isa.operands import DTYPES, WIDE, bits, part, register, scalar, source, to_registers, vector, wide
from compare.isa.state import VCC, Waves, to_bits, to_mask
from compare.isa.text import Instruction
from compare.isa.valu import TABLE, U, fma

Step = Callable[[Waves], None]
_ORDER = {"eq": np.equal, "ne": np.not_equal, "gt": np.greater, "ge": np.greater_equal, "lt": np.less,
          "le": np.less_equal}  # fmt: skip
_FLOAT = {**_ORDER, "lg": lambda a, b: (a < b) | (a > b), "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
          "u": lambda a, b: np.isnan(a) | np.isnan(b), "neq": np.not_equal, "nlg": lambda a, b: ~((a < b) | (a > b)),
          **{f"n{name}": (lambda f: lambda a, b: ~f(a, b))(_ORDER[name])
             for name in ("gt", "ge", "lt", "le")}}  # fmt: skip
del _FLOAT["ne"]


def _put(one: Instruction, row: int, kind: str, lanes: np.ndarray | None) -> Callable[[Waves, Any], None]:
    """Write a result, with SDWA's choice of bits or DPP's of lanes."""
    select, unused = one.take("dst_sel", "DWORD"), one.take("dst_unused", "UNUSED_PAD")
    shift, count = part(select)
    if count < 32 and (unused not in ("UNUSED_PAD", "UNUSED_PRESERVE") or kind in WIDE):
        raise NotExecutable(one.mnemonic, f"dst_unused:{unused}")
    field = U(((1 << count) - 1) << shift)

    def put(w: Waves, value: Any) -> None:
        for k, raw in enumerate(to_registers(value, kind)):
            if count < 32:
                old = w.v[row][w.here] & ~field if unused == "UNUSED_PRESERVE" else U(0)
                raw = ((raw << U(shift)) & field) | old
            if lanes is not None:
                raw = np.where(lanes, raw, w.v[row + k][w.here])
            w.put(row + k, raw)

    return put


def _clamped(one: Instruction, kind: str) -> Callable[[Any, list], Any]:
    """`clamp`: floats to [0, 1], a difference of unsigned numbers to 0, a sum of them to 2^32 - 1."""
    if not one.flags("clamp"):
        return lambda result, values: result
    if kind == "f":
        return lambda result, values: np.clip(np.nan_to_num(result, nan=0.0), np.float32(0), np.float32(1))
    if one.base == "v_sub_u32":
        return lambda result, values: np.where(values[1] > values[0], U(0), result)
    if one.base == "v_add_u32":
        return lambda result, values: np.where(result < values[0], U(0xFFFFFFFF), result)
    raise NotExecutable(one.mnemonic, "clamp")


def _table(one: Instruction, agprs: int) -> Step:
    kinds, function = TABLE[one.base]
    permute, lanes = permutation(one) if one.form == "dpp" else (None, None)
    texts = one.operands[1:] + ([one.operands[0]] if kinds.endswith("+") else [])
    sources = [
        source(text, kind, agprs, one.take(f"src{i}_sel", "DWORD"), permute if i == 0 else None)
        for i, (text, kind) in enumerate(zip(texts, kinds[1:].replace("+", kinds[0]).rstrip("m"), strict=True))
    ]
    if kinds.endswith("m"):
        sources.append(lambda w: to_mask(w.pair(VCC)))
    put, clamped = _put(one, vector(one.operands[0], agprs), kinds[0], lanes), _clamped(one, kinds[0])

    def step(w: Waves) -> None:
        values = [get(w) for get in sources]
        put(w, clamped(function(*values), values))

    return step


def _compare(one: Instruction, agprs: int) -> Step:
    _, _, name, kind = one.base.split("_")
    kind = {"f32": "f", "f16": "h", "i32": "i", "u32": "u", "i64": "I", "u64": "U"}[kind]
    test = (_FLOAT if kind in "fh" else _ORDER)[name]
    texts = one.operands[1:]
    a, b = (source(text, kind, agprs, one.take(f"src{i}_sel", "DWORD")) for i, text in enumerate(texts))
    to = scalar(one.operands[0])
    return lambda w: w.set_pair(to, to_bits(np.broadcast_to(test(a(w), b(w)), (w.n, 64)) & w.mask))


def _conditional(one: Instruction, agprs: int) -> Step:
    """v_cndmask_b32: source 1 where the mask's bit is set, else source 0."""
    kind = "f" if any(text.startswith(("-v", "-s", "|", "-|")) for text in one.operands[1:3]) else "u"
    a, b = (source(t, kind, agprs, one.take(f"src{i}_sel", "DWORD")) for i, t in enumerate(one.operands[1:3]))
    pick, put = wide(one.operands[3], "U", agprs), _put(one, vector(one.operands[0], agprs), kind, None)
    return lambda w: put(w, np.where(to_mask(pick(w)[:, 0]), b(w), a(w)))


def _carry(one: Instruction, agprs: int) -> Step:
    """32-bit sums and differences with carry: vdst, carry out, a, b[, carry in]."""
    row, out = vector(one.operands[0], agprs), scalar(one.operands[1])
    a, b = bits(one.operands[2], agprs), bits(one.operands[3], agprs)
    carry = wide(one.operands[4], "U", agprs) if len(one.operands) > 4 else None
    sign, swapped = (-1 if "sub" in one.base else 1), "rev" in one.base

    def step(w: Waves) -> None:
        x, y = (b, a) if swapped else (a, b)
        exact = np.asarray(x(w)).astype(np.int64) + sign * np.asarray(y(w)).astype(np.int64)
        if carry:
            exact = exact + sign * to_mask(carry(w)[:, 0])
        exact = np.broadcast_to(exact, (w.n, 64))
        w.set_pair(out, to_bits(((exact < 0) | (exact >= 2**32)) & w.mask))
        w.put(row, exact.astype(U))

    return step


def _mad64(one: Instruction, agprs: int) -> Step:
    """v_mad_u64_u32, v_mad_i64_i32: vdst pair, carry out, a, b, c: a * b + c, and its 65th bit."""
    kind, to = ("i", "I") if one.base == "v_mad_i64_i32" else ("u", "U"), vector(one.operands[0], agprs)
    out, long = scalar(one.operands[1]), DTYPES[kind[1]]
    a, b = (source(text, kind[0], agprs) for text in one.operands[2:4])
    c = source(one.operands[4], kind[1], agprs)

    def step(w: Waves) -> None:
        product = np.asarray(a(w)).astype(long) * np.asarray(b(w)).astype(long)
        term = c(w)
        total = np.broadcast_to(product + term, (w.n, 64))
        wrapped = ((product ^ total) & (term ^ total)) < 0 if kind[0] == "i" else total < term
        carry = wrapped ^ (total < 0) if kind[0] == "i" else wrapped
        w.set_pair(out, to_bits(np.broadcast_to(carry, (w.n, 64)) & w.mask))
        for k, raw in enumerate(to_registers(total, kind[1])):
            w.put(to + k, raw)

    return step


def _div_scale(one: Instruction, agprs: int) -> Step:
    row, out = vector(one.operands[0], agprs), scalar(one.operands[1])
    get = [source(text, "f", agprs) for text in one.operands[2:]]

    def step(w: Waves) -> None:
        value, back = valu.div_scale(*[read(w) for read in get])
        w.set_pair(out, to_bits(np.broadcast_to(back, (w.n, 64)) & w.mask))
        w.put(row, value.view(U))

    return step


def _packed(one: Instruction, agprs: int) -> Step:
    """v_pk_{add,mul,fma}_f32, v_pk_mov_b32: two results, each from the register of a pair that op_sel names.

    A move's second result takes its second source, and op_sel names the register there too: op_sel_hi has no say.
    """
    texts = one.operands[1:]
    count = len(texts)
    low, high = one.numbers("op_sel", [0] * count), one.numbers("op_sel_hi", [1] * count)
    negative = one.numbers("neg_lo", [0] * count), one.numbers("neg_hi", [0] * count)
    move = one.base == "v_pk_mov_b32"
    function = {"add": np.add, "mul": np.multiply, "fma": fma, "mov": None}[one.base.split("_")[2]]
    row = vector(one.operands[0], agprs)

    def half(text: str, which: int, minus: int) -> Callable:
        found = register(text)
        name = text if found is None else f"{found[0]}{found[1] + which}"
        get = source(name, "u" if move else "f", agprs)
        return (lambda w: -get(w)) if minus else get

    chosen = [(low, negative[0]), (high, negative[1])]
    get = [[half(t, which[i], minus[i]) for i, t in enumerate(texts)] for which, minus in chosen]

    def step(w: Waves) -> None:
        if move:
            results = np.array(get[0][0](w)), np.array(get[0][1](w))
        else:
            results = [np.asarray(function(*[read(w) for read in side]), np.float32).view(U) for side in get]
        for k, value in enumerate(results):
            w.put(row + k, value)

    return step


def _mixed(one: Instruction, agprs: int) -> Step:
    """v_fma_mix_f32: each source a float32 or, where op_sel_hi says so, the half of a register that op_sel names."""
    high, half = one.numbers("op_sel", [0, 0, 0]), one.numbers("op_sel_hi", [0, 0, 0])
    get = []
    for text, upper, is_half in zip(one.operands[1:], high, half, strict=True):
        if not is_half:
            get.append(source(text, "f", agprs))
            continue
        if upper and register(text) is None:
            raise NotExecutable(one.mnemonic, f"op_sel of {text}")
        h = source(text, "h", agprs, "WORD_1" if upper else "WORD_0" if register(text.strip("-|")) else "DWORD")
        get.append(lambda w, h=h: np.asarray(h(w)).astype(np.float32))
    row = vector(one.operands[0], agprs)
    return lambda w: w.put(row, fma(*[read(w) for read in get]).view(U))


def _bitop3(one: Instruction, agprs: int) -> Step:
    """v_bitop3: any function of three bits, by its truth table; that of 16 bits clears the high half."""
    table, row, used = (
        one.number("bitop3"),
        vector(one.operands[0], agprs),
        U(0xFFFF if "b16" in one.base else 0xFFFFFFFF),
    )
    get = [bits(text, agprs) for text in one.operands[1:]]

    def step(w: Waves) -> None:
        x, y, z = (np.broadcast_to(read(w), (w.n, 64)) for read in get)
        result = np.zeros((w.n, 64), U)
        for i in (i for i in range(8) if table >> i & 1):
            result |= (x if i & 4 else ~x) & (y if i & 2 else ~y) & (z if i & 1 else ~z)
        w.put(row, result & used)

    return step


def _pack(one: Instruction, agprs: int) -> Step:
    """v_pack_b32_f16: two halves side by side, each the one that op_sel names."""
    chosen, row = one.numbers("op_sel", [0, 0, 0]), vector(one.operands[0], agprs)
    a, b = (source(t, "u", agprs, f"WORD_{which}") for t, which in zip(one.operands[1:], chosen, strict=False))
    return lambda w: w.put(row, a(w) | (b(w) << U(16)))


def _one_lane(one: Instruction, agprs: int) -> Step:
    """v_readlane, v_readfirstlane (the first active one, else 0), v_writelane."""
    if one.base == "v_writelane_b32":
        row, value, lane = vector(one.operands[0], agprs), bits(one.operands[1], 0), bits(one.operands[2], 0)

        def write(w: Waves) -> None:
            at = (np.broadcast_to(lane(w), (w.n, 1)) & U(63))[:, 0]
            w.v[row, w.waves, at] = np.broadcast_to(value(w), (w.n, 1))[:, 0]

        return write
    to, get = scalar(one.operands[0]), bits(one.operands[1], agprs)
    lane = bits(one.operands[2], 0) if one.base == "v_readlane_b32" else lambda w: w.mask.argmax(1).astype(U)[:, None]

    def read(w: Waves) -> None:
        at = (np.broadcast_to(lane(w), (w.n, 1)) & U(63))[:, 0]
        w.s[to][w.here] = np.broadcast_to(get(w), (w.n, 64))[np.arange(w.n), at]

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
    **dict.fromkeys(TABLE, _table),
    **{f"v_cmp_{name}_{kind}": _compare for name in _FLOAT for kind in ("f32", "f16")},
    **{f"v_cmp_{name}_{kind}": _compare for name in _ORDER for kind in ("i32", "u32", "i64", "u64")},
    "v_cndmask_b32": _conditional, "v_div_scale_f32": _div_scale, "v_fma_mix_f32": _mixed, 
    **dict.fromkeys(("v_bitop3_b32", "v_bitop3_b16"), _bitop3),
    **dict.fromkeys(("v_mad_u64_u32", "v_mad_i64_i32"), _mad64), "v_pack_b32_f16": _pack,
    **{f"v_{name}_co_u32": _carry for name in ("add", "addc", "sub", "subb", "subrev", "subbrev")},
    **dict.fromkeys(("v_pk_add_f32", "v_pk_mul_f32", "v_pk_fma_f32", "v_pk_mov_b32"), _packed),
    **dict.fromkeys(("v_readlane_b32", "v_readfirstlane_b32", "v_writelane_b32"), _one_lane),
    **dict.fromkeys(("v_permlane16_swap_b32", "v_permlane32_swap_b32"), _row_swap),
}  # fmt: skip
