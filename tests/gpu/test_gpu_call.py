"""The public call on a GPU: nothing waits, what was warmed up is not compiled, a plan allocates nothing, kept launches
give the same bits."""

import contextlib
import importlib
import math
import random

import pytest
import torch

from calls import TENSORS, assert_right, exact, taking, tensors
from common.cases.batch import make_batch
from common.engines import flashinfer
from common.oracle.integrity import same_bits
from common.oracle.reference import reference
from common.oracle.tolerance import check
from common.serving.call import PagedAttention
from common.spec import AttentionShape, Features, SpecError
from common.spec.metadata import cdiv
from common.spec.precision import Precision
from page_lists import page_lists

SHAPE = AttentionShape(8, 2, 64, 16, torch.bfloat16)
DSLS = ("triton", "helion")
MIXES = {
    "decode": [(1, 900), (1, 33), (1, 400)],
    "verify": [(4, 700), (4, 90)],
    "prefill": [(300, 300), (128, 640)],
    "mixed": [(1, 900), (200, 500), (3, 3), (0, 0), (1, 16)],
}
LONG = {  # whose keys both DSLs copy out of their pages
    "prefill": [(2048, 2048), (512, 2000)],
    "mixed": [(2048, 2048), (2048, 2048), (2048, 2048), (1, 900), (3, 3), (0, 0), (1, 16)],
}


def auto(dsl):
    return importlib.import_module("dsl_triton.native.auto" if dsl == "native" else f"dsl_{dsl}.auto")


@contextlib.contextmanager
def no_wait():
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@contextlib.contextmanager
def compilations():
    """Counts what Triton compiles or loads anew, and what Helion generates."""
    import triton
    from helion.runtime.kernel import BoundKernel

    seen, generate = [], BoundKernel.to_triton_code
    runtime = triton.knobs.runtime
    before, runtime.jit_post_compile_hook = runtime.jit_post_compile_hook, lambda **what: seen.append(what["repr"])
    BoundKernel.to_triton_code = lambda self, *a, **k: (seen.append("helion"), generate(self, *a, **k))[1]
    try:
        yield seen
    finally:
        runtime.jit_post_compile_hook = before
        BoundKernel.to_triton_code = generate


def judged(dsl, batch, out, features=None):
    features = features or Features()
    assert_right(out, None, batch, features, auto(dsl).CONTRACT)


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("dsl", DSLS)
def test_wrong_hints_cost_no_correctness_and_nothing_waits(dsl, mix):
    batch, seen = make_batch(MIXES[mix], SHAPE, device="cuda", pad_tokens=3), {}
    right, call = exact(batch), auto(dsl).paged_attention
    for hints in (
        right,
        {name: 2 * value for name, value in right.items()},
        {name: max(value // 2, 1) for name, value in right.items()},
        dict.fromkeys(right, 1),
        dict.fromkeys(right),
    ):
        for _ in range(2):  # dispatched, then kept
            out = torch.full_like(batch.query, float("nan"))
            with no_wait():
                call(**tensors(batch), **hints, out=out)
            judged(dsl, batch, out)
        from common.serving.arguments import batch_of

        given = (*tensors(batch).values(), None, None)
        choice = auto(dsl).choose(
            SHAPE, batch_of(given, None, tuple(hints.values())).stats, importlib.import_module("common.gpus").detect()
        )
        live = out[: int(batch.query_start_loc[-1])]
        assert same_bits(seen.setdefault(choice, live), live)


@pytest.mark.parametrize("dsl", DSLS)
def test_kept_launches_serve_other_tensors_of_the_signature(dsl):
    call = auto(dsl).paged_attention
    for seed in range(3):
        batch = make_batch(MIXES["decode"], SHAPE, device="cuda", seed=seed)
        features = Features(sliding_window=100, sinks=torch.randn(8, device="cuda"))
        out = call(**tensors(batch), **exact(batch), features=features)
        judged(dsl, batch, out, features)
    kept, known = call.kept
    assert 0 < kept <= known


@pytest.mark.parametrize("mix", LONG)
@pytest.mark.parametrize("dsl", DSLS)
def test_launches_with_descriptors_and_on_two_streams_are_kept(monkeypatch, dsl, mix):
    """unpaged: the copy and the long queries on one stream, short queries on another, tiles through descriptors."""
    call, made = PagedAttention(auto(dsl).FAMILY), taking(monkeypatch, auto(dsl).FAMILY, "unpaged")
    for seed in range(4):
        batch = make_batch(LONG[mix], SHAPE, device="cuda", seed=seed)
        room = {} if seed % 2 else {"workspace": torch.full((2**27,), 255, dtype=torch.uint8, device="cuda")}
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            with no_wait():
                out = call(**tensors(batch), **exact(batch), **room)
        torch.cuda.synchronize()
        judged(dsl, batch, out)
    kept, known = call.kept
    assert kept == known == 2 and made  # with the caller's scratch and without


@pytest.mark.parametrize("dsl", DSLS)
def test_a_captured_call_is_replayed_on_other_values(dsl):
    first, second = (make_batch(MIXES["mixed"], SHAPE, device="cuda", seed=seed) for seed in (1, 2))
    out, call = torch.empty_like(first.query), auto(dsl).paged_attention
    call(**tensors(first), **exact(first), out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call(**tensors(first), **exact(first), out=out)
    for name in TENSORS:
        getattr(first, name).copy_(getattr(second, name))
    graph.replay()
    judged(dsl, second, out)


@pytest.mark.parametrize(
    ("dsl", "head", "tokens", "seqs", "keys", "kernel"),
    [
        ("triton", 64, 1024, 2, 1024, "unpaged"),  # up to 512 tokens are read by pages
        ("helion", 64, 1024, 2, 1024, "unpaged"),
        ("native", 128, 64, 8, 4096, "native.sm90_prefill"),
    ],
    ids=["triton", "helion", "native"],
)
@pytest.mark.timeout(400)  # a warm-up compiles every choice
def test_a_trace_after_the_warm_up_compiles_and_allocates_nothing_and_never_waits(
    dsl, head, tokens, seqs, keys, kernel
):
    shape = AttentionShape(16, 1, head, 16, torch.bfloat16)
    if dsl == "native" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no sm_90 here")
    draw = random.Random(0)
    plan = auto(dsl).plan_paged_attention(shape, tokens, seqs, keys, "cuda")
    assert {choice.kernel for choice in plan.choices} >= {"parallel_softmax", kernel}
    whole = make_batch([(1, keys)] * seqs, shape, device="cuda", extra_columns=0)
    table = whole.block_table
    query = torch.randn(tokens, 16, head, dtype=shape.dtype, device="cuda")
    out, starts, lens = torch.empty_like(query), whole.query_start_loc.clone(), whole.seq_lens.clone()
    assert table.shape[1] == cdiv(keys, shape.block_size)
    with compilations() as warm:
        plan.warmup()
    steps = []
    for _ in range(1000):
        n = draw.randint(1, seqs)
        decode = draw.random() < 0.6
        queries = [1 if decode or draw.random() < 0.5 else draw.randint(1, tokens // n) for _ in range(n)]
        steps.append([(q, draw.randint(q, keys)) for q in queries])
    with compilations() as compiled:
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        for number, step in enumerate(steps):
            batch = make_batch(step, shape, fill=False)  # on the CPU: its metadata
            n, count = len(step), batch.num_tokens
            starts[: n + 1].copy_(batch.query_start_loc)
            lens[:n].copy_(batch.seq_lens)
            torch.cuda.synchronize()
            at = torch.cuda.memory_stats()["allocation.all.allocated"]
            with no_wait():
                plan(
                    query[:count], whole.key_cache, whole.value_cache, table[:n], starts[: n + 1], lens[:n],
                    out=out[:count], **exact(batch),
                )  # fmt: skip
            assert torch.cuda.memory_stats()["allocation.all.allocated"] == at, number
            if number % 100 == 0:
                live = whole.replace(
                    query=query[:count], block_table=table[:n], query_start_loc=starts[: n + 1], seq_lens=lens[:n],
                    stats=batch.stats,
                )  # fmt: skip
                judged(dsl, live, out[:count])
    assert warm and not compiled, compiled[:3]
    assert torch.cuda.memory_stats()["allocation.all.allocated"] >= before


LATER = {
    "gradient": ("query", lambda call: call["query"].clone().requires_grad_()),
    "negative-bit": ("key_cache", lambda call: torch._neg_view(call["key_cache"])),
    "output-in-the-query": (
        "out",
        lambda call: call["query"].view(-1).as_strided(call["out"].shape, call["out"].stride()),
    ),
    "lse-in-the-output": ("lse", lambda call: call["out"].view(torch.float32)[..., 0].as_strided((3, 8), (8, 1))),
    "table-on-meta": ("block_table", lambda call: call["block_table"].to("meta")),
    "table-on-the-host": ("block_table", lambda call: call["block_table"].cpu()),
    "hint-true": ("num_decodes", lambda call: True),
    "scale-a-tensor": ("softmax_scale", lambda call: torch.ones((), device="cuda")),
    "window-beyond": ("sliding_window", lambda call: 2**31),
}


@pytest.mark.parametrize("change", LATER)
@pytest.mark.parametrize("dsl", DSLS)
def test_a_kept_launch_lets_nothing_malformed_through(dsl, change):
    batch, call = make_batch(MIXES["decode"], SHAPE, device="cuda"), PagedAttention(auto(dsl).FAMILY)
    asked = tensors(batch) | exact(batch) | {"out": torch.empty_like(batch.query), "softmax_scale": 0.125}
    asked |= {"num_decodes": 1, "lse": torch.empty(3, 8, device="cuda"), "sliding_window": None}
    for _ in range(3):
        call(**asked)
    assert call.kept[0] >= 1
    name, made = LATER[change]
    malformed = made(asked)
    with no_wait(), pytest.raises(SpecError) as refused:
        call(**asked | {name: malformed})
    assert refused.value.argument == name


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("mix", ["decode", "mixed"])
@pytest.mark.parametrize("kernel", ["triton/native.auto", "helion/auto"])
def test_page_lists_become_a_table_without_a_wait(kernel, mix, page):
    batch = make_batch(MIXES[mix], SHAPE, seed=5, device="cuda")
    asked = page_lists(batch, page)
    flashinfer.attention(kernel, **asked)
    with no_wait():
        out, lse = flashinfer.attention(kernel, **asked)
    expected = reference(batch, Features())
    verdict = check(out, lse * math.log(2.0), batch, Features(), Precision(), expected)
    assert verdict.ok, verdict.reason
