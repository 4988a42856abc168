"""Mutants after bugs that published attention kernels shipped with, each beside the project and its report.

The soft cap that is Inf / Inf past 88 caps (vLLM #56578) is `softcap_overflows` of `common.mutants.numbers`.
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
    """A row that sees nothing of its program's first tile: -inf - -inf (vLLM #48364)."""

    def shift(self, at, m):
        return m


@mutant("one sequence", SHORT_BEHIND_LONG)
class EmptySegmentNormalised(Edits):
    """Every segment divides by its own sum before the merge: 0 / 0 where it is empty (vLLM #48364)."""

    def partials(self, at, states):
        return [State(s.m, s.l, s.acc / s.l[..., None] * s.l[..., None]) for s in states]


@mutant("one sequence", Probe([(1, 64), (1, 48), (2, 80)], tile=64, extra_columns=0))
class TableTailDereferenced(Edits):
    """The block table is read for whole tiles, past its used part and its last row (vLLM #56862, #48043)."""

    def segment(self, at, keys):
        tile = at.schedule.tile
        return range(keys.start, -(-keys.stop // tile) * tile)

    def pages(self, at, kind, index, pages):
        table = at.batch.block_table
        behind = GUARD_BYTES // table.element_size()  # what lies behind the last row
        memory = torch.as_strided(table, (table.numel() + behind,), (1,), table.storage_offset())
        return memory[at.seq * table.stride(0) + index].long() % at.batch.key_cache.shape[0]

    def wanted(self, at, key, seen):
        return torch.ones_like(key, dtype=torch.bool)


@mutant("all", replace(MIXED, shape=AttentionShape(8, 2, 64, 64), tile=32))
class PageTakenForATile(Edits):
    """A tile never spans less than a page, so the place in a page counts from the tile's start (aiter #2190)."""

    def slots(self, at, kind, slots):
        return slots % at.schedule.tile


@mutant("all", replace(MIXED, causal=False, sliding_window=24))
class ValuesToTheRightDropped(Edits):
    """V is masked as if the attention were causal, though the scores are not (a window to both sides)."""

    def wanted(self, at, key, seen):
        return super().wanted(at, key, seen) & (key <= at.context_len)


@mutant("one sequence", replace(MIXED, sliding_window=24, fill=FILLS["unseen-values-nan"]))
class ValuesLeftOfTheWindowMultiplied(Edits):
    """V of keys that only the mask excludes is multiplied by P = 0, and may be NaN (vLLM #30887, #53856)."""

    def wanted(self, at, key, seen):
        return torch.ones_like(key, dtype=torch.bool)


@mutant("all", Probe([(1, 130), (9, 40)], _FP16, fill=FILLS["products-past-fp16"]))
class ProductsInFp16(Edits):
    """q.k leaves the matrix product in the operands' dtype, before the scale, and is Inf past 65504."""

    def score(self, at, logits, softcap):
        scale = at.batch.softmax_scale
        return (logits / scale).half().float() * scale


@mutant("all", replace(MIXED, fill=FILLS["logits-all-low"]))
class MaximumStartsAtZero(Edits):
    """The running maximum starts at 0 and not at -inf: rows whose logits are all below -88 sum to nothing."""

    def maximum(self, at, m):
        return m.clamp(min=0.0)
