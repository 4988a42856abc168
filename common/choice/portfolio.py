"""The configs that a choice may take: a few of each kernel, and for a batch the numbers of segments of each.

A portfolio has configs without numbers of segments. These follow from the batch: one, or as many as fill one of a few
shares of the GPU's slots, which logs have. A kernel with a launch of its own for short queries has the config of the
other launch.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from numbers import Real
from typing import Any

import numpy as np

from common.choice import columns, legal

ONE_LAUNCH = ("q_block", "parallel_softmax")  # their Config has no parts
SHORT = "parallel_softmax"  # serves the short queries of the others
CUT, BOUND = "num_segments", "registers"  # fields of a config that are computed for a batch


class Portfolio:
    """rows: (kernel, config as plain values) of all."""

    def __init__(self, plain: Any, shares: Any, dsl: str, bounded: Collection[str]) -> None:
        """plain: a list of configs a kernel. shares: of the slots, that segments may fill. bounded: kernels whose
        registers are bounded (`bounded`). Raises ValueError."""
        if not isinstance(plain, dict) or SHORT not in plain or not set(plain) <= set(columns.KERNELS):
            raise ValueError(f"portfolio: found {plain!r:.80}, allowed configs of {', '.join(columns.KERNELS)}")
        for kernel, parts in plain.items():
            _check(kernel, parts)
        if not isinstance(shares, list) or not all(isinstance(one, Real) and one > 0 for one in shares):
            raise ValueError(f"shares: found {shares!r:.80}, allowed numbers above 0")
        self.rows = [(kernel, part) for kernel, parts in plain.items() for part in parts]
        self._columns = columns.configs(self.rows, dsl)
        # (row, share of the slots that its segments fill; 0: one segment)
        pairs = [(i, s) for i, (_, part) in enumerate(self.rows) for s in ((0.0, *shares) if CUT in part else (0.0,))]
        self._row, self._share = np.array([i for i, _ in pairs]), np.array([share for _, share in pairs])
        self._whole = np.array([self.rows[i][0] in ONE_LAUNCH for i in self._row])
        self._bounded = np.array([self.rows[i][0] in bounded for i in self._row])

    def only(self, rows: Collection[int]) -> Portfolio:
        """The same with candidates of these rows alone."""
        made, kept = copy.copy(self), np.isin(self._row, rows)
        made._row, made._share, made._whole, made._bounded = (
            of[kept] for of in (self._row, self._share, self._whole, self._bounded)
        )
        return made

    def candidates(
        self, batch: columns.Columns, kernels: Collection[str] | None, decode: columns.Columns | None
    ) -> tuple[np.ndarray, np.ndarray, columns.Columns, columns.Undivided]:
        """Of the candidates that fit: row [candidate], segments [batch, candidate], columns that broadcast to the same,
        and columns.whole of them.

        batch: of one shape and GPU. kernels: None for all. decode: columns [batch] of the launch that serves short
        queries beside prompts; None for batches of short queries alone, for which kernels with a separate launch for
        them have no candidate.
        """
        asked = np.array([kernels is None or self.rows[i][0] in kernels for i in self._row])
        one = {name: value[:1] for name, value in batch.items()}
        fits = legal.fits(one, self._columns, "long_")[self._row]
        at = np.flatnonzero(asked & fits & (self._whole | (decode is not None)))
        of, whole = {name: value[self._row[at]][None, :] for name, value in self._columns.items()}, self._whole[at]
        if decode is not None:
            of |= {name: np.where(whole, of[name], value[:, None]) for name, value in decode.items()}
        wide = {name: value[:, None] for name, value in batch.items()}
        undivided = columns.whole(wide, of)
        segments = cut(per_slot(wide, undivided, whole), self._share[at], longest(undivided, whole))
        of |= {"long_num_segments": segments, "short_num_segments": np.where(whole, segments, of["short_num_segments"])}
        bound = np.where(self._bounded[at], bounded(wide, of, undivided.programs.sum(axis=0) * segments), 0)
        of |= {name: np.where(bound > 0, bound, of[name]) for name in ("long_registers", "short_registers")}
        return self._row[at], segments, of, undivided

    def config(self, row: int, segments: float, registers: float, decode: dict[str, Any] | None) -> dict[str, Any]:
        """The whole Config of a row; decode: of short queries, where a launch is apart for them."""
        kernel, part = self.rows[row]
        part = part | {name: int(n) for name, n in ((CUT, segments), (BOUND, registers)) if name in part}
        return part if kernel in ONE_LAUNCH else {"prefill": part, "decode": decode}


def per_slot(b: columns.Columns, undivided: columns.Undivided, whole: np.ndarray) -> np.ndarray:
    """Slots of the GPU for each program of one segment. whole: of kernels with one launch for all queries."""
    programs = undivided.programs[0] + np.where(whole, undivided.programs[1], 0.0)
    return undivided.held[0] * b["units"] / np.maximum(programs, 1)


def longest(undivided: columns.Undivided, whole: np.ndarray) -> np.ndarray:
    """Tiles of the longest program that segments divide. whole: as of `per_slot`."""
    return np.where(whole, undivided.most.max(axis=0), undivided.most[0])


def cut(slots: np.ndarray, share: Any, most: np.ndarray) -> np.ndarray:
    """Segments whose programs fill a share of the slots. slots: of `per_slot`; most: tiles of the longest program."""
    return np.clip(down(slots * share), 1, np.minimum(most, legal.MOST_SEGMENTS))


def bounded(b: columns.Columns, c: columns.Columns, programs: np.ndarray) -> np.ndarray:
    """Registers of a thread that launches of SHORT are bounded to; 0 for the compiler's own number.

    With fewer programs than places this is faster: 2 an SM lose 15% by a bound that lets 4 fit. Programs of one warp
    are left to it, and so is all AMD code.
    """
    rows = np.maximum(c["short_block_m"], 2 ** np.ceil(np.log2(b["ratio"])))
    sizes = c["short_tile_size"], c["short_num_warps"] * b["warp"], b["lanes"], b["value_lanes"]
    most, fit = legal.register_bound(rows, *sizes)
    free = (c["short_registers"] == 0) & (c["short_num_warps"] > 1) & (b["nvidia"] > 0)
    return np.where(free & (programs > (fit - 1) * b["units"]), most, 0)


def _check(kernel: str, parts: Any) -> None:
    if not isinstance(parts, list) or not parts:
        raise ValueError(f"portfolio: found {parts!r:.80} of {kernel}, allowed a list of configs")
    for part in parts:
        whole = isinstance(part, dict) and all(isinstance(v, int | float | str | bool) for v in part.values())
        if not whole or part.keys() != parts[0].keys() or part.get("gather", "key") not in columns.GATHERS:
            raise ValueError(f"portfolio: found {part!r:.80} of {kernel}, allowed fields of one Config")


def down(n: np.ndarray) -> np.ndarray:
    """The largest of 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16 ... (grid.KEYS) that is no larger."""
    power = np.maximum(2.0 ** (np.floor(np.log2(np.maximum(n, 1))) - 2), 1)
    return np.maximum(np.floor(n / power) * power, 1)
