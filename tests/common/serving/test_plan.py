"""A plan's warm-up meets all that calls of its capacity can bring: choices, and sizes that compilers tell apart."""

import importlib
import random
import types
from contextlib import nullcontext
from dataclasses import dataclass

import pytest
import torch

import common.serving.reach
from calls import tensors
from common import gpus
from common.cases.batch import make_batch
from common.serving.grid import hinted_stats
from common.serving.pieces import pieces
from common.serving.plan import Plan, compiled_by
from common.serving.reach import Reach
from common.spec import AttentionShape, Features, SpecError
from ruled import Ruled

SHAPE, H200 = AttentionShape(4, 2, 32, 16, torch.float32), gpus.resolve("h200")
FEATURES = frozenset({"causal", "non_causal", "sliding_window", "softcap", "sinks", "lse", "full_graph"})


class Fake:
    """A kernel that notes its launches; scratch as many floats a token as its config says."""

    SUPPORTS, DEFAULT = FEATURES, 0

    def __init__(self, name, trouble=None):
        self.name, self.trouble, self.met = name, trouble, []

    def default(self, shape, stats, gpu):
        return 3

    def workspace(self, shape, capacity, config):
        floats = config if isinstance(config, int) else 0
        return torch.empty(floats, capacity.num_tokens) if floats else types.SimpleNamespace()

    def launch(self, batch, features, out, config, workspace, *, lse=None):
        self.met.append((self.name, config, batch.num_tokens, batch.num_seqs))

    def check(self, workspace):
        if self.trouble:
            raise self.trouble


@dataclass(frozen=True)
class Part:
    num_segments: int


@dataclass(frozen=True)
class Parts:
    prefill: Part
    decode: Part


def of_parts(shape, stats, gpu):
    """A kernel of two parts; their segments follow different lengths, so that there are many pairs of few parts."""
    decode = max(1, min(stats.total_seq_len // stats.num_seqs // 64, 40 // max(stats.num_decodes, 1)))
    return "many", Parts(Part(max(1, 128 // stats.max_query_len)), Part(decode))


def family(auto=None, **troubles):
    """Two kernels under rules whose configs follow every number that rules may ask for."""
    kernels = {name: Fake(name, troubles.get(name)) for name in ("few", "many")}

    def plain(shape, stats, gpu):
        if stats.max_query_len > 16:
            return "many", 8 * (stats.num_decodes > 0)
        return "few", min(stats.max_seq_len // 64, 4 * stats.num_seqs)

    modules = kernels | {"heuristics": types.SimpleNamespace(__path__=["none/heuristics"])}
    return Ruled("fake", tuple(kernels), modules.__getitem__, lambda device: nullcontext([]), rule=auto or plain)


@pytest.fixture
def on_h200(monkeypatch):
    monkeypatch.setattr(common.serving.reach, "gpu_of", lambda device: H200)


def call(plan, lens, **hints):
    batch = make_batch(lens, SHAPE, fill=False)
    plan(**tensors(batch), out=torch.empty_like(batch.query), **hints)


def test_a_plan_allocates_no_output(on_h200):
    batch = make_batch([(1, 9)], SHAPE, fill=False)
    with pytest.raises(SpecError, match="out: found None"):
        Plan(family(), SHAPE, 8, 8, 64, "cpu")(**tensors(batch), max_query_len=1, max_seq_len=9)


def compiled(plan, stats, tokens, seqs):
    """What a call of these sizes is compiled for."""
    return compiled_by(plan.choice_of(stats, plan.features.names()), tokens, seqs)


@pytest.mark.parametrize("features", [Features(), Features(sliding_window=100)], ids=["plain", "window"])
@pytest.mark.parametrize("capacity", [(1, 1, 16), (40, 7, 300), (64, 32, 1000)])
def test_a_long_trace_meets_nothing_that_the_warm_up_did_not(on_h200, capacity, features):
    plan, draw = Plan(family(), SHAPE, *capacity, "cpu", features), random.Random(1)
    tokens, seqs, keys = capacity
    plan.warmup()
    warm, met = plan._warm, set()
    for _ in range(1000):
        n = draw.randint(1, seqs)
        count = n if draw.random() < 0.5 and n <= tokens else draw.randint(1, tokens)
        hints = [draw.choice((None, 1, draw.randint(1, limit))) for limit in (tokens, 2 * keys, n, n * keys)]
        met |= compiled(plan, hinted_stats(n, count, keys, *hints), count, n)
    assert not met - warm, sorted(met - warm, key=str)[:5]
    assert len(met) > 3 or capacity == (1, 1, 16)


def decided_by_keys(shape, stats, gpu):
    return "few", stats.max_seq_len


@pytest.mark.parametrize("own", [Features(), Features(sliding_window=100), Features(chunk=64)], ids=str)
def test_a_call_of_another_window_than_the_plans_finds_its_choice_in_it(on_h200, own):
    plan, draw = Plan(family(decided_by_keys), SHAPE, 64, 32, 1000, "cpu", own), random.Random(3)
    for _ in range(500):
        seqs, asked = draw.randint(1, 32), Features(sliding_window=draw.choice((1, 30, 100, 500, 2000)))
        stats = hinted_stats(seqs, draw.randint(seqs, 64), 1000, None, draw.randint(1, 1000), None)
        assert plan.choice_of(stats, asked.names(), asked.sees) in plan.choices


def test_a_window_of_the_call_alone_is_chosen_for(on_h200):
    kernels = family(decided_by_keys)
    plan = Plan(kernels, SHAPE, 8, 4, 1000, "cpu")
    for window in (None, 64):
        call(plan, [(1, 900)] * 4, max_query_len=1, max_seq_len=900, features=Features(sliding_window=window))
    assert [config for _, config, _, _ in kernels.kernel("few").met] == [1024, 128]


def by_sequences(shape, stats, gpu):
    return "few", stats.num_seqs


def test_a_plan_takes_the_exact_choice_where_it_has_it_warm_and_else_the_grids(on_h200):
    plan = Plan(family(by_sequences), SHAPE, 64, 32, 1000, "cpu")
    needs = plan.features.names()
    assert {choice.config for choice in plan.choices} == {1, 2, 4, 8, 16, 32}

    def chosen(seqs, tokens):
        return plan.choice_of(hinted_stats(seqs, tokens, 1000, 1, 900, None), needs).config

    assert [chosen(n, n) for n in (8, 5, 11, 32)] == [8, 8, 16, 32]
    plan.warmup()
    assert [chosen(n, n) for n in (8, 5, 11, 32)] == [8, 8, 16, 32]
    plan._warm = set()  # nothing was compiled: the grid's, whose code a warm-up would have
    assert [chosen(n, n) for n in (8, 11)] == [8, 16]


def test_the_exact_choice_of_a_larger_batch_than_its_scratch_holds_is_the_grids(on_h200):
    """8 tokens a sequence take `few` up to the batch of 8 tokens that the grid reaches it by."""

    def by_tokens(shape, stats, gpu):
        return "few", 7 if stats.num_tokens == 9 else 3  # no point of the grid with 9 tokens has 8 sequences

    plan = Plan(family(by_tokens), SHAPE, 64, 32, 1000, "cpu")
    stats = hinted_stats(8, 9, 1000, 2, 900, None)
    exact = plan.family.choose(SHAPE, stats, H200, plan.features.names())
    assert exact.config == 7
    found = plan.choice_of(stats, plan.features.names())
    tokens, seqs = plan.reach.room[found]
    assert found in plan.choices and stats.num_tokens <= tokens and stats.num_seqs <= seqs


def test_a_warm_up_launches_each_of_them_over_sequences_without_tokens(on_h200):
    kernels = family()
    plan = Plan(kernels, SHAPE, 40, 7, 300, "cpu")
    assert plan.warmup(lse=True, new_kv=True) == len(list(plan.sizes()))
    met = kernels.kernel("few").met + kernels.kernel("many").met
    assert {(name, config) for name, config, _, _ in met} == {(c.kernel, c.config) for c in plan.choices}
    assert all(tokens <= 40 and seqs <= 7 for _, _, tokens, seqs in met)


def test_parts_that_others_met_are_not_launched_again(on_h200):
    plan, draw = Plan(family(of_parts), SHAPE, 512, 64, 8192, "cpu"), random.Random(2)
    sizes = list(plan.sizes())
    parts = {piece for choice in plan.choices for piece in pieces(choice)}
    assert len(parts) < len(plan.choices) / 3  # there are more pairs than parts
    assert len(sizes) <= 2 * 15 * len(parts) and len(sizes) < 5 * len(plan.choices)
    plan.warmup()
    warm = plan._warm
    for _ in range(2000):
        seqs, tokens = draw.randint(1, 64), draw.randint(1, 512)
        hints = [draw.choice((None, 1, draw.randint(1, limit))) for limit in (512, 8192, seqs, 8192 * seqs)]
        met = compiled(plan, hinted_stats(seqs, tokens, 8192, *hints), tokens, seqs)
        assert met <= warm, sorted(met - warm, key=str)


def test_an_uneven_batch_has_its_own_choice_where_a_warm_up_compiles_all_parts_of_it(on_h200):
    def of_evenness(shape, stats, gpu):
        """Prompts are split where they are long or lengths differ; both parts of those are others' too."""
        uneven, long = 2 * stats.total_seq_len <= stats.num_seqs * stats.max_seq_len, stats.max_query_len > 128
        return "many", Parts(Part(2 if long or uneven else 1), Part(1 if long else 1 + min(stats.max_seq_len // 64, 7)))

    plan = Plan(family(of_evenness), SHAPE, 512, 64, 8192, "cpu")
    parts = {piece for choice in plan.choices for piece in pieces(choice)}
    plan.warmup()
    even, uneven = (hinted_stats(4, 103, 8192, 100, 1024, 3, total) for total in (None, 1024))
    for stats in (even, uneven):
        found = plan.choice_of(stats, plan.features.names())
        assert found == plan.family.choose(SHAPE, stats, H200, plan.features.names())
    assert found not in plan.choices and parts.issuperset(pieces(found)) and found in plan.reach.layouts
    assert plan.reach.layouts[found].num_bytes <= plan.workspace.numel()


def test_one_buffer_is_as_large_as_the_largest_choice_needs_and_others_have_room_for_larger_batches(on_h200):
    plan = Plan(family(), SHAPE, 40, 7, 300, "cpu")
    assert all(room == (48, 7) for choice, room in plan.reach.room.items() if choice.config == 0)
    sizes = [layout.num_bytes for layout in plan.reach.layouts.values()]
    assert max(sizes) == plan.workspace.numel() == 8 * 48 * 4  # 8 floats of `many` for 40 tokens, in sixteens


@pytest.mark.slow
@pytest.mark.parametrize("dsl", ["triton", "helion"])
def test_the_warm_up_of_a_server_is_small(monkeypatch, dsl):
    """8192 tokens, 256 sequences, 131072 keys of Llama-3-8B: few kernels to compile, and a scratch of which the copy of
    K and V is the most."""
    monkeypatch.setattr(common.serving.reach, "gpu_of", lambda device: H200)
    shape, auto = AttentionShape(), importlib.import_module(f"dsl_{dsl}.auto")
    plan = Reach(auto.FAMILY, shape, 8192, 256, 131072, "cpu", Features(), None, None, True)
    assert len({piece for choice in plan.choices for piece in pieces(choice)}) <= 140
    sizes = [layout.num_bytes for layout in plan.layouts.values()]
    assert max(sizes) <= 850 * 2**20


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


@pytest.mark.parametrize(
    "features",
    [Features(spans=torch.zeros(4, 1, 2, dtype=torch.int32)), Features(causal_per_sequence=torch.ones(4).int())],
    ids=["spans", "causal-per-sequence"],
)
def test_a_warm_up_gives_each_batch_its_sequences_of_a_features_tensor(on_h200, features):
    plan = Plan(family(), SHAPE, 8, 4, 64, "cpu", features)
    assert plan.warmup() == len(list(plan.sizes())) > 1
