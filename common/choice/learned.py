"""Candidates for a batch, the best first: a portfolio of configs and the model that ranks them, from one file a DSL and
GPU. `python -m compare tune --fit` writes it, from logs alone; docs/tuning.md says how.

Short queries beside prompts get what the model takes for them alone.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from common.choice import columns, cost
from common.choice.legal import fitted_part
from common.choice.model import Net, doubted
from common.choice.portfolio import CUT, SHORT, Portfolio
from common.choice.table import table, width
from common.gpus import Gpu
from common.spec import AttentionShape
from common.spec.metadata import SHORT_QUERY, BatchStats

LABEL = "diptych: learned choice"
MEMBERS = ("label", "dsl", "gpu", "provenance", "sources", "columns")
MEMBERS += ("winners", "constants", "portfolio", "shares", "net", "held_out")
COUNT = 5  # candidates of a batch that are measured
TOGETHER = 128  # batches of one pass
DIGITS = 4  # of a loss
STEPS = 2  # log of the steps in a doubling of a count
WASTEFUL = 1  # more than any loss that a net says
TWIN = 0.04  # log of time: near twins lose alike, so another of a kernel and its rows has to promise more


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
class Own:
    """A kernel beside a portfolio, whose config follows from a batch. config: of stats and the config for short queries
    beside prompts (None: there are none) both as plain values."""

    kernel: str
    config: Callable[[BatchStats, Mapping[str, Any] | None], Mapping[str, Any]]


@dataclass(frozen=True)
class Told:
    """us: predicted, at the level that the formula gives all candidates and apart as the model has them. limits: the
    term of the formula (common/choice/cost.py) that most of it is."""

    candidate: Candidate
    us: float
    limits: str


class _Ranked(NamedTuple):
    """The candidates of a batch. rows, segments, registers, lost: [candidate]. decode: the config of short queries
    beside prompts. level: what each member of the net says of all of them on average; zeros without any."""

    rows: np.ndarray
    segments: np.ndarray
    registers: np.ndarray
    lost: np.ndarray
    decode: dict[str, Any] | None
    level: np.ndarray


class Learned:
    """The portfolio, the model and the shipped winners (plain values) of one DSL on one GPU."""

    def __init__(self, plain: Any, dsl: str, gpu: Gpu) -> None:
        """Raises NotLearned."""
        if not isinstance(plain, dict) or plain.get("label") != LABEL or not set(MEMBERS) <= plain.keys():
            raise NotLearned(f"found a file without label {LABEL!r} and {', '.join(MEMBERS[1:])}")
        if (plain["dsl"], plain["gpu"]) != (dsl, gpu.name):
            raise NotLearned(f"found {plain['dsl']!r:.40} on {plain['gpu']!r:.40}, allowed {dsl} on {gpu.name}")
        self.dsl, self.gpu = dsl, gpu.name
        if plain["columns"] != width():
            raise NotLearned(f"columns: found {plain['columns']!r:.40}, allowed {width()}")
        try:
            self.net = Net.of(plain["net"], width())
            self.portfolio = Portfolio(plain["portfolio"], plain["shares"], dsl)
        except ValueError as error:
            raise NotLearned(str(error)) from error
        self.digest = hashlib.sha256(json.dumps(plain).encode()).hexdigest()
        self.provenance, self.held_out, self.winners = plain["provenance"], plain["held_out"], plain["winners"]
        try:
            found = np.array(plain["constants"], dtype=float)
        except (TypeError, ValueError):
            found = np.array(np.nan)
        if found.shape != (len(cost.TERMS),) or not np.isfinite(found).all() or (found < 0).any():
            raise NotLearned(f"constants: found {plain['constants']!r:.80}, allowed one of at least 0 for each term")
        self.constants = found

    def first(
        self,
        shape: AttentionShape,
        stats: BatchStats,
        gpu: Gpu,
        count: int = COUNT,
        kernels: Collection[str] | None = None,
        own: Own | None = None,
    ) -> list[Candidate]:
        """The `count` best candidates of these kernels (all of the portfolio), fewer where fewer fit. own: a kernel
        beside them.

        stats: as `grid.decided_by` and `grid.seen` have them; what they count is rounded up (`coarse`). Kernels with a
        launch for short queries alone are none for a batch that has no others: SHORT is the same.
        """
        stats = coarse(stats)
        ((rows, segments, registers, lost, decode, level),) = self._ranked(shape, [stats], gpu, kernels)
        once = sorted({(rows[i], segments[i]): i for i in range(len(rows))}.values())  # two shares may be one number
        owned = [one for one in self._owned(shape, [stats], [decode], [level], gpu, own) if one]
        kinds = [(kernel, part.get("block_m")) for kernel, part in (self.portfolio.rows[rows[i]] for i in once)]
        kinds += [(one.kernel, one.config.get("prefill", one.config).get("block_m")) for one in owned]
        order = apart(kinds, np.array([*lost[once], *(one.loss for one in owned)]))[:count]
        found = [(once[i], None) if i < len(once) else (0, owned[i - len(once)]) for i in order]
        return [one or self._candidate(rows[i], segments[i], registers[i], lost[i], decode) for i, one in found]

    def best(
        self,
        shape: AttentionShape,
        many: Sequence[BatchStats],
        gpu: Gpu,
        kernels: Collection[str] | None = None,
        own: Own | None = None,
    ) -> list[Candidate | None]:
        """The first of each of many batches, as `first` has them; None where nothing fits."""
        found: list[Candidate | None] = []
        for ranked, other in self._each(shape, list(map(coarse, many)), gpu, kernels, own):
            rows, segments, registers, lost, decode, _ = ranked
            i = int(np.argmin(lost)) if len(rows) else None
            one = None if i is None else self._candidate(rows[i], segments[i], registers[i], lost[i], decode)
            found.append(other if other and (one is None or other.loss < one.loss) else one)
        return found

    def few(
        self,
        shape: AttentionShape,
        many: Sequence[BatchStats],
        gpu: Gpu,
        kernels: Collection[str] | None = None,
        own: Own | None = None,
        slack: float = 0.0,
    ) -> list[int]:
        """The rows of the portfolio that keep each batch within `slack`, a share of its predicted time, of its best
        (`missed_least`), so that a process compiles fewer kernels.

        many: as of `best`. The kernel beside the portfolio stays.
        """
        many = list(dict.fromkeys(map(coarse, many)))
        short = dict.fromkeys(_decodes(one) for one in many if one.max_query_len > SHORT_QUERY and one.num_decodes)
        lost = [self._by_row(*one) for one in self._each(shape, many, gpu, kernels, own)]
        lost += [self._by_row(*one) for one in self._each(shape, list(short), gpu, {SHORT})]
        found = np.array(lost)
        found = found[np.isfinite(found).any(axis=1)]
        return missed_least(found, slack, always=found.shape[1] - 1).tolist()

    def only(self, rows: Collection[int]) -> Learned:
        """The same choice from these rows of the portfolio alone."""
        made = copy.copy(self)
        made.portfolio = self.portfolio.only(rows)
        return made

    def _by_row(self, ranked: _Ranked, other: Candidate | None) -> np.ndarray:
        """[row and one more]: what each row loses with its best number of segments, and the kernel beside them."""
        found = np.full(len(self.portfolio.rows) + 1, np.inf)
        np.minimum.at(found, ranked.rows, ranked.lost)
        found[-1] = np.inf if other is None else other.loss
        return found

    def _each(
        self,
        shape: AttentionShape,
        many: Sequence[BatchStats],
        gpu: Gpu,
        kernels: Collection[str] | None,
        own: Own | None = None,
    ) -> Iterator[tuple[_Ranked, Candidate | None]]:
        """The candidates of each batch, and that of the kernel beside the portfolio."""
        for start in range(0, len(many), TOGETHER):
            of = many[start : start + TOGETHER]
            ranked = list(self._ranked(shape, of, gpu, kernels))
            others = self._owned(shape, of, [one.decode for one in ranked], [one.level for one in ranked], gpu, own)
            yield from zip(ranked, others, strict=True)

    def _owned(
        self,
        shape: AttentionShape,
        many: Sequence[BatchStats],
        decodes: Sequence[dict[str, Any] | None],
        levels: Sequence[np.ndarray],
        gpu: Gpu,
        own: Own | None,
    ) -> list[Candidate | None]:
        """The candidate of each batch whose config the kernel makes. levels: of the others, as `_ranked` has them."""
        if own is None:
            return [None] * len(many)
        configs = [own.config(stats, decode) for stats, decode in zip(many, decodes, strict=True)]
        made = columns.configs([(own.kernel, config) for config in configs], self.dsl)
        batch = columns.batches([(shape, stats, gpu) for stats in many])
        lost, _ = self._lost(batch, made, np.stack(levels, axis=1))
        return [Candidate(own.kernel, *one) for one in zip(configs, lost.tolist(), strict=True)]

    def _candidate(
        self, row: int, segments: float, registers: float, loss: float, decode: dict[str, Any] | None
    ) -> Candidate:
        config = self.portfolio.config(row, segments, registers, decode)
        return Candidate(self.portfolio.rows[row][0], config, float(loss))

    def _ranked(
        self, shape: AttentionShape, many: Sequence[BatchStats], gpu: Gpu, kernels: Collection[str] | None
    ) -> Iterator[_Ranked]:
        """The candidates of each batch."""
        apart_for = [i for i, stats in enumerate(many) if stats.max_query_len > SHORT_QUERY]
        found: dict[int, _Ranked] = {}
        if apart_for:
            configs, decode = self._short(shape, [many[i] for i in apart_for], gpu)
            rows, *of = self._losses(shape, [many[i] for i in apart_for], gpu, kernels, decode)
            found = {
                i: _Ranked(rows, *one, configs[n], level)
                for n, (i, *one, level) in enumerate(zip(apart_for, *of, strict=True))
            }
        if short := [i for i in range(len(many)) if i not in found]:
            rows, *of = self._losses(shape, [many[i] for i in short], gpu, kernels, None)
            found |= {i: _Ranked(rows, *one, None, level) for i, *one, level in zip(short, *of, strict=True)}
        return (found[i] for i in range(len(many)))

    def _losses(
        self,
        shape: AttentionShape,
        many: Sequence[BatchStats],
        gpu: Gpu,
        kernels: Collection[str] | None,
        decode: columns.Columns | None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """row [candidate], segments, registers and losses [batch, candidate], and levels [batch, member]."""
        batch = columns.batches([(shape, stats, gpu) for stats in many])
        rows, segments, made, undivided = self.portfolio.candidates(batch, kernels, decode)
        wide = {name: value[:, None] for name, value in batch.items()}
        if not len(rows):
            none = np.zeros((len(many), 0))
            return rows, segments, none, none, np.zeros((len(many), len(self.net.members)))
        lost, level = self._lost(wide, made, undivided=undivided)
        return rows, segments, np.broadcast_to(made["short_registers"], lost.shape), lost, level[..., 0].T

    def _lost(
        self,
        batch: columns.Columns,
        made: columns.Columns,
        level: np.ndarray | None = None,
        undivided: columns.Undivided | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """What the net says [batch, candidate] or [batch], rounded: configs that the columns do not tell apart lose the
        same, in any batch; and the level of the candidates, unless given. What leaves a long program alone comes
        behind all that does not."""
        launched = columns.launches(batch, made, undivided)
        lone = columns.alone(batch, made, launched)
        told = self.net.answers(table(batch, made, self.constants, launched)).reshape(-1, *lone.shape)
        level = told.mean(axis=-1, keepdims=True) if level is None else level
        return doubted(told, level).round(DIGITS) + WASTEFUL * lone, level

    def _short(
        self, shape: AttentionShape, many: Sequence[BatchStats], gpu: Gpu
    ) -> tuple[list[dict[str, Any]], columns.Columns]:
        """What serves the short queries beside prompts, and its columns [batch]: the best for them alone; where no
        decode is expected, what fits, without a reduction of segments."""
        of, at = self.portfolio, [n for n, stats in enumerate(many) if stats.num_decodes]
        some = next(part for kernel, part in of.rows if kernel == SHORT)
        configs = [fitted_part(some | {CUT: 1}, shape, gpu)] * len(many)
        if at:
            rows, *found, _ = self._losses(shape, [_decodes(many[n]) for n in at], gpu, {SHORT}, None)
            for n, segments, registers, lost in zip(at, *found, strict=True) if len(rows) else ():
                best = lost.argmin()
                configs[n] = of.config(rows[best], segments[best], registers[best], None)
        made = columns.configs([(SHORT, config) for config in configs], self.dsl)
        return configs, {name: value for name, value in made.items() if name.startswith("short_")}

    def told(self, shape: AttentionShape, stats: BatchStats, gpu: Gpu, candidates: Sequence[Candidate]) -> list[Told]:
        """What each is predicted to take, and why."""
        if not candidates:
            return []
        batch = columns.batches([(shape, stats, gpu)])
        made = columns.configs([(one.kernel, one.config) for one in candidates], self.dsl)
        parts = cost.parted(self.constants, cost.terms(batch, made))
        lost = np.array([one.loss for one in candidates])
        us = np.exp(np.median(np.log(parts.sum(axis=1)) - lost) + lost)
        limits = [cost.TERMS[i] for i in parts.argmax(axis=1)]
        return [Told(*one) for one in zip(candidates, us.tolist(), limits, strict=True)]


def missed_least(lost: np.ndarray, slack: float, always: int) -> np.ndarray:
    """Which columns of `lost` [batch, candidate], logarithms of times, are left when one after another has gone, each
    time the one that adds least to all batches' times, while no batch is slower than its best by more than `slack`.
    always: a column that stays."""
    slower = np.expm1(lost - lost.min(axis=1, keepdims=True))
    left = np.unique([*slower.argmin(axis=1), always])
    while len(left) > 1:
        now = slower[:, left]
        best, second = np.partition(now, 1, axis=1)[:, :2].T
        of, worst = now.argmin(axis=1), np.zeros(len(left))
        np.maximum.at(worst, of, second)
        more = np.bincount(of, second - best, len(left))
        more[(worst > slack) | (left == always)] = np.inf
        if np.isinf(more.min()):
            break
        left = np.delete(left, more.argmin())
    return left[left != always]


def _decodes(stats: BatchStats) -> BatchStats:
    """The short queries of a batch as a batch of their own."""
    seqs = max(stats.num_decodes, 1)
    keys = max(stats.total_seq_len * seqs // max(stats.num_seqs, 1), 1)
    return BatchStats(seqs, seqs, seqs, 1, stats.max_seq_len, keys)


def coarse(stats: BatchStats) -> BatchStats:
    """Stats with sequences, tokens and longest query rounded up to four steps a doubling, so that steps of a server
    share a choice."""
    decodes, prompts = up(stats.num_decodes), up(stats.num_seqs - stats.num_decodes)
    seqs, longest = max(decodes + prompts, 1), stats.max_query_len
    longest = up(longest) if longest > SHORT_QUERY else longest
    tokens, total = max(up(stats.num_tokens), seqs), stats.total_seq_len * seqs // max(stats.num_seqs, 1)
    return BatchStats(seqs, tokens, decodes, longest, max(stats.max_seq_len, longest), total)


def up(n: int) -> int:
    """The smallest of 0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20 ... (grid.KEYS) that is at least n."""
    step = 1 << max(n.bit_length() - 1 - STEPS, 0)
    return -(-n // step) * step


def apart(kinds: Sequence[Any], lost: np.ndarray) -> np.ndarray:
    """The order of candidates by what they lose, where each earlier one of its kind counts as TWIN more."""
    counted, met = np.array(lost, dtype=float), Counter[Any]()
    for i in np.argsort(lost, kind="stable"):
        counted[i] += TWIN * met[kinds[i]]
        met[kinds[i]] += 1
    return np.argsort(counted, kind="stable")


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
