"""Calls of two streams share no memory, a step's plan serves the graph that it was captured into, and what a broken
launch left does not count. Streams and captures are played: kernels are interpreted; tests/gpu makes calls overlap."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from calls import assert_right, tensors
from common.cases.batch import make_batch
from common.oracle.reference import reference
from common.serving.call import PagedAttention
from common.serving.plan import planner
from common.serving.prepared import made_for
from common.serving.scratch import Layout
from common.spec import AttentionShape, Features, SpecError
from common.spec import kernel as protocol
from common.spec.kernel import MOST_STREAMS, Capacity
from dsl_triton import auto, split, static_grid

SHAPE = AttentionShape(4, 2, 16, 16, torch.float32)
LENS, OTHERS = [(1, 70), (20, 90), (9, 40)], [(1, 23), (20, 31), (9, 95)]


@dataclass(frozen=True)
class Workspace:
    plan: torch.Tensor  # i32 [num_seqs]: the lengths
    planned: bool = False


class Planning:
    """The reference over the lengths that it planned; `made`: the addresses of plans, as they were made."""

    SUPPORTS, CONTRACT, DEFAULT, made = split.SUPPORTS | {"full_graph"}, split.CONTRACT, split.DEFAULT, []

    @staticmethod
    def workspace(shape, capacity, config):
        return Workspace(torch.zeros(capacity.num_seqs, dtype=torch.int32))

    @classmethod
    def launch(cls, batch, features, out, config, workspace, *, lse=None):
        if not workspace.planned:
            workspace.plan.copy_(batch.seq_lens)
            cls.made.append(workspace.plan.data_ptr())
        out.copy_(reference(batch.replace(seq_lens=workspace.plan), features).out)


@pytest.fixture
def family():
    """One whose only kernel plans its steps."""
    Planning.made = []
    load = auto.FAMILY.load
    return replace(auto.FAMILY, load=lambda name: load(name) if name.startswith("heur") else Planning, _chosen={})


@pytest.fixture
def on(monkeypatch):
    """Which stream calls are on, and which graph they are captured into."""
    where = {"stream": 0, "capture": 0}
    now = lambda self, query: (where["stream"], where["capture"])  # noqa: E731
    monkeypatch.setattr(PagedAttention, "_where", now, raising=False)
    return lambda **now: where.update(now)


def served(call, lens, seed=0, features=None, **how):
    """A call held to the reference."""
    batch = make_batch(lens, SHAPE, seed=seed, extra_columns=0 if max(keys for _, keys in lens) > 80 else 3)
    batch = batch.replace(block_table=torch.nn.functional.pad(batch.block_table, (0, 8 - batch.block_table.shape[1])))
    out = torch.empty_like(batch.query)
    call(**tensors(batch), max_query_len=20, max_seq_len=96, out=out, features=features, **how)
    assert_right(out, None, batch, features or Features(), split.CONTRACT)


def test_steps_of_two_streams_have_a_plan_each(family, on):
    call = PagedAttention(family)
    for layer in range(3):
        for stream, lens in enumerate((LENS, OTHERS)):
            on(stream=stream)
            served(call, lens, seed=layer, same_step=layer > 0)
    assert len(set(Planning.made)) == len(Planning.made) == 2


def test_many_streams_keep_the_plans_of_the_last_few(family, on, monkeypatch):
    monkeypatch.setattr("common.serving.steps.MOST_STREAMS", 3)
    call = PagedAttention(family)
    for stream in range(7):
        on(stream=stream)
        served(call, LENS)
    assert len(call._steps) == 3
    for stream in (0, 6):  # the first one plans again
        on(stream=stream)
        served(call, LENS, same_step=True)
    assert len(Planning.made) == 8


def test_a_plan_of_the_callers_is_in_one_memory_whatever_the_stream(family):
    """Another step lies in the place of the first's, which is planned again."""
    plan = planner(family)(SHAPE, 40, 3, 128, "cpu")
    assert plan._where(torch.empty(1)) == (None, 0)
    served(plan, LENS)
    served(plan, OTHERS, same_step=True, features=Features(sliding_window=9))  # made for other keys: planned
    served(plan, OTHERS, same_step=True)
    assert len(set(Planning.made)) == 1 and len(Planning.made) == 3


@pytest.mark.parametrize("first", [0, 7], ids=["planned-before-it", "planned-in-another"])
def test_a_capture_takes_no_plan_from_outside(family, on, first):
    call = PagedAttention(family)
    on(capture=first)
    served(call, LENS)
    on(capture=8)
    with pytest.raises(SpecError, match="captured into a graph, of a step that began elsewhere") as refusal:
        served(call, LENS, same_step=True)
    assert refusal.value.argument == "same_step" and len(Planning.made) == 1


def test_a_capture_on_another_stream_than_the_plans_takes_none_either(family, on):
    """torch.cuda.graph captures on a stream of its own."""
    call = PagedAttention(family)
    served(call, LENS)
    on(stream=1, capture=8)
    with pytest.raises(SpecError, match="same_step"):
        served(call, LENS, same_step=True)
    served(call, LENS)
    served(call, LENS, same_step=True)
    assert len(Planning.made) == 2


@pytest.mark.parametrize("first", [False, True], ids=["a-step-begins", "the-same-step"])
def test_layers_of_one_capture_share_the_plan_of_its_first_and_a_call_behind_it_does_not(family, on, first):
    call = PagedAttention(family)
    on(capture=8)
    for layer in range(3):
        served(call, LENS, seed=layer, same_step=first or layer > 0)
    assert len(Planning.made) == 1
    on(capture=0)
    with pytest.raises(SpecError, match="not captured, of a step that began in a capture"):
        served(call, LENS, same_step=True)


def test_where_no_driver_numbers_its_graphs_each_captured_call_plans(family, on):
    call = PagedAttention(family)
    for layer in range(3):
        on(capture=-1 - layer)
        served(call, LENS, seed=layer, same_step=layer > 0)
    assert len(Planning.made) == 3


def test_a_launch_that_was_broken_off_has_no_plan_to_take(family, on, monkeypatch):
    call = PagedAttention(family)
    served(call, LENS)

    def broken(cls, batch, features, out, config, workspace, *, lse=None):
        workspace.plan.fill_(77)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Planning, "launch", classmethod(broken))
        served(call, OTHERS)
    served(call, OTHERS, same_step=True)
    assert len(Planning.made) == 2


def test_whatever_lies_in_the_memory_of_steps_a_call_is_right(monkeypatch):
    """static_grid: the plan and the flag of a launch that did not end."""
    config = static_grid.Config(static_grid.Part(16, 16), static_grid.Part(32, 16))
    monkeypatch.setattr(static_grid, "DEFAULT", config)  # what a CPU takes
    plan = auto.plan_paged_attention(SHAPE, 40, 4, 128, "cpu", kernel="static_grid")
    for garbage in (0, 1, 77, 255):
        for memory in plan._memory.values():
            memory.fill_(garbage)
        plan.workspace.fill_(garbage)
        served(plan, LENS)
        plan.check()


def test_layers_of_other_spans_have_a_plan_each(family):
    """Their tensors lie elsewhere, though nothing in their calls' signature differs."""
    given = Features(spans=torch.zeros(3, 1, 2, dtype=torch.int32))
    plan = planner(family)(SHAPE, 40, 3, 128, "cpu", features=given)
    spans = [torch.tensor([[[0, 0]], [[60, end]], [[0, 0]]], dtype=torch.int32) for end in (66, 89)]
    for layer, one in enumerate((spans[0], spans[1], spans[1])):
        served(plan, LENS, features=Features(spans=one), same_step=layer > 0)
    assert len(Planning.made) == 2


def test_a_tensor_in_two_places_lies_in_one_and_what_lasts_apart():
    class Kernel:
        @staticmethod
        def workspace(shape, capacity, config):
            scratch, lasting = torch.empty(3, device=capacity.device), torch.zeros(5, dtype=torch.int32)
            return scratch, (lasting, [lasting, torch.zeros(0)])

    layout = Layout.of(Kernel, SHAPE, Capacity(1, 1, torch.device("cpu")), None)
    assert (layout.num_bytes, layout.step_bytes) == (256, 512)
    buffer, memory = torch.zeros(256, dtype=torch.uint8), torch.zeros(512, dtype=torch.uint8)
    scratch, (first, (second, none)) = layout.place(buffer, memory)
    assert first.data_ptr() == second.data_ptr() == memory.data_ptr() and first.shape == (5,)
    assert scratch.data_ptr() == buffer.data_ptr() and none.shape == (0,)


@dataclass
class Stream:
    cuda_stream: Any
    device_index: int = 0
    device: str = "cuda:0"


def test_each_stream_has_one_beside_it_that_no_other_has(monkeypatch):
    """torch hands out few streams, in turn: not the caller's own."""
    handed = iter(range(1, 10**6))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(next(handed)))
    monkeypatch.setattr(protocol, "_sides", {})
    callers = [Stream(1), Stream(2), Stream(0), Stream(0, 1)]
    sides = [protocol.side_of(stream).cuda_stream for stream in callers]
    assert len(set(sides)) == 4 and all(side != own.cuda_stream for side, own in zip(sides, callers, strict=True))
    assert [protocol.side_of(stream).cuda_stream for stream in callers] == sides
    for raw in range(1000, 1000 + 2 * MOST_STREAMS):
        protocol.side_of(Stream(raw))
    assert len(protocol._sides) == MOST_STREAMS


def test_on_rocm_all_launches_go_to_one_stream(monkeypatch):
    """HIP's graphs put branches into one queue, or lose what orders them."""
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert protocol.side_stream(torch.device("cuda", 0)) is None
    with protocol.beside(None):
        protocol.join(None)


OTHER_KEYS = [{"sliding_window": 8}, {"chunk": 16}, {"chunk": 32, "chunk_lookback": 1}, {"causal": False}]


@pytest.mark.parametrize("other", [*OTHER_KEYS, {"spans": torch.zeros(3, 1, 2, dtype=torch.int32)}], ids=list)
def test_a_plan_is_not_taken_for_what_shows_other_keys(other):
    batch = make_batch(LENS, SHAPE)
    assert made_for(batch, Features(**other)) != made_for(batch, Features())
    assert made_for(batch, Features(softcap=3.0)) == made_for(batch, Features())
