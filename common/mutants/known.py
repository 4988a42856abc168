"""Mutants that repeat bugs of published attention kernels, each with the project and its report.

The softcap that gives Inf / Inf past 88 times the cap (vLLM #56578) is `softcap_overflows` in `common.mutants.numbers`.
"""

import torch

from common.cases.fills import FILLS
from common.mutants.emulation import State
from common.mutants.mutant import MIXED, NO_EDIT, SHORT_BEHIND_LONG, probe, wrong
from common.oracle.integrity import GUARD_BYTES

_FP16 = {"head_size": 128, "dtype": torch.float16, "fill": FILLS["products-past-fp16"]}
# garbage in the table most likely names one of the pages that nobody owns
_TABLE = probe("table", [(1, 64), (1, 48), (2, 80)], extra_columns=0, spare_pages=60)


def _normalised(at, states):
    return [State(s.m, s.l, s.acc / s.l[..., None] * s.l[..., None]) for s in states]


def _whole_tiles(at, keys):
    tile = at.schedule.tile
    return range(keys.start, -(-keys.stop // tile) * tile)


def _pages_past_the_table(at, kind, index, pages):
    table = at.batch.block_table
    behind = GUARD_BYTES // table.element_size()  # the bytes past the last row
    memory = torch.as_strided(table, (table.numel() + behind,), (1,), table.storage_offset())
    return memory[at.seq * table.stride(0) + index].long() % at.batch.key_cache.shape[0]


def _all_wanted(at, key, seen):
    return torch.ones_like(key, dtype=torch.bool)


def _in_fp16(at, logits, softcap):
    scale = at.batch.softmax_scale
    return (logits / scale).half().float() * scale


KNOWN = (
    wrong("first_tile_fully_masked", "one sequence", probe("first-tile", [(33, 90), (1, 40)], 16, sliding_window=16),
          report="-inf minus -inf for a row that sees nothing in its program's first tile (vLLM #48364)",
          shift=lambda at, m: m),
    wrong("empty_segment_normalised", "one sequence", SHORT_BEHIND_LONG, partials=_normalised,
          report="a segment is divided by its own sum before the merge: 0 / 0 where it is empty (vLLM #48364)"),
    wrong("table_tail_dereferenced", "one sequence", _TABLE,
          report="the table is read in whole tiles, past its used part and its last row (vLLM #56862, #48043)",
          segment=_whole_tiles, pages=_pages_past_the_table, wanted=_all_wanted),
    wrong("page_taken_for_a_tile", "all", MIXED.but(block_size=64),
          report="a slot is counted from the tile's start, as if no tile spanned less than a page (aiter #2190)",
          slots=lambda at, kind, slots: slots % at.schedule.tile),
    wrong("values_to_the_right_dropped", "all", MIXED.but(causal=False, sliding_window=24),
          report="V is masked as if the attention were causal, though the scores are not (a window to both sides)",
          wanted=lambda at, key, seen: NO_EDIT.wanted(at, key, seen) & (key <= at.context_len)),
    wrong("values_left_of_the_window_multiplied", "one sequence",
          MIXED.but(sliding_window=24, fill=FILLS["unseen-values-nan"]), wanted=_all_wanted,
          report="V that only the mask excludes is multiplied by P = 0, though it may be NaN (vLLM #30887, #53856)"),
    wrong("products_in_fp16", "all", probe("products", [(1, 130), (9, 40)], **_FP16),
          report="q.k stays in the operands' dtype before it is scaled, where it overflows to Inf past 65504",
          score=_in_fp16),
    wrong("maximum_starts_at_zero", "all", MIXED.but(fill=FILLS["logits-all-low"]),
          report="the running maximum starts at 0 instead of -inf: rows whose logits are all below -88 sum to 0",
          maximum=lambda at, m: m.clamp(min=0.0)),
)  # fmt: skip
