"""A row has the same bits whatever the other sequences of its batch are, in kernels that say so."""

import pytest
import torch

from calls import launched
from common.cases.batch import make_batch
from common.gpus import resolve
from common.serving.grid import on_grid
from common.spec import AttentionShape, Features, PagedBatch, UnsupportedFeature
from dsls import in_triton, slow_in_helion

SHAPE = AttentionShape(8, 2, 32, 16, torch.bfloat16)
ASKED = Features(batch_invariant=True)
KERNELS = ["q_block", *map(slow_in_helion, ("parallel_softmax", "adjustable_tile", "split", "auto"))]
LENS = [(1, 70), (18, 20)]
MATES = ([], [(17, 17)], [(1, 5)] * 4)


def rows(kernel, batch: PagedBatch, tokens: int) -> torch.Tensor:
    asked = batch.shape, batch.stats, None, frozenset({"batch_invariant"})
    return launched(kernel, batch, ASKED, kernel.choose(*asked) if hasattr(kernel, "choose") else None)[0][:tokens]


def beside(lens: list, mates: list) -> PagedBatch:
    """The sequences `lens`, the same numbers in every batch, before others."""
    alone, batch = make_batch(lens, SHAPE, seed=1), make_batch([*lens, *mates], SHAPE, seed=2)
    batch.query[: alone.num_tokens] = alone.query
    for seq, (_, seq_len) in enumerate(lens):
        pages = -(-seq_len // SHAPE.block_size)
        to, of = batch.block_table[seq, :pages].long(), alone.block_table[seq, :pages].long()
        batch.key_cache[to], batch.value_cache[to] = alone.key_cache[of], alone.value_cache[of]
    return batch


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.slow_in_helion
def test_mates_change_no_bit(dsl, name: str) -> None:
    tokens = sum(query_len for query_len, _ in LENS)
    want, *others = (rows(dsl.module(name), beside(LENS, mates), tokens) for mates in MATES)
    assert want.abs().max() > 0
    assert all(torch.equal(want, other) for other in others)


@pytest.mark.parametrize("name", ["static_grid", "unpaged"])
def test_kernels_that_cut_by_the_whole_batch_refuse_it(dsl, name: str) -> None:
    with pytest.raises(UnsupportedFeature, match="batch_invariant"):
        rows(dsl.module(name), make_batch(LENS, SHAPE), 1)


@in_triton
@pytest.mark.parametrize("gpu", ["h200", "l40s", "mi300"])
def test_the_choice_follows_from_the_shape_alone(dsl, gpu: str) -> None:
    sizes = [on_grid(1, 1, 1, 500), on_grid(256, 256, 1, 2000), on_grid(8, 0, 4096, 8192), on_grid(1, 0, 9, 131072)]
    auto, needs = dsl.module("auto"), frozenset({"causal", "batch_invariant"})
    choices = {auto.choose(SHAPE, stats, resolve(gpu), needs) for stats in sizes}
    assert len(choices) == 1 and needs <= dsl.module(choices.pop().kernel).SUPPORTS
    assert len({auto.choose(SHAPE, stats, resolve(gpu)) for stats in sizes}) > 1
