"""DPP: source 0 comes from another lane of the row."""

from collections.abc import Callable

import numpy as np

from compare.static.isa.errors import NotExecutable
from compare.static.isa.state import LANES, Waves
from compare.static.isa.text import Instruction

_ROW, _I = LANES & ~15, LANES & 15
_EVERY = LANES >= 0
# pattern -> the lane that each lane reads, and whether there is one, from the pattern's number
_PATTERNS: dict[str, Callable[[int], tuple[np.ndarray, np.ndarray]]] = {
    "row_shl": lambda n: (_ROW + np.minimum(_I + n, 15), _I + n < 16),
    "row_shr": lambda n: (_ROW + np.maximum(_I - n, 0), n <= _I),
    "row_ror": lambda n: (_ROW + ((_I - n) & 15), _EVERY),
    "row_newbcast": lambda n: (_ROW + n, _EVERY),
    "row_bcast": lambda n: (np.maximum(_ROW - 1, 0), _ROW > 0) if n == 15 else (LANES * 0 + 31, LANES >= 32),
    "row_mirror": lambda n: (_ROW + 15 - _I, _EVERY),
    "row_half_mirror": lambda n: (LANES ^ 7, _EVERY),
}


def _lanes_read(one: Instruction) -> tuple[np.ndarray, np.ndarray]:
    if "quad_perm" in one.modifiers:
        return (LANES & ~3) + np.array(one.numbers("quad_perm", []))[LANES & 3], _EVERY
    found = [name for name in _PATTERNS if name in one.modifiers]
    if len(found) != 1:
        raise NotExecutable(one.mnemonic, f"modifiers {one.modifiers}")
    return _PATTERNS[found[0]](one.number(found[0]))


def permutation(one: Instruction) -> tuple[Callable, np.ndarray]:
    """The permutation of source 0, and the lanes that are written."""
    lane, there = _lanes_read(one)
    zero = one.take("bound_ctrl", "off") == "1"
    rows, banks = one.number("row_mask", "0xf"), one.number("bank_mask", "0xf")
    written = ((rows >> (LANES // 16)) & 1).astype(bool) & ((banks >> ((LANES // 4) & 3)) & 1).astype(bool)

    def permute(get: Callable) -> Callable:
        def read(w: Waves) -> np.ndarray:
            if not w.full and (w.mask & there & ~w.mask[:, lane]).any():
                raise NotExecutable(one.mnemonic, "a lane reads one that is switched off")
            return np.where(there, np.broadcast_to(get(w), (w.n, 64))[:, lane], np.uint32(0))

        return read

    return permute, written if zero else written & there
