"""DPP: source 0 comes from another lane of the row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from compare.isa.errors import NotExecutable
from compare.isa.state import LANES, Waves
from compare.isa.text import Instruction


def _lanes_read(one: Instruction) -> tuple[np.ndarray, np.ndarray]:
    """DPP: the lane that each lane reads, and whether there is one."""
    row, i, every = LANES & ~15, LANES & 15, np.ones(64, bool)
    if "quad_perm" in one.modifiers:
        return (LANES & ~3) + np.array(one.numbers("quad_perm", []))[LANES & 3], every
    if "row_shl" in one.modifiers or "row_shr" in one.modifiers:
        at = i + one.number("row_shl") - one.number("row_shr")
        return row + np.clip(at, 0, 15), (at >= 0) & (at < 16)
    if "row_ror" in one.modifiers:
        return row + ((i - one.number("row_ror")) & 15), every
    if "row_newbcast" in one.modifiers:
        return row + one.number("row_newbcast"), every
    if "row_bcast" in one.modifiers:
        return (np.maximum(row - 1, 0), LANES >= 16) if one.number("row_bcast") == 15 else (LANES * 0 + 31, LANES >= 32)
    if one.flags("row_half_mirror"):
        return (LANES & ~7) + 7 - (LANES & 7), every
    if one.flags("row_mirror"):
        return row + 15 - i, every
    raise NotExecutable(one.mnemonic, f"modifiers {one.modifiers}")


def permutation(one: Instruction) -> tuple[Callable, np.ndarray]:
    """What permutes source 0, and the lanes that are written."""
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
