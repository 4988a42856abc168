"""native.auto without an sm_90: when the kernel is chosen, and that everything else is dsl_triton's."""

import dataclasses
import math

import pytest
import torch

import dsl_triton
from calls import assert_right, tensors
from common.cases.batch import make_batch
from common.choice.learned import Candidate, coarse
from common.gpus import resolve
from common.oracle.integrity import same_bits
from common.serving.call import PagedAttention
from common.serving.grid import on_grid
from common.serving.pieces import few_segments
from common.serving.winners import Winner, Winners, key
from common.spec import AttentionShape, Features, SpecError
from common.spec.kernel import Capacity
from common.spec.metadata import EVERY_KEY, BatchStats
from compare.competitors import registry
from dsl_triton import auto as portable
from dsl_triton import parallel_softmax
from dsl_triton.native import auto, sm90_config, sm90_prefill

H200 = resolve("h200")
LLAMA = AttentionShape()
E4M3 = torch.float8_e4m3fn
LONG = [(1, 2500), (300, 4000)]
HINTS = {"max_query_len": 20, "max_seq_len": 40}


@pytest.mark.parametrize(
    "lens",
    [[(8192, 8192)], [(2048, 2048)] * 4, [(1, 900)] * 60 + [(2048, 8192)]],
    ids=["prompt", "prompts", "decodes-and-a-chunk"],
)
@pytest.mark.parametrize("gpu", ["h200", "h100"])
def test_long_prompts_take_the_kernel(gpu, lens):
    """Its products run at twice the speed of the portable kernels'."""
    choice = auto.choose(LLAMA, BatchStats.of(lens), resolve(gpu))
    assert choice.kernel == auto.KERNEL and choice.path.startswith("heuristics/learned/")
    assert choice.config.prefill.programs == 132


@pytest.mark.parametrize(
    ("dtype", "needs"), [(torch.bfloat16, ("fp8_kv",)), (E4M3, ("fp8_kv", "fp8_query"))], ids=["bf16", "fp8"]
)
@pytest.mark.parametrize("lens", [[(2048, 2048)] * 4, [(8192, 8192)]], ids=len)
def test_prompts_over_fp8_take_it_too(lens, dtype, needs):
    shape = AttentionShape(32, 8, 128, 16, dtype, None, E4M3)
    assert auto.choose(shape, BatchStats.of(lens), H200, frozenset(needs)).kernel == auto.KERNEL


@pytest.mark.parametrize(
    ("lens", "shape", "gpu", "needs"),
    [
        (LONG, AttentionShape(32, 8, 40, 16, torch.bfloat16), "h200", ()),
        (LONG, AttentionShape(32, 8, 128, 16, torch.float32), "h200", ()),
        (LONG, AttentionShape(32, 8, 128, 16, torch.bfloat16, None, torch.int8), "h200", ("int8_kv",)),
        (LONG, AttentionShape(32, 8, 192, 16, torch.bfloat16, None, E4M3), "h200", ("fp8_kv",)),
        (LONG, LLAMA, "a100", ()),
        (LONG, LLAMA, "mi300", ()),
        (LONG, LLAMA, "h200", ("chunked_local",)),
        (LONG, LLAMA, "h200", ("batch_invariant",)),
        (LONG, LLAMA, None, ()),
    ],
    ids=[
        "head-40", "float32", "int8-pages", "head-192-over-fp8", "a100", "mi300", "chunks",
        "batch-invariant", "no-gpu",
    ],
)  # fmt: skip
def test_what_it_does_not_serve_is_chosen_as_without_it(lens, shape, gpu, needs):
    asked = shape, BatchStats.of(lens), gpu and resolve(gpu), frozenset(needs)
    assert auto.choose(*asked) == portable.choose(*asked)


def test_a_portable_process_never_takes_it(monkeypatch):
    monkeypatch.setenv("DIPTYCH_PORTABLE", "1")
    assert auto.choose(LLAMA, BatchStats.of(LONG), H200) == portable.choose(LLAMA, BatchStats.of(LONG), H200)
    monkeypatch.setenv("DIPTYCH_PORTABLE", "0")
    assert auto.choose(LLAMA, BatchStats.of([(8192, 8192)]), H200).kernel == auto.KERNEL


@pytest.mark.parametrize("shape", [AttentionShape(64, 8, 96, 16), AttentionShape(32, 4, 256, 16)], ids=["96", "256"])
@pytest.mark.parametrize("lens", [[(9, 2000)] * 40, [(12, 4000)] * 50, [(6, 9500)] * 21], ids=len)
def test_short_queries_that_take_it_are_items(shape, lens):
    choice = auto.FAMILY.named(auto.KERNEL, shape, BatchStats.of(lens), H200)
    assert choice.config.together


def test_short_queries_under_a_window_have_segments_of_its_keys():
    """Two sequences of 8 KV heads are 32 Q Blocks of 33 tiles: whole, they would leave 100 units idle."""
    shape, stats = AttentionShape(128, 8, 96, 16, torch.bfloat16), BatchStats.of([(16, 20000)] * 2)
    config = sm90_config.default(shape, stats, H200, 4096, parallel_softmax.DEFAULT)
    assert 1 < config.prefill.num_segments <= 33


def test_its_config_follows_from_the_counts_of_the_batch_itself():
    """Ranked as a batch that counts alike, configured by its own counts: 17 decodes, not 20."""
    stats = BatchStats.of([(1, 30000)] * 17)
    question = auto.FAMILY.question(LLAMA, H200)
    ranked = Candidate(auto.KERNEL, question.own.config(coarse(stats), None), 0.0)
    chosen = auto.FAMILY._of_logs(ranked, auto.FAMILY.learned(H200), question, stats)
    exact = sm90_config.default(LLAMA, stats, H200, EVERY_KEY, parallel_softmax.DEFAULT)
    assert chosen.config.prefill == few_segments(exact, LLAMA, stats).prefill


def test_segments_are_of_the_grid_that_a_capacity_can_be_warmed_up_for():
    batches = [[(tokens, 9000)] for tokens in range(17, 400, 7)]
    batches += [[(4, 500000)] * n + [(512, 512)] for n in (24, 60, 96)] + [[(15, 90000)] * n for n in (3, 11, 40)]
    found = {auto.choose(LLAMA, BatchStats.of(lens), H200) for lens in batches}
    segments = {choice.config.prefill.num_segments for choice in found if choice.kernel == auto.KERNEL}
    assert len(segments) > 2 and all(math.log2(n).is_integer() or math.log2(n / 3).is_integer() for n in segments)


def test_a_capacity_reaches_it_beside_the_portable_kernels():
    reached = auto.FAMILY.reachable(LLAMA, H200, 2048, 16, 8192)
    assert {choice.kernel for choice in reached} >= {"native.sm90_prefill", "parallel_softmax"}


def test_measured_winners_are_those_of_the_portable_family(monkeypatch):
    """One file a DSL: under its own name the family would find a table of another."""
    stats = BatchStats.of([(1, 1024)] * 8)  # too few keys for the Gluon kernel
    config = dataclasses.replace(portable.FAMILY.kernel("q_block").DEFAULT, num_warps=2, num_stages=5)
    shipped = Winner(key(LLAMA, stats), "auto", "q_block", dataclasses.asdict(config), 9.0, 10.0, "", "w0")
    for owners in (("auto",), ("auto", "native.auto")):
        known = Winners(None, [dataclasses.asdict(shipped) | {"of": of} for of in owners], lambda kernel: "")
        monkeypatch.setattr(portable.FAMILY, "_winners", {"h200": known})
        monkeypatch.setattr(portable.FAMILY, "_chosen", {})
        assert auto.choose(LLAMA, stats, H200).config == config
    assert any(choice.measured for choice in auto.FAMILY.reachable(LLAMA, H200, 64, 8, 8192))


def test_a_plan_can_name_it():
    stats = on_grid(4, 0, 128, 512)
    assert auto.FAMILY.named("native.sm90_prefill", LLAMA, stats, H200).kernel == "native.sm90_prefill"
    assert auto.FAMILY.named("q_block", LLAMA, stats, H200) == portable.FAMILY.named("q_block", LLAMA, stats, H200)


def test_without_a_gpu_the_calls_are_dsl_tritons():
    batch = make_batch([(1, 37), (20, 40)], AttentionShape(4, 2, 32, 16, torch.float32))
    given = tensors(batch)
    plan = dsl_triton.plan_paged_attention(batch.shape, 21, 2, 40, "cpu")
    planned = plan(**given, **HINTS, out=torch.empty_like(batch.query))
    for out in (dsl_triton.paged_attention(**given, **HINTS), planned):
        assert same_bits(out, portable.paged_attention(**given, **HINTS))
    with pytest.raises(SpecError, match="kernel: found 'naiv'"):
        dsl_triton.plan_paged_attention(batch.shape, 21, 2, 40, "cpu", kernel="naiv")


def test_a_portable_call_and_plan_are_of_the_portable_kernels():
    """The public calls may take the Gluon kernel; `portable=True` is the family without it, in both DSLs."""
    batch = make_batch([(1, 37), (20, 40)], AttentionShape(4, 2, 32, 16, torch.float32))
    given = tensors(batch)
    assert dsl_triton.paged_attention is auto.paged_attention and auto.FAMILY.portable is portable.FAMILY
    out = dsl_triton.paged_attention(**given, **HINTS, portable=True)
    assert same_bits(out, portable.paged_attention(**given, **HINTS))
    asked = (batch.shape, 21, 2, 40, "cpu")
    assert dsl_triton.plan_paged_attention(*asked, portable=True).family is portable.FAMILY
    size = dsl_triton.workspace_bytes(*asked, portable=True)
    assert size == portable.workspace_bytes(*asked) == portable.workspace_bytes(*asked, portable=True)
    plan = dsl_triton.plan_paged_attention(*asked)
    with pytest.raises(SpecError, match="portable: found True, allowed False of a plan's call"):
        plan(**given, **HINTS, out=out, portable=True)


def test_calls_of_one_signature_are_kept_apart_by_portable(monkeypatch):
    """What a first call chose serves the next of its signature; a portable one is another signature."""
    batch = make_batch([(1, 37), (20, 40)], AttentionShape(4, 2, 32, 16, torch.float32))
    given, call, asked = tensors(batch), PagedAttention(auto.FAMILY), []
    for family in (auto.FAMILY, portable.FAMILY):
        monkeypatch.setattr(family, "choose", telling(asked, family))
    for is_portable in (False, True, False, True):
        call(**given, **HINTS, portable=is_portable)
    # without a GPU nothing is native, so that family asks the other
    assert asked == ["triton_native", "triton", "triton"] and call.kept[1] == 2


def telling(asked, family):
    choose = family.choose

    def told(*args, **named):
        asked.append(family.name)
        return choose(*args, **named)

    return told


def odd(tensor):
    """The same numbers, an element behind where a box may begin."""
    return torch.empty(tensor.numel() + 1, dtype=tensor.dtype)[1:].view_as(tensor).copy_(tensor)


@pytest.mark.parametrize("name", ["key_cache", "query", "out"])
def test_tensors_without_boxes_are_served_by_split(name):
    shape = AttentionShape(4, 2, 128, 16, torch.bfloat16)
    batch = make_batch([(20, 60), (1, 30)], shape)
    choice = auto.FAMILY.named(auto.KERNEL, LLAMA, BatchStats.of(LONG), H200)
    out, lse = torch.empty_like(batch.query), torch.empty(batch.query.shape[:2])
    if name == "out":
        out = odd(out)
    else:
        batch = batch.replace(**{name: odd(getattr(batch, name))})
    auto.launch(batch, Features(), out, choice, auto.workspace(shape, Capacity.of(batch), choice), lse=lse)
    assert_right(out, lse, batch, Features(), auto.CONTRACT)


def test_an_output_of_32_bits_beside_an_fp8_query_is_split_s():
    """The kernel stores 16 bits; a choice does not know of the output."""
    shape = AttentionShape(4, 2, 32, 16, E4M3, None, E4M3)
    batch = make_batch([(20, 60), (1, 30)], shape)
    choice = auto.FAMILY.named(auto.KERNEL, LLAMA, BatchStats.of(LONG), H200)
    out, lse = torch.empty(batch.query.shape), torch.empty(batch.query.shape[:2])
    assert not sm90_prefill.takes(batch, Features(), out) and sm90_prefill.takes(batch, Features(), out.half())
    auto.launch(batch, Features(), out, choice, auto.workspace(shape, Capacity.of(batch), choice), lse=lse)
    assert_right(out, lse, batch, Features(), auto.CONTRACT)


def test_a_row_of_it_is_configured_by_its_own_choice():
    kernel = registry.load("triton/native.auto")
    prompt = BatchStats.of([(8192, 8192)])
    choice, origin = registry.default_config("triton/native.auto", kernel, LLAMA, prompt, H200)
    assert choice.kernel == "native.sm90_prefill" and origin == "heuristics"
