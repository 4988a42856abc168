"""The plan of a step: how the sequences of a batch become items, and the scratch in which the list of them lies.

An item is a Q Block, or a segment of its keys. Short and long queries are two classes, of other Q Blocks and tiles. A
kernel of each DSL writes the list (step_plan.py there), once for all layers of a step.
"""

from dataclasses import dataclass

import torch

from common.spec.features import Features
from common.spec.kernel import Capacity
from common.spec.metadata import ANY_QUERY, cdiv, power_of_two
from common.spec.paged_batch import AttentionShape, PagedBatch, SpecError
from common.spec.workspaces import CopyScratch

# of an item, int32: its sequence (or END, HOLE), first query row of the batch, query tokens of the sequence from there
# on, position of that row (negative where nothing is before it), keys of the sequence (-1: beyond the capacity), tiles
# [start, stop), which part of its Q Block's sums it is (-1: all of them), how many parts there are, the scratch row
# where the parts begin, whether its query is a short one, its first query token in the sequence, and where tile 0 would
# lie in the copy of its keys, in tiles (NOWHERE: they are not copied)
FIELDS = ("seq", "row", "left", "position", "seq_len", "start", "stop", "part", "parts", "scratch", "short", "first")
FIELDS += ("region",)
PART = FIELDS.index("part")
FIRST_ITEM = len(FIELDS)  # of entry n, where the device cuts: the first item of Q Block n, -1 where it is one item
SIZE = 16  # entries begin at multiples of 64 bytes: one line of the cache holds an item
END, HOLE = -1, -2  # no item from here on; a segment that its Q Block is too short for
NOWHERE = -(2**30)
# int32: for the launch of each list (LISTS) items claimed and a spare one, items of the plan, whether a sequence is
# beyond the capacity, how many of the items are of short queries (those come first where the device cuts), and Q Blocks
# that a merge looks at: all, or none where each is one item
LISTS = ("short", "copied", "paged")
ITEMS, REFUSED, SHORT_ITEMS, MERGES, COUNTERS = 6, 7, 8, 9, 16
BLOCKS = 16  # Q Blocks a program of the plan
FEW, MANY = 32, 128  # sequences that they are compared with at a time: as many as lie in one warp need no barrier
WAVES = 4  # programs of a merge for each one that takes items, at most
ROWS, SHORT_ROWS = 2, 1  # that each merges at once, where there are prompts, and where there are none
AT_ONCE, SHORT_AT_ONCE = WAVES * ROWS, WAVES * SHORT_ROWS  # rows that are merged at once for each one that takes items
PARTS_A_PROGRAM = 2  # Q Blocks' rows of scratch for each program that takes items


def at_once(num_seqs: int) -> int:
    """How many sequences the plan of so many compares at a time."""
    return FEW if num_seqs <= FEW else MANY


@dataclass(frozen=True)
class Cut:
    """How sequences become items. A class is (query tokens of a Q Block, keys of a tile).

    long: the class of queries of more than `longest_short` tokens. short: the class of the others; None: they are left
    out. segments: the most segments of a Q Block; 0: the device chooses, by `programs`, which take the items of long
    queries under all KV heads, `short_programs`, which take the others, and `rows`, the rows of scratch for the parts
    of one KV head.
    copied: how many tiles of one KV head the scratch for copied keys of long queries holds; 0: nothing is copied.
    """

    long: tuple[int, int]
    longest_short: int
    short: tuple[int, int] | None = None
    segments: int = 0
    programs: int = 0
    short_programs: int = 0
    rows: int = 0
    copied: int = 0

    @property
    def unit(self) -> int:
        """How many keys count as one when Q Blocks of both classes are compared."""
        return max(self.long[1], self.short[1] if self.short else 1)

    @property
    def is_short(self) -> bool:
        """Whether every query counts as a short one."""
        return self.longest_short >= ANY_QUERY

    def most_blocks(self, num_tokens: int, num_seqs: int) -> int:
        """An upper bound on the Q Blocks that become items. Needs no lengths."""
        if self.is_short:
            return num_tokens // self.short[0] + min(num_seqs, num_tokens)
        blocks = num_tokens // self.long[0] + min(num_seqs, num_tokens // (self.longest_short + 1))
        if self.short is not None:
            tokens = min(num_tokens, num_seqs * self.longest_short)
            blocks = num_tokens // self.long[0] + tokens // self.short[0] + min(num_seqs, num_tokens)
        return blocks

    def most_items(self, num_tokens: int, num_seqs: int) -> int:
        """An upper bound on the entries of a plan."""
        blocks = self.most_blocks(num_tokens, num_seqs)
        return blocks * self.segments if self.segments else blocks + self.rows

    def most_places(self, batch: PagedBatch) -> int:
        """An upper bound on the items under all KV heads, from the batch's shapes."""
        keys = batch.block_table.shape[1] * batch.shape.block_size
        items = self.most_blocks(batch.num_tokens, batch.num_seqs) * max(
            cdiv(keys, min(self.long[1], self.short[1])), 1
        )
        return max(min(items, self.most_items(batch.num_tokens, batch.num_seqs)), 1) * batch.shape.num_kv_heads

    def merge_form(self, batch: PagedBatch) -> tuple[int, int, int, int, int]:
        """Of the launch that merges: parts and rows at a time, programs of a Q Block, Q Blocks at once, and warps.

        A program reads all parts at once where programs are dealt evenly to Q Blocks; a warp takes 1024 sums, since
        warps of few sums wait for each other, and most programs find nothing to merge. Where Q Blocks are few,
        each has a program for every row that the capture's longest query fills.
        """
        most, rows, least, most_warps = (64, SHORT_ROWS, 4, 8) if self.is_short else (16, ROWS, 8, 4)
        shape, keys = batch.shape, batch.block_table.shape[1] * batch.shape.block_size
        blocks = max(self.most_blocks(batch.num_tokens, batch.num_seqs), 1) * shape.num_kv_heads
        longest = min(max(self.long[0], self.short[0]), max(batch.stats.max_query_len, 1))
        groups = cdiv(longest * shape.queries_per_kv, rows)
        helpers = max(power_of_two(min(WAVES * self.programs // blocks, groups)), least)
        parts = min(cdiv(keys, min(self.long[1], self.short[1])), cdiv(self.programs, blocks))
        parts = min(max(power_of_two(parts), 8), most)
        warps = min(max(parts * rows * power_of_two(shape.value_lanes) // 1024, 1), most_warps)
        return parts, rows, helpers, max(min(blocks, WAVES * self.programs // helpers), 1), warps

    def make_space(self, num_tokens: int, num_seqs: int, device: torch.device) -> torch.Tensor:
        """int32 [items, fields] for the plan. From torch.zeros: no other scratch may lie over it."""
        return torch.zeros((self.most_items(num_tokens, num_seqs), SIZE), dtype=torch.int32, device=device)

    def ensure_room(self, plan: torch.Tensor, batch: PagedBatch) -> int:
        """Return `most_items` of the batch. Raises SpecError where `plan` has fewer entries."""
        items = self.most_items(batch.num_tokens, batch.num_seqs)
        if plan.shape[0] < items:
            raise SpecError("workspace", f"a plan of {plan.shape[0]} items", f"room for {items}")
        return items


@dataclass(frozen=True)
class PlannedScratch:
    """The workspace of a kernel that takes items: the plan, and the sums of Q Blocks that several items share.

    acc, m, l, float32: unnormalised sums, base-2 row maxima and row sums of each row of a part.
    """

    plan: torch.Tensor  # i32 [items, fields]
    counters: torch.Tensor  # i32 [COUNTERS]
    acc: torch.Tensor  # [rows, num_kv_heads, value_lanes]
    m: torch.Tensor  # [rows, num_kv_heads]
    l: torch.Tensor  # [rows, num_kv_heads]
    num_tokens: int
    num_seqs: int
    copy: CopyScratch | None = None  # of the keys of long queries
    planned: bool = False  # the plan is that of this step: a launch takes it as it is

    @classmethod
    def up_to(
        cls, capacity: Capacity, shape: AttentionShape, cut: Cut, copy: CopyScratch | None = None
    ) -> "PlannedScratch":
        """Scratch for any batch up to `capacity`, however long its sequences are."""
        device, sizes = capacity.device, (cut.rows, shape.num_kv_heads)
        floats = {"dtype": torch.float32, "device": device}
        return cls(
            cut.make_space(capacity.num_tokens, capacity.num_seqs, device),
            torch.zeros(COUNTERS, dtype=torch.int32, device=device),
            torch.empty((*sizes, shape.value_lanes), **floats),
            torch.empty(sizes, **floats),
            torch.empty(sizes, **floats),
            capacity.num_tokens,
            capacity.num_seqs,
            copy,
        )


def scratch_rows(shape: AttentionShape, programs: int, block_m: int) -> int:
    """The rows of scratch for one KV head's parts of Q Blocks of `block_m` rows."""
    return max(cdiv(PARTS_A_PROGRAM * programs, shape.num_kv_heads), PARTS_A_PROGRAM) * block_m


def ensure_served(workspace: PlannedScratch) -> None:
    """Raise SpecError where the last plan met a sequence beyond the capacity. Waits for the device."""
    if int(workspace.counters[REFUSED].item()):
        raise SpecError(
            "query_start_loc, seq_lens",
            "a sequence with query tokens past the tensors, or more keys than its row of the block table has pages for",
            "what the captured batch's shapes hold; rows of such a sequence are NaN",
        )


def ensure_capacity(batch: PagedBatch, workspace: PlannedScratch) -> None:
    """Raise SpecError for a batch of more tokens or sequences than the workspace was made for."""
    for name in ("num_tokens", "num_seqs"):
        found, most = getattr(batch, name), getattr(workspace, name)
        if found > most:
            raise SpecError(name, found, f"at most {most}, the capacity of the workspace")


def mask_of(features: Features) -> Features:
    """Return only the features that hide keys, because a plan depends on no others."""
    names = ("causal", "sliding_window", "chunk", "chunk_lookback", "spans", "causal_per_sequence")
    return Features(**{name: getattr(features, name) for name in names})
