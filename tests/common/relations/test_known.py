"""The exact oracles pass on a right kernel and see the faults they exist for."""

from __future__ import annotations

import pytest
import torch

from calls import unwritten
from common.mutants.emulation import Edits, Schedule, emulate
from common.oracle.reference import reference
from common.relations.known import Oracle, census, constant, needle, probes, visible_range
from common.spec import AttentionShape, Features, Layout, SpecError

LENS = [(1, 203), (19, 70), (33, 33), (2, 0), (5, 300)]
SHAPE = AttentionShape(6, 2, 64, 16)
MASKS = [
    pytest.param(Features(), id="causal"),
    pytest.param(Features(causal=False), id="non-causal"),
    pytest.param(Features(sliding_window=24), id="window"),
    pytest.param(Features(causal=False, sliding_window=9), id="two-sided window"),
]
SCHEDULES = [pytest.param(Schedule(32), id="tile 32"), pytest.param(Schedule(16, 4), id="tile 16, 4 segments")]


def run(oracle: Oracle, schedule: Schedule, edits: Edits | None = None) -> list[str]:
    batch = oracle.batch
    out, lse = unwritten(batch)
    emulate(batch, oracle.features, out, schedule, lse=lse, edits=edits)
    return oracle.mistakes(out, lse)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("features", MASKS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_needle_comes_back_bit_for_bit(dtype, features, schedule):
    shape = AttentionShape(6, 2, 64, 16, dtype)
    assert run(needle(LENS, shape, features, edges=(16, 32, 64)), schedule) == []


@pytest.mark.parametrize("features", MASKS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_census_counts(features, schedule):
    assert run(census(LENS, SHAPE, features), schedule) == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("features", MASKS)
def test_constant_is_constant(dtype, features):
    shape = AttentionShape(6, 2, 64, 16, dtype)
    assert run(constant(LENS, shape, features, value=-0.75), Schedule(32, 2)) == []


def test_census_counts_as_the_reference_does():
    features = Features(causal=False, sliding_window=9)
    oracle = census(LENS, SHAPE, features)
    assert oracle.mistakes(oracle.batch.query, reference(oracle.batch, features).lse) == []


@pytest.mark.parametrize("head_size", [8, 256])
def test_needle_tells_keys_apart_at_extreme_head_sizes(head_size):
    shape = AttentionShape(4, 1, head_size, 8)
    assert run(needle([(1, 250), (9, 130)], shape, Features(), edges=(32,)), Schedule(32, 3)) == []


class DropsOneKey(Edits):
    def visible(self, at, query, key, seen):
        return seen & (key != 32)


class ReadsBesideOneKey(Edits):
    def slots(self, at, kind, slots):
        return torch.where((slots == 0) & (kind == "value"), 1, slots)


class SumsTheSinklessPartTwice(Edits):
    def finish(self, at, acc, l):
        return super().finish(at, acc, l * 1.01)


@pytest.mark.parametrize(
    ("make", "edits"),
    [(needle, DropsOneKey), (census, DropsOneKey), (needle, ReadsBesideOneKey), (constant, SumsTheSinklessPartTwice)],
)
def test_oracle_sees_the_fault(make, edits):
    found = run(make(LENS, SHAPE, Features()), Schedule(32), edits())
    assert len(found) == 1
    assert make.__name__ in found[0]


def test_probes_stand_at_every_edge():
    found = probes(visible_range(150, 200, Features(sliding_window=64)), 200, edges=(16, 32))
    assert {87, 88, 149, 150} <= set(found)  # both edges of the window, the causal edge
    assert {95, 96, 97, 127, 128, 129, 143, 144, 145} <= set(found)
    assert all(87 <= key <= 150 for key in found)


@pytest.mark.parametrize(
    ("make", "features"),
    [
        (needle, Features(softcap=5.0)),
        (census, Features(sinks=torch.zeros(6))),
        (constant, Features(sinks=torch.zeros(6))),
    ],
)
def test_oracle_refuses_what_it_cannot_know(make, features):
    with pytest.raises(SpecError):
        make(LENS, SHAPE, features)


def test_needle_refuses_heads_too_small():
    with pytest.raises(SpecError, match="head_size"):
        needle([(1, 300)], AttentionShape(1, 1, 8, 16), Features())


@pytest.mark.parametrize("make", [needle, constant])
def test_oracles_keep_the_new_tokens_in_line_with_the_pages(make):
    batch = make(LENS, SHAPE, Features(), new_kv=True).batch
    last = batch.block_table[0, 202 // 16]
    assert torch.equal(batch.key[0], batch.key_cache[last, 202 % 16])
    assert torch.equal(batch.value[0], batch.value_cache[last, 202 % 16])


@pytest.mark.parametrize("features", MASKS)
def test_the_needle_of_an_x_packed_cache_is_found_by_the_reference(features):
    oracle = needle(LENS, SHAPE, features, layout=Layout.X_PACKED)
    assert oracle.mistakes(reference(oracle.batch, features).out.to(SHAPE.dtype), None) == []
