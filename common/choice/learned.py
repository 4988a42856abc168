"""Candidates for a batch, the best first: a portfolio of configs and the model that ranks them, from one file for each
DSL and GPU. `python -m compare tune --fit` writes it, from logs alone; docs/tuning.md says how.

In a mixed batch the short queries get the config that the model chooses for them alone.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from common.choice import columns, cost
from common.choice.legal import fitted_part
from common.choice.model import Net, array, doubted
from common.choice.portfolio import CUT, SHORT, Portfolio
from common.choice.table import FORMULA, table, width
from common.gpus import Gpu
from common.spec import AttentionShape
from common.spec.metadata import EVERY_KEY, SHORT_QUERY, BatchStats

LABEL = "diptych: learned choice"
MEMBERS = ("label", "dsl", "gpu", "provenance", "sources", "columns")
MEMBERS += ("winners", "constants", "portfolio", "shares", "net", "held_out")
COUNT = 5  # candidates of a batch that are measured
TOGETHER = 128  # batches of one pass
DIGITS = 4  # of a loss
STEPS = 2  # log of the steps in a doubling of a count
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
    """A kernel outside the portfolio, whose config is computed from a batch. config: takes the stats and the config for
    short queries beside prompts (None without these); all configs are plain values."""

    kernel: str
    config: Callable[[BatchStats, Mapping[str, Any] | None], Mapping[str, Any]] = field(compare=False, repr=False)


@dataclass(frozen=True)
class Question:
    """What a ranking is asked for batches of a shape on a GPU. kernels: those of the portfolio that may serve them
    (None: all). sees: the most keys that a query token sees. own: a kernel outside the portfolio, which the rest
    determines."""

    shape: AttentionShape
    gpu: Gpu
    kernels: tuple[str, ...] | None = None
    sees: int = EVERY_KEY
    own: Own | None = None

    def batches(self, many: Sequence[BatchStats]) -> columns.Columns:
        return columns.batches([(self.shape, stats, self.gpu) for stats in many])


@dataclass(frozen=True)
class Told:
    """us: predicted; the median of all candidates is the formula's, their ratios are the model's. limits: the term of
    the formula (common/choice/cost.py) that takes most of it."""

    candidate: Candidate
    us: float
    limits: str


class _Ranked(NamedTuple):
    """The candidates of a batch. rows, segments, registers, lost: [candidate]. level: what each member of the net says
    of all of them on average; zeros without any. decode: the config of short queries beside prompts."""

    rows: np.ndarray
    segments: np.ndarray
    registers: np.ndarray
    lost: np.ndarray
    level: np.ndarray
    decode: dict[str, Any] | None

    def only(self, rows: Collection[int]) -> _Ranked:
        kept = np.isin(self.rows, rows)
        return _Ranked(*(one[kept] for one in self[:4]), *self[4:])


class Learned:
    """The portfolio, the model and the shipped winners (plain values) of one DSL on one GPU."""

    def __init__(self, plain: Any, dsl: str, gpu: Gpu, bounded: Collection[str] = ()) -> None:
        """bounded: as `read` has it. Raises NotLearned."""
        if not isinstance(plain, dict) or plain.get("label") != LABEL or not set(MEMBERS) <= plain.keys():
            raise NotLearned(f"found a file without label {LABEL!r} and {', '.join(MEMBERS[1:])}")
        if (plain["dsl"], plain["gpu"]) != (dsl, gpu.name):
            raise NotLearned(f"found {plain['dsl']!r:.40} on {plain['gpu']!r:.40}, allowed {dsl} on {gpu.name}")
        self.dsl, self.gpu = dsl, gpu.name
        if plain["columns"] != width():
            raise NotLearned(f"columns: found {plain['columns']!r:.40}, allowed {width()}")
        try:
            self.net = Net.of(plain["net"], width())
            self.portfolio = Portfolio(plain["portfolio"], plain["shares"], dsl, bounded)
            self.constants = array(plain["constants"], "constants", (len(cost.TERMS),), float)
        except ValueError as error:
            raise NotLearned(str(error)) from error
        self._plain = plain
        self.provenance, self.held_out, self.winners = plain["provenance"], plain["held_out"], plain["winners"]
        if (self.constants < 0).any():
            raise NotLearned(f"constants: found {plain['constants']!r:.80}, allowed one of at least 0 for each term")

    @cached_property
    def digest(self) -> str:
        """The hash of the file's content."""
        return hashlib.sha256(json.dumps(self._plain).encode()).hexdigest()

    def first(self, question: Question, stats: BatchStats, count: int = COUNT) -> list[Candidate]:
        """The `count` best candidates, fewer where fewer fit.

        stats: of `grid.decided_by`; their counts are rounded up (`coarse`). For a batch of short queries alone, kernels
        with a separate launch for these are no candidates: SHORT makes the same launch.
        """
        ((ranked, other),) = self._each(question, [coarse(stats)])
        once = {pair: i for i, pair in enumerate(zip(ranked.rows, ranked.segments, strict=True))}
        found = [self._candidate(ranked, i) for i in sorted(once.values())]  # two shares may be one number of segments
        found += [other] if other else []
        kinds = [(one.kernel, one.config.get("prefill", one.config).get("block_m")) for one in found]
        return [found[i] for i in apart(kinds, np.array([one.loss for one in found]))[:count]]

    def best(self, question: Question, many: Sequence[BatchStats]) -> list[Candidate | None]:
        """The first of each of many batches, as `first` has them; None where nothing fits."""
        return [self._best(*one) for one in self._each(question, list(map(coarse, many)))]

    def few(
        self, question: Question, many: Sequence[BatchStats], slack: float
    ) -> tuple[list[int], dict[BatchStats, Candidate | None]]:
        """The rows of the portfolio that are left where a process compiles fewer kernels (`missed_least`), and the best
        candidate that is left for each batch, by its `coarse` stats. No batch gets slower than its best by more than
        `slack`, a share of its predicted time.

        many: as of `best`. The kernel outside the portfolio stays. Prompts are ranked once, beside the best launch for
        short queries of all rows, and get the best that is left.
        """
        many = list(dict.fromkeys(map(coarse, many)))
        decodes = {one: _decodes(one) for one in many if one.max_query_len > SHORT_QUERY and one.num_decodes}
        each, short = list(self._each(question, many)), list(dict.fromkeys(decodes.values()))
        of_short = dict(zip(short, self._each(replace(question, kernels=(SHORT,), own=None), short), strict=True))
        lost = np.array([self._by_row(*one) for one in (*each, *of_short.values())])
        lost = lost[np.isfinite(lost).any(axis=1)]
        rows = missed_least(lost, slack, always=lost.shape[1] - 1).tolist()
        left = {stats: self._best(ranked.only(rows), None) for stats, (ranked, _) in of_short.items()}
        firsts: dict[BatchStats, Candidate | None] = {}
        for stats, (ranked, other) in zip(many, each, strict=True):
            if beside := left.get(decodes.get(stats)):
                ranked = ranked._replace(decode=beside.config)
                other = other and replace(other, config=question.own.config(stats, beside.config))
            firsts[stats] = self._best(ranked.only(rows), other)
        return rows, firsts

    def only(self, rows: Collection[int]) -> Learned:
        """The same choice from these rows of the portfolio alone."""
        made = copy.copy(self)
        made.portfolio = self.portfolio.only(rows)
        return made

    def _best(self, ranked: _Ranked, other: Candidate | None) -> Candidate | None:
        one = self._candidate(ranked, ranked.lost.argmin()) if len(ranked.rows) else None
        return min(filter(None, (one, other)), key=lambda found: found.loss, default=None)

    def _by_row(self, ranked: _Ranked, other: Candidate | None) -> np.ndarray:
        """[row and one more]: what each row loses with its best number of segments; last, the kernel outside them."""
        found = np.full(len(self.portfolio.rows) + 1, np.inf)
        np.minimum.at(found, ranked.rows, ranked.lost)
        found[-1] = np.inf if other is None else other.loss
        return found

    def _each(self, question: Question, many: Sequence[BatchStats]) -> Iterator[tuple[_Ranked, Candidate | None]]:
        """The candidates of each batch, and that of the kernel outside the portfolio."""
        for start in range(0, len(many), TOGETHER):
            of = many[start : start + TOGETHER]
            ranked = self._ranked(question, of)
            yield from zip(ranked, self._owned(question, of, ranked), strict=True)

    def _owned(
        self, question: Question, many: Sequence[BatchStats], ranked: Sequence[_Ranked]
    ) -> list[Candidate | None]:
        """The candidate of each batch whose config the kernel makes. ranked: the others."""
        own = question.own
        if own is None:
            return [None] * len(many)
        configs = [own.config(stats, others.decode) for stats, others in zip(many, ranked, strict=True)]
        made = columns.configs([(own.kernel, config) for config in configs], self.dsl)
        lost, _ = self._lost(question.batches(many), made, np.stack([others.level for others in ranked], axis=1))
        return [Candidate(own.kernel, *one) for one in zip(configs, lost.tolist(), strict=True)]

    def _candidate(self, of: _Ranked, i: int) -> Candidate:
        config = self.portfolio.config(of.rows[i], of.segments[i], of.registers[i], of.decode)
        return Candidate(self.portfolio.rows[of.rows[i]][0], config, float(of.lost[i]))

    def _ranked(self, question: Question, many: Sequence[BatchStats]) -> list[_Ranked]:
        """The candidates of each batch."""
        found: dict[int, _Ranked] = {}
        for short in (False, True):
            if at := [i for i, stats in enumerate(many) if (stats.max_query_len <= SHORT_QUERY) == short]:
                of = [many[i] for i in at]
                decodes, beside = ([None] * len(of), None) if short else self._beside(question, of)
                rows, *losses = self._losses(question, of, beside)
                found |= {i: _Ranked(rows, *one) for i, *one in zip(at, *losses, decodes, strict=True)}
        return [found[i] for i in range(len(many))]

    def _losses(
        self, question: Question, many: Sequence[BatchStats], beside: columns.Columns | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """row [candidate], segments, registers and losses [batch, candidate], and levels [batch, member]. beside: of
        `_beside`."""
        batch = question.batches(many)
        rows, segments, made, undivided = self.portfolio.candidates(batch, question.kernels, beside)
        if not len(rows):
            none = np.zeros((len(many), 0))
            return rows, segments, none, none, np.zeros((len(many), len(self.net.members)))
        lost, level = self._lost({name: value[:, None] for name, value in batch.items()}, made, undivided=undivided)
        return rows, segments, np.broadcast_to(made["short_registers"], lost.shape), lost, level[..., 0].T

    def _lost(
        self,
        batch: columns.Columns,
        made: columns.Columns,
        level: np.ndarray | None = None,
        undivided: columns.Undivided | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """What candidates lose [batch, candidate] or [batch], and their level (`_Ranked`). Losses are rounded, so that
        configs with equal columns lose the same in any batch. level: given for the kernel outside the portfolio, whose
        tiles follow a plan that the formula does not describe."""
        launched = columns.launches(batch, made, undivided)
        read = table(batch, made, self.constants, launched)
        told = self.net.answers(read).reshape(-1, *launched[0].span.shape)
        formula = read[:, FORMULA].reshape(told.shape[1:])
        behind = formula - formula.min(axis=-1, keepdims=True) if level is None else 0.0
        level = told.mean(axis=-1, keepdims=True) if level is None else level
        return doubted(told, level, behind).round(DIGITS), level

    def _beside(self, question: Question, many: Sequence[BatchStats]) -> tuple[list[dict[str, Any]], columns.Columns]:
        """The configs for short queries beside prompts, and their columns [batch]: the best for these queries alone.
        Where no decode is expected, the config of fewest rows, fitted and in one segment."""
        of, at = self.portfolio, [n for n, stats in enumerate(many) if stats.num_decodes]
        some = min((part for kernel, part in of.rows if kernel == SHORT), key=lambda part: part["block_m"])
        configs = [fitted_part(some | {CUT: 1}, question.shape, question.gpu)] * len(many)
        alone = replace(question, kernels=(SHORT,), own=None)
        for n, best in zip(at, self.best(alone, [_decodes(many[n]) for n in at]), strict=True):
            configs[n] = best.config if best else configs[n]
        made = columns.configs([(SHORT, config) for config in configs], self.dsl)
        return configs, {name: value for name, value in made.items() if name.startswith("short_")}

    def told(self, question: Question, stats: BatchStats, candidates: Sequence[Candidate]) -> list[Told]:
        """What each is predicted to take, and why."""
        if not candidates:
            return []
        made = columns.configs([(one.kernel, one.config) for one in candidates], self.dsl)
        parts = cost.parted(self.constants, cost.terms(question.batches([stats]), made))
        lost = np.array([one.loss for one in candidates])
        us = np.exp(np.median(np.log(parts.sum(axis=1)) - lost) + lost)
        limits = [cost.TERMS[i] for i in parts.argmax(axis=1)]
        return [Told(*one) for one in zip(candidates, us.tolist(), limits, strict=True)]


def missed_least(lost: np.ndarray, slack: float, always: int) -> np.ndarray:
    """Which columns of `lost` [batch, candidate], logarithms of times, are left after dropping one after another: each
    time the one whose loss adds least to the times of all batches, as long as no batch gets slower than its best by
    more than `slack`. always: a column that stays."""
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
    keys = max(stats.keys_of_decodes, 1)
    return BatchStats(seqs, seqs, seqs, 1, min(stats.max_seq_len, keys), keys)


def coarse(stats: BatchStats) -> BatchStats:
    """Stats with sequences, tokens and longest query rounded up to four steps a doubling, so that steps of a server
    share a choice."""
    decodes, prompts = up(stats.num_decodes), up(stats.prompts)
    seqs, longest = max(decodes + prompts, 1), stats.max_query_len
    longest = up(longest) if longest > SHORT_QUERY else longest
    tokens, keys = max(up(stats.num_tokens), seqs), max(stats.max_seq_len, longest)
    if stats.prompt_seq_len is None:
        return BatchStats(seqs, tokens, decodes, longest, keys, stats.total_seq_len * seqs // max(stats.num_seqs, 1))
    of_prompts = stats.prompt_seq_len * prompts // max(stats.prompts, 1)
    of_decodes = stats.keys_of_decodes * decodes // max(stats.num_decodes, 1)
    return BatchStats(seqs, tokens, decodes, longest, keys, of_decodes + of_prompts, of_prompts)


def up(n: int) -> int:
    """The smallest of 0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20 ... (grid.KEYS) that is at least n."""
    step = 1 << max(n.bit_length() - 1 - STEPS, 0)
    return -(-n // step) * step


def apart(kinds: Sequence[Any], lost: np.ndarray) -> np.ndarray:
    """The order of candidates by what they lose, plus TWIN for each earlier candidate of the same kind."""
    counted, met = np.array(lost, dtype=float), Counter[Any]()
    for i in np.argsort(lost, kind="stable"):
        counted[i] += TWIN * met[kinds[i]]
        met[kinds[i]] += 1
    return np.argsort(counted, kind="stable")


def read(path: Path, dsl: str, gpu: Gpu, bounded: Collection[str] = ()) -> Learned | None:
    """The learned choice of a file; None where there is none. bounded: kernels whose code takes more registers than it
    needs, so that a choice bounds them. Raises NotLearned."""
    try:
        return Learned(json.loads(path.read_text(encoding="utf-8")), dsl, gpu, bounded)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise NotLearned(f"{path}: {error}") from error
