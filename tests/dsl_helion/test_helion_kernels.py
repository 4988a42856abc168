"""What the Helion kernels owe beyond the named cases: refusals, empty batches, bitwise relations, odd configs."""

import pytest
import torch

from common.cases.batch import make_batch
from common.oracle.reference import reference
from common.oracle.tolerance import check
from common.spec import AttentionShape, Features, PagedBatch, SpecError, UnsupportedFeature
from common.spec.kernel import Capacity
from dsl_helion import naive, parallel_softmax, q_block, split
from far_caches import apart

KERNELS = {"naive": naive, "q_block": q_block, "parallel_softmax": parallel_softmax, "split": split}
SHAPE = AttentionShape(4, 2, 32, 16, torch.float32)
LENS = [(1, 90), (3, 40)]


def run(kernel, batch: PagedBatch, features: Features, config=None) -> tuple[torch.Tensor, torch.Tensor]:
    config = config or kernel.DEFAULT
    out = torch.full_like(batch.query, float("nan"))
    lse = torch.full(batch.query.shape[:2], float("nan"))
    kernel.launch(batch, features, out, config, kernel.workspace(batch.shape, Capacity.of(batch), config), lse=lse)
    return out, lse


def judge(kernel, batch: PagedBatch, features: Features, config=None) -> torch.Tensor:
    out, lse = run(kernel, batch, features, config)
    verdict = check(out, lse, batch, features, kernel.CONTRACT, reference(batch, features))
    assert verdict.ok, verdict.reason
    return out


@pytest.mark.parametrize("feature", ["softcap", "sinks"])
def test_naive_refuses_later_features_by_name(feature: str) -> None:
    value = {"softcap": 30.0, "sinks": torch.zeros(4)}[feature]
    with pytest.raises(UnsupportedFeature, match=feature) as caught:
        run(naive, make_batch(LENS, SHAPE), Features(**{feature: value}))
    assert (caught.value.kernel, caught.value.argument) == ("helion/naive", feature)


@pytest.mark.parametrize("name", KERNELS)
def test_an_output_of_another_dtype_is_refused(name: str) -> None:
    batch = make_batch(LENS, SHAPE)
    with pytest.raises(SpecError, match="out"):
        KERNELS[name].launch(batch, Features(), batch.query.half(), KERNELS[name].DEFAULT, None)


@pytest.mark.parametrize("lens", [[], [(0, 0), (0, 5)]], ids=["no-sequence", "no-token"])
@pytest.mark.parametrize("name", KERNELS)
def test_an_empty_batch_launches_nothing(name: str, lens: list) -> None:
    out, lse = run(KERNELS[name], make_batch(lens, SHAPE), Features())
    assert out.numel() == lse.numel() == 0


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("naive", naive.Config()),
        ("q_block", q_block.Config(tile_size=16, gather="page")),
        ("q_block", q_block.Config(tile_size=16, gather="flat")),
        ("q_block", q_block.Config(tile_size=16, gather="2idx")),
    ],
    ids=["naive", "page", "flat", "2idx"],
)
def test_pages_beyond_32_bits_of_elements_are_found(name: str, config) -> None:
    """The offset of page 4 is 2^31: an int32 product is negative. Pages in their usual place give the same bits."""
    batch = make_batch([(2, 20), (1, 9)], AttentionShape(2, 1, 16, 8, torch.float16))
    assert int(batch.block_table[0, 0]) == 4
    far = batch.replace(key_cache=apart(batch.key_cache, 2**29, 16), value_cache=apart(batch.value_cache, 2**29, 16))
    near, moved = run(KERNELS[name], batch, Features(), config), run(KERNELS[name], far, Features(), config)
    assert torch.equal(near[0], moved[0]) and torch.equal(near[1], moved[1])


@pytest.mark.parametrize("name", ["naive", pytest.param("q_block", marks=pytest.mark.slow)])
def test_slots_beyond_32_bits_of_elements_are_found(name: str) -> None:
    batch = make_batch([(1, 20)], AttentionShape(2, 1, 16, 8, torch.float16))
    far = batch.replace(key_cache=apart(batch.key_cache, 16, 2**29), value_cache=apart(batch.value_cache, 16, 2**29))
    near, moved = run(KERNELS[name], batch, Features()), run(KERNELS[name], far, Features())
    assert torch.equal(near[0], moved[0]) and torch.equal(near[1], moved[1])


@pytest.mark.parametrize("gather", ["page", "flat", "2idx"])
def test_every_gather_form_is_right_under_a_window(gather: str) -> None:
    batch = make_batch(LENS, SHAPE, style="interleaved")
    judge(q_block, batch, Features(sliding_window=19), q_block.Config(16, 32, gather))


@pytest.mark.slow
def test_gather_forms_agree_to_the_bit() -> None:
    batch = make_batch(LENS, SHAPE)
    first, *others = [run(q_block, batch, Features(), q_block.Config(16, 32, g))[0] for g in ("page", "flat", "2idx")]
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("segments", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_any_number_of_segments_is_right(segments: int) -> None:
    config = parallel_softmax.Config(16, 16, segments)
    judge(parallel_softmax, make_batch(LENS, SHAPE), Features(sliding_window=50), config)


@pytest.mark.parametrize("name", [pytest.param("q_block", marks=pytest.mark.slow), "parallel_softmax"])
def test_a_sink_without_keys_leaves_minus_infinity(name: str) -> None:
    out, lse = run(KERNELS[name], make_batch([(2, 0), (1, 9)], SHAPE), Features(sinks=torch.full((4,), 2.0)))
    assert torch.equal(out[:2], torch.zeros_like(out[:2]))
    assert bool((lse[:2] == float("-inf")).all())


@pytest.mark.parametrize("grid", ["tokens", "sequences"])
def test_both_grids_of_naive_are_right(grid: str) -> None:
    batch = make_batch([(2, 20), (0, 3), (1, 1)], SHAPE, pad_tokens=2)
    judge(naive, batch, Features(causal=False, sliding_window=9), naive.Config(grid))


@pytest.mark.parametrize(
    "name", ["naive", *(pytest.param(name, marks=pytest.mark.slow) for name in ("q_block", "parallel_softmax"))]
)
def test_the_widest_window_is_no_window(name: str) -> None:
    """2^31 - 1 added to a position leaves int32."""
    batch = make_batch([(2, 20), (2, 0)], SHAPE)
    for causal in (True, False):
        plain = run(KERNELS[name], batch, Features(causal=causal))
        widest = run(KERNELS[name], batch, Features(causal=causal, sliding_window=2**31 - 1))
        assert torch.equal(plain[0], widest[0])
