"""The plans of one engine: one for each kind of layer, over one workspace, compiled before the first request."""

import gc
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from common.engines.options import Kernel, Options, kernel_of, log
from common.gpus import gpu_of
from common.serving.ahead import Children, Work, stand_ins
from common.serving.arguments import HINTS
from common.serving.grid import upto
from common.serving.plan import Plan
from common.serving.points import Point, points, prompts, typical
from common.spec import AttentionShape, Features, SpecError, UnsupportedFeature
from common.spec.features import tensors_of, without_tensors
from common.spec.kernel import asked_of_shape
from common.spec.metadata import cdiv

LONGEST_TYPICAL = 8192  # keys that captured graphs are chosen for by default; an engine's limit may be 128 k
LEAST_TYPICAL = 1024  # while an engine measures its memory it has only a few blocks
SLACK = 0.1  # of its predicted time that a step may lose, for half as many configs; in the mean steps lose 0.2%
TABLE_TOKENS = 128  # vLLM's block tables have columns for a multiple of so many tokens


class Limits(NamedTuple):
    """The largest step of an engine: query tokens, sequences, keys of one sequence."""

    max_tokens: int
    max_seqs: int
    max_seq_len: int


@dataclass(frozen=True)
class Kind:
    """What layers that share a plan have in common: sizes, features without the tensors' values, and strides."""

    shape: AttentionShape
    settings: tuple
    layout: tuple

    @classmethod
    def of(cls, shape: AttentionShape, features: Features, *caches: torch.Tensor) -> "Kind":
        settings = without_tensors(features), tuple(tensors_of(features))
        return cls(shape, settings, tuple(cache.stride() for cache in caches))


@dataclass
class Step:
    """An engine's step, as plans take it.

    num_actual_tokens: rows of query and slot_mapping, padding included. The next five are hints
    (`common.serving.arguments.HINTS`). total_seq_len and prompt_seq_len are None in a capture, or where the lengths are
    on the device only.
    query_start_loc int32 [sequences + 1]; seq_lens int32 [sequences]; block_table int32 [sequences, columns];
    slot_mapping int64 [tokens]: the slot in the pages, negative where nothing is to be written.
    """

    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int | None
    num_decodes: int
    total_seq_len: int | None
    prompt_seq_len: int | None
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor

    @property
    def hints(self) -> dict[str, int | None]:
        return {name: getattr(self, name) for name in HINTS}


@dataclass
class Server:
    """The plans of one engine in one process. Several engines in a process have a server each. beside: as of Work.
    Raises SpecError for a file of compiled code that is damaged, or of another GPU, version or source."""

    options: Options
    limits: Limits
    device: torch.device
    beside: bool = True
    kernel: Kernel = field(init=False)
    typical_seq_len: int = field(init=False)
    bytes_needed: int = 0
    planning: float = 0.0  # seconds that choices and layouts of all plans took
    seconds: float = 0.0  # of all warm-ups
    warmed: int = 0  # launches of all warm-ups
    table_widths: dict[int, int] = field(default_factory=dict)  # page size -> columns of block tables
    _children: Children | None = None
    _workspace: torch.Tensor | None = None
    _admitted: set[Kind] = field(default_factory=set)  # without strides
    _plans: dict[Kind, Plan] = field(default_factory=dict)
    _steps: dict[int, tuple[Any, set[int]]] = field(default_factory=dict)  # by plan: last step, layers that ran
    _measured: list[Plan] = field(default_factory=list)
    _warm: set[tuple[int, int, bool]] = field(default_factory=set)  # by plan: points, and whether with new K and V
    _pid: int = field(default_factory=os.getpid)

    def __post_init__(self) -> None:
        self.kernel = kernel_of(self.options.kernel)
        self.options.unpack(self.device)
        if self.options.children and not self.options.pack:
            self._children = Children(self.options.children)
        longest = self.options.typical_seq_len or LONGEST_TYPICAL
        self.typical_seq_len = min(longest, self.limits.max_seq_len)

    @property
    def _planned(self) -> dict[str, Any]:
        """Options of all plans. What is measured is to be the fastest of all configs."""
        slack = 0.0 if self.options.measure else SLACK
        return {"kernel": self.kernel.name, "one_config": False, "slack": slack}

    def admit(self, shape: AttentionShape, features: Features) -> None:
        """Refuse a layer before anything runs, and count its scratch. Raises SpecError, UnsupportedFeature."""
        kind, began = Kind.of(shape, features), time.monotonic()
        if kind in self._admitted:
            return
        asked = features.names() | asked_of_shape(shape)
        for feature in sorted(asked - self.kernel.supports):
            raise UnsupportedFeature(self.kernel.id, feature, "any of " + ", ".join(sorted(self.kernel.supports)))
        limits, options = (*self.limits, self.device), {"features": features, **self._planned}
        with uncollected():
            size = self.kernel.module.workspace_bytes(shape, *limits, **options)
        self.bytes_needed = max(self.bytes_needed, size)
        self._admitted.add(kind)
        self._compile_ahead(shape, features)
        self.planning += time.monotonic() - began

    def _compile_ahead(self, shape: AttentionShape, features: Features) -> None:
        """Let children compile for such layers where no pack has the code and sizes decide it."""
        gpu, kernel, given = gpu_of(self.device), self.kernel, stand_ins(features)
        if self._children is None or given is None or gpu is None or gpu.vendor != "nvidia":
            return
        if stated := self._stated(new_kv=True):
            columns, slack = self.table_width(shape.block_size), self._planned["slack"]
            of = kernel.module.__name__, kernel.name, shape, given, self.limits
            self._children.add(Work(*of, columns, stated, gpu, slack, self.beside))

    def captured_seq_len(self, num_seqs: int, held: int | None) -> int:
        """The keys that a graph of so many sequences is chosen for: the typical length, or the mean length when a cache
        of `held` tokens is full (None: not known yet).

        Many sequences in a small cache are short: chosen for the typical length, their decodes would be split into
        segments whose merge costs more than it saves.
        """
        most = self.typical_seq_len if held is None else max(held // max(num_seqs, 1), LEAST_TYPICAL)
        return min(self.typical_seq_len, most)

    @property
    def workspace(self) -> torch.Tensor:
        """The scratch of all plans, allocated once while an engine profiles its memory, so that the engine counts
        it."""
        if self._workspace is None:
            self._workspace = torch.empty(self.bytes_needed, dtype=torch.uint8, device=self.device)
        return self._workspace

    def plan(self, shape: AttentionShape, features: Features, *caches: torch.Tensor) -> Plan:
        """The plan of such layers. Raises SpecError in a process that was forked from the server's."""
        kind = Kind.of(shape, features, *caches)
        if kind not in self._plans:
            if os.getpid() != self._pid and self.device.type == "cuda":
                raise SpecError("process", "a fork of the one that began", "one that was spawned: CUDA dies in a fork")
            self._plans[kind] = self._made(shape, features)
        return self._plans[kind]

    def _made(self, shape: AttentionShape, features: Features) -> Plan:
        """A plan over the one workspace. Pages of another size than was admitted may need a larger one: plans that were
        made before keep theirs."""
        self.admit(shape, features)
        if self._workspace is not None and self._workspace.numel() < self.bytes_needed:
            log.warning("scratch grows to %d bytes for %s: the engine counted less", self.bytes_needed, shape)
            self._workspace = None
        began = time.monotonic()
        made = self.kernel.module.plan_paged_attention(
            shape, *self.limits, self.device, features=features, workspace=self.workspace, **self._planned
        )  # fmt: skip
        self.planning += time.monotonic() - began
        return made

    def table_width(self, page: int) -> int:
        """The number of columns of an engine's block tables: compilers specialise on whether 16 divides it."""
        pages, beside = cdiv(self.limits.max_seq_len, page), max(TABLE_TOKENS // page, 1)
        return self.table_widths.get(page, cdiv(pages, beside) * beside)

    def bind(
        self,
        shape: AttentionShape,
        features: Features,
        caches: tuple[torch.Tensor, torch.Tensor],
        table: torch.Tensor | None = None,
        *,
        new_kv: bool,
    ) -> Plan:
        """The plan of such layers, warmed up unless a graph is being captured.

        caches: K and V as plans take them. table: a step's, where there is one. new_kv: as in `warm`. Raises SpecError.
        """
        plan = self.plan(shape, features, *caches)
        if not capturing(caches[0].device):
            width = self.table_width(shape.block_size) if table is None else table.shape[1]
            stand_in = torch.zeros(self.limits.max_seqs, width, dtype=torch.int32, device=caches[0].device)
            self.warm(plan, new_kv=new_kv, key_cache=caches[0], value_cache=caches[1], block_table=stand_in)
        return plan

    def attend(
        self,
        plan: Plan,
        layer: Any,
        step: Step,
        query: torch.Tensor,
        new: tuple[torch.Tensor | None, torch.Tensor | None],
        caches: tuple[torch.Tensor, torch.Tensor],
        out: torch.Tensor,
        features: Features,
        scale: float,
    ) -> None:
        """Run a layer's call on a step. layer: the caller, by identity. new: the step's K and V, which decodes omit."""
        key, value = new if step.max_query_len > 1 else (None, None)
        plan(
            query, *caches, step.block_table, step.query_start_loc, step.seq_lens,
            max_query_len=step.max_query_len, max_seq_len=step.max_seq_len, num_decodes=step.num_decodes,
            total_seq_len=step.total_seq_len, prompt_seq_len=step.prompt_seq_len, key=key, value=value, out=out,
            softmax_scale=scale, features=features, same_step=self.is_same_step(plan, step, layer),
        )  # fmt: skip

    def warm(self, plan: Plan, new_kv: bool, **tensors: Any) -> None:
        """Compile what `options.warm` asks for, once a plan, by launches over sequences without tokens.

        new_kv: whether prompts bring their K and V; layers that share another's cache do not. tensors: those of
        Plan.warmup.
        """
        began = time.monotonic()
        if self._children is not None and not self._children.end():
            log.info("children did not compile all; the warm-up compiles what is left")
        self._measure(plan, tensors)
        for stated, given in self._stated(new_kv):
            if (id(plan), len(stated), given) not in self._warm:
                self._warm.add((id(plan), len(stated), given))
                self.warmed += plan.warmup(points=stated, new_kv=given, progress=_said, **tensors)
        if self._children is not None:
            self._children.keep()
        self.seconds += time.monotonic() - began
        log.info("%s: %d launches warmed up in %.1f s", self.kernel.id, self.warmed, self.seconds)

    def _measure(self, plan: Plan, tensors: Mapping[str, Any]) -> None:
        """Time typical batches of a plan once, where options ask for it."""
        if self.options.measure and plan.kernel is None and plan.device.type == "cuda" and plan not in self._measured:
            self._measured.append(plan)
            given = {name: tensors[name] for name in ("key_cache", "value_cache", "out_dtype") if name in tensors}
            stated = typical(plan.max_tokens, plan.max_seqs, self.typical_seq_len)
            done = plan.measure(self.options.measure, stated, **given)
            log.info("%s: %d batches measured", self.kernel.id, done)

    def _stated(self, new_kv: bool) -> Sequence[tuple[list[Point], bool]]:
        return stated(self.options.warm, self.limits, new_kv)

    def is_same_step(self, plan: Plan, step: Any, layer: Any) -> bool:
        """Whether `plan` may reuse what an earlier layer planned for `step`; ask once for each call of a layer.

        False after another step (two halves of a batch take turns, and drafters have steps of their own), and where the
        layer has already run: then the same tensors hold the next step's lengths, or a graph is captured, which must
        plan what it replays.
        """
        last, layers = self._steps.get(id(plan), (None, None))
        if last is step and id(layer) not in layers:
            layers.add(id(layer))
            return True
        self._steps[id(plan)] = step, {id(layer)}
        return False

    @property
    def unmet(self) -> int:
        """How many calls launched what the warm-up had not compiled."""
        return sum(plan.unmet for plan in self._plans.values())

    @property
    def plans(self) -> list[Plan]:
        return list(self._plans.values())


@contextmanager
def uncollected() -> Iterator[None]:
    """In this context the garbage collector rests: it would scan an engine's millions of objects for what all stays."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@lru_cache(16)
def stated(warm: str, limits: Limits, new_kv: bool) -> Sequence[tuple[list[Point], bool]]:
    """The batches to warm up for `Options.warm`, and whether their calls bring the step's K and V; decodes do not. Each
    layer asks."""
    seqs, keys = upto(limits.max_seqs), upto(limits.max_seq_len)
    if warm == "none":
        return []
    if warm.isdecimal():
        seqs = [n for n in seqs if n <= int(warm)]
    found = [(list(points(seqs, keys)), False)]
    if warm in ("served", "all"):
        tokens = min(limits.max_tokens, limits.max_seq_len)
        longest = [n for n in upto(tokens) if n > 1 and (n & (n - 1) == 0 or n == tokens)]
        for given in (True, False) if warm == "all" else (new_kv,):
            if longest:
                found.append((list(prompts(seqs, keys, longest)), given))
    return found


def _said(done: int, launches: int) -> None:
    if launches and done % 50 == 0:
        log.debug("warm-up: %d of %d launches", done, launches)


def capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def counted(num_seqs: int, query_lens: Any, seq_lens: Any) -> tuple[int, int | None, int | None]:
    """Hints of a step: num_decodes, total_seq_len and prompt_seq_len, from tensors on the host.

    query_lens: None where all have one token. seq_lens: None where the lengths are on the device only.
    """
    ones = None if query_lens is None else query_lens == 1
    decodes = num_seqs if ones is None else int(ones.sum())
    if seq_lens is None:
        return decodes, None, None
    total = int(seq_lens.sum())
    of_prompts = total - int(seq_lens[ones].sum()) if 0 < decodes < num_seqs else None
    return decodes, total, of_prompts
