"""vLLM's adapter lets a step be planned once: by the first layer of each kind, and anew wherever lengths may differ.

A stale plan is a wrong answer in silence. So the kernel here plans the lengths it was told and attends by these alone:
every output that a wrong reuse would spoil is held to the reference."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import stand_in_vllm
from common.cases.batch import make_batch
from common.oracle.reference import reference
from common.spec import AttentionShape, Features

HEADS, KV_HEADS, SIZE, PAGE, WINDOW = 4, 2, 32, 16, 24
SHAPE = AttentionShape(HEADS, KV_HEADS, SIZE, PAGE, torch.float32)
DECODES, MIXED = [(1, 40), (1, 17)], [(1, 33), (9, 30)]


@dataclass(frozen=True)
class Workspace:
    lens: torch.Tensor  # i32 [num_seqs], the layout's own
    rest: Any
    planned: bool = False


class Planning:
    """A kernel of the DSL behind a plan of its own; `made`: for whom one was made."""

    def __init__(self, kernel, made):
        self._kernel, self._made = kernel, made

    def __getattr__(self, name):
        return getattr(self._kernel, name)

    def workspace(self, shape, capacity, config):
        lens = torch.zeros(capacity.num_seqs, dtype=torch.int32)
        return Workspace(lens, self._kernel.workspace(shape, capacity, config))

    def launch(self, batch, features, out, config, workspace, *, lse=None):
        lens = workspace.lens[: batch.num_seqs]
        if not workspace.planned:
            lens.copy_(batch.seq_lens)
            self._made.append(features.sliding_window)
        self._kernel.launch(batch.replace(seq_lens=lens), features, out, config, workspace.rest, lse=lse)


@pytest.fixture
def adapter(monkeypatch):
    yield from stand_in_vllm.backend(monkeypatch)


class Engine:
    """Layers of one engine, a window each; `made` as a kernel's."""

    def __init__(self, adapter, monkeypatch, windows, **more):
        self.config = stand_in_vllm.config(PAGE, 96)
        monkeypatch.setattr(adapter, "get_current_vllm_config", lambda: self.config)
        self.layers = [adapter.Impl(HEADS, SIZE, SIZE**-0.5, KV_HEADS, sliding_window=one, **more) for one in windows]
        self.caches: dict[int, torch.Tensor] = {}
        self.made: list[int | None] = []
        family = self.layers[0].server.kernel.family
        load = family.load
        monkeypatch.setattr(
            family, "load", lambda name: load(name) if name.startswith("heur") else Planning(load(name), self.made)
        )
        self.builder = adapter.MetadataBuilder(
            SimpleNamespace(block_size=PAGE), ["0"], self.config, torch.device("cpu")
        )

    def step(self, lens, padding=0, capture=False, seed=0):
        """(batch, metadata); padding: sequences and rows behind, as a full graph's."""
        batch = make_batch(lens, SHAPE, seed=seed)
        slots = torch.zeros(batch.num_tokens + padding, dtype=torch.int64)
        common = stand_in_vllm.metadata(batch, lens, slots, padding)
        build = self.builder.build_for_cudagraph_capture if capture else lambda step: self.builder.build(0, step)
        return batch, build(common)

    def run(self, index, batch, metadata, rows=0, given=None):
        """One layer, held to the reference; rows: of the tensors behind those of the step, as an engine pads them.
        given: K and V of the step, in place of none."""
        impl = self.layers[index]
        if index not in self.caches:
            self.caches[index] = torch.zeros(64, KV_HEADS, PAGE, 2 * SIZE)
        cache, pages = self.caches[index], batch.key_cache.shape[0]
        cache[:pages] = torch.cat([batch.key_cache, batch.value_cache], -1).transpose(1, 2)
        behind = metadata.num_actual_tokens + rows - batch.num_tokens
        query = torch.cat([batch.query, batch.query.new_full((behind, HEADS, SIZE), float("nan"))])
        out = torch.full_like(query, 7.0)
        impl.forward(SimpleNamespace(), query, given, given, cache, metadata, out)
        seen = batch.replace(seq_lens=metadata.seq_lens[: batch.num_seqs].clone())
        expected = reference(seen, Features(True, impl.features.sliding_window)).out.float()
        torch.testing.assert_close(out[: batch.num_tokens], expected, rtol=1e-4, atol=1e-5)
        assert (out[batch.num_tokens :] == 7.0).all()

    def counted(self):
        """Plans made since the last time."""
        made = list(self.made)
        self.made.clear()
        return made


def test_the_first_layer_of_each_kind_plans_and_the_others_take_it(adapter, monkeypatch):
    engine = Engine(adapter, monkeypatch, [None, WINDOW, WINDOW, None, WINDOW])
    for seed, lens in enumerate([DECODES, MIXED, [(20, 20), (7, 50)], DECODES, [(1, 41), (1, 18)]]):
        step = engine.step(lens, seed=seed)
        for index in range(5):
            engine.run(index, *step)
        assert engine.counted() == [None, WINDOW]


def test_groups_of_pages_that_share_a_plan_have_steps_of_their_own(adapter, monkeypatch):
    """Two groups of one kind of layer: the same lengths in other pages. vLLM renews the table alone."""
    engine = Engine(adapter, monkeypatch, [None, None, None])
    batch, first = engine.step(MIXED)
    second = engine.builder.update_block_table(first, first.block_table.clone(), first.slot_mapping)
    assert second is not first and second.seq_lens is first.seq_lens
    for index, metadata in enumerate([first, second, first]):
        engine.run(index, batch, metadata)
    assert engine.counted() == [None] * 3


def test_halves_of_a_batch_that_take_turns_plan_each_turn(adapter, monkeypatch):
    engine = Engine(adapter, monkeypatch, [None, None])
    halves = [engine.step(lens) for lens in (DECODES, [(1, 5), (1, 90)])]
    for index in range(2):
        for half in halves:
            engine.run(index, *half)
    assert engine.counted() == [None] * 4


def test_a_drafter_that_changes_lengths_in_place_plans_each_of_its_steps(adapter, monkeypatch):
    engine = Engine(adapter, monkeypatch, [None, None, None])
    target, draft = engine.step(MIXED), engine.step(DECODES, seed=1)
    for index in range(2):
        engine.run(index, *target)
    for _ in range(3):
        engine.run(2, *draft)
        draft[1].seq_lens.sub_(1)
    assert engine.counted() == [None] * 4


@pytest.mark.parametrize("lens", [DECODES, [(4, 40), (4, 17)]], ids=["decodes", "verifications"])
def test_a_graph_plans_in_its_first_layer_though_a_warm_up_ran_before_its_capture(adapter, monkeypatch, lens):
    engine = Engine(adapter, monkeypatch, [None, WINDOW, None, WINDOW])
    batch, metadata = engine.step(lens, padding=2, capture=True)
    for change in (0, 3):  # what a replay does: the same launches, other lengths
        metadata.seq_lens[: len(lens)] -= change
        for index in range(4):
            engine.run(index, batch, metadata, rows=1)
        assert engine.counted() == [None, WINDOW]


def test_a_chunk_with_a_kept_prefix_is_a_step_of_its_own(adapter, monkeypatch):
    """The same shapes, other lengths: chunks of one prompt, of which some keys were cached."""
    engine = Engine(adapter, monkeypatch, [None, None])
    for keys in (8, 40, 72):
        step = engine.step([(8, keys), (1, 30)])
        for index in range(2):
            engine.run(index, *step)
        assert engine.counted() == [None]


@pytest.mark.parametrize("kernel", ["triton/split", "triton/unpaged"])
def test_a_layer_that_shares_a_cache_reads_no_keys_that_it_is_handed(adapter, monkeypatch, kernel):
    """These kernels may read a step's K and V in place of pages; here the pages are another layer's."""
    monkeypatch.setenv("DIPTYCH_KERNEL", kernel)
    engine = Engine(adapter, monkeypatch, [None], kv_sharing_target_layer_name="layers.0")
    batch, metadata = engine.step([(20, 20), (7, 7)])
    engine.run(0, batch, metadata, given=torch.randn(batch.num_tokens, KV_HEADS, SIZE))


def test_a_plan_that_was_not_renewed_would_be_seen(adapter, monkeypatch):
    """The control: with every layer told that the step is planned, an output is wrong."""
    engine = Engine(adapter, monkeypatch, [None])
    engine.run(0, *engine.step(DECODES))
    server = engine.layers[0].server
    monkeypatch.setattr(type(server), "is_same_step", lambda *_: True)
    with pytest.raises(AssertionError):
        engine.run(0, *engine.step([(1, 20), (1, 37)]))
