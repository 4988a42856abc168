"""Every relation holds for the emulation, says of which batches it speaks, and is broken by a wrong kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from common.mutants import features as wrong
from common.mutants.emulation import Edits, Schedule
from common.relations.numbers import RELATIONS
from common.relations.relation import Precondition, Result, broken
from relation_batches import CASES, CHUNKED, DECODES, FULL, MIXED, QUANTISED, SHARED, WINDOW, emulated, problem

BY_NAME = {relation.name: relation for relation in RELATIONS}
SCHEDULES = (Schedule(32, 1), Schedule(16, 3))


def holds(relation, attend, case, **options):
    """ "" where it holds, a sentence where not; None where it says nothing of the case."""
    try:
        return broken(relation, attend, *problem(case), **options)
    except Precondition:
        return None


def another_path(schedule):
    """The emulation, no two results of one path: torch's products on a CPU depend on where in memory a head lies."""
    attend = emulated(schedule)

    def run(batch, features):
        return replace(attend(batch, features), path=object())

    return run


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda relation: relation.name)
def test_a_relation_holds_for_the_emulation(relation):
    make = another_path if relation.name == "kv-heads-permuted" else emulated
    found = [holds(relation, make(schedule), case) for case in CASES for schedule in SCHEDULES]
    assert "" in found, "no batch that it speaks of"
    assert [text for text in found if text] == []


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("pages-private", MIXED), ("keys-left-of-the-window", MIXED), ("keys-twice", MIXED),
        ("prefill-in-pages", FULL), ("keys-of-the-future", FULL), ("window-of-all-keys", WINDOW),
    ],
)  # fmt: skip
def test_a_batch_that_a_relation_does_not_speak_of_is_refused(name, case):
    with pytest.raises(Precondition):
        BY_NAME[name].parts(*problem(case))


def test_a_bitwise_relation_is_one_of_tolerance_on_another_path():
    whole, other = emulated(Schedule(64, 1)), emulated(Schedule(16, 4))
    one, two = whole(*problem(DECODES)), other(*problem(DECODES))
    assert not torch.equal(one.lse, two.lse)
    assert holds(BY_NAME["twice"], whole, DECODES, other=other) == ""

    def lies(batch, features):
        result = other(batch, features)
        return Result(result.out, result.lse, Schedule(64, 1))

    assert "differs" in holds(BY_NAME["twice"], whole, DECODES, other=lies)


class PageId(Edits):
    """Reads as if pages stood in their first order."""

    def pages(self, at, kind, index, pages):
        return torch.where(index == 1, (pages + 1) % at.batch.key_cache.shape[0], pages)


class Neighbour(Edits):
    """The second sequence's last row is worth a little more when somebody stands behind it."""

    def finish(self, at, acc, l):
        more = 1.02 if at.seq == 1 and at.batch.num_seqs > 2 else 1.0
        return super().finish(at, acc, l) * more


class FirstSequence(Edits):
    def scale(self, at, scale):
        return scale * (1.1 if at.seq == 0 else 1.0)


class GroupOfTwo(Edits):
    """Two query heads read each KV head, however many there are."""

    def kv_heads(self, at, heads):
        return torch.arange(heads.numel()) // 2


class FutureSeen(Edits):
    def visible(self, at, query, key, seen):
        return seen | ((key == query + 1) & (key < at.seq_len))


class OffsetLost(Edits):
    def finish(self, at, acc, l):
        return super().finish(at, acc, l * 1.03)


class LseOff(Edits):
    def lse(self, at, lse):
        return lse + 0.01 * at.seq_len / 32


class WideWindow(Edits):
    def visible(self, at, query, key, seen):
        return key <= query


class FirstHead(Edits):
    def kv_heads(self, at, heads):
        return torch.zeros_like(heads)


class UnseenMultiplied(Edits):
    def wanted(self, at, key, seen):
        return torch.ones_like(key, dtype=torch.bool)


class SharedPageOnce(Edits):
    def pages(self, at, kind, index, pages):
        shared = at.seq == 1 and bool(at.batch.block_table[0, 0] == at.batch.block_table[1, 0])
        return pages.flip(0) if shared and kind == "value" else pages


class SlopeOfTheHead(Edits):
    def slopes(self, at, slopes):
        return slopes + 0.01


class LookbackIgnored(Edits):
    def chunk(self, at, chunk, lookback):
        return chunk, 0


class FlagIgnored(Edits):
    def causal(self, at, flags):
        return at.features.causal


class CrossFromTheFirstKey(Edits):
    def visible(self, at, query, key, seen):
        return seen & (key > 0) if at.features.cross else seen


class ScaleOfValues(Edits):
    def scale(self, at, scale):
        return at.batch.shape.value_lanes**-0.5


class ScaleOfVTwice(Edits):
    def kv_scale(self, at, kind, scale):
        return scale if scale is None or kind == "key" else scale.square()


class ScaleOfAPair(Edits):
    def kv_scale(self, at, kind, scale):
        return scale if scale is None or len(scale) == 1 else scale * 1.01


@pytest.mark.parametrize(
    ("name", "case", "edits"),
    [
        ("pages-permuted", MIXED, PageId), ("each-sequence-alone", MIXED, Neighbour),
        ("batch-in-halves", MIXED, Neighbour), ("sequences-reversed", DECODES, FirstSequence),
        ("prefill-token-by-token", MIXED, FutureSeen), ("prefill-in-pages", MIXED, FutureSeen),
        ("keys-of-the-future", MIXED, FutureSeen), ("values-offset", MIXED, OffsetLost),
        ("keys-twice", DECODES, LseOff),
        ("keys-in-2-parts-merged", DECODES, LseOff), ("keys-in-3-parts-merged", DECODES, LseOff),
        ("keys-left-of-the-window", WINDOW, WideWindow), ("kv-heads-permuted", MIXED, FirstHead),
        ("heads-expanded", MIXED, GroupOfTwo), ("unseen-slots-poisoned", WINDOW, UnseenMultiplied),
        ("pages-private", SHARED, SharedPageOnce), ("page-size-doubled", MIXED, PageId),
        ("chunk-beyond-the-keys", MIXED, LookbackIgnored),
        ("chunks-as-sequences", CHUNKED, wrong.ChunkLookbackOneMore),
        ("slopes-of-zero", MIXED, SlopeOfTheHead), ("tree-of-one-branch", MIXED, wrong.TreeRowShifted),
        ("span-of-everything", FULL, wrong.SpanEndExclusive), ("flag-for-each-sequence", FULL, FlagIgnored),
        ("cross-as-non-causal", FULL, CrossFromTheFirstKey), ("values-widened", MIXED, ScaleOfValues),
        ("value-scale-doubled", QUANTISED, ScaleOfVTwice), ("scales-of-one", QUANTISED, ScaleOfAPair),
    ],
)  # fmt: skip
def test_a_wrong_kernel_breaks_a_relation(name, case, edits):
    assert holds(BY_NAME[name], emulated(Schedule(32, 2), edits()), case)
