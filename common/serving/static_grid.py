"""The static grid of both DSLs: how a batch is cut into items, the scratch, and which launch follows which.

In: a DSL's kernels. Out: `workspace`, `prepare` and `launch` of its module.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from common.choice.legal import value_parts
from common.gpus import warp_size
from common.spec import AttentionShape, Gpu, PagedBatch
from common.spec.kernel import Capacity, beside, join, side_stream
from common.spec.metadata import ANY_QUERY, SHORT_QUERY, BatchStats, power_of_two
from common.spec.step_plan import Cut, PlannedScratch, ensure_capacity, scratch_rows
from common.spec.workspaces import CopyScratch, may_overflow

READ = 4  # a copy pays from this many Q Blocks of the longest query on, per byte of a cached number (H200)


def short_rows(shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> int:
    """Rows of a Q Block of short queries: 16, those of a decode.

    In a capture without longer queries on an NVIDIA GPU as many as a draft has, up to 64: with fewer, several Q Blocks
    would read the same keys. Up to 128 by wgmma for heads of 129 to 256 lanes, where sums of 64 rows fill the registers
    of four warps.
    """
    if gpu.vendor != "nvidia" or stats.max_query_len > SHORT_QUERY:
        return 16
    most = 128 if gpu.tma and 128 < max(shape.head_size, shape.value_lanes) <= 256 else 64
    return min(max(power_of_two(stats.max_query_len * shape.queries_per_kv), 16), most)


@dataclass(frozen=True)
class StaticGrid:
    """What a DSL brings; configs are those of its static_grid.py.

    sized: the rows of a Q Block and the keys of a tile that kernels have for a part of a config. copied_lanes: lanes of
    the copy of K and of V. make_plan, merge_parts: from its step_plan.py and merge_parts.py. attend_pages: launches the
    items of a list, through pages. attend_copied: copies, and launches the items whose keys are in the copy.
    """

    sized: Callable[[Any, AttentionShape], tuple[int, int]]
    copied_lanes: Callable[[AttentionShape], tuple[int, int]]
    make_plan: Callable[..., int]
    attend_pages: Callable[..., None]
    attend_copied: Callable[..., None]
    merge_parts: Callable[..., None]

    def workspace(self, shape: AttentionShape, capacity: Capacity, config: Any) -> PlannedScratch:
        """The plan and its scratch, which does not grow with the lengths of sequences, and room for
        `capacity.num_keys` copied keys."""
        copied, parts, copy = config.copied, [config.decode, config.prefill], None
        if copied.least_tokens:
            parts.append(copied)
        if 0 < copied.least_tokens <= capacity.num_tokens:
            lanes, tile_size = self.copied_lanes(shape), self.sized(copied, shape)[1]
            copy = CopyScratch.up_to(capacity, shape, tile_size, 1, 0, lanes, None)
        rows = scratch_rows(shape, config.programs, max(self.sized(part, shape)[0] for part in parts))
        short = self._class(config.decode, shape)
        return PlannedScratch.up_to(capacity, shape, Cut(short, SHORT_QUERY, short, rows=rows), copy)

    def prepare(self, batch: PagedBatch, features: Any, config: Any, workspace: PlannedScratch) -> PlannedScratch:
        """The plan of a step, which all its layers may share. Raises SpecError for a batch beyond the capacity."""
        ensure_capacity(batch, workspace)
        self.make_plan(workspace.plan, workspace.counters, batch, features, self.cut(batch, config, workspace))
        return replace(workspace, planned=True)

    def launch(self, batch, features, out, config, workspace, lse) -> None:
        """Write out (and lse) of every query token."""
        if not workspace.planned:
            self.prepare(batch, features, config, workspace)
        cut = self.cut(batch, config, workspace)
        overlap = hasattr(config, "overlap") and config.overlap and not cut.copied
        # A second stream where launches are not dependent. A single sequence is short or long: nothing runs beside it.
        side = None if cut.is_short or overlap or batch.num_seqs == 1 else side_stream(batch.device)
        with beside(side):
            self.attend_pages(batch, features, out, config, workspace, lse, cut, "short")
            if cut.copied and may_overflow(batch, cut.copied, cut.long[1]):
                self.attend_pages(batch, features, out, config, workspace, lse, cut, "paged")
        if cut.copied:
            self.attend_copied(batch, features, out, config.copied, workspace, lse, cut)
        elif not cut.is_short:
            self.attend_pages(batch, features, out, config, workspace, lse, cut, "paged")
        join(side)
        dependent = {"overlap": overlap} if hasattr(config, "overlap") else {}
        self.merge_parts(batch, features, out, workspace, cut, lse, **dependent)

    def cut(self, batch: PagedBatch, config: Any, workspace: PlannedScratch) -> Cut:
        """How sequences become items; by the hints of a capture, not by a batch's lengths."""
        shape, copied = batch.shape, config.copied
        short, of_short = self._class(config.decode, shape), config.decode.programs or config.programs
        sizes = {"short_programs": of_short, "rows": len(workspace.acc)}
        if batch.stats.max_query_len <= SHORT_QUERY:
            return Cut(short, ANY_QUERY, short, programs=of_short, **sizes)
        if workspace.copy is None or not self._is_worth(batch, copied) or not self._is_whole(batch, copied):
            programs = config.prefill.programs or config.programs
            return Cut(self._class(config.prefill, shape), SHORT_QUERY, short, programs=programs, **sizes)
        long = self._class(copied, shape)
        tiles = len(workspace.copy.key) // (shape.num_kv_heads * long[1])
        return Cut(long, SHORT_QUERY, short, programs=copied.programs, copied=tiles, **sizes)

    @staticmethod
    def _is_worth(batch: PagedBatch, copied: Any) -> bool:
        """Whether a capture's Q Blocks fill the programs, and those of its longest query read a copy often enough."""
        return batch.num_tokens >= copied.least_tokens and batch.stats.max_query_len >= copied.least_query_len

    def _is_whole(self, batch: PagedBatch, copied: Any) -> bool:
        """Whether one program sums all lanes of V."""
        threads, values = copied.num_warps * warp_size(batch.device), batch.shape.value_lanes
        return len(value_parts(self.sized(copied, batch.shape)[0], copied.tile_size, threads, values)) == 1

    def _class(self, part: Any, shape: AttentionShape) -> tuple[int, int]:
        """Query tokens of a Q Block, keys of a tile."""
        rows, tile_size = self.sized(part, shape)
        return rows // shape.queries_per_kv, tile_size
