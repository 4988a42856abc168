"""Candidates for a batch, the best first: a portfolio of configs and the model that ranks them, from one file a DSL and
GPU. `python -m compare tune --learn` writes it, from logs alone; docs/tuning.md says how.

A portfolio has a few configs a kernel, without numbers of segments. These follow from the batch: as many as fill the
GPU's slots once, half and twice as many, and one; the model says which. Short queries beside prompts get what the model
takes for them alone.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from common.choice import columns, legal
from common.choice.model import Trees, losses
from common.gpus import Gpu
from common.spec import AttentionShape
from common.spec.metadata import SHORT_QUERY, BatchStats

LABEL = "diptych: learned choice"
MEMBERS = ("label", "dsl", "gpu", "provenance", "sources", "columns", "portfolio", "trees", "held_out")
MOST_CONFIGS = 40  # of a kernel
ONE_LAUNCH = ("q_block", "parallel_softmax")  # their Config has no parts
SHORT = "parallel_softmax"  # serves the short queries of the others
SHARES = (0.5, 1.0, 2.0)  # of the slots, that segments may fill
WIDTH = 43  # columns of columns.table


class NotLearned(ValueError):
    """A file that is no learned choice of this DSL and GPU; the message names the member, what was found and what is
    allowed."""


@dataclass(frozen=True)
class Candidate:
    """config: plain values of the kernel's Config. loss: log(time / least time), as the model has it."""

    kernel: str
    config: Mapping[str, Any]
    loss: float


class Learned:
    """The portfolio and the model of one DSL on one GPU."""

    def __init__(self, plain: Any, dsl: str, gpu: Gpu) -> None:
        """Raises NotLearned."""
        if not isinstance(plain, dict) or plain.get("label") != LABEL or not set(MEMBERS) <= plain.keys():
            raise NotLearned(f"found a file without label {LABEL!r} and {', '.join(MEMBERS[1:])}")
        if (plain["dsl"], plain["gpu"]) != (dsl, gpu.name):
            raise NotLearned(f"found {plain['dsl']!r:.40} on {plain['gpu']!r:.40}, allowed {dsl} on {gpu.name}")
        if plain["columns"] != WIDTH:
            raise NotLearned(f"columns: found {plain['columns']!r:.40}, allowed {WIDTH}")
        try:
            self.trees = Trees.of(plain["trees"], WIDTH)
        except ValueError as error:
            raise NotLearned(str(error)) from error
        self.portfolio: dict[str, list[dict[str, Any]]] = _portfolio(plain["portfolio"])
        self.provenance, self.held_out = plain["provenance"], plain["held_out"]
        self._columns = {
            kernel: columns.configs([(kernel, part) for part in parts]) for kernel, parts in self.portfolio.items()
        }

    def first(
        self, shape: AttentionShape, stats: BatchStats, gpu: Gpu, count: int = 5, kernels: Collection[str] | None = None
    ) -> list[Candidate]:
        """The `count` best candidates of these kernels (all of the portfolio), fewer where fewer fit. stats: as
        `grid.decided_by` and `grid.seen` have them. Kernels with a launch for short queries alone are none for a batch
        that has no others: SHORT is the same."""
        short = stats.max_query_len <= SHORT_QUERY
        decode = None if short else self._short(shape, stats, gpu)
        asked = [k for k in self.portfolio if (kernels is None or k in kernels) and (k in ONE_LAUNCH or not short)]
        batch = columns.batches([(shape, stats, gpu)])
        made, blocks = [], []
        for kernel in asked:
            of = self._columns[kernel]
            if kernel not in ONE_LAUNCH:
                of = of | {name: np.repeat(value, len(of["kernel"])) for name, value in decode[1].items()}
            at, segments = self._segments(kernel, of, batch)
            prefixes = ("long_", "short_") if kernel in ONE_LAUNCH else ("long_",)
            of = {name: value[at] for name, value in of.items()} | {f"{p}num_segments": segments for p in prefixes}
            blocks.append(of)
            made += [(kernel, i, int(n)) for i, n in zip(at, segments, strict=True)]
        if not made:
            return []
        joined = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
        lost = losses(self.trees, columns.table(batch, joined), len(made))[0]
        best = np.argsort(lost, kind="stable")[:count]
        return [Candidate(made[i][0], self._config(*made[i], decode and decode[0]), float(lost[i])) for i in best]

    def _config(self, kernel: str, which: int, segments: int, decode: dict[str, Any] | None) -> dict[str, Any]:
        part = self.portfolio[kernel][which]
        part = part | {"num_segments": segments} if "num_segments" in part else part
        return part if kernel in ONE_LAUNCH else {"prefill": part, "decode": decode}

    def _short(self, shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> tuple[dict[str, Any], columns.Columns]:
        """What serves the short queries beside prompts, and its columns: the best for them alone."""
        seqs = max(stats.num_decodes, 1)
        keys = max(stats.total_seq_len * seqs // max(stats.num_seqs, 1), 1)
        alone = BatchStats(seqs, seqs, seqs, 1, stats.max_seq_len, keys)
        batch, of = columns.batches([(shape, alone, gpu)]), self._columns[SHORT]
        at, segments = self._segments(SHORT, of, batch)
        of = {name: value[at] for name, value in of.items()}
        of |= {"long_num_segments": segments, "short_num_segments": segments}
        if not len(at):  # nothing fits: the smallest, as a launch of it says what it lacks
            at, segments, of = (
                np.zeros(1, int),
                np.ones(1),
                {name: value[:1] for name, value in self._columns[SHORT].items()},
            )
        best = int(np.argmin(losses(self.trees, columns.table(batch, of), len(at))[0]))
        config = self.portfolio[SHORT][at[best]] | {"num_segments": int(segments[best])}
        return config, {name: value[best : best + 1] for name, value in of.items() if name.startswith("short_")}

    def _segments(self, kernel: str, of: columns.Columns, batch: columns.Columns) -> tuple[np.ndarray, np.ndarray]:
        """Every config of a kernel that fits, by each number of segments that it may take: (config, segments)."""
        fits = np.flatnonzero(legal.fits(batch, of, "long_"))
        if "num_segments" not in self.portfolio[kernel][0]:
            return fits, np.ones(len(fits))
        of, count = {name: value[fits] for name, value in of.items()}, len(fits)
        long, short = columns.launches(batch, of)
        programs = long.programs + (short.programs if kernel in ONE_LAUNCH else 0.0)
        fill = long.held * batch["units"] / np.maximum(programs, 1)
        most = np.minimum(np.ceil(batch["keys"] / of["long_tile_size"]), legal.MOST_SEGMENTS)
        options = [np.clip(_down(fill * share), 1, most) for share in SHARES]
        numbered = [np.stack([np.arange(count), n]) for n in (np.ones(count), *options)]
        pairs = np.unique(np.concatenate(numbered, axis=1), axis=1)
        return fits[pairs[0].astype(int)], pairs[1]


def _down(n: np.ndarray) -> np.ndarray:
    """The largest of 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16 ... (grid.KEYS) that is no larger."""
    power = np.maximum(2.0 ** (np.floor(np.log2(np.maximum(n, 1))) - 2), 1)
    return np.maximum(np.floor(n / power) * power, 1)


def _portfolio(plain: Any) -> dict[str, list[dict[str, Any]]]:
    """Raises NotLearned where it is no list of configs a kernel."""
    if not isinstance(plain, dict) or SHORT not in plain or not set(plain) <= set(columns.KERNELS):
        raise NotLearned(f"portfolio: found {plain!r:.80}, allowed configs of {', '.join(columns.KERNELS)}")
    for kernel, parts in plain.items():
        if not isinstance(parts, list) or not 0 < len(parts) <= MOST_CONFIGS:
            raise NotLearned(f"portfolio: found {parts!r:.80} of {kernel}, allowed 1 to {MOST_CONFIGS} configs")
        for part in parts:
            whole = isinstance(part, dict) and all(isinstance(v, int | float | str | bool) for v in part.values())
            if not whole or part.keys() != parts[0].keys() or part.get("gather", "key") not in columns.GATHERS:
                raise NotLearned(f"portfolio: found {part!r:.80} of {kernel}, allowed fields of one Config")
    return plain


def read(path: Path, dsl: str, gpu: Gpu) -> Learned | None:
    """The learned choice of a file; None where there is none. Raises NotLearned."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise NotLearned(f"{path}: {error}") from error
    try:
        return Learned(json.loads(text), dsl, gpu)
    except (json.JSONDecodeError, RecursionError) as error:
        raise NotLearned(f"{path}: {error}") from error
