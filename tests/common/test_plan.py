"""A plan's warm-up meets all that calls of its capacity can bring: choices, and sizes that compilers tell apart."""

import random
import types
from contextlib import nullcontext

import pytest
import torch

import common.plan
from common import gpus
from common.batch import make_batch
from common.choice import Family, hinted_stats
from common.plan import Plan, _kind
from common.spec import AttentionShape, Features, SpecError

SHAPE, H200 = AttentionShape(4, 2, 32, 16, torch.float32), gpus.resolve("h200")
FEATURES = frozenset({"causal", "non_causal", "sliding_window", "softcap", "sinks", "lse", "full_graph"})


class Fake:
    """A kernel that notes its launches; scratch as many floats a token as its config says."""

    SUPPORTS, DEFAULT = FEATURES, 0

    def __init__(self, name, trouble=None):
        self.name, self.trouble, self.met = name, trouble, []

    def workspace(self, shape, capacity, config):
        return types.SimpleNamespace() if not config else torch.empty(config, capacity.num_tokens)

    def launch(self, batch, features, out, config, workspace, *, lse=None):
        self.met.append((self.name, config, batch.num_tokens, batch.num_seqs))

    def check(self, workspace):
        if self.trouble:
            raise self.trouble


def family(**troubles):
    """Two kernels under a tree whose configs follow every feature that a tree may ask for."""
    kernels = {name: Fake(name, troubles.get(name)) for name in ("few", "many")}

    def auto(shape, stats, gpu):
        if stats.max_query_len > 16:
            return "many", 8 * (stats.num_decodes > 0)
        return "few", min(stats.max_seq_len // 64, 4 * stats.num_seqs)

    tree = types.SimpleNamespace(
        auto=auto, covers=lambda shape, gpu: True, PROVENANCE={}, auto_kernel=None, few=lambda *_: 3
    )
    default = types.SimpleNamespace(auto_kernel=lambda *_: "few", many=lambda *_: 99)
    modules = kernels | {"heuristics.h200": tree, "heuristics.default": default}
    return Family("fake", tuple(kernels), modules.__getitem__, lambda device: nullcontext([]))


@pytest.fixture
def on_h200(monkeypatch):
    monkeypatch.setattr(common.plan, "gpu_of", lambda device: H200)


def call(plan, lens, **hints):
    batch = make_batch(lens, SHAPE, fill=False)
    names = ("query", "key_cache", "value_cache", "block_table", "query_start_loc", "seq_lens")
    tensors = [getattr(batch, name) for name in names]
    plan(*tensors, out=torch.empty_like(batch.query), **hints)


@pytest.mark.parametrize("capacity", [(1, 1, 16), (40, 7, 300), (64, 32, 1000)])
def test_a_long_trace_meets_nothing_that_the_warm_up_did_not(on_h200, capacity):
    plan, draw = Plan(family(), SHAPE, *capacity, "cpu"), random.Random(1)
    tokens, seqs, keys = capacity
    warm = set()
    for count, n, stats in plan.sizes():
        hinted = hinted_stats(n, count, keys, *plan._hints(n, stats).values())
        warm.add((plan.choice_of(hinted, plan.features.names()), _kind(count), _kind(n)))
    met = set()
    for _ in range(1000):
        n = draw.randint(1, seqs)
        count = n if draw.random() < 0.5 and n <= tokens else draw.randint(1, tokens)
        hints = [draw.choice((None, 1, draw.randint(1, limit))) for limit in (tokens, 2 * keys, n)]
        choice = plan.choice_of(hinted_stats(n, count, keys, *hints), plan.features.names())
        met.add((choice, _kind(count), _kind(n)))
    assert not met - warm, sorted(met - warm, key=str)[:5]
    assert len(met) > 3 or capacity == (1, 1, 16)


def test_a_warm_up_launches_each_of_them_over_sequences_without_tokens(on_h200):
    kernels = family()
    plan = Plan(kernels, SHAPE, 40, 7, 300, "cpu")
    assert plan.warmup(lse=True, new_kv=True) == len(list(plan.sizes()))
    met = kernels.kernel("few").met + kernels.kernel("many").met
    assert {(name, config) for name, config, _, _ in met} == {(c.kernel, c.config) for c in plan.choices}
    assert all(tokens <= 40 and seqs <= 7 for _, _, tokens, seqs in met)


def test_one_buffer_is_as_large_as_the_largest_choice_needs(on_h200):
    plan = Plan(family(), SHAPE, 40, 7, 300, "cpu")
    assert plan.workspace.numel() == 8 * 48 * 4  # 8 floats of `many` for each of 40 tokens, in sixteens


def test_a_plan_of_one_kernel_uses_no_other(on_h200):
    kernels = family()
    plan = Plan(kernels, SHAPE, 40, 7, 300, "cpu", kernel="few")
    call(plan, [(30, 40)], max_query_len=30, max_seq_len=40)
    call(plan, [(1, 9)] * 7, max_query_len=1, max_seq_len=9)
    assert [config for _, config, _, _ in kernels.kernel("few").met] == [3, 3]
    assert not kernels.kernel("many").met


def test_features_that_a_plan_was_not_made_for_are_refused(on_h200):
    kernels = family()
    kernels.kernel("few").SUPPORTS = FEATURES - {"sinks"}
    plan = Plan(kernels, SHAPE, 8, 2, 64, "cpu")
    with pytest.raises(SpecError, match="what the plan was made for"):
        call(plan, [(1, 9)], max_query_len=1, max_seq_len=9, features=Features(sinks=torch.zeros(4)))


def test_what_a_kernel_says_afterwards_is_raised_by_check(on_h200):
    Plan(family(), SHAPE, 8, 2, 64, "cpu").check()
    trouble = SpecError("seq_lens", "more", "less")
    with pytest.raises(SpecError, match="more"):
        Plan(family(few=trouble), SHAPE, 8, 2, 64, "cpu").check()
