"""Which kernel and config serve a batch: a family's measured tree for the GPU, its untuned default without one.

Choices are made from exact host integers (common/serving/grid.py), and segments are numbers of a short list
(`few_segments`), so that the choices which a capacity can reach are few: those of a grid's points can all be compiled
before the first request.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

from common.gpus import Gpu
from common.serving.grid import GRID, INVARIANT, decided_by, reachable_stats, seen
from common.serving.tape import Launch
from common.spec import AttentionShape, Features, PagedBatch
from common.spec.kernel import Capacity, asked_of, planned
from common.spec.metadata import EVERY_KEY, SHORT_QUERY, BatchStats
from common.spec.toolchain import RefusedCompiler, refusal

UNTUNED = "untuned default"
# Whose configs, where no measured tree is asked: the module in `heuristics` that has them.
UNMEASURED = {"default": "generic.default", "paper": "paper.listing2"}
NO_GPU = "no GPU: the kernel's DEFAULT"
MOST_SEGMENTS = 128  # what a reduction's tile holds; the defaults and the tuner stop there too
# Partial results of short queries that a choice may ask scratch for: 85 segments of 96 sequences of up to 16 tokens
# would be 2.1 GB of 32 heads of 128, for programs that fill an H200 ten times.
MOST_PARTS_BYTES = 2**28
MOST_CHOICES = 2**17  # kept a family: a plan's capacity asks for some ten thousand


@dataclass(frozen=True)
class Choice:
    """`auto`'s Config: a kernel of the family by its file's name, and that kernel's Config.

    path: the function that chose, `heuristics/fitted/h200.py: auto`. provenance: what stands behind it, a measured
    tree's PROVENANCE in one line, or UNTUNED.
    """

    kernel: str
    config: Any
    path: str = ""
    provenance: str = ""


def few_segments(config: Any, shape: AttentionShape, stats: BatchStats) -> Any:
    """`config` and its parts with the nearest number of segments of GRID, by ratio, and few enough for
    MOST_PARTS_BYTES of partial results; what is no dataclass stays as it is."""
    tokens = max(stats.num_seqs, 1) * min(max(stats.max_query_len, 1), SHORT_QUERY)
    most = MOST_PARTS_BYTES // (4 * tokens * shape.num_query_heads * (shape.value_lanes + 2))
    return _with_segments(config, max(min(most, MOST_SEGMENTS), 1))


@lru_cache(4096)
def _with_segments(config: Any, most: int) -> Any:
    if not dataclasses.is_dataclass(config):
        return config
    allowed, changes = [n for n in GRID if n <= most], {}
    for name in (one.name for one in dataclasses.fields(config)):
        value = getattr(config, name)
        if name == "num_segments":
            changes[name] = min(allowed, key=lambda n, wanted=value: abs(math.log(n / wanted)))
        elif dataclasses.is_dataclass(value):
            changes[name] = _with_segments(value, most)
    return dataclasses.replace(config, **changes) if changes else config


@lru_cache
def _of_one_unit(gpu: Gpu) -> Gpu:
    """The same GPU with a unit, said once: every count of programs divides by it."""
    warnings.warn(f"gpu: found {gpu.name} ({gpu.title}) with {gpu.units} units, chosen for as with 1", stacklevel=3)
    return dataclasses.replace(gpu, units=1)


@dataclass
class Family:
    """One DSL's kernels as `auto` sees them; the two DSLs' `auto.py` each make one.

    kernels: the names that may be chosen, by falling preference where a batch needs what the tree's choice lacks.
    load: the module of that name within the family (`q_block`, `heuristics.generic.default`); ImportError where there
    is none. recorded: a context that lists the JIT's launches (common.serving.tape.Launch) on a device.
    """

    name: str
    kernels: tuple[str, ...]
    load: Callable[[str], Any]
    recorded: Callable[[torch.device], AbstractContextManager[list[Launch]]]
    _trees: dict[str, Any] = field(default_factory=dict)
    _chosen: dict[Any, Choice] = field(default_factory=dict)

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

        needs: members that the kernel's SUPPORTS must have (`common.spec.kernel.asked_of`). Where the tree's kernel
        lacks one, or the compilers here get it wrong, the first of `kernels` that has all serves with its default. With
        none, the tree's choice comes back: its launch names what is missing. heuristics: `tree`, or the name of another
        module of the folder. sees: keys that a query token sees at most (`Features.sees`).
        With `batch_invariant` among them the choice follows from the shape alone: it is made for INVARIANT.
        """
        if "batch_invariant" in needs:
            stats = INVARIANT
        stats = seen(shape, decided_by(stats), sees)
        if gpu is not None and gpu.units < 1:
            gpu = _of_one_unit(gpu)
        key = (shape, stats, gpu and gpu.name, needs, heuristics)
        found = self._chosen.get(key)
        if found is None:
            if len(self._chosen) >= MOST_CHOICES:
                self._chosen.clear()
            found = self.serving(self._choose(shape, stats, gpu, heuristics), needs, gpu, stats, shape)
            found = dataclasses.replace(found, config=few_segments(found.config, shape, stats))
            self._chosen[key] = found
        return found

    def _choose(self, shape: AttentionShape, stats: BatchStats, gpu: Gpu | None, heuristics: str) -> Choice:
        default = self._named("default")[0]
        name = default.auto_kernel(shape, stats, gpu)
        if gpu is None:
            return Choice(name, self.kernel(name).DEFAULT, "DEFAULT", NO_GPU)
        try:
            return self._by_table(name, shape, stats, gpu, heuristics)
        except Exception as error:  # a table older than the kernels: a member of their Config or a kernel is gone
            _, path, provenance = self.tree(gpu)
            if heuristics != "tree" or provenance == UNTUNED:
                raise
            self._untuned(gpu, f"{path} has no answer for {shape} and {stats}, {type(error).__name__}: {error};")
            return self._by_table(name, shape, stats, gpu, heuristics)

    def _by_table(self, name: str, shape: AttentionShape, stats: BatchStats, gpu: Gpu, heuristics: str) -> Choice:
        tree, path, provenance = self.source(shape, gpu, heuristics)
        if hasattr(tree, "auto"):
            name, config = tree.auto(shape, stats, gpu)
            self.kernel(name)
            return Choice(name, config, f"{path}: auto", provenance)
        tree, path, provenance = self.source(shape, gpu, heuristics, name)
        return Choice(name, getattr(tree, name)(shape, stats, gpu), f"{path}: {name}", provenance)

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

        def serves(name: str) -> bool:
            return needs <= self.kernel(name).SUPPORTS and self.refusal(name, gpu) is None

        if serves(choice.kernel):
            return choice
        for name in names or self.kernels:
            if serves(name):
                if gpu is None:
                    return Choice(name, self.kernel(name).DEFAULT, "DEFAULT", NO_GPU)
                chosen = getattr(self._named("default")[0], name)(shape, stats, gpu)
                return Choice(name, chosen, f"{self._named('default')[1]}: {name}", UNTUNED)
        return choice

    def named(self, kernel: str, shape: AttentionShape, stats: BatchStats, gpu: Gpu | None) -> Choice:
        """One kernel with the config that the GPU's tree has for it, or the untuned default."""
        if gpu is None:
            return Choice(kernel, self.kernel(kernel).DEFAULT, "DEFAULT", NO_GPU)
        tree, path, provenance = self.source(shape, gpu, function=kernel)
        return Choice(kernel, getattr(tree, kernel)(shape, stats, gpu), f"{path}: {kernel}", provenance)

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

    def source(
        self, shape: AttentionShape, gpu: Gpu, heuristics: str = "tree", function: str = ""
    ) -> tuple[Any, str, str]:
        """The module that answers for a shape, its path within the family and its provenance: the one that `heuristics`
        names, else the untuned default. A measured tree answers where it covers the shape; none was measured with V of
        another size than K. function: which the module must have, or the default is asked for it.
        """
        found = self.tree(gpu) if heuristics == "tree" else self._named(heuristics)
        module, _, provenance = found
        answers = provenance == UNTUNED or (shape.value_size is None and module.covers(shape, gpu))
        return found if answers and (not function or hasattr(module, function)) else self._named("default")

    def _named(self, name: str) -> tuple[Any, str, str]:
        module = UNMEASURED[name]
        return self.load(f"heuristics.{module}"), f"heuristics/{module.replace('.', '/')}.py", UNTUNED

    def tree(self, gpu: Gpu) -> tuple[Any, str, str]:
        """The module that chooses for `gpu`, its path within the family, and its provenance in one line.

        Says once per GPU, in one line, that no tree exists and how one is made.
        """
        if gpu.name not in self._trees:
            path = f"heuristics/fitted/{gpu.name}.py"
            try:
                tree = self.load(f"heuristics.fitted.{gpu.name}")
                origin = ", ".join(f"{name} {value}" for name, value in tree.PROVENANCE.items())
                if not callable(tree.covers) or tree.PROVENANCE.get("gpu", gpu.title) != gpu.title:
                    raise ValueError(f"found a table of {tree.PROVENANCE.get('gpu')}, allowed one of {gpu.title}")
                self._trees[gpu.name] = tree, path, origin
            except Exception as error:  # whatever stands in the file: a call has an answer without it
                absent = isinstance(error, ModuleNotFoundError) and (error.name or "").endswith(gpu.name)
                why = (
                    "no measured tree"
                    if absent
                    else f"{path} is no table of its kind, {type(error).__name__}: {error};"
                )
                self._untuned(gpu, f"{why} for {gpu.name} ({gpu.title}),")
        return self._trees[gpu.name]

    def _untuned(self, gpu: Gpu, why: str) -> None:
        """From now on the untuned default chooses for `gpu`, and why is said."""
        warnings.warn(
            f"{self.name}: {why} untuned defaults are used; "
            f"`python -m compare tune --kernels '{self.name}/*' --gpu {gpu.name}` writes one",
            stacklevel=3,
        )
        self._trees[gpu.name] = self._named("default")

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
        """Every choice for batches of this capacity -> the points of the grid that get it."""
        found: dict[Choice, list[BatchStats]] = {}
        for stats in reachable_stats(max_tokens, max_seqs, max_seq_len):
            found.setdefault(self.choose(shape, stats, gpu, needs, sees=sees), []).append(stats)
        return found
