"""A row has the same bits whatever the other sequences of its batch are, in kernels that say so."""

import pytest
import torch

from common.cases.batch import make_batch
from common.spec import AttentionShape, Features, PagedBatch, UnsupportedFeature
from common.spec.kernel import Capacity
from dsl_helion import adjustable_tile, auto, parallel_softmax, q_block, split, static_grid, unpaged

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


@pytest.mark.parametrize(
    "name", ["q_block", *(pytest.param(name, marks=pytest.mark.slow) for name in list(KERNELS)[1:])]
)
def test_mates_change_no_bit(name: str) -> None:
    tokens = sum(query_len for query_len, _ in LENS)
    want, *others = (rows(KERNELS[name], beside(LENS, mates), tokens) for mates in MATES)
    assert want.abs().max() > 0
    assert all(torch.equal(want, other) for other in others)


@pytest.mark.parametrize("kernel", [static_grid, unpaged], ids=["static_grid", "unpaged"])
def test_kernels_that_cut_by_the_whole_batch_refuse_it(kernel) -> None:
    with pytest.raises(UnsupportedFeature, match="batch_invariant"):
        rows(kernel, make_batch(LENS, SHAPE), 1)
