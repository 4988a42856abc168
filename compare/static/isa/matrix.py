"""MFMA: where lanes keep the elements of A, B, C and D (AMD matrix instruction calculator), and the product."""

import re
from collections.abc import Callable

import numpy as np

from compare.static.isa.convert import bf16_to_f32
from compare.static.isa.errors import NotExecutable
from compare.static.isa.fp8 import NAMES
from compare.static.isa.fp8 import decode as fp8_to_f32
from compare.static.isa.operands import bits, register, vector
from compare.static.isa.state import LANES, Waves
from compare.static.isa.text import Instruction

_SHAPE = re.compile(r"v_mfma_f32_(\d+)x\1x(\d+)_?(?:(\d+)b_)?(bf16|f16|f32|f8f6f4|[fb][fp]8_[fb][fp]8)(?:_1k)?$")
_HALVES = ("16x16x16", "32x32x8", "16x16x32", "32x32x16", "4x4x4_16b")
KNOWN = (
    *(f"{shape}_{kind}" for shape in _HALVES for kind in ("f16", "bf16")), "16x16x4_f32", "32x32x2_f32",
    *(f"{shape}{kind}" for shape in ("16x16x16", "32x32x8", "4x4x4") for kind in ("bf16_1k", "f16")), "16x16x4f32",
    "32x32x2f32", "16x16x128_f8f6f4", "32x32x64_f8f6f4",
    *(f"{shape}_{a}_{b}" for shape in ("16x16x32", "32x32x16") for a in NAMES for b in NAMES),
)  # fmt: skip
MNEMONICS = tuple(f"v_mfma_f32_{shape}" for shape in KNOWN)


def shape_of(mnemonic: str) -> tuple[int, int, int, str]:
    """(rows = columns, depth, blocks, type) of a matrix instruction."""
    found = _SHAPE.match(mnemonic)
    if mnemonic not in MNEMONICS or not found:
        raise NotExecutable(mnemonic)
    side = int(found[1])
    return side, int(found[2]), 16 if side == 4 else 1, found[4]


def operand_element(side: int, depth: int, blocks: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(block, row, k), each int [elements a lane, 64]: which element of A is element e of lane l; for B likewise, by
    column."""
    per_lane = side * depth * blocks // 64
    e, group = np.arange(per_lane)[:, None], LANES // side
    return (group // (64 // side // blocks) + 0 * e, LANES % side + 0 * e,
            group % max(64 // side // blocks, 1) * per_lane + e)  # fmt: skip


def result_element(side: int, blocks: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(block, row, column), each int [registers, 64]: which element of C and D is in register r of lane l."""
    r = np.arange(side * side * blocks // 64)[:, None]
    if blocks > 1:
        return LANES // side + 0 * r, r + 0 * LANES, LANES % side + 0 * r
    return 0 * r + 0 * LANES, 4 * (64 // side) * (r // 4) + 4 * (LANES // side) + r % 4, LANES % side + 0 * r


def _types(one: Instruction, kind: str) -> list[str]:
    """The types of A and B. Types of 4 and 6 bits are refused; for 8 bits the order of k in a register does not matter,
    because A and B agree."""
    if kind != "f8f6f4":
        return kind.split("_") if kind.endswith("8") else [kind, kind]
    names = [NAMES[number : number + 1] for number in (one.number("cbsz"), one.number("blgp"))]
    if not all(names):
        raise NotExecutable(one.mnemonic, "of elements that are not 8 bits")
    return [name for (name,) in names]


def _unpack(raw: np.ndarray, kind: str, fnuz: bool) -> np.ndarray:
    """uint32 [registers, n, 64] -> float32 [elements, n, 64]."""
    if kind == "f32":
        return raw.view(np.float32)
    if kind in NAMES:
        return fp8_to_f32(np.stack([raw >> np.uint32(8 * i) for i in range(4)], 1), kind, fnuz).reshape(
            -1, *raw.shape[1:]
        )
    halves = np.stack([raw & np.uint32(0xFFFF), raw >> np.uint32(16)], 1).reshape(-1, *raw.shape[1:])
    return bf16_to_f32(halves) if kind == "bf16" else halves.astype(np.uint16).view(np.float16).astype(np.float32)


def decode(one: Instruction, agprs: int) -> Callable[[Waves], None]:
    side, depth, blocks, kind = shape_of(one.mnemonic)
    types, fnuz = _types(one, kind), one.arch != "gfx950"
    share, offset = 1 << one.number("cbsz"), one.number("abid")
    # Only "none" and "one block to all" mean the same in all of AMD's texts.
    if share not in (1, blocks) or offset >= share:
        raise NotExecutable(one.mnemonic, f"cbsz for {share} of {blocks} blocks, abid:{offset}")
    a, b, d = (vector(one.operands[i], agprs) for i in (1, 2, 0))
    used = side * depth * blocks // 64 * {"f32": 4, **dict.fromkeys(NAMES, 1)}.get(types[0], 2) // 4
    block, row, k = operand_element(side, depth, blocks)
    to_block, to_row, to_column = result_element(side, blocks)
    broadcast = np.full(blocks, offset) if share > 1 else np.arange(blocks)
    initial = register(one.operands[3])
    c = vector(one.operands[3], agprs) if initial else None
    fixed = bits(one.operands[3], agprs) if initial is None else None
    one.finish()

    def operand(w: Waves, first: int, kind: str) -> np.ndarray:
        matrix = np.empty((w.n, blocks, side, depth), np.float32)
        elements = _unpack(w.v[first : first + used, w.here], kind, fnuz)
        matrix[:, block, row, k] = np.moveaxis(elements, 1, 0)
        return matrix

    def step(w: Waves) -> None:
        product = operand(w, a, types[0])[:, broadcast] @ operand(w, b, types[1]).swapaxes(2, 3)
        placed = np.moveaxis(product[:, to_block, to_row, to_column], 0, 1)  # [registers, n, 64]
        start = fixed(w).view(np.float32) if fixed else w.v[c : c + len(placed), w.here].view(np.float32)
        w.v[d : d + len(placed), w.here] = (placed + start).view(np.uint32)  # ignores exec, as the hardware does

    return step
