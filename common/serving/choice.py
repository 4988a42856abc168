"""Which kernel and config serve a batch: the measured winner of its key on the GPU, else the first candidate of what
logs teach (common/choice), else a kernel's DEFAULT, made to fit.

Choices are made from exact host integers (common/serving/grid.py), and segments are numbers of a short list
(`few_segments`), so that the choices which a capacity can reach are few: those of a grid's points can all be compiled
before the first request.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from common.choice.learned import COUNT, Candidate, Learned, NotLearned, Own, coarse, read
from common.choice.legal import fitted
from common.gpus import TABLE, Gpu, unlike
from common.serving import winners
from common.serving.cdna import settled
from common.serving.grid import INVARIANT, decided_by, few_keys, reachable_stats, seen
from common.serving.pieces import changed, few_segments
from common.serving.stamps import stamp
from common.serving.tape import Launch
from common.serving.winners import Winners, built
from common.spec import AttentionShape, Features, PagedBatch
from common.spec.kernel import Capacity, asked_of, planned
from common.spec.metadata import EVERY_KEY, BatchStats
from common.spec.toolchain import RefusedCompiler, refusal

UNTUNED = "untuned default"
PAPER = "heuristics.paper.listing2"  # the module of `heuristics="paper"`
LEARNED, MEASURED = "heuristics/learned", "measured"
RANKED = ("tree", "learned")  # the `heuristics` that ask what logs teach; `tree` asks the measured winners first
NO_GPU = "no GPU: the kernel's DEFAULT"
WORTH = 1.02  # two timings of one code differ by 1%
COPY_PROGRAMS = 8  # a unit
MOST_CHOICES = 2**17  # kept a family: a plan's capacity asks for some ten thousand


@dataclass(frozen=True)
class Choice:
    """`auto`'s Config: a kernel of the family by its file's name, and that kernel's Config.

    path: what chose, `measured on ROW`, `heuristics/learned/h200.json` or `DEFAULT`.
    provenance: what stands behind it: where winners are kept, the logs that were learned from, or UNTUNED.
    """

    kernel: str
    config: Any
    path: str = ""
    provenance: str = ""

    @property
    def measured(self) -> bool:
        """Whether it was fastest in a measurement of its key."""
        return self.path.startswith(MEASURED)


@dataclass(frozen=True)
class Timed:
    """us: None for a candidate that was not launched or answered otherwise; why says so."""

    choice: Choice
    us: float | None
    why: str = ""


def best(timed: list[Timed]) -> Timed | None:
    """The fastest, or the first where nothing is WORTH faster; None where nothing was timed."""
    done = [one for one in timed if one.us is not None]
    if not done:
        return None
    least = min(done, key=lambda one: one.us)
    return done[0] if done[0] is timed[0] and done[0].us < WORTH * least.us else least


def distinct(choices: Sequence[Choice]) -> list[Choice]:
    """Those of a kernel and config of their own, in their order."""
    return list({(one.kernel, one.config): one for one in reversed(choices)}.values())[::-1]


@lru_cache
def _of_one_unit(gpu: Gpu) -> Gpu:
    """The same GPU with a unit, said once: every count of programs divides by it."""
    warnings.warn(f"gpu: found {gpu.name} ({gpu.title}) with {gpu.units} units, chosen for as with 1", stacklevel=3)
    return dataclasses.replace(gpu, units=1)


@dataclass
class Family:
    """One DSL's kernels as `auto` sees them; the two DSLs' `auto.py` each make one.

    kernels: the names that may be chosen, by falling preference where a batch needs what the first choice lacks.
    load: the module of that name within the family (`q_block`, `heuristics.paper.listing2`); ImportError where there
    is none. recorded: a context that lists the JIT's launches (common.serving.tape.Launch) on a device. of: by what
    name winners are kept of those that it chooses.
    """

    name: str
    kernels: tuple[str, ...]
    load: Callable[[str], Any]
    recorded: Callable[[torch.device], AbstractContextManager[list[Launch]]]
    of: str = "auto"
    _winners: dict[str, Winners] = field(default_factory=dict)
    _files: dict[str, Learned | None] = field(default_factory=dict)
    _learned: dict[str, Learned | None] = field(default_factory=dict)
    _chosen: dict[Any, Choice] = field(default_factory=dict)
    _firsts: dict[Any, Candidate | None] = field(default_factory=dict)

    @property
    def portable(self) -> Family:
        """Of the same calls the kernels that run on every vendor's GPUs."""
        return self

    def kernel(self, name: str) -> Any:
        return self.load(name)

    def refusal(self, name: str, gpu: Gpu | None) -> RefusedCompiler | None:
        """Why what is installed here must not compile a kernel for `gpu` (common.spec.toolchain)."""
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
        """The kernel and config for a batch of these sizes, as `grid.decided_by` has them.

        needs: members that the kernel's SUPPORTS must have (`common.spec.kernel.asked_of`). Where the chosen kernel
        lacks one, or the compilers here get it wrong, the first of `kernels` that has all serves with its default. With
        none, the first choice comes back: its launch names what is missing. heuristics: `tree`, `learned`, or the name
        of another module of the folder. sees: keys that a query token sees at most (`Features.sees`).
        With `batch_invariant` among them the choice follows from the shape alone: it is made for INVARIANT.
        """
        if "batch_invariant" in needs:
            stats = INVARIANT
        stats = seen(decided_by(stats), sees)
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
        kernels = self._serving(needs, gpu) or self.kernels
        if heuristics in RANKED and (first := self._first(shape, stats, gpu, kernels, needs, sees)):
            return first
        name = self.load(PAPER).auto(stats) if heuristics == "paper" else self.kernels[0]
        return self.named(name, shape, stats, gpu, heuristics)

    def _serving(self, needs: frozenset[str], gpu: Gpu | None) -> tuple[str, ...]:
        """The kernels that have all that a batch needs and that the compilers here get right."""
        return tuple(name for name in self.kernels if self._serves(name, needs, gpu))

    def _serves(self, name: str, needs: frozenset[str], gpu: Gpu | None) -> bool:
        return needs <= self.kernel(name).SUPPORTS and self.refusal(name, gpu) is None

    def default(self, kernel: str, shape: AttentionShape, stats: BatchStats, gpu: Gpu | None) -> Choice:
        """A kernel with what it takes where nothing is known: its `default`, or its DEFAULT made to fit."""
        module = self.kernel(kernel)
        if gpu is None:
            return Choice(kernel, module.DEFAULT, "DEFAULT", NO_GPU)
        made = module.default(shape, stats, gpu) if hasattr(module, "default") else fitted(module.DEFAULT, shape, gpu)
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
        """`choice`, or the first of `names` (all `kernels`) that has what the choice's kernel lacks; without a GPU by
        its DEFAULT."""
        if self._serves(choice.kernel, needs, gpu):
            return choice
        found = next((name for name in names or self.kernels if self._serves(name, needs, gpu)), None)
        return self.named(found, shape, stats, gpu, "learned") if found else choice

    def named(
        self, kernel: str, shape: AttentionShape, stats: BatchStats, gpu: Gpu | None, heuristics: str = "tree"
    ) -> Choice:
        """One kernel with its measured winner, else its first candidate of what logs teach, else its default;
        heuristics as `choose` has it."""
        if gpu is None:
            return self.default(kernel, shape, stats, gpu)
        if heuristics == "tree" and (won := self._won(shape, stats, gpu, kernel)):
            return won
        paper = self.load(PAPER) if heuristics == "paper" else None
        if hasattr(paper, kernel):
            config = settled(getattr(paper, kernel)(shape, stats, gpu), shape, stats, gpu)
            return Choice(kernel, config, f"{PAPER.replace('.', '/')}.py: {kernel}", UNTUNED)
        if heuristics != "default" and (first := self._first(shape, stats, gpu, (kernel,))):
            return first
        return self.default(kernel, shape, stats, gpu)

    def space(self, shape: AttentionShape, gpu: Gpu) -> Iterator[Choice]:
        """Every choice for up to 256 sequences of 128 k keys and 8192 tokens."""
        yield from self.reachable(shape, gpu, 8192, 256, 131072)

    def workspace(self, shape: AttentionShape, capacity: Capacity, config: Choice) -> Any:
        """The chosen kernel's."""
        return self.kernel(config.kernel).workspace(shape, capacity, config.config)

    def prepare(self, batch: PagedBatch, features: Features, config: Choice, workspace: Any) -> Any:
        """The chosen kernel's plan of a step, as common.spec.kernel.planned."""
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
        """The chosen kernel's; where it lacks what the batch needs `split`'s, for the workspace is another's."""
        config = self.serving(config, asked_of(batch, features), names=("split",))
        self.kernel(config.kernel).launch(batch, features, out, config.config, workspace, lse=lse)

    def _won(self, shape: AttentionShape, stats: BatchStats, gpu: Gpu, kernel: str | None) -> Choice | None:
        """The measured winner of a batch's key, of `kernel` or of all that this family takes; None where none is."""
        known = self.winners(gpu)
        while won := known.find(kernel or self.of, shape, stats):
            try:
                return Choice(won.kernel, built(self.kernel(won.kernel).DEFAULT, won.config), str(won), known.where)
            except Exception as error:  # older than the kernels, or damaged: a call has an answer without it
                known.drop(won)
                warnings.warn(
                    f"{self.name}: {known.where} has no answer for {won.row}, {type(error).__name__}: {error};"
                    " it is left out",
                    stacklevel=4,
                )
        return None

    def _first(
        self,
        shape: AttentionShape,
        stats: BatchStats,
        gpu: Gpu,
        kernels: tuple[str, ...],
        needs: frozenset[str] = frozenset(),
        sees: int = EVERY_KEY,
    ) -> Choice | None:
        """The first candidate of these kernels of what logs teach on this GPU; None where nothing was learned, or
        nothing fits. Ranked once for all batches that count alike (`learned.coarse`)."""
        known = self.learned(gpu)
        if known is None:
            return None
        key = (shape, coarse(stats), gpu.name, kernels, needs, sees)
        if key not in self._firsts:
            if len(self._firsts) >= MOST_CHOICES:
                self._firsts.clear()
            own = self.own(shape, gpu, needs, sees, kernels)
            (self._firsts[key],) = known.best(shape, [stats], gpu, kernels, own)
        first = self._firsts[key]
        return first and self._of_logs(first, known, shape, stats, gpu, sees)

    def own(
        self,
        shape: AttentionShape,
        gpu: Gpu,
        needs: frozenset[str],
        sees: int,
        kernels: Collection[str],
    ) -> Own | None:
        """Of these kernels the one whose config follows from a batch, where it serves (common/choice/learned.py)."""
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
        """What is worth a measurement, at most `count`: what `choose` takes, then the best of what logs teach that has
        what the batch needs. Arguments as `choose` has them."""
        found = [self.choose(shape, stats, gpu, needs, sees=sees)]
        told, known = seen(decided_by(stats), sees), self.learned(gpu)
        kernels = self._serving(needs, gpu)
        own = self.own(shape, gpu, needs, sees, kernels)
        for one in known.first(shape, told, gpu, count, kernels, own) if known else ():
            choice = self._of_logs(one, known, shape, told, gpu, sees)
            found.append(dataclasses.replace(choice, config=few_segments(choice.config, shape, told)))
        return distinct(found)[:count]

    def _of_logs(
        self, candidate: Candidate, known: Learned, shape: AttentionShape, stats: BatchStats, gpu: Gpu, sees: int
    ) -> Choice:
        """A candidate with what follows from batch and GPU: launches overlap and descriptors are read where there is
        TMA, a copy has programs by its units, and new K and V are read where there is no context."""
        config = built(self.kernel(candidate.kernel).DEFAULT, candidate.config, older=True)
        config = changed(config, lambda _: ("overlap", "descriptors"), lambda on: on and gpu.tma)
        config = changed(config, lambda _: ("copy_programs",), lambda _: COPY_PROGRAMS * gpu.units)
        config = changed(config, lambda _: ("new_kv",), lambda _: stats.max_seq_len <= few_keys(stats.max_query_len))
        config = settled(config, shape, stats, gpu)
        told = ", ".join(f"{name} {value}" for name, value in known.provenance.items() if not isinstance(value, dict))
        return Choice(candidate.kernel, config, f"{LEARNED}/{known.gpu}.json", told)

    @property
    def folder(self) -> Path | None:
        """Where the kernels' modules lie; None for a family that has no files."""
        try:
            return Path(next(iter(self.load("heuristics").__path__))).parent
        except ModuleNotFoundError:
            return None

    def learned_path(self, gpu: Gpu) -> Path | None:
        """Where what logs teach of a GPU lies, if it was written."""
        return self.folder and self.folder / LEARNED / f"{gpu.name}.json"

    def learned(self, gpu: Gpu) -> Learned | None:
        """What logs teach of a GPU (common/choice), or of the one that is most like it, which is said once; None where
        there is no file."""
        if gpu.name not in self._learned:
            found = self._read(gpu)
            if found is None and (others := self._others(gpu)):
                found = next(filter(None, map(self._read, others)), None)
                if found is not None:
                    title = f"{gpu.name} ({gpu.title})"
                    warnings.warn(
                        f"{self.name}: no logs of {title}, chosen for by those of {found.gpu};"
                        f" `python -m compare tune --kernels '{self.name}/*' --gpu {gpu.name}` measures",
                        stacklevel=3,
                    )
            self._learned[gpu.name] = found
        return self._learned[gpu.name]

    def _read(self, gpu: Gpu) -> Learned | None:
        """The file of a GPU; None without one, or where it is none, which is said once."""
        if gpu.name not in self._files:
            self._files[gpu.name] = None
            try:
                path = self.learned_path(gpu)
                self._files[gpu.name] = path and read(path, self.name, gpu)
            except NotLearned as error:
                warnings.warn(f"{self.name}: {LEARNED}/{gpu.name}.json: {error}; it is left out", stacklevel=3)
        return self._files[gpu.name]

    def _others(self, gpu: Gpu) -> list[Gpu]:
        """GPUs that have files, the most like this one first."""
        folder = self.folder and self.folder / LEARNED
        names = sorted(file.stem for file in folder.glob("*.json")) if folder else []
        return sorted((TABLE[name] for name in names if name in TABLE and name != gpu.name), key=partial(unlike, gpu))

    def winners(self, gpu: Gpu) -> Winners:
        """What was measured on a GPU: what came with the project, then what this user measured. Lines of other code or
        that are no winners are said once."""
        if gpu.name not in self._winners:
            known = self._read(gpu)
            shipped = known.winners if known else ()
            file = winners.path(self.name, gpu)
            try:
                found = Winners(file, shipped, self.stamp)
            except (OSError, ValueError) as error:
                warnings.warn(f"{self.name}: {file}: {error}; it is left out", stacklevel=3)
                found = Winners(None, shipped, self.stamp)
            if found.unread:
                warnings.warn(f"{self.name}: {file}: {found.unread} lines are no winners; left out", stacklevel=3)
            if found.stale:
                old = ", ".join(found.stale)
                warnings.warn(
                    f"{self.name}: {found.where} has times of other code of {old}, which are left out;"
                    f" `python -m compare tune --gpu {gpu.name}` measures anew",
                    stacklevel=3,
                )
            self._winners[gpu.name] = found
        return self._winners[gpu.name]

    def stamp(self, kernel: str) -> str:
        """The hash of a kernel's code; empty where there is no such kernel."""
        return stamp(self.folder, kernel) if self.folder else ""

    def is_measured(self, shape: AttentionShape, stats: BatchStats, gpu: Gpu, sees: int = EVERY_KEY) -> bool:
        """Whether the key of these stats has a winner."""
        return self.winners(gpu).find(self.of, shape, seen(decided_by(stats), sees)) is not None

    def keep_times(self, shape: AttentionShape, stats: BatchStats, gpu: Gpu, timed: Sequence[Timed], row: str) -> None:
        """Take the fastest for this key from now on. timed: what would be taken without them first. row: what they were
        timed on, in words. Where it cannot be written it counts in this process, and a warning says so."""
        found = best(timed)
        if found is None:
            return
        first = timed[0].us or found.us
        told = {"config": dataclasses.asdict(found.choice.config), "us": found.us, "first_us": first, "row": row}
        known = self.winners(gpu)
        try:
            known.keep(self.of, shape, stats, kernel=found.choice.kernel, **told)
        except OSError as error:
            warnings.warn(f"{self.name}: {known.where} cannot be written: {error.strerror or error}", stacklevel=3)
        self._chosen.clear()

    def won(
        self, shape: AttentionShape, gpu: Gpu, max_tokens: int, max_seqs: int, max_seq_len: int
    ) -> Iterator[BatchStats]:
        """The largest sizes of each key of a shape that has a winner and that batches of this capacity have."""
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
        """Every choice for batches of this capacity -> the points of the grid that get it, and the sizes of winners."""
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
        """Ask what logs teach of many batches together: one by one they would take several times as long."""
        known = gpu and self.learned(gpu)
        if known is None or "batch_invariant" in needs:
            return
        kernels = self._serving(needs, gpu)
        asked = {coarse(seen(decided_by(stats), sees)): None for stats in many}
        own = self.own(shape, gpu, needs, sees, kernels)
        keys = [(shape, stats, gpu.name, kernels, needs, sees) for stats in asked]
        self._firsts |= zip(keys, known.best(shape, list(asked), gpu, kernels, own), strict=True)
