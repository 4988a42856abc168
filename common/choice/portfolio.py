"""The configs that a choice may take: a few of each kernel, and for a batch the numbers of segments of each.

A portfolio has configs without numbers of segments. These follow from the batch: as many as fill the GPU's slots once,
half and twice as many, and one. A kernel with a launch of its own for short queries has the config of the other launch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from common.choice import columns, legal

MOST_CONFIGS = 40  # of a kernel
ONE_LAUNCH = ("q_block", "parallel_softmax")  # their Config has no parts
SHORT = "parallel_softmax"  # serves the short queries of the others
SHARES = (0.5, 1.0, 2.0)  # of the slots, that segments may fill


class Portfolio:
    """rows: (kernel, config as plain values) of all; columns: of these, as columns.configs has them."""

    def __init__(self, plain: Any) -> None:
        """plain: a list of configs a kernel. Raises ValueError."""
        if not isinstance(plain, dict) or SHORT not in plain or not set(plain) <= set(columns.KERNELS):
            raise ValueError(f"portfolio: found {plain!r:.80}, allowed configs of {', '.join(columns.KERNELS)}")
        for kernel, parts in plain.items():
            _check(kernel, parts)
        self.rows = [(kernel, part) for kernel, parts in plain.items() for part in parts]
        self.columns = columns.configs(self.rows)
        self._whole = np.array([kernel in ONE_LAUNCH for kernel, _ in self.rows])
        self._cut = np.array(["num_segments" in part for _, part in self.rows])

    def of(self, kernels: Any) -> np.ndarray:
        """Which rows are of these kernels; None: all."""
        return np.array([kernels is None or kernel in kernels for kernel, _ in self.rows])

    @property
    def one_launch(self) -> np.ndarray:
        """Which rows are of kernels whose one launch serves queries of any length."""
        return self._whole

    def numbered(
        self, batch: columns.Columns, asked: np.ndarray, decode: columns.Columns | None
    ) -> tuple[np.ndarray, np.ndarray, columns.Columns]:
        """(row, segments, columns) of what fits a batch among the rows that are `asked`, by each number of segments.
        decode: columns of what serves short queries beside prompts, where a launch is apart for them."""
        at = np.flatnonzero(asked & legal.fits(batch, self.columns, "long_"))
        of, whole = {name: value[at] for name, value in self.columns.items()}, self._whole[at]
        if decode is not None:
            of |= {name: np.where(whole, of[name], value) for name, value in decode.items()}
        long, short = columns.launches(batch, of)
        programs = long.programs + np.where(whole, short.programs, 0.0)
        fill = long.held * batch["units"] / np.maximum(programs, 1)
        most = np.minimum(np.ceil(batch["keys"] / of["long_tile_size"]), legal.MOST_SEGMENTS)
        most = np.where(self._cut[at], most, 1.0)
        numbers = np.stack([np.ones(len(at)), *(np.clip(down(fill * share), 1, most) for share in SHARES)])
        which, segments = np.unique(np.stack([np.tile(np.arange(len(at)), len(numbers)), numbers.ravel()]), axis=1)
        which = which.astype(int)
        of = {name: value[which] for name, value in of.items()} | {"long_num_segments": segments}
        of["short_num_segments"] = np.where(whole[which], segments, of["short_num_segments"])
        return at[which], segments, of

    def config(self, row: int, segments: float, decode: dict[str, Any] | None) -> dict[str, Any]:
        """The whole Config of a row; decode: of short queries, where a launch is apart for them."""
        kernel, part = self.rows[row]
        part = part | {"num_segments": int(segments)} if self._cut[row] else part
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
