"""Choose the kernel and config of a batch.

`Family.choose` asks three sources in this order:

1. the measured winner of the batch's key on this GPU (common/serving/winners.py);
2. the first candidate of the ranking that was fitted to logs (common/choice);
3. the kernel's DEFAULT, fitted to the shape.

A choice depends on host integers only, rounded as common/serving/grid.py says, and the number of segments comes from a
short list (`few_segments`). A capacity therefore reaches few choices, and a warm-up can compile them all.
"""

import dataclasses
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from common.choice.learned import COUNT, Candidate, Learned, NotLearned, Own, Question, coarse, read
from common.choice.legal import fitted
from common.gpus import TABLE, Gpu, unlike
from common.serving import winners
from common.serving.cdna import settled
from common.serving.grid import INVARIANT, decided_by, few_keys, reachable_stats
from common.serving.pieces import changed, distinct, few_segments
from common.serving.stamps import stamp
from common.serving.winners import Timed, Winners, best, built
from common.spec import AttentionShape, Features, PagedBatch
from common.spec.kernel import Capacity, asked_of, planned
from common.spec.metadata import EVERY_KEY, BatchStats
from common.spec.refusals import expect_flag
from common.spec.toolchain import RefusedCompiler, refusal

UNTUNED = "untuned default"
PAPER = "heuristics.paper.listing2"  # the module of `heuristics="paper"`
LEARNED, MEASURED = "heuristics/learned", "measured"
RANKED = ("tree", "learned")  # values of `heuristics` that use the ranking; `tree` asks the measured winners first
NO_GPU = "no GPU: the kernel's DEFAULT"
COPY_PROGRAMS = 8  # per SM or CU
MOST_CHOICES = 2**17  # cached per family; a plan asks for some ten thousand


@dataclass(frozen=True)
class Choice:
    """The Config of `auto`: the name of a kernel and that kernel's Config.

    path: what made the choice: `measured on ROW`, `heuristics/learned/h200.json` or `DEFAULT`.
    provenance: the evidence for it: the file of winners, the logs behind the ranking, or UNTUNED.
    """

    kernel: str
    config: Any
    path: str = ""
    provenance: str = ""

    @property
    def measured(self) -> bool:
        """Whether a measurement of its key found it fastest."""
        return self.path.startswith(MEASURED)


def _warn(text: str) -> None:
    """Warn where the caller asked."""
    warnings.warn(text, stacklevel=4)


@lru_cache
def _of_one_unit(gpu: Gpu) -> Gpu:
    """Return the GPU with one unit, because counts of programs are divided by units; warn once."""
    _warn(f"gpu: found {gpu.name} ({gpu.title}) with {gpu.units} units; choosing as for 1")
    return dataclasses.replace(gpu, units=1)


def _made_by(module: str) -> "Family":
    return import_module(module).FAMILY


@lru_cache(4096)
def _for_gpu(like: Any, plain: str, gpu: Gpu, new_kv: bool) -> Any:
    """A config of the type of `like` from its plain values in JSON; many batches share one."""
    config = built(like, json.loads(plain), older=True)
    config = changed(config, lambda _: ("overlap", "descriptors"), lambda _: gpu.tma)
    config = changed(config, lambda _: ("copy_programs",), lambda _: COPY_PROGRAMS * gpu.units)
    return changed(config, lambda _: ("new_kv",), lambda _: new_kv)


@dataclass
class Family:
    """The kernels of one DSL that `auto` chooses among. Each DSL's `auto.py` makes one.

    kernels: names, in the order in which they replace a kernel that lacks a feature.
    load: imports a module of the DSL's folder by its name (`q_block`, `heuristics.paper.listing2`), or raises
    ImportError.
    of: the name under which winners of this family are kept.
    bounded: kernels whose compiled code takes more registers than it needs: the ranking bounds them.
    fixed: axes of K and V whose strides the code holds: of pages 0, of slots 1.
    """

    name: str
    kernels: tuple[str, ...]
    load: Callable[[str], Any]
    of: str = "auto"
    bounded: tuple[str, ...] = ()
    fixed: tuple[int, ...] = ()
    _winners: dict[str, Winners] = field(default_factory=dict)
    _files: dict[str, Learned | None] = field(default_factory=dict)
    _learned: dict[str, Learned | None] = field(default_factory=dict)
    _chosen: dict[Any, Choice] = field(default_factory=dict)
    _firsts: dict[Any, Candidate | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.load = cache(self.load)  # every choice asks for its kernel

    def __reduce__(self) -> tuple:
        """A copy, and what is unpickled, is the family of that name in the module that made this one."""
        return _made_by, (self.load.__module__,)

    @property
    def portable(self) -> "Family":
        """The family without kernels that run on one vendor's GPUs only."""
        return self

    def asked(self, portable: Any) -> "Family":
        """This family, or `portable` where a caller's flag says so. Raises SpecError for another value."""
        return self.portable if expect_flag(portable, "portable") else self

    def kernel(self, name: str) -> Any:
        return self.load(name)

    def refusal(self, name: str, gpu: Gpu | None) -> RefusedCompiler | None:
        """The reason why the installed compilers must not compile this kernel for `gpu` (common.spec.toolchain)."""
        return refusal(f"{self.name}/{name}", gpu and gpu.arch)

    def choose(
        self,
        shape: AttentionShape,
        stats: BatchStats,
        gpu: Gpu | None,
        needs: frozenset[str] = frozenset(),
        heuristics: str = "tree",
        sees: int = EVERY_KEY,
    ) -> Choice:
        """Return the kernel and config for a batch.

        stats: of the batch; they are rounded by `grid.decided_by`.
        needs: members that the kernel's SUPPORTS must have (`common.spec.kernel.asked_of`). With `batch_invariant` the
        choice depends on the shape only: it is that of the batch INVARIANT.
        heuristics: `tree` (winners, then the ranking), `learned` (the ranking), `default`, or `paper`.
        sees: the most keys that a query token sees (`Features.sees`).

        If the chosen kernel lacks a feature, or the installed compilers miscompile it, the first other kernel that
        serves the batch replaces it. If no kernel does, the choice stands, and its launch raises UnsupportedFeature.
        """
        if "batch_invariant" in needs:
            stats = INVARIANT
        stats = decided_by(stats, sees)
        if gpu is not None and gpu.units < 1:
            gpu = _of_one_unit(gpu)
        key = (shape, stats, gpu and gpu.name, needs, heuristics, sees)
        found = self._chosen.get(key)
        if found is None:
            if len(self._chosen) >= MOST_CHOICES:
                self._chosen.clear()
            found = self._choose(shape, stats, gpu, needs, heuristics, sees)
            found = self.serving(found, needs, gpu, stats, shape)
            found = dataclasses.replace(found, config=few_segments(found.config, shape, stats))
            self._chosen[key] = found
        return found

    def _choose(
        self,
        shape: AttentionShape,
        stats: BatchStats,
        gpu: Gpu | None,
        needs: frozenset[str],
        heuristics: str,
        sees: int,
    ) -> Choice:
        if gpu is None:
            return self.default(self.kernels[0], shape, stats, gpu)
        if heuristics == "tree" and (won := self._won(shape, stats, gpu, None)):
            return won
        question = self.question(shape, gpu, needs, sees, self.serving_kernels(needs, gpu) or self.kernels)
        if heuristics in RANKED and (first := self._first(question, stats)):
            return first
        name = self.load(PAPER).auto(stats) if heuristics == "paper" else self.kernels[0]
        return self.named(name, shape, stats, gpu, heuristics)

    def serving_kernels(self, needs: frozenset[str], gpu: Gpu | None) -> tuple[str, ...]:
        """The kernels that support all of `needs` and that the installed compilers compile correctly."""
        return tuple(name for name in self.kernels if self._serves(name, needs, gpu))

    def _serves(self, name: str, needs: frozenset[str], gpu: Gpu | None) -> bool:
        return needs <= self.kernel(name).SUPPORTS and self.refusal(name, gpu) is None

    def default(self, kernel: str, shape: AttentionShape, stats: BatchStats, gpu: Gpu | None) -> Choice:
        """The untuned choice of a kernel: its `default()`, or its DEFAULT fitted to the shape and GPU.

        Without TMA a tensor descriptor becomes loads of 2 bytes.
        """
        module = self.kernel(kernel)
        if gpu is None:
            return Choice(kernel, module.DEFAULT, "DEFAULT", NO_GPU)
        made = module.default(shape, stats, gpu) if hasattr(module, "default") else fitted(module.DEFAULT, shape, gpu)
        made = changed(made, lambda _: ("descriptors",), lambda asked: asked and gpu.tma)
        return Choice(kernel, settled(made, shape, stats, gpu), "DEFAULT", UNTUNED)

    def serving(
        self,
        choice: Choice,
        needs: frozenset[str],
        gpu: Gpu | None = None,
        stats: BatchStats | None = None,
        shape: AttentionShape | None = None,
        names: tuple[str, ...] = (),
    ) -> Choice:
        """Return `choice` if its kernel supports `needs`, else that of the first kernel of `names` that does.

        names: all `kernels` where empty. Without a GPU the replacement has its DEFAULT.
        """
        if self._serves(choice.kernel, needs, gpu):
            return choice
        found = next((name for name in names or self.kernels if self._serves(name, needs, gpu)), None)
        return self.named(found, shape, stats, gpu, "learned") if found else choice

    def named(
        self, kernel: str, shape: AttentionShape, stats: BatchStats, gpu: Gpu | None, heuristics: str = "tree"
    ) -> Choice:
        """Return the choice of one kernel: its measured winner, else the best of the ranking, else its default."""
        if gpu is None:
            return self.default(kernel, shape, stats, gpu)
        if heuristics == "tree" and (won := self._won(shape, stats, gpu, kernel)):
            return won
        paper = self.load(PAPER) if heuristics == "paper" else None
        if hasattr(paper, kernel):
            config = settled(getattr(paper, kernel)(shape, stats, gpu), shape, stats, gpu)
            return Choice(kernel, config, f"{PAPER.replace('.', '/')}.py: {kernel}", UNTUNED)
        if heuristics != "default" and (first := self._first(self.question(shape, gpu, kernels=(kernel,)), stats)):
            return first
        return self.default(kernel, shape, stats, gpu)

    def space(self, shape: AttentionShape, gpu: Gpu) -> Iterator[Choice]:
        """Yield every choice for batches of up to 256 sequences of 128k keys and 8192 tokens."""
        yield from self.reachable(shape, gpu, 8192, 256, 131072)

    def workspace(self, shape: AttentionShape, capacity: Capacity, config: Choice) -> Any:
        """Allocate the workspace of the chosen kernel."""
        return self.kernel(config.kernel).workspace(shape, capacity, config.config)

    def prepare(self, batch: PagedBatch, features: Features, config: Choice, workspace: Any) -> Any:
        """Plan a step with the chosen kernel (common.spec.kernel.planned)."""
        config = self.serving(config, asked_of(batch, features), names=("split",))
        return planned(self.kernel(config.kernel), batch, features, config.config, workspace)

    def launch(
        self,
        batch: PagedBatch,
        features: Features,
        out: torch.Tensor,
        config: Choice,
        workspace: Any,
        *,
        lse: torch.Tensor | None = None,
    ) -> None:
        """Launch the chosen kernel, or `split` where it lacks a feature: `split` needs no workspace."""
        config = self.serving(config, asked_of(batch, features), names=("split",))
        self.kernel(config.kernel).launch(batch, features, out, config.config, workspace, lse=lse)

    def _won(self, shape: AttentionShape, stats: BatchStats, gpu: Gpu, kernel: str | None) -> Choice | None:
        """Return the measured winner of a batch's key; None if there is none. kernel: None for any kernel."""
        known = self.winners(gpu)
        while won := known.find(kernel or self.of, shape, stats):
            try:
                return Choice(won.kernel, built(self.kernel(won.kernel).DEFAULT, won.config), str(won), known.where)
            except Exception as error:  # an old or damaged entry must not fail the call
                known.drop(won)
                _warn(f"{self.name}: {known.where}: ignored the winner of {won.row}: {type(error).__name__}: {error}")
        return None

    def _first(self, question: Question, stats: BatchStats) -> Choice | None:
        """Return the best-ranked candidate; None without a ranking, or if no candidate fits.

        Batches with equal `learned.coarse` stats share one cached ranking.
        """
        known = self.learned(question.gpu)
        if known is None:
            return None
        key = (question, coarse(stats))
        if key not in self._firsts:
            if len(self._firsts) >= MOST_CHOICES:
                self._firsts.clear()
            (self._firsts[key],) = known.best(question, [stats])
        first = self._firsts[key]
        return first and self._of_logs(first, known, question, stats)

    def question(
        self,
        shape: AttentionShape,
        gpu: Gpu,
        needs: frozenset[str] = frozenset(),
        sees: int = EVERY_KEY,
        kernels: tuple[str, ...] = (),
    ) -> Question:
        """What the ranking is asked for batches of a shape. kernels: which may serve them; all that can where empty."""
        asked = Question(shape, gpu, kernels or self.serving_kernels(needs, gpu), sees)
        return dataclasses.replace(asked, own=self.own(asked))

    def own(self, question: Question) -> Own | None:
        """The kernel whose config is computed from the batch (common/choice/learned.py); None where none serves."""
        return None

    def candidates(
        self,
        shape: AttentionShape,
        stats: BatchStats,
        gpu: Gpu,
        needs: frozenset[str] = frozenset(),
        sees: int = EVERY_KEY,
        count: int = COUNT,
    ) -> list[Choice]:
        """Return up to `count` choices that are worth timing: that of `choose`, then the best of the ranking."""
        found = [self.choose(shape, stats, gpu, needs, sees=sees)]
        told, known = decided_by(stats, sees), self.learned(gpu)
        question = self.question(shape, gpu, needs, sees)
        for one in known.first(question, told, count) if known else ():
            choice = self._of_logs(one, known, question, told)
            found.append(dataclasses.replace(choice, config=few_segments(choice.config, shape, told)))
        return distinct(found)[:count]

    def _of_logs(self, candidate: Candidate, known: Learned, question: Question, stats: BatchStats) -> Choice:
        """Fill in the fields of a candidate's config that depend on the GPU and the batch.

        Overlapped launches and tensor descriptors need TMA. A copy gets programs in proportion to the GPU's units. New
        K and V are read directly only where no sequence has a context.
        """
        gpu, new_kv = question.gpu, stats.max_seq_len <= few_keys(stats.max_query_len)
        config = _for_gpu(self.kernel(candidate.kernel).DEFAULT, json.dumps(candidate.config), gpu, new_kv)
        config = settled(config, question.shape, stats, gpu)
        told = ", ".join(f"{name} {value}" for name, value in known.provenance.items() if not isinstance(value, dict))
        return Choice(candidate.kernel, config, f"{LEARNED}/{known.gpu}.json", told)

    @property
    def folder(self) -> Path | None:
        """The folder of the kernels' modules; None for a family without files."""
        try:
            return Path(next(iter(self.load("heuristics").__path__))).parent
        except ModuleNotFoundError:
            return None

    def learned_path(self, gpu: Gpu) -> Path | None:
        """The path of the ranking of a GPU, which may not exist."""
        return self.folder and self.folder / LEARNED / f"{gpu.name}.json"

    def ranked_by(self, gpu: Gpu, ranking: Learned, firsts: dict[Any, Candidate | None]) -> "Family":
        """This family with another ranking of a GPU, of which `firsts` are known, and the same winners."""
        return dataclasses.replace(self, _learned={gpu.name: ranking}, _chosen={}, _firsts=firsts)

    def learned(self, gpu: Gpu) -> Learned | None:
        """Return the ranking of a GPU, else that of the most similar GPU, with one warning; None without any."""
        if gpu.name not in self._learned:
            found = self._read(gpu)
            if found is None and (others := self._others(gpu)):
                found = next(filter(None, map(self._read, others)), None)
                if found is not None:
                    title = f"{gpu.name} ({gpu.title})"
                    _warn(
                        f"{self.name}: no logs of {title}; using those of {found.gpu}. To measure:"
                        f" `python -m compare tune --kernels '{self.name}/*' --gpu {gpu.name}`"
                    )
            self._learned[gpu.name] = found
        return self._learned[gpu.name]

    def _read(self, gpu: Gpu) -> Learned | None:
        """Read the ranking of a GPU; None without a file, or with one warning for an invalid file."""
        if gpu.name not in self._files:
            self._files[gpu.name] = None
            try:
                path = self.learned_path(gpu)
                self._files[gpu.name] = path and read(path, self.name, gpu, self.bounded)
            except NotLearned as error:
                _warn(f"{self.name}: ignored {LEARNED}/{gpu.name}.json: {error}")
        return self._files[gpu.name]

    def _others(self, gpu: Gpu) -> list[Gpu]:
        """The other GPUs that have a ranking, the most similar first."""
        folder = self.folder and self.folder / LEARNED
        names = sorted(file.stem for file in folder.glob("*.json")) if folder else []
        return sorted((TABLE[name] for name in names if name in TABLE and name != gpu.name), key=partial(unlike, gpu))

    def winners(self, gpu: Gpu) -> Winners:
        """Return the winners of a GPU: those shipped with the project, then the user's own.

        Warns once of invalid lines and of lines for kernels whose code has changed.
        """
        if gpu.name not in self._winners:
            known = self._read(gpu)
            shipped = known.winners if known else ()
            file = winners.path(self.name, gpu)
            try:
                found = Winners(file, shipped, self.stamp)
            except (OSError, ValueError) as error:
                _warn(f"{self.name}: ignored {file}: {error}")
                found = Winners(None, shipped, self.stamp)
            if found.unread:
                _warn(f"{self.name}: {file}: ignored {found.unread} lines that are no winners")
            if found.stale:
                old = ", ".join(found.stale)
                _warn(
                    f"{self.name}: {found.where}: ignored times of older code of {old}. To measure again:"
                    f" `python -m compare tune --gpu {gpu.name}`"
                )
            self._winners[gpu.name] = found
        return self._winners[gpu.name]

    def stamp(self, kernel: str) -> str:
        """The hash of a kernel's code; empty for an unknown kernel."""
        return stamp(self.folder, kernel) if self.folder else ""

    def is_measured(self, shape: AttentionShape, stats: BatchStats, gpu: Gpu, sees: int = EVERY_KEY) -> bool:
        """Whether a batch with these stats has a measured winner."""
        return self.winners(gpu).find(self.of, shape, decided_by(stats, sees)) is not None

    def keep_times(self, shape: AttentionShape, stats: BatchStats, gpu: Gpu, timed: Sequence[Timed], row: str) -> None:
        """Keep the fastest candidate as the winner of this key.

        timed: the choice without a measurement comes first. row: the batch in words. If the file cannot be written, the
        winner counts in this process only, with a warning.
        """
        found = best(timed)
        if found is None:
            return
        first = timed[0].us or found.us
        told = {"config": dataclasses.asdict(found.choice.config), "us": found.us, "first_us": first, "row": row}
        known = self.winners(gpu)
        try:
            known.keep(self.of, shape, stats, kernel=found.choice.kernel, **told)
        except OSError as error:
            _warn(f"{self.name}: {known.where} cannot be written: {error.strerror or error}")
        self._chosen.clear()

    def won(
        self, shape: AttentionShape, gpu: Gpu, max_tokens: int, max_seqs: int, max_seq_len: int
    ) -> Iterator[BatchStats]:
        """Yield the stats of each winner of a shape that lies within this capacity."""
        most_seqs, most_tokens, most_keys = map(few_keys, (max_seqs, max_tokens, max_seq_len))
        for stats in self.winners(gpu).stats(self.of, shape):
            if stats.num_seqs <= most_seqs and stats.num_tokens <= most_tokens and stats.max_seq_len <= most_keys:
                yield stats

    def reachable(
        self,
        shape: AttentionShape,
        gpu: Gpu | None,
        max_tokens: int,
        max_seqs: int,
        max_seq_len: int,
        needs: frozenset[str] = frozenset(),
        sees: int = EVERY_KEY,
    ) -> dict[Choice, list[BatchStats]]:
        """Map every choice of this capacity to the stats that reach it: points of the grid, and keys of winners."""
        found: dict[Choice, list[BatchStats]] = {}
        won = self.won(shape, gpu, max_tokens, max_seqs, max_seq_len) if gpu else ()
        points = (*reachable_stats(max_tokens, max_seqs, max_seq_len), *won)
        self.rank(shape, points, gpu, needs, sees)
        for stats in points:
            found.setdefault(self.choose(shape, stats, gpu, needs, sees=sees), []).append(stats)
        return found

    def rank(
        self,
        shape: AttentionShape,
        many: Sequence[BatchStats],
        gpu: Gpu | None,
        needs: frozenset[str] = frozenset(),
        sees: int = EVERY_KEY,
    ) -> None:
        """Rank candidates for many batches at once, several times faster than one by one; keep the best of each.

        What was ranked before is not ranked again.
        """
        known = gpu and self.learned(gpu)
        if known is None or "batch_invariant" in needs:
            return
        question = self.question(shape, gpu, needs, sees)
        asked = {(question, coarse(decided_by(stats, sees))): None for stats in many}
        left = [key for key in asked if key not in self._firsts]
        self._firsts |= zip(left, known.best(question, [stats for _, stats in left]), strict=True)
