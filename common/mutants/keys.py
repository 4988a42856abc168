"""Mutants that read the wrong keys: through the mask, the segments, or the address of a key."""

from __future__ import annotations

from dataclasses import replace

import torch

from common.mutants.emulation import Edits, State
from common.mutants.mutant import LONG, MIXED, SHORT_BEHIND_LONG, WINDOW, Mutant, Probe, registrar
from common.spec import AttentionShape

KEYS: list[Mutant] = []
mutant = registrar(KEYS)

# --- mask -------------------------------------------------------------------------------------------------------------


@mutant("long", LONG)
class LastKeyDropped(Edits):
    def visible(self, at, query, key, seen):
        return seen & (key < at.seq_len - at.long)


@mutant("long", LONG)
class FirstKeyDropped(Edits):
    def visible(self, at, query, key, seen):
        return seen & (key >= at.long)


@mutant("one sequence", MIXED)
class FutureKeyVisible(Edits):
    def visible(self, at, query, key, seen):
        return seen | (key == query + (at.seq == 1))


@mutant("one head", MIXED)
class OwnKeyHidden(Edits):
    def visible(self, at, query, key, seen):
        head = torch.arange(at.batch.query.shape[1])[:, None, None]
        return seen & ((head != 3) | (key != query) | (query == 0))


@mutant("all", replace(MIXED, causal=False))
class NonCausalTakenAsCausal(Edits):
    def visible(self, at, query, key, seen):
        return seen & (key <= query)


@mutant("long", WINDOW)
class WindowOneShort(Edits):
    def visible(self, at, query, key, seen):
        return seen & (key > query - at.features.sliding_window + at.long)


@mutant("long", WINDOW)
class WindowOneLong(Edits):
    def visible(self, at, query, key, seen):
        return seen | (at.long & (key == query - at.features.sliding_window))


@mutant("all", WINDOW)
class WindowIgnoredWhenSplit(Edits):
    def visible(self, at, query, key, seen):
        return key <= query if at.schedule.segments > 1 else seen


@mutant("all", replace(MIXED, causal=False, sliding_window=8))
class WindowOpenToTheRight(Edits):
    def visible(self, at, query, key, seen):
        return seen | (key > query)


@mutant("long", LONG)
class SegmentBoundaryKeyDropped(Edits):
    def segment(self, at, keys):
        return keys[1:] if at.long and at.segment == 1 else keys


@mutant("long", LONG)
class KeyCountedInTwoSegments(Edits):
    def segment(self, at, keys):
        return range(keys.start - 1, keys.stop) if at.long and at.segment == 1 else keys


@mutant("long", LONG)
class PartialPageDropped(Edits):
    def visible(self, at, query, key, seen):
        page = at.batch.key_cache.shape[1]
        return seen & (key < at.seq_len // page * page) if at.long else seen


@mutant("one sequence", Probe([(1, 130), (1, 128), (3, 77)], tile=32))
class LastTileSkippedWhenFull(Edits):
    def segment(self, at, keys):
        return keys[: -at.schedule.tile] if at.seq_len % at.schedule.tile == 0 else keys


@mutant("one sequence", SHORT_BEHIND_LONG)
class EmptySegmentNotNeutral(Edits):
    def partials(self, at, states):
        empty = [bool((state.l == 0).all()) for state in states]
        neutral = [State(torch.zeros_like(s.m), torch.ones_like(s.l), s.acc) for s in states]
        return [n if e else s for s, n, e in zip(states, neutral, empty, strict=True)]


# --- address ----------------------------------------------------------------------------------------------------------


@mutant("one sequence", MIXED)
class PageOffByOne(Edits):
    def pages(self, at, kind, index, pages):
        shifted = index + ((index == 1) & (at.seq == 1))
        return at.batch.block_table[at.seq].long()[shifted]


@mutant("one sequence", MIXED)
class PageOfNextSequence(Edits):
    def pages(self, at, kind, index, pages):
        return torch.where((index == 0) & (at.seq == 0), at.batch.block_table[1, 0].long(), pages)


@mutant("long", LONG)
class ValuePageBesideKeyPage(Edits):
    def pages(self, at, kind, index, pages):
        ahead = index + ((index == 40) & at.long & (kind == "value"))
        return at.batch.block_table[at.seq].long()[ahead]


@mutant("all", Probe([(1, 900), (2, 700)], AttentionShape(2, 1, 8, 8), spare_pages=70_000))
class PageIdIn16Bits(Edits):
    def pages(self, at, kind, index, pages):
        return pages & 0xFFFF


@mutant("all", MIXED)
class ValueSlotsReversed(Edits):
    def slots(self, at, kind, slots):
        page = at.batch.key_cache.shape[1]
        return torch.where(slots.amax() == page - 1, page - 1 - slots, slots) if kind == "value" else slots


@mutant("all", MIXED)
class HeadMajorCacheReadAsTokenMajor(Edits):
    def cache(self, at, kind, cache):
        blocks, page, heads, size = cache.shape
        return cache.nan_to_num(0.5).reshape(blocks, heads, page, size).transpose(1, 2)


@mutant("all", MIXED)
class TableStrideIsUsedColumns(Edits):
    def pages(self, at, kind, index, pages):
        used = -(-int(at.batch.seq_lens.max()) // at.batch.key_cache.shape[1])
        flat = at.batch.block_table.flatten().long()[at.seq * used + index]
        return flat.clamp(0, at.batch.key_cache.shape[0] - 1)


@mutant("one head", LONG)
class HeadReadsNeighbouringKvHead(Edits):
    def kv_heads(self, at, heads):
        return heads - (torch.arange(heads.numel()) == heads.numel() - 1).long()


@mutant("one head", replace(MIXED, shape=AttentionShape(6, 2, 64, 16)))
class RatioRoundedUpToPowerOfTwo(Edits):
    def kv_heads(self, at, heads):
        return torch.arange(heads.numel()) // 4


@mutant("one sequence", MIXED)
class QueryRowOfNeighbour(Edits):
    def query(self, at, query):
        return query.roll(1, dims=1) if at.seq == 1 else query
