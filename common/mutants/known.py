"""Mutants that repeat bugs of published attention kernels, each with the project and its report.

The softcap that gives Inf / Inf past 88 times the cap (vLLM #56578) is `softcap_overflows` in `common.mutants.numbers`.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from common.cases.fills import FILLS
from common.mutants.emulation import Edits, State
from common.mutants.mutant import MIXED, SHORT_BEHIND_LONG, Mutant, Probe, registrar
from common.oracle.integrity import GUARD_BYTES
from common.spec import AttentionShape

KNOWN: list[Mutant] = []
mutant = registrar(KNOWN)

_FP16 = AttentionShape(8, 2, 128, 16, torch.float16)


@mutant("one sequence", Probe([(33, 90), (1, 40)], sliding_window=16, tile=16))
class FirstTileFullyMasked(Edits):
    """Subtract -inf from -inf for a row that sees nothing in its program's first tile (vLLM #48364)."""

    def shift(self, at, m):
        return m


@mutant("one sequence", SHORT_BEHIND_LONG)
class EmptySegmentNormalised(Edits):
    """Divide every segment by its own sum before the merge: 0 / 0 where a segment is empty (vLLM #48364)."""

    def partials(self, at, states):
        return [State(s.m, s.l, s.acc / s.l[..., None] * s.l[..., None]) for s in states]


@mutant("one sequence", Probe([(1, 64), (1, 48), (2, 80)], tile=64, extra_columns=0))
class TableTailDereferenced(Edits):
    """Read the block table in whole tiles, past its used part and its last row (vLLM #56862, #48043)."""

    def segment(self, at, keys):
        tile = at.schedule.tile
        return range(keys.start, -(-keys.stop // tile) * tile)

    def pages(self, at, kind, index, pages):
        table = at.batch.block_table
        behind = GUARD_BYTES // table.element_size()  # the bytes past the last row
        memory = torch.as_strided(table, (table.numel() + behind,), (1,), table.storage_offset())
        return memory[at.seq * table.stride(0) + index].long() % at.batch.key_cache.shape[0]

    def wanted(self, at, key, seen):
        return torch.ones_like(key, dtype=torch.bool)


@mutant("all", replace(MIXED, shape=AttentionShape(8, 2, 64, 64), tile=32))
class PageTakenForATile(Edits):
    """Count the slot in a page from the tile's start, as if a tile never spanned less than a page (aiter #2190)."""

    def slots(self, at, kind, slots):
        return slots % at.schedule.tile


@mutant("all", replace(MIXED, causal=False, sliding_window=24))
class ValuesToTheRightDropped(Edits):
    """Mask V as if the attention were causal, though the scores are not (a window to both sides)."""

    def wanted(self, at, key, seen):
        return super().wanted(at, key, seen) & (key <= at.context_len)


@mutant("one sequence", replace(MIXED, sliding_window=24, fill=FILLS["unseen-values-nan"]))
class ValuesLeftOfTheWindowMultiplied(Edits):
    """Multiply V of keys that only the mask excludes by P = 0, though that V may be NaN (vLLM #30887, #53856)."""

    def wanted(self, at, key, seen):
        return torch.ones_like(key, dtype=torch.bool)


@mutant("all", Probe([(1, 130), (9, 40)], _FP16, fill=FILLS["products-past-fp16"]))
class ProductsInFp16(Edits):
    """Keep the product q.k in the operands' dtype before scaling, where it overflows to Inf past 65504."""

    def score(self, at, logits, softcap):
        scale = at.batch.softmax_scale
        return (logits / scale).half().float() * scale


@mutant("all", replace(MIXED, fill=FILLS["logits-all-low"]))
class MaximumStartsAtZero(Edits):
    """Start the running maximum at 0 instead of -inf: rows whose logits are all below -88 sum to 0."""

    def maximum(self, at, m):
        return m.clamp(min=0.0)
