"""A row has the same bits whatever the other sequences of its batch are, in kernels that say so."""

import pytest
import torch

from common.cases.batch import make_batch
from common.gpus import resolve
from common.serving.grid import on_grid
from common.spec import AttentionShape, Features, PagedBatch, UnsupportedFeature
from common.spec.kernel import Capacity
from dsl_triton import adjustable_tile, auto, parallel_softmax, q_block, split, static_grid, unpaged

SHAPE = AttentionShape(8, 2, 32, 16, torch.bfloat16)
ASKED = Features(batch_invariant=True)
KERNELS = {
    "q_block": q_block, "parallel_softmax": parallel_softmax, "adjustable_tile": adjustable_tile, "split": split,
    "auto": auto,
}  # fmt: skip
LENS = [(1, 70), (18, 20)]
MATES = ([], [(17, 17)], [(1, 5)] * 4)


def rows(kernel, batch: PagedBatch, tokens: int) -> torch.Tensor:
    out = torch.zeros_like(batch.query)
    if kernel is auto:
        config = auto.choose(batch.shape, batch.stats, None, frozenset({"batch_invariant"}))
    else:
        config = kernel.DEFAULT
    kernel.launch(batch, ASKED, out, config, kernel.workspace(batch.shape, Capacity.of(batch), config))
    return out[:tokens]


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
def test_mates_change_no_bit(name: str) -> None:
    tokens = sum(query_len for query_len, _ in LENS)
    want, *others = (rows(KERNELS[name], beside(LENS, mates), tokens) for mates in MATES)
    assert want.abs().max() > 0
    assert all(torch.equal(want, other) for other in others)


@pytest.mark.parametrize("kernel", [static_grid, unpaged], ids=["static_grid", "unpaged"])
def test_kernels_that_cut_by_the_whole_batch_refuse_it(kernel) -> None:
    with pytest.raises(UnsupportedFeature, match="batch_invariant"):
        rows(kernel, make_batch(LENS, SHAPE), 1)


@pytest.mark.parametrize("gpu", ["h200", "l40s", "mi300"])
@pytest.mark.filterwarnings("ignore:triton. no measured tree")
def test_the_choice_follows_from_the_shape_alone(gpu: str) -> None:
    sizes = [on_grid(1, 1, 1, 500), on_grid(256, 256, 1, 2000), on_grid(8, 0, 4096, 8192), on_grid(1, 0, 9, 131072)]
    needs = frozenset({"causal", "batch_invariant"})
    choices = {auto.choose(SHAPE, stats, resolve(gpu), needs) for stats in sizes}
    assert len(choices) == 1 and choices.pop().kernel == "adjustable_tile"
    assert len({auto.choose(SHAPE, stats, resolve(gpu)) for stats in sizes}) > 1
