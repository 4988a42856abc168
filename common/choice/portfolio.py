"""The configs that a choice may take: a few of each kernel, and for a batch the numbers of segments of each.

A portfolio has configs without numbers of segments. These follow from the batch: one, or as many as fill a share of the
GPU's slots. A kernel with a launch of its own for short queries has the config of the other launch.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from common.choice import columns, legal

MOST_CONFIGS = 40  # of a kernel
ONE_LAUNCH = ("q_block", "parallel_softmax")  # their Config has no parts
SHORT = "parallel_softmax"  # serves the short queries of the others
SHARES = (0.8, 1.25, 2.0, 3.0, 6.0)  # of the slots, that segments may fill: the best of logs are least far from these
CUT = "num_segments"


class Portfolio:
    """rows: (kernel, config as plain values) of all."""

    def __init__(self, plain: Any, dsl: str) -> None:
        """plain: a list of configs a kernel. Raises ValueError."""
        if not isinstance(plain, dict) or SHORT not in plain or not set(plain) <= set(columns.KERNELS):
            raise ValueError(f"portfolio: found {plain!r:.80}, allowed configs of {', '.join(columns.KERNELS)}")
        for kernel, parts in plain.items():
            _check(kernel, parts)
        self.rows = [(kernel, part) for kernel, parts in plain.items() for part in parts]
        self._columns = columns.configs(self.rows, dsl)
        # (row, share of the slots that its segments fill; 0: one segment)
        pairs = [(i, s) for i, (_, part) in enumerate(self.rows) for s in ((0.0, *SHARES) if CUT in part else (0.0,))]
        self._row, self._share = np.array([i for i, _ in pairs]), np.array([share for _, share in pairs])
        self._whole = np.array([self.rows[i][0] in ONE_LAUNCH for i in self._row])

    def candidates(
        self, batch: columns.Columns, kernels: Collection[str] | None, decode: columns.Columns | None
    ) -> tuple[np.ndarray, np.ndarray, columns.Columns, columns.Undivided]:
        """(row [candidate], segments [batch, candidate], columns that broadcast to the same, and what columns.whole has
        of them) of what fits.

        batch: of one shape and GPU. kernels: None for all. decode: columns [batch] of what serves short queries beside
        prompts; None where there are none: then kernels with a launch apart for them have no candidate.
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
        programs = undivided.programs[0] + np.where(whole, undivided.programs[1], 0.0)
        fill = undivided.held[0] * wide["units"] / np.maximum(programs, 1) * self._share[at]
        segments = np.clip(down(fill), 1, np.minimum(undivided.most[0], legal.MOST_SEGMENTS))
        of |= {"long_num_segments": segments, "short_num_segments": np.where(whole, segments, of["short_num_segments"])}
        return self._row[at], segments, of, undivided

    def config(self, row: int, segments: float, decode: dict[str, Any] | None) -> dict[str, Any]:
        """The whole Config of a row; decode: of short queries, where a launch is apart for them."""
        kernel, part = self.rows[row]
        part = part | {CUT: int(segments)} if CUT in part else part
        return part if kernel in ONE_LAUNCH else {"prefill": part, "decode": decode}


def _check(kernel: str, parts: Any) -> None:
    if not isinstance(parts, list) or not 0 < len(parts) <= MOST_CONFIGS:
        raise ValueError(f"portfolio: found {parts!r:.80} of {kernel}, allowed 1 to {MOST_CONFIGS} configs")
    for part in parts:
        whole = isinstance(part, dict) and all(isinstance(v, int | float | str | bool) for v in part.values())
        if not whole or part.keys() != parts[0].keys() or part.get("gather", "key") not in columns.GATHERS:
            raise ValueError(f"portfolio: found {part!r:.80} of {kernel}, allowed fields of one Config")


def down(n: np.ndarray) -> np.ndarray:
    """The largest of 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16 ... (grid.KEYS) that is no larger."""
    power = np.maximum(2.0 ** (np.floor(np.log2(np.maximum(n, 1))) - 2), 1)
    return np.maximum(np.floor(n / power) * power, 1)
