"""What the Triton kernels owe beyond the named cases: refusals, empty batches, bitwise relations, odd configs."""

import pytest
import torch

from common.cases.batch import make_batch
from common.oracle.reference import reference
from common.oracle.tolerance import check
from common.spec import AttentionShape, Features, PagedBatch, SpecError, UnsupportedFeature
from common.spec.kernel import Capacity
from dsl_triton import naive, parallel_softmax, q_block, split

KERNELS = {"naive": naive, "q_block": q_block, "parallel_softmax": parallel_softmax, "split": split}
SHAPE = AttentionShape(8, 2, 32, 16, torch.float32)
LENS = [(1, 90), (3, 40), (20, 20)]


def run(kernel, batch: PagedBatch, features: Features, config=None) -> tuple[torch.Tensor, torch.Tensor]:
    config = config or kernel.DEFAULT
    out = torch.full_like(batch.query, float("nan"))
    lse = torch.full(batch.query.shape[:2], float("nan"))
    kernel.launch(batch, features, out, config, kernel.workspace(batch.shape, Capacity.of(batch), config), lse=lse)
    return out, lse


@pytest.mark.parametrize("feature", ["softcap", "sinks"])
def test_naive_refuses_later_features_by_name(feature: str) -> None:
    batch = make_batch(LENS, SHAPE)
    value = {"softcap": 30.0, "sinks": torch.zeros(8)}[feature]
    with pytest.raises(UnsupportedFeature, match=feature) as caught:
        run(naive, batch, Features(**{feature: value}))
    assert (caught.value.kernel, caught.value.argument) == ("triton/naive", feature)


@pytest.mark.parametrize("name", KERNELS)
def test_an_output_of_another_dtype_is_refused(name: str) -> None:
    batch = make_batch(LENS, SHAPE)
    kernel = KERNELS[name]
    with pytest.raises(SpecError, match="out"):
        kernel.launch(batch, Features(), batch.query.half(), kernel.DEFAULT, None)


@pytest.mark.parametrize("lens", [[], [(0, 0), (0, 5)]], ids=["no-sequence", "no-token"])
@pytest.mark.parametrize("name", KERNELS)
def test_an_empty_batch_launches_nothing(name: str, lens: list) -> None:
    out, lse = run(KERNELS[name], make_batch(lens, SHAPE), Features())
    assert out.numel() == lse.numel() == 0


@pytest.mark.parametrize("name", KERNELS)
def test_moving_the_pages_changes_no_bit(name: str) -> None:
    batch = make_batch(LENS, SHAPE, spare_pages=0)
    order = torch.randperm(batch.key_cache.shape[0], generator=torch.Generator().manual_seed(1))
    place = torch.argsort(order)
    table = batch.block_table.clone()
    used = (table >= 0) & (table < len(order))
    table[used] = place[table[used].long()].int()
    moved = batch.replace(key_cache=batch.key_cache[order], value_cache=batch.value_cache[order], block_table=table)
    for before, after in zip(run(KERNELS[name], batch, Features()), run(KERNELS[name], moved, Features()), strict=True):
        assert torch.equal(before, after)


@pytest.mark.parametrize(("tile_size", "gather"), [(16, "key"), (32, "run")], ids=["key", "run"])
@pytest.mark.parametrize("segments", [1, 2, 3, 8])
@pytest.mark.parametrize("features", [Features(), Features(sliding_window=19)], ids=["full", "window"])
def test_any_number_of_segments_is_right(segments: int, features: Features, tile_size: int, gather: str) -> None:
    batch = make_batch(LENS, SHAPE)
    config = parallel_softmax.Config(16, tile_size, segments, gather=gather)
    out, lse = run(parallel_softmax, batch, features, config)
    verdict = check(out, lse, batch, features, parallel_softmax.CONTRACT, reference(batch, features))
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize("name", ["q_block", "parallel_softmax", "split"])
def test_a_sink_without_keys_leaves_minus_infinity(name: str) -> None:
    batch = make_batch([(2, 0), (1, 9)], SHAPE)
    out, lse = run(KERNELS[name], batch, Features(sinks=torch.full((8,), 2.0)))
    assert torch.equal(out[:2], torch.zeros_like(out[:2]))
    assert bool((lse[:2] == float("-inf")).all())


@pytest.mark.parametrize("grid", ["tokens", "sequences"])
def test_both_grids_of_the_paper_agree(grid: str) -> None:
    batch = make_batch([(1, 30), (4, 20)], SHAPE)
    out, lse = run(naive, batch, Features(), naive.Config(grid))
    verdict = check(out, lse, batch, Features(), naive.CONTRACT, reference(batch, Features()))
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "non-causal"])
@pytest.mark.parametrize("name", KERNELS)
def test_the_widest_window_is_no_window(name: str, causal: bool) -> None:
    batch = make_batch([(1, 30), (4, 20)], SHAPE)
    widest = run(KERNELS[name], batch, Features(causal=causal, sliding_window=2**31 - 1))
    for with_window, without in zip(widest, run(KERNELS[name], batch, Features(causal=causal)), strict=True):
        assert torch.equal(with_window, without)
