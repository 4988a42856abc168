"""Calls that overlap for sure, on two streams, in two graphs and beside one, and calls behind a launch that was broken
off: each gives the bits that it gives alone.

Half of the units are held by programs that wait for a flag, and for a bounded number of looks at it. A call's
persistent programs then have the other half, its planning launch has room beside the held ones, and calls of one
signature, whose lengths are the other's in another order, stand in each other's way wherever they share anything.
"""

import contextlib
import copy
import gc
import importlib
import time
from dataclasses import fields, is_dataclass, replace

import pytest
import torch
import triton
import triton.language as tl

from calls import TENSORS, assert_right, tensors
from common.cases.batch import make_batch
from common.oracle.integrity import same_bits
from common.serving.call import PagedAttention
from common.serving.prepared import Prepared
from common.spec import AttentionShape, Features, SpecError
from dsl_triton import split

SHAPE = AttentionShape(32, 8, 128, 16, torch.bfloat16)
ROUNDS = 8  # calls of a stream
PROMPTS = [(4096, 4096), (2048, 2048), (1024, 1024), (512, 2048), (256, 256), (40, 3000), (1, 4000)]
DECODES = [(1, 8000), (1, 17), (1, 4000), (1, 333), (1, 6000), (1, 1), (1, 2000), (1, 90)] * 4
# family, kernel, lengths, what its parts are given beside the choice for them
CASES = {
    "native-prompts": ("native", "native.sm90_prefill", PROMPTS, {}),
    "native-decodes": ("native", "native.sm90_prefill", DECODES, {"together": True, "num_segments": 4}),
    **{
        f"{dsl}-{name}": (dsl, kernel, lens, parts)
        for dsl in ("triton", "helion")
        for name, kernel, lens, parts in (
            ("static_grid", "static_grid", PROMPTS, {}),
            ("unpaged", "unpaged", PROMPTS, {}),
            ("adjustable_tile", "adjustable_tile", PROMPTS, {}),
            ("q_block", "q_block", DECODES, {}),
            ("split", "split", DECODES, {}),
            ("segments", "parallel_softmax", DECODES, {"num_segments": 8}),
        )
    },
}
PLANNING = ("native-prompts", "native-decodes")


@triton.jit
def _hold_kernel(flag_ptr, looks_ptr, MOST: tl.constexpr):
    raised = tl.load(flag_ptr, volatile=True)
    looks = tl.program_id(0) * 0
    while (raised == 0) & (looks < MOST):
        raised = tl.load(flag_ptr, volatile=True)
        looks += 1
    tl.store(looks_ptr + tl.program_id(0), looks)


@contextlib.contextmanager
def half_of_the_units_held():
    """Two seconds at most, whatever happens inside."""
    units = torch.cuda.get_device_properties(0).multi_processor_count // 2
    flag, looks = (torch.zeros(n, dtype=torch.int32, device="cuda") for n in (1, units))
    _hold_kernel[(units,)](flag.fill_(1), looks, MOST=2**21, num_warps=4)  # compiled, and off at once
    flag.zero_()
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        _hold_kernel[(units,)](flag, looks, MOST=2**21, num_warps=4)
    try:
        yield
    finally:
        with torch.cuda.stream(torch.cuda.Stream()):
            flag.fill_(1)
        torch.cuda.synchronize()


def given(config, parts):
    """The config with these fields, of its own and of its parts, where it has them."""
    if not is_dataclass(config):
        return config
    values = {one.name: getattr(config, one.name) for one in fields(config)}
    return replace(config, **{name: parts.get(name, given(value, parts)) for name, value in values.items()})


def call_of(case):
    """The public call, its choice one kernel's."""
    name, kernel, _, parts = CASES[case]
    if name == "native" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no sm_90 here")
    family = copy.copy(
        importlib.import_module("dsl_triton.native.auto" if name == "native" else f"dsl_{name}.auto").FAMILY
    )

    def choose(shape, stats, gpu, *others, **more):
        choice = family.named(kernel, shape, stats, gpu)
        return replace(choice, config=given(choice.config, parts))

    family.choose = choose
    return PagedAttention(family)


def batches_of(case):
    """Two of one signature: the lengths of the second are the first's, the other way round."""
    lens = CASES[case][2]
    pair = [make_batch(one, SHAPE, device="cuda", seed=seed) for seed, one in enumerate((lens, lens[::-1]))]
    assert all(getattr(pair[0], name).shape == getattr(pair[1], name).shape for name in TENSORS)
    return pair


def calling(call, batch, out=None, **how):
    lens = {"max_query_len": batch.stats.max_query_len, "max_seq_len": batch.stats.max_seq_len}
    return call(**tensors(batch), **lens, out=torch.empty_like(batch.query) if out is None else out, **how)


def captured(call, batch, out, **how):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        calling(call, batch, out, **how)
    return graph


def expect(found, alone):
    torch.cuda.synchronize()
    for number, (one, right) in enumerate(zip(found, alone, strict=True)):
        assert same_bits(one, right), f"output {number}: {(one != right).flatten(1).any(1).sum()} rows are others"


def overlapped(works, rounds=ROUNDS):
    """Runs each of `works` so often on a stream of its own, and sees that all of them ran at the same time."""
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in works]
    begun, ended = ([torch.cuda.Event(enable_timing=True) for _ in works] for _ in range(2))
    with half_of_the_units_held():
        for number in range(rounds):
            for stream, work, begin in zip(streams, works, begun, strict=True):
                with torch.cuda.stream(stream):
                    if number == 0:
                        begin.record()
                    work(number)
        for stream, end in zip(streams, ended, strict=True):
            end.record(stream)
        latest = time.monotonic() + 1
        while not all(end.query() for end in ended) and time.monotonic() < latest:
            time.sleep(0.001)
    assert all(begin.elapsed_time(end) > 0 for begin in begun for end in ended), "they ran one behind the other"


@pytest.mark.parametrize("case", CASES)
def test_calls_that_overlap_give_what_they_give_alone(case):
    call, pair = call_of(case), batches_of(case)
    alone = [calling(call, batch) for batch in pair for _ in range(2)][::2]  # dispatched and kept
    for batch, out in zip(pair, alone, strict=True):
        assert_right(out, None, batch, Features(), split.CONTRACT)
    outs = [[torch.full_like(right, float("nan")) for _ in range(ROUNDS)] for right in alone]
    overlapped([lambda n, b=batch, o=mine: calling(call, b, o[n]) for batch, mine in zip(pair, outs, strict=True)])
    for mine, right in zip(outs, alone, strict=True):
        expect(mine, [right] * ROUNDS)


@pytest.mark.parametrize("case", PLANNING)
def test_layers_of_two_steps_that_overlap_take_their_own_plans(case):
    call, pair = call_of(case), batches_of(case)
    alone = [calling(call, batch, same_step=layer > 0) for batch in pair for layer in range(3)][::3]
    torch.cuda.synchronize()
    outs = [[torch.full_like(right, float("nan")) for _ in range(ROUNDS)] for right in alone]
    works = [
        lambda n, b=batch, o=mine: calling(call, b, o[n], same_step=n % 4 > 0)
        for batch, mine in zip(pair, outs, strict=True)
    ]
    overlapped(works)
    for mine, right in zip(outs, alone, strict=True):
        expect(mine, [right] * ROUNDS)


@pytest.mark.parametrize("case", ["native-prompts", "triton-static_grid", "helion-unpaged", "triton-segments"])
def test_two_graphs_and_eager_calls_of_one_signature_overlap(case):
    call, pair = call_of(case), batches_of(case)
    alone = [calling(call, batch) for batch in pair for _ in range(2)][::2]
    torch.cuda.synchronize()
    outs = [torch.full_like(right, float("nan")) for right in alone]
    graphs = [captured(call, batch, out) for batch, out in zip(pair, outs, strict=True)]
    eager = [torch.full_like(alone[0], float("nan")) for _ in range(ROUNDS)]
    overlapped([*(lambda n, g=graph: g.replay() for graph in graphs), lambda n: calling(call, pair[0], eager[n])])
    expect(outs + eager, alone + [alone[0]] * ROUNDS)


@pytest.mark.parametrize("case", PLANNING)
def test_a_first_call_may_be_a_captured_one(case):
    """Nothing that its graph alone would set is left to later calls; and what the graph reads lives as long as it."""
    batch = batches_of(case)[0]
    alone = calling(call_of(case), batch)
    call, out = call_of(case), torch.full_like(alone, float("nan"))
    graph = captured(call, batch, out)
    expect([calling(call, batch)], [alone])
    del call
    gc.collect()
    torch.cuda.empty_cache()
    garbage = [torch.full((size,), 255, dtype=torch.uint8, device="cuda") for size in (512, 2**14, 2**20, 2**24) * 8]
    graph.replay()
    expect([out], [alone])
    assert len(garbage) == 32


@pytest.mark.parametrize("case", PLANNING)
def test_what_a_broken_launch_left_spoils_no_call(case, monkeypatch):
    """Plans, counters, records: 77 in every byte, as no launch leaves them."""
    call, batch, new = call_of(case), batches_of(case)[0], Prepared.new_memory
    alone = calling(call, batch)
    monkeypatch.setattr(Prepared, "new_memory", lambda self, device: new(self, device).fill_(77))
    expect([calling(call_of(case), batch), calling(call, batch), calling(call, batch)], [alone] * 3)


@pytest.mark.parametrize("case", PLANNING)
def test_a_plan_whose_launch_was_broken_off_serves_the_next_step(case):
    name, kernel, lens, _ = CASES[case]
    call_of(case)  # skips where there is no sm_90
    auto = importlib.import_module("dsl_triton.native.auto" if name == "native" else f"dsl_{name}.auto")
    batch = batches_of(case)[0]
    most = max(keys for _, keys in lens) + 64
    plan = auto.plan_paged_attention(SHAPE, batch.num_tokens, batch.num_seqs, most, "cuda", kernel=kernel)
    alone = calling(plan, batch)
    found = []
    for garbage in (1, 77, 255):
        for memory in plan._memory.values():
            if memory is not None:
                memory.fill_(garbage)
        plan.workspace.fill_(garbage)
        found += [calling(plan, batch), calling(plan, batch, same_step=True)]
    expect(found, [alone] * 6)


@pytest.mark.parametrize("case", PLANNING)
def test_a_step_is_planned_in_the_graph_that_takes_its_plan(case):
    call, (batch, other) = call_of(case), batches_of(case)
    layers = [calling(call, batch, same_step=layer > 0) for layer in range(2)]
    alone = calling(call, other)
    torch.cuda.synchronize()
    calling(call, batch)
    for _ in range(2):  # planned by a call before, then in a graph before
        with pytest.raises(SpecError, match="same_step"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.zeros(1, device="cuda")
            calling(call, batch, layers[0], same_step=True)
        captured(call, batch, layers[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer, out in enumerate(layers):
            calling(call, batch, out, same_step=layer > 0)
    with pytest.raises(SpecError, match="same_step"):
        for stream in (torch.cuda.graph.default_capture_stream,):  # where the plan of its last step was captured
            with torch.cuda.stream(stream):
                calling(call, batch, same_step=True)
    for name in TENSORS:
        getattr(batch, name).copy_(getattr(other, name))
    graph.replay()
    expect(layers, [alone] * 2)
