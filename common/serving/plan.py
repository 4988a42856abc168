"""A plan: what a serving engine prepares once, so that its launches allocate nothing, compile nothing and wait for
nothing."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch

from common.choice.learned import COUNT
from common.serving import scratch, tape
from common.serving.ahead import compiled_only
from common.serving.call import PagedAttention
from common.serving.choice import Choice, Family
from common.serving.grid import hinted_stats, upto
from common.serving.library import named
from common.serving.measure import measure
from common.serving.page_writer import PageWriter
from common.serving.pieces import pieces, reads_new_kv
from common.serving.points import Point, expect_points, typical
from common.serving.prepared import Prepared
from common.serving.reach import Reach
from common.serving.winners import Timed
from common.spec import AttentionShape, Features, Layout, PagedBatch, SpecError
from common.spec.features import of_seqs
from common.spec.kernel import asked_of
from common.spec.metadata import EVERY_KEY, SHORT_QUERY, BatchStats, cdiv, power_of_two
from common.spec.plain import shown
from common.spec.refusals import expect, expect_flag, expect_integer, expect_tensor
from common.spec.step_plan import at_once
from common.versions import remark

_PLAIN = Features()


class Plan(PagedAttention):
    """`paged_attention` for calls of one shape up to a capacity, over scratch that the plan owns or was given.

    `out` must be given. A call beyond the capacity raises SpecError.
    choices: every kernel and config of this capacity, with the points of the grid that get it. A batch between points
    may get another choice, if a warm-up compiles all parts of that one too.
    workspace: uint8, large enough for every choice; one call at a time may use it. The plans of a step lie in memory of
    their own, a part for each choice.
    unmet: calls since the last warm-up whose choice, kind of size, or form (which tensors are given, dtypes, whether
    16 divides their strides, in Helion the distance of pages) no warm-up had made. Such a call may have waited for a
    compiler.
    write: writes a step's K and V into pages, as `cache.launch` of the DSL; its launches are kept like those of calls.
    A copy (copy.copy, deepcopy, pickle) is a plan of the same arguments with scratch of its own, and not warmed up.
    """

    def __init__(
        self,
        family: Family,
        *capacity: Any,
        typical_seq_len: int | None = None,
        workspace: torch.Tensor | None = None,
        **options: Any,
    ) -> None:
        """As `plan_paged_attention` says. capacity, options: as `Reach` takes them. Raises SpecError."""
        self._made = partial(type(self), family, *capacity, typical_seq_len=typical_seq_len, **options)
        reach = Reach(family, *capacity, **options)
        if typical_seq_len is not None:
            typical_seq_len = expect_integer(typical_seq_len, "typical_seq_len", 1)
        remark(family.name)
        super().__init__(reach.family)
        self.plan = named(self)
        self.reach, self.shape, self.features, self.kernel = reach, reach.shape, reach.features, reach.kernel
        self.device = reach.device
        self.max_tokens, self.max_seqs, self.max_seq_len = reach.max_tokens, reach.max_seqs, reach.max_seq_len
        self.typical_seq_len = min(typical_seq_len or self.max_seq_len, self.max_seq_len)
        self.choices, self._layouts = reach.choices, reach.layouts
        if workspace is None:
            workspace = torch.empty(reach.num_bytes, dtype=torch.uint8, device=self.device)
        scratch.check_buffer(workspace, reach.num_bytes, self.device)
        self.workspace = workspace
        sizes = [layout.step_bytes for layout in reach.layouts.values()]
        whole = torch.zeros(sum(sizes), dtype=torch.uint8, device=self.device)  # the plans of a step
        parts = (part if len(part) else None for part in whole.split(sizes))
        self._memory = dict(zip(reach.layouts, parts, strict=True))
        self.write = PageWriter(self.family)
        self.unmet = 0
        self._met: set[tuple] = set()
        self._warming = False
        self._winners, self._any_winner = 0, False  # whether any of the first `_winners` choices is measured
        self._warm: set[tuple] | None = None  # what a warm-up compiled; None before one

    def __reduce__(self) -> tuple:
        return self._made, ()

    def _launch(
        self, prepared: Any, planned: Any, known: Any, tensors: tuple, hints: tuple, *others: Any
    ) -> tuple[Prepared, torch.Tensor | None]:
        """Replace max_seq_len=None by the plan's typical length, for which a captured graph is best chosen."""
        if hints[1] is None:
            hints = (hints[0], self.typical_seq_len, hints[2], None, None)
        return super()._launch(prepared, planned, known, tensors, hints, *others)

    def _where(self, query: torch.Tensor) -> tuple[None, int]:
        """The key of a step: a plan has one memory for all streams."""
        return None, tape.capture(query.get_device())

    def _prepare(
        self, batch: PagedBatch, features: Features, buffer: torch.Tensor | None, portable: bool, written: tuple
    ) -> Prepared:
        """Check the limits and choose, in the first call of a signature; the signature includes all shapes."""
        if expect_flag(portable, "portable") and self.family is not self.family.portable:
            raise SpecError("portable", portable, "False of a plan's call: plan_paged_attention takes it for them all")
        if batch.shape != self.shape:
            raise SpecError("query, key_cache", batch.shape, f"the plan's shape, {self.shape}")
        if batch.num_tokens > self.max_tokens:
            raise SpecError("query", f"{batch.num_tokens} tokens", f"at most the plan's {self.max_tokens}")
        if batch.num_seqs > self.max_seqs:
            raise SpecError("seq_lens", f"{batch.num_seqs} sequences", f"at most the plan's {self.max_seqs}")
        choice = self.choice_of(batch.stats, asked_of(batch, features), features.sees)
        if choice not in self._layouts:
            if batch.layout is not Layout.PAGED:
                raise SpecError("key_cache", f"{batch.layout.value} pages", "those of a plan with kernel='split'")
            raise SpecError("features", f"{features}, served by {choice.kernel}", "what the plan was made for")
        met = compiled_by(choice, batch.num_tokens, batch.num_seqs)
        self._note({(*one, _form(batch, written, one, self.family.fixed)) for one in met})
        return Prepared(self.family, choice, self._layouts[choice], self._memory[choice])

    def choice_of(self, stats: BatchStats, needs: frozenset[str], sees: int = EVERY_KEY) -> Choice:
        """The choice for a call with these stats.

        It is the choice for the exact counts, if the plan has scratch for it and, after a warm-up, its code; else that
        of the grid. Hints and windows beyond the plan's limits count as these limits.
        """
        if self.reach.only is not None:
            return self.reach.only
        if self._warming and not self._is_measured:
            return self.reach.on_grid(stats, needs, sees)  # what was not measured is not compiled before the grid's
        stats = dataclasses.replace(stats, max_seq_len=min(stats.max_seq_len, self.max_seq_len))
        exact = self.reach.choose(stats, needs, sees)
        return exact if self._has(exact, stats) else self.reach.on_grid(stats, needs, sees)

    @property
    def _is_measured(self) -> bool:
        """Whether a winner may be chosen."""
        if self._winners != len(self.choices):
            self._winners, self._any_winner = len(self.choices), any(choice.measured for choice in self.choices)
        return self._any_winner

    def _note(self, met: set[tuple]) -> None:
        """Count the call if no warm-up made its launches."""
        if not self._warming and not met <= self._met:
            self.unmet += 1
        self._met |= met

    def _has(self, choice: Choice, stats: BatchStats) -> bool:
        if not self.reach.admits(choice, stats, self.workspace.numel()):
            return False
        self._memory.setdefault(choice)
        if self._warm is None or (self._warming and choice.measured):
            return True
        return compiled_by(choice, stats.num_tokens, stats.num_seqs) <= self._warm

    def _counts(self, stats: BatchStats) -> list[tuple[int, int]]:
        """(tokens, sequences) of every kind (`kind_of`) that a call at this point can have, small ones first."""
        if self.reach.only is not None:
            return [(tokens, seqs) for seqs in upto(self.max_seqs) for tokens in upto(self.max_tokens)]
        seqs = min(stats.num_seqs, self.max_seqs)
        most = min(self.max_tokens, seqs * stats.max_query_len)
        return [(tokens, seqs) for tokens in sorted({*upto(most), min(most, seqs * SHORT_QUERY)})]

    def sizes(self, points: Iterable[Point] | None = None) -> Iterator[tuple[int, int, BatchStats]]:
        """Yield (tokens, sequences, stats of the hints) of the calls that a warm-up makes.

        points: compile for the cells of these; None for the whole capacity. Every choice is called with each kind of
        sizes (`kind_of`), in its smallest and its largest batch. A choice whose parts (prefill, decode) were all
        compiled by other choices needs no call of its own.
        """
        given = set()
        reached = self.choices if points is None else self._choices_at(points)
        for largest in (False, True):  # a large batch may launch more kernels
            seen = set()
            for choice, cells in sorted(reached.items(), key=lambda item: _work(item[1], largest)):
                parts, done = pieces(choice), set()
                for stats in cells[::-1] if largest else cells:
                    counts = self._counts(stats)
                    for tokens, seqs in counts[::-1] if largest else counts:
                        kind = kind_of(tokens, seqs, choice.config)
                        if kind in done:
                            continue
                        met = {(*part, *kind) for part in parts}
                        if not met <= seen and self._choice_at(tokens, seqs, stats) == choice:
                            seen |= met
                            given.add((tokens, seqs, stats))
                        if met <= seen:
                            done.add(kind)
        yield from sorted(given, key=str)

    def _choices_at(self, points: Iterable[Point]) -> dict[Choice, list[BatchStats]]:
        """The choices of the cells of these points, and all measured ones. Raises SpecError beyond the capacity."""
        found: dict[Choice, list[BatchStats]] = {}
        limits = (self.max_tokens, self.max_seqs, self.max_seq_len)
        for stats in dict.fromkeys(point.cell(*limits) for point in expect_points(points)):
            found.setdefault(self.reach.on_grid(stats, self.reach.needs, self.features.sees), []).append(stats)
        return found | {choice: cells for choice, cells in self.choices.items() if choice.measured}

    def _choice_at(self, tokens: int, seqs: int, stats: BatchStats) -> Choice:
        """The measured choice for a call of these sizes with the hints of `_hints`, else that of the grid."""
        hints = self._hints(seqs, stats).values()
        asked = hinted_stats(seqs, tokens, self.max_seq_len, *hints)
        if self.reach.only is None and self._is_measured:
            exact = self.reach.choose(asked, self.reach.needs, self.features.sees)
            if exact.measured and self._has(exact, asked):
                return exact
        return self.reach.on_grid(asked, self.reach.needs, self.features.sees)

    def _hints(self, seqs: int, stats: BatchStats) -> dict[str, int]:
        decodes = cdiv(stats.num_decodes * seqs, stats.num_seqs)
        keys = min(stats.max_seq_len, self.max_seq_len)
        return {"max_query_len": stats.max_query_len, "max_seq_len": keys, "num_decodes": decodes}

    def warmup(
        self,
        *,
        key_cache: torch.Tensor | None = None,
        value_cache: torch.Tensor | None = None,
        block_table: torch.Tensor | None = None,
        lse: bool = False,
        new_kv: bool = False,
        out_dtype: torch.dtype | None = None,
        points: Iterable[Point] | None = None,
        progress: Callable[[int, int], None] | None = None,
        measure: int = 0,
    ) -> int:
        """Compile everything that calls of this capacity use, by launches over empty sequences; return how many.

        All cores compile (common/serving/ahead.py), then the calls that bring a kernel are made.

        measure: first time this many candidates at `points`, or at typical ones, and keep the fastest (`Plan.measure`).
        points: compile only for the grid cells of these (common.serving.points); a batch in such a cell then compiles
        nothing, whatever its token and sequence counts.
        progress: called with (launches done, launches in all) before each launch and at the end.

        Compilers specialise on strides and dtypes. Pass key_cache, value_cache and block_table of the calls to come
        unless the caches are plain [blocks, page, heads, head size] and the table is int32 with cdiv(max_seq_len,
        block_size) columns. lse, new_kv: whether these calls have `lse`, and `key` and `value`. out_dtype: of `out`, if
        it is not the query's. Features' tensors with an entry per page need caches of their sizes; those with an entry
        per sequence need max_seqs of them. Raises SpecError.
        """
        _expect_warm_up(block_table, lse, new_kv, out_dtype, progress)
        points = None if points is None else list(expect_points(points))
        if expect_integer(measure, "measure", 0):
            self.measure(measure, points, key_cache=key_cache, value_cache=value_cache, out_dtype=out_dtype)
        tensors = self._warm_tensors((key_cache, value_cache), block_table, out_dtype)
        sizes = list(self.sizes(points))
        report = progress or (lambda done, all: None)
        before, self._warming, self._warm = self._warm or set(), True, set()  # calls take the grid's choices
        call = partial(self._warm_call, tensors, lse, new_kv)
        first: list[tuple[int, int, BatchStats]] = []  # calls that launch a kernel which no call before them did
        warm: set[tuple] = set()
        try:
            with compiled_only(self.device) as met:
                for count, size in enumerate(sizes):
                    report(count, len(sizes))
                    known = len(met or ())
                    call(*size)
                    if len(met or ()) > known:
                        first.append(size)
            self._signatures.clear()  # those of launches that did not run
            for size in first:
                call(*size)
            warm = {one for size in sizes for one in compiled_by(self._choice_at(*size), *size[:2])}
        finally:
            self._warming, self._warm = False, before | warm
            self._signatures.clear()  # later calls of these sizes are chosen by exact counts
        self.unmet = 0
        report(len(sizes), len(sizes))
        return len(sizes)

    def _warm_call(self, tensors: tuple, lse: bool, new_kv: bool, tokens: int, seqs: int, stats: BatchStats) -> None:
        """Call with `seqs` sequences without tokens. tensors: of `_warm_tensors`."""
        query, caches, table, starts, lens, new, out, sums = tensors
        key, value = (tensor[:tokens] if new_kv else None for tensor in new)
        self(
            query[:tokens], *caches, table[:seqs], starts[: seqs + 1], lens[:seqs], out=out[:tokens],
            lse=sums[:tokens] if lse else None, key=key, value=value,
            features=of_seqs(self.features, seqs), **self._hints(seqs, stats),
        )  # fmt: skip

    def _warm_tensors(
        self, given: tuple[torch.Tensor | None, ...], table: torch.Tensor | None, out_dtype: torch.dtype | None
    ) -> tuple[Any, ...]:
        """Make query, caches, block table, query_start_loc, seq_lens, (key, value), out and lse of the largest call.

        All are zeros, except caches and block table that are given.
        """
        shape, make = self.shape, partial(torch.zeros, device=self.device)
        page, lanes = (2, shape.block_size, shape.num_kv_heads), (shape.head_size, shape.value_lanes)
        caches = [
            make((*page, size), dtype=shape.cache_dtype) if c is None else c
            for c, size in zip(given, lanes, strict=True)
        ]
        if table is None:
            table = make(self.max_seqs, cdiv(self.max_seq_len, shape.block_size), dtype=torch.int32)
        starts, lens = make(self.max_seqs + 1, dtype=torch.int32), make(self.max_seqs, dtype=torch.int32)
        query = make(self.max_tokens, shape.num_query_heads, shape.head_size, dtype=shape.dtype)
        new = [make(self.max_tokens, shape.num_kv_heads, size, dtype=shape.dtype) for size in lanes]
        out = make(*query.shape[:2], shape.value_lanes, dtype=out_dtype or shape.dtype)
        return query, caches, table, starts, lens, new, out, make(query.shape[:2])

    def measure(
        self,
        count: int = COUNT,
        points: Iterable[Point] | None = None,
        *,
        seconds: float | None = None,
        key_cache: torch.Tensor | None = None,
        value_cache: torch.Tensor | None = None,
        out_dtype: torch.dtype | None = None,
        progress: Callable[[int, int, BatchStats, list[Timed]], None] | None = None,
    ) -> int:
        """Time up to `count` candidates at each point and keep the fastest; return how many points were timed.

        A winner is used from now on, in this process and in later ones with the same code, versions and GPU
        (common/serving/winners.py); a point that has one is not timed again.
        points: None for those of `points.typical`. seconds: start no point after this time. key_cache, value_cache: of
        the calls to come; None makes some. progress: called with (points done, points in all, sizes, times of the last
        point).
        Raises SpecError without a GPU, in the capture of a graph, and for a plan of one kernel or of batch-invariant
        choices.
        """
        if points is None:
            points = typical(self.max_tokens, self.max_seqs, self.typical_seq_len)
        caches = (key_cache, value_cache)
        done = measure(self, count, expect_points(points), seconds, caches, out_dtype, progress)
        self.reach.take_measured()
        for choice, layout in self.reach.layouts.items():
            if choice not in self._memory:
                size = layout.step_bytes
                self._memory[choice] = torch.zeros(size, dtype=torch.uint8, device=self.device) if size else None
        self._signatures.clear()
        return done

    def check(self) -> None:
        """Raise SpecError if a captured kernel met a batch beyond its capacity. Waits for the device."""
        for choice, layout in self._layouts.items():
            kernel = self.family.kernel(choice.kernel)
            if hasattr(kernel, "check"):
                kernel.check(layout.place(self.workspace, self._memory[choice]))


def _expect_warm_up(block_table: Any, lse: Any, new_kv: Any, out_dtype: Any, progress: Any) -> None:
    """Check the arguments that the calls of a warm-up do not check."""
    if block_table is not None:
        expect_tensor(block_table, "block_table", 2)
    for name, value in (("lse", lse), ("new_kv", new_kv)):
        expect_flag(value, name)
    expect(out_dtype is None or isinstance(out_dtype, torch.dtype), "out_dtype", shown(out_dtype), "a torch.dtype")
    expect(progress is None or callable(progress), "progress", shown(progress), "None or a function")


def compiled_by(choice: Choice, tokens: int, seqs: int) -> set[tuple]:
    """The code that a call of these sizes uses, as keys to compare."""
    kind = kind_of(tokens, seqs, choice.config)
    return {(*piece, *kind) for piece in pieces(choice)}


def _work(points: list[BatchStats], largest: bool) -> int:
    """A sort key: by the tokens of the smallest batch, or, descending, of the largest."""
    tokens = [stats.num_seqs * stats.max_query_len for stats in points]
    return -max(tokens) if largest else min(tokens)


def kind_of(tokens: int, seqs: int, config: Any) -> tuple[int, ...]:
    """What kernels distinguish of a call's sizes: how many sequences a plan compares at a time, and whether a sequence
    has more than SHORT_QUERY tokens; of a config BY_SIZE also the powers of two that hold both counts.

    Counts by themselves are no constants of a kernel (do_not_specialize), nor are grids.
    """
    if getattr(config, "BY_SIZE", False):
        tokens, seqs = power_of_two(tokens), power_of_two(seqs)
        return at_once(seqs), int(tokens > seqs * SHORT_QUERY), tokens, seqs
    return at_once(seqs), int(tokens > seqs * SHORT_QUERY)


def _number(size: int) -> str:
    """The property of an integer that a compiler specialises on."""
    return "one" if size == 1 else "sixteens" if size % 16 == 0 else "other"


def _form(batch: PagedBatch, written: tuple[torch.Tensor | None, ...], code: tuple, fixed: tuple[int, ...]) -> tuple:
    """What compilers distinguish of a call's tensors; of a table, whatever its width, the dtype alone. New K and V
    count for code (of `compiled_by`) that reads them; decodes, which bring none, share the other. fixed: as Family has
    it."""
    new = (batch.key, batch.value) if reads_new_kv(code) else ()
    tensors = batch.query, batch.key_cache, batch.value_cache, *new, *written
    found = (None if t is None else (t.dtype, *map(_number, t.stride())) for t in tensors)
    apart = [cache.stride(axis) for axis in fixed for cache in (batch.key_cache, batch.value_cache)]
    return (batch.block_table.dtype, *apart, *found)


def planner(family: Family) -> Callable[..., Plan]:
    """`plan_paged_attention` over the kernels of one DSL."""

    def plan_paged_attention(
        shape: AttentionShape,
        max_tokens: int,
        max_seqs: int,
        max_seq_len: int,
        device: torch.device | str,
        *,
        features: Features = _PLAIN,
        kernel: str | None = None,
        max_keys: int | None = None,
        one_config: bool = True,
        typical_seq_len: int | None = None,
        workspace: torch.Tensor | None = None,
        portable: bool = False,
        slack: float = 0.0,
    ) -> Plan:
        """A plan for calls of up to max_tokens query tokens and max_seqs sequences of max_seq_len keys each.

        features: of the calls. kernel: serves every call (`static_grid`, for one captured graph); None lets `auto`
        choose for each. one_config: False lets that kernel have a config for each kind and size of batch.
        max_keys: keys of all long queries together that scratch can hold (default max_seq_len); larger batches are
        slower. typical_seq_len: replaces max_seq_len=None of a call, above all in captures (default max_seq_len).
        workspace: shared with another plan that does not run at the same time; `workspace_bytes` gives its size.
        portable: as in `paged_attention`. slack: the share of its predicted time that a batch may lose, so that fewer
        configs serve all of them and a warm-up compiles fewer kernels.
        """
        return Plan(
            family.asked(portable), shape, max_tokens, max_seqs, max_seq_len, device, features, kernel,
            max_keys, one_config, slack, typical_seq_len=typical_seq_len, workspace=workspace,
        )  # fmt: skip

    return plan_paged_attention


def sizer(family: Family) -> Callable[..., int]:
    """`workspace_bytes` over the kernels of one DSL."""

    def workspace_bytes(
        shape: AttentionShape,
        max_tokens: int,
        max_seqs: int,
        max_seq_len: int,
        device: torch.device | str,
        *,
        features: Features = _PLAIN,
        kernel: str | None = None,
        max_keys: int | None = None,
        one_config: bool = True,
        portable: bool = False,
        slack: float = 0.0,
    ) -> int:
        """The bytes of scratch of a plan with these arguments. Plans that share a workspace need the largest of theirs.

        Allocates nothing. Raises what `plan_paged_attention` raises.
        """
        of = family.asked(portable), shape, max_tokens, max_seqs, max_seq_len, device
        return Reach(*of, features, kernel, max_keys, one_config, slack).num_bytes

    return workspace_bytes
