"""Candidates for a batch, the best first: a portfolio of configs and the model that ranks them, from one file a DSL and
GPU. `python -m compare tune --fit` writes it, from logs alone; docs/tuning.md says how.

Short queries beside prompts get what the model takes for them alone.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from common.choice import columns, cost
from common.choice.model import Net
from common.choice.portfolio import SHORT, Portfolio
from common.choice.table import table
from common.gpus import Gpu
from common.spec import AttentionShape
from common.spec.metadata import SHORT_QUERY, BatchStats

LABEL = "diptych: learned choice"
MEMBERS = ("label", "dsl", "gpu", "provenance", "sources", "columns")
MEMBERS += ("winners", "constants", "portfolio", "net", "held_out")
WIDTH = 70  # columns of a table
ALIKE = 2  # candidates of a kernel and its rows that stand before others: near twins lose alike


class NotLearned(ValueError):
    """A file that is no learned choice of this DSL and GPU; the message names the member, what was found and what is
    allowed."""


@dataclass(frozen=True)
class Candidate:
    """config: plain values of the kernel's Config. loss: log(time / least time), as the model has it."""

    kernel: str
    config: Mapping[str, Any]
    loss: float


@dataclass(frozen=True)
class Told:
    """us: predicted, at the level that the formula gives all candidates and apart as the model has them. limits: the
    term of the formula (common/choice/cost.py) that most of it is."""

    candidate: Candidate
    us: float
    limits: str


class Learned:
    """The portfolio, the model and the shipped winners (plain values) of one DSL on one GPU."""

    def __init__(self, plain: Any, dsl: str, gpu: Gpu) -> None:
        """Raises NotLearned."""
        if not isinstance(plain, dict) or plain.get("label") != LABEL or not set(MEMBERS) <= plain.keys():
            raise NotLearned(f"found a file without label {LABEL!r} and {', '.join(MEMBERS[1:])}")
        if (plain["dsl"], plain["gpu"]) != (dsl, gpu.name):
            raise NotLearned(f"found {plain['dsl']!r:.40} on {plain['gpu']!r:.40}, allowed {dsl} on {gpu.name}")
        self.gpu = gpu.name
        if plain["columns"] != WIDTH:
            raise NotLearned(f"columns: found {plain['columns']!r:.40}, allowed {WIDTH}")
        try:
            self.net = Net.of(plain["net"], WIDTH)
            self.portfolio = Portfolio(plain["portfolio"])
        except ValueError as error:
            raise NotLearned(str(error)) from error
        self.provenance, self.held_out, self.winners = plain["provenance"], plain["held_out"], plain["winners"]
        try:
            found = np.array(plain["constants"], dtype=float)
        except (TypeError, ValueError):
            found = np.array(np.nan)
        if found.shape != (len(cost.TERMS),) or not np.isfinite(found).all() or (found < 0).any():
            raise NotLearned(f"constants: found {plain['constants']!r:.80}, allowed one of at least 0 for each term")
        self.constants = found

    def first(
        self, shape: AttentionShape, stats: BatchStats, gpu: Gpu, count: int = 5, kernels: Collection[str] | None = None
    ) -> list[Candidate]:
        """The `count` best candidates of these kernels (all of the portfolio), fewer where fewer fit. stats: as
        `grid.decided_by` and `grid.seen` have them. Kernels with a launch for short queries alone are none for a batch
        that has no others: SHORT is the same."""
        of, short = self.portfolio, stats.max_query_len <= SHORT_QUERY
        config, decode = (None, None) if short else self._short(shape, stats, gpu)
        batch, asked = columns.batches([(shape, stats, gpu)]), of.of(kernels)
        rows, segments, made = of.numbered(batch, asked & of.one_launch if short else asked, decode)
        if not len(rows):
            return []
        lost = self._losses(batch, made)
        kinds = list(zip(made["kernel"], made["long_block_m"], strict=True))
        return [
            Candidate(of.rows[rows[i]][0], of.config(rows[i], segments[i], config), float(lost[i]))
            for i in apart(kinds, lost)[:count]
        ]

    def _losses(self, batch: columns.Columns, made: columns.Columns) -> np.ndarray:
        return self.net.losses(table(batch, made, self.constants))

    def _short(self, shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> tuple[dict[str, Any], columns.Columns]:
        """What serves the short queries beside prompts, and its columns: the best for them alone."""
        seqs = max(stats.num_decodes, 1)
        keys = max(stats.total_seq_len * seqs // max(stats.num_seqs, 1), 1)
        alone = BatchStats(seqs, seqs, seqs, 1, stats.max_seq_len, keys)
        batch, of = columns.batches([(shape, alone, gpu)]), self.portfolio
        asked = of.of({SHORT})
        rows, segments, made = of.numbered(batch, asked, None)
        if not len(rows):  # nothing fits: the first, as a launch of it says what it lacks
            rows, segments = np.flatnonzero(asked)[:1], np.ones(1)
            made = {name: value[rows] for name, value in of.columns.items()}
        best = int(np.argmin(self._losses(batch, made)))
        config = of.config(rows[best], segments[best], None)
        return config, {name: value[best] for name, value in made.items() if name.startswith("short_")}

    def told(self, shape: AttentionShape, stats: BatchStats, gpu: Gpu, candidates: Sequence[Candidate]) -> list[Told]:
        """What each is predicted to take, and why."""
        if not candidates:
            return []
        batch = columns.batches([(shape, stats, gpu)])
        made = columns.configs([(one.kernel, one.config) for one in candidates])
        parts = cost.parted(self.constants, cost.terms(batch, made))
        lost = np.array([one.loss for one in candidates])
        us = np.exp(np.median(np.log(parts.sum(axis=1)) - lost) + lost)
        limits = [cost.TERMS[i] for i in parts.argmax(axis=1)]
        return [Told(*one) for one in zip(candidates, us.tolist(), limits, strict=True)]


def apart(kinds: Sequence[Any], lost: np.ndarray) -> list[int]:
    """The order of candidates by what they lose, where of a kind at most ALIKE stand before the others."""
    met: Counter[Any] = Counter()
    first, others = [], []
    for i in np.argsort(lost, kind="stable"):
        met[kinds[i]] += 1
        (first if met[kinds[i]] <= ALIKE else others).append(int(i))
    return first + others


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
