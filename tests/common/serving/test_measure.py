"""Measuring a plan: the fastest candidate of a point is taken from then on, and nothing is measured twice."""

import pytest
import torch

import common.serving.measure
import common.serving.reach
from common import gpus
from common.serving import winners
from common.serving.measure import batch_of
from common.serving.points import Point, typical
from common.spec import AttentionShape, Features, SpecError
from common.spec.metadata import BatchStats
from dsl_triton import auto

SHAPE, H200 = AttentionShape(4, 2, 32, 16, torch.float32), gpus.resolve("h200")
POINTS = [Point(2, 128), Point(1, 48, 40)]


def falling():
    """Each candidate is faster than the one before it."""
    us = 100.0

    def clock(launch):
        nonlocal us
        launch()
        us *= 0.9
        return us

    return clock


@pytest.fixture
def on_h200(monkeypatch, tmp_path):
    """Plans on the CPU that choose as on an H200, with winners in a folder of their own."""
    monkeypatch.setenv(winners.FOLDER, str(tmp_path))
    for module in (common.serving.measure, common.serving.reach):
        monkeypatch.setattr(module, "gpu_of", lambda device: H200)
    monkeypatch.setattr(common.serving.measure, "graph_us", falling())
    monkeypatch.setattr(auto.FAMILY, "_winners", {})
    monkeypatch.setattr(auto.FAMILY, "_chosen", {})


def plan(**more):
    return auto.plan_paged_attention(SHAPE, 64, 4, 256, "cpu", **more)


def test_the_fastest_of_a_point_is_taken_here_and_in_the_next_process(on_h200, monkeypatch):
    first, told = plan(), []
    assert first.measure(3, POINTS, progress=lambda done, all, stats, timed: told.append(timed)) == 2
    assert [len(timed) for timed in told] == [3, 3]
    assert all(one.us is not None for timed in told for one in timed)
    stats = BatchStats.of([(1, 128)] * 2)
    chosen = first.choice_of(stats, frozenset())
    last = told[0][-1].choice
    assert (chosen.kernel, chosen.config) == (last.kernel, last.config) and chosen.measured
    monkeypatch.setattr(auto.FAMILY, "_winners", {})
    monkeypatch.setattr(auto.FAMILY, "_chosen", {})
    assert plan().choice_of(stats, frozenset()) == chosen


def test_what_was_measured_is_not_again(on_h200):
    one = plan()
    assert one.measure(2, POINTS) == 2
    assert one.measure(2, POINTS) == 0 == plan().measure(2, POINTS)


def test_a_warm_plan_launches_what_was_measured_and_compiles_nothing_then(on_h200, monkeypatch):
    one = plan()
    one.warmup(measure=2, points=POINTS)
    batch = batch_of(SHAPE, BatchStats.of([(1, 128)] * 2), torch.device("cpu"))
    out = torch.empty_like(batch.query)
    tensors = (batch.query, batch.key_cache, batch.value_cache, batch.block_table, batch.query_start_loc)
    one(*tensors, batch.seq_lens, out=out, max_query_len=1, max_seq_len=128)
    assert one.choice_of(batch.stats, frozenset()).measured and one.unmet == 0
    assert out.isfinite().all() and out.abs().sum() > 0


def test_what_does_not_run_or_answers_otherwise_is_no_winner(on_h200, monkeypatch):
    one = plan()
    candidates = auto.FAMILY.candidates(SHAPE, BatchStats.of([(1, 128)] * 2), H200, count=3)

    def breaking(launch):
        def broken(batch, features, out, config, workspace, *, lse=None):
            if config == candidates[1].config:
                raise RuntimeError("out of shared memory")
            launch(batch, features, out, config, workspace, lse=lse)
            if config == candidates[2].config:
                out += 1

        return broken

    for kernel in {auto.FAMILY.kernel(one.kernel) for one in candidates}:
        monkeypatch.setattr(kernel, "launch", breaking(kernel.launch))
    told = []
    one.measure(3, POINTS[:1], progress=lambda done, all, stats, timed: told.extend(timed))
    assert [timed.why for timed in told] == ["", "RuntimeError: out of shared memory", "another answer"]
    assert one.choice_of(BatchStats.of([(1, 128)] * 2), frozenset()).config == candidates[0].config


def test_no_point_begins_when_the_time_is_over(on_h200):
    assert plan().measure(2, POINTS, seconds=-1) == 0


@pytest.mark.parametrize(("more", "found"), [
    ({"kernel": "q_block"}, "measure: found a plan of kernel='q_block'"),
    ({"features": Features(batch_invariant=True)}, "measure: found batch_invariant"),
], ids=str)  # fmt: skip
def test_a_plan_that_chooses_nothing_is_refused(on_h200, more, found):
    with pytest.raises(SpecError, match=found):
        plan(**more).measure()


def test_without_a_gpu_there_is_nothing_to_time_on():
    with pytest.raises(SpecError, match="measure: found cpu to time on, allowed a GPU"):
        plan().warmup(measure=5)


@pytest.mark.parametrize("count", [-1, 2.5, "five"])
def test_a_number_of_candidates_is_one(count):
    with pytest.raises(SpecError, match="measure"):
        plan().warmup(measure=count)


@pytest.mark.parametrize(("limits", "sizes"), [((8192, 256, 4096), 11), ((1, 4, 64), 1), ((64, 1, 64), 2)])
def test_typical_batches_lie_within_the_capacity(limits, sizes):
    tokens, seqs, keys = limits
    found = typical(*limits)
    assert len(found) == sizes and len(set(found)) == sizes
    assert all(p.num_seqs <= seqs and p.max_query_len <= tokens and p.max_seq_len <= keys for p in found)


@pytest.mark.parametrize("stats", [
    BatchStats(4, 4, 4, 1, 64, 256, 0), BatchStats(3, 33, 2, 31, 64, 192, 64), BatchStats(2, 10, 0, 5, 5, 10, 10),
    BatchStats(3, 33, 2, 31, 96, 106, 96),
], ids=str)  # fmt: skip
def test_a_batch_to_time_has_the_sizes_of_the_point(stats):
    batch = batch_of(SHAPE, stats, torch.device("cpu"))
    assert batch.stats == stats and batch.query_start_loc[-1] == stats.num_tokens == len(batch.query)
    assert int(batch.block_table.max()) < len(batch.key_cache) and int(batch.seq_lens.max()) == stats.max_seq_len
