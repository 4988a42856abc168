"""What an engine asks of a plan: stated points, scratch known before, one workspace, pages written, typical lengths."""

import importlib

import pytest
import torch

import common.serving.reach
from calls import exact, tensors
from common import gpus
from common.cases.batch import make_batch
from common.oracle.reference import reference
from common.serving.points import Point, points
from common.spec import AttentionShape, Features, SpecError
from dsl_triton import plan_paged_attention, workspace_bytes

SHAPE, H200 = AttentionShape(4, 2, 32, 16, torch.float32), gpus.resolve("h200")


@pytest.fixture
def on_h200(monkeypatch):
    """Choices as on an H200; launches go to the interpreter."""
    monkeypatch.setattr(common.serving.reach, "gpu_of", lambda device: H200)


def call(plan, lens, **hints):
    batch = make_batch(lens, SHAPE)
    return batch, plan(**tensors(batch), **exact(batch) | hints, out=torch.empty_like(batch.query))


def test_points_alone_are_warmed_up_and_what_lies_in_their_cells_compiles_nothing(on_h200):
    plan = plan_paged_attention(SHAPE, 32, 4, 512, "cpu")
    said = []
    stated = list(points([1, 4], [64, 512], [1, 16]))
    count = plan.warmup(points=stated, progress=lambda done, all: said.append((done, all)))
    assert 0 < count < len(list(plan.sizes())) and said == [(n, count) for n in range(count + 1)]
    for lens in ([(1, 50)], [(1, 400), (1, 3), (1, 1)], [(9, 60)], [(1, 500)] * 4):
        call(plan, lens)
    assert plan.unmet == 0


def test_a_batch_outside_of_the_points_is_counted(on_h200):
    plan = plan_paged_attention(SHAPE, 64, 4, 512, "cpu")
    plan.warmup(points=[Point(1, 16)])
    call(plan, [(40, 400), (24, 100)])
    assert plan.unmet == 1
    call(plan, [(40, 400), (24, 100)])  # its launches are there now
    assert plan.unmet == 1


@pytest.mark.parametrize("form", ["lse", "new_kv", "table", "strides"])
def test_a_call_of_another_form_is_counted(on_h200, form):
    """An LSE, new K and V that are read, an int64 table or other strides are other code, which no warm-up had made."""
    plan = plan_paged_attention(SHAPE, 8, 4, 512, "cpu", kernel="split" if form == "new_kv" else None)
    plan.warmup(points=[Point(1, 64)])
    batch = make_batch([(1, 50)], SHAPE, new_kv=form == "new_kv")
    if form == "table":
        batch = batch.replace(block_table=batch.block_table.long())
    if form == "strides":
        wide = torch.zeros(*batch.query.shape[:2], SHAPE.head_size + 8)[..., : SHAPE.head_size].copy_(batch.query)
        batch = batch.replace(query=wide)
    given = {"lse": torch.empty(batch.query.shape[:2])} if form == "lse" else {}
    new = {"key": batch.key, "value": batch.value} if form == "new_kv" else {}
    for _ in range(2):  # the second finds the first one's code
        plan(**tensors(batch), **exact(batch), out=torch.empty(*batch.query.shape), **given, **new)
        assert plan.unmet == 1


def test_a_decode_shares_the_code_of_calls_that_bring_keys_which_it_does_not_read(on_h200):
    """A server's decodes bring none: one whose exact choice prompts alone had warmed up was counted."""
    plan = plan_paged_attention(SHAPE, 8, 4, 512, "cpu")
    plan.warmup(points=[Point(1, 64)], new_kv=True)
    call(plan, [(1, 50)])
    assert plan.unmet == 0


@pytest.mark.parametrize(
    "point", [Point(5, 64), Point(1, 513), Point(1, 64, 65)], ids=["num_seqs", "max_seq_len", "max_query_len"]
)
def test_a_point_beyond_the_plan_is_refused(point):
    plan = plan_paged_attention(SHAPE, 64, 4, 512, "cpu")
    with pytest.raises(SpecError, match=r"points: .*at most the plan's"):
        plan.warmup(points=[point])


@pytest.mark.parametrize("name", ["num_seqs", "max_seq_len", "max_query_len", "num_decodes"])
def test_a_point_that_is_none_is_refused(name):
    with pytest.raises(SpecError, match=name):
        Point(**{"num_seqs": 1, "max_seq_len": 1} | {name: -1})


def test_a_kernel_of_one_name_has_a_config_a_class_where_one_is_asked_for(on_h200):
    arguments = (SHAPE, 64, 4, 512, "cpu")
    one = plan_paged_attention(*arguments, kernel="parallel_softmax")
    each = plan_paged_attention(*arguments, kernel="parallel_softmax", one_config=False)
    assert len(one.choices) == 1 < len(each.choices)
    assert {choice.kernel for choice in each.choices} == {"parallel_softmax"}
    for lens in ([(1, 400), (1, 3)], [(40, 400)], [(1, 64), (30, 64)]):
        batch, out = call(each, lens)
        torch.testing.assert_close(out, reference(batch, Features()).out.float(), rtol=1e-4, atol=1e-4)


def test_the_bytes_are_known_before_anything_is_allocated(on_h200):
    arguments = (SHAPE, 64, 4, 512, "cpu")
    for options in ({}, {"kernel": "parallel_softmax", "one_config": False}, {"features": Features(sliding_window=40)}):
        assert workspace_bytes(*arguments, **options) == plan_paged_attention(*arguments, **options).workspace.numel()


def test_plans_share_a_workspace(on_h200):
    small, large = (SHAPE, 16, 2, 64, "cpu"), (SHAPE, 64, 4, 512, "cpu")
    first = plan_paged_attention(*large)
    second = plan_paged_attention(*small, workspace=first.workspace)
    assert second.workspace is first.workspace
    for plan, lens in ((first, [(1, 400), (1, 30)]), (second, [(1, 60)]), (first, [(1, 400), (1, 30)])):
        batch, out = call(plan, lens)
        torch.testing.assert_close(out, reference(batch, Features()).out.float(), rtol=1e-4, atol=1e-4)


def test_a_workspace_that_is_too_small_is_refused():
    with pytest.raises(SpecError, match="workspace: found 16 bytes"):
        plan_paged_attention(SHAPE, 64, 4, 4096, "cpu", kernel="parallel_softmax", workspace=torch.empty(
            16, dtype=torch.uint8))  # fmt: skip


def test_an_unknown_length_is_the_typical_one(on_h200, monkeypatch):
    plan = plan_paged_attention(SHAPE, 16, 2, 512, "cpu", typical_seq_len=64)
    asked = []
    choice_of = plan.choice_of
    monkeypatch.setattr(
        plan, "choice_of", lambda stats, *rest: asked.append(stats.max_seq_len) or choice_of(stats, *rest)
    )
    call(plan, [(1, 500)], max_seq_len=None)
    call(plan, [(1, 500)])
    assert asked == [64, 512]


@pytest.mark.parametrize("dsl", ["dsl_triton", pytest.param("dsl_helion", marks=pytest.mark.slow)])
def test_a_plan_writes_pages_from_slices_of_one_projection(dsl):
    plan = importlib.import_module(dsl).plan_paged_attention(SHAPE, 16, 2, 64, "cpu")
    rows = torch.randn(3, 8 * 32)
    key, value = rows[:, 128:192].view(3, 2, 32), rows[:, 192:].view(3, 2, 32)
    cache = torch.zeros(2, 2, 16, 2, 32)
    plan.write(key, value, cache[:, 0], cache[:, 1], torch.tensor([17, -1, 3]))
    assert torch.equal(cache[1, 0, 1], key[0]) and torch.equal(cache[0, 1, 3], value[2])
    assert cache.count_nonzero() == 2 * 2 * 2 * 32
    with pytest.raises(SpecError, match="slot_mapping"):
        plan.write(key, value, cache[:, 0], cache[:, 1], torch.tensor([[0]]))
    with pytest.raises(SpecError, match="key_cache"):
        plan.write(key, value, None, cache[:, 1], torch.tensor([0]))


@pytest.mark.parametrize(
    ("dsl", "kernel"),
    [
        ("dsl_triton", "split"),
        ("dsl_triton", "unpaged"),
        pytest.param("dsl_helion", "split", marks=pytest.mark.slow),
        pytest.param("dsl_helion", "unpaged", marks=pytest.mark.slow),
    ],
)
def test_new_tokens_may_be_slices_of_one_projection(dsl, kernel):
    batch = make_batch([(40, 40), (3, 30)], SHAPE)
    rows = torch.randn(43, (4 + 2 + 2) * 32)
    query, key, value = (part.unflatten(1, (-1, 32)) for part in rows.split([128, 64, 64], dim=1))
    plan = importlib.import_module(dsl).plan_paged_attention(SHAPE, 64, 2, 64, "cpu", kernel=kernel)
    slots = [
        int(batch.block_table[s, k // 16]) * 16 + k % 16 for s, first, keys in ((0, 0, 40), (1, 27, 30))
        for k in range(first, keys)
    ]  # fmt: skip
    plan.write(key, value, batch.key_cache, batch.value_cache, torch.tensor(slots))
    out = torch.empty(43, 4, 32)
    plan(
        query, batch.key_cache, batch.value_cache, batch.block_table, batch.query_start_loc, batch.seq_lens,
        max_query_len=40, max_seq_len=40, key=key, value=value, out=out,
    )  # fmt: skip
    expected = reference(batch.replace(query=query.contiguous(), key=None, value=None), Features())
    torch.testing.assert_close(out, expected.out.float(), rtol=1e-4, atol=1e-4)
