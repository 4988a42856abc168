"""What features add to the budgets: each term by hand, and that each precision is learnt from the batch."""

import math
from dataclasses import replace

import pytest
import torch

from common.cases.batch import make_batch
from common.mutants.emulation import emulate
from common.oracle.reference import reference
from common.oracle.rounding import Rounding, probabilities_of, unrounded
from common.oracle.tolerance import budgets, check
from common.spec import AttentionShape, Features
from common.spec.kernel import Precision
from common.spec.paged_batch import FP8
from common.spec.quantise import fill_where, quantise, scale_limit

H, B = torch.float16, torch.bfloat16
FN, FNUZ, _ = FP8
ONE, HEADS, TOKENS = torch.ones(1), torch.ones(2), torch.ones(10, 8, 2)
PLAIN = Precision()


def batch_of(dtype, kv_dtype=None, lens=((1, 30), (3, 20))):
    return make_batch(list(lens), AttentionShape(4, 2, 32, 8, dtype, None, kv_dtype))


@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "features", "wanted"),
    [
        (H, None, Features(), H), (H, FN, Features(value_scale=HEADS), H), (H, FN, Features(value_scale=TOKENS), B),
        (B, FN, Features(value_scale=TOKENS), B), (torch.float32, FN, Features(value_scale=TOKENS), torch.float32),
        (FN, FN, Features(), FN), (FNUZ, FNUZ, Features(), FNUZ),
    ],
)  # fmt: skip
def test_p_has_the_dtype_of_the_query_but_where_fp16_could_not_hold_it(dtype, kv_dtype, features, wanted):
    assert probabilities_of(PLAIN, batch_of(dtype, kv_dtype), features) == wanted


def test_p_in_fp8_is_scaled_before_it_is_cut():
    for dtype, eta in ((FN, 2.0**-9 / 256), (FNUZ, 2.0**-10 / 128)):
        rounding = Rounding.of(PLAIN, batch_of(dtype, dtype), Features(), B)
        assert (rounding.u, rounding.eta, rounding.u_out) == (2.0**-4, eta, 2.0**-8)
        assert rounding.eps == rounding.u_acc == 2.0**-13 and rounding.statistical


def budget(dtype, features, kv_dtype=None, out=None):
    batch = batch_of(dtype, kv_dtype)
    expected = reference(batch, features)
    zeros = torch.zeros(expected.out.shape, dtype=out or dtype)
    return *budgets(zeros, batch, features, PLAIN, expected), expected


def tau(expected):
    """[tokens, 1]: of a float32 sum over tiles of 16 keys, all rounded one way."""
    return 2.0**-24 * (1 + (expected.num_visible[:, None] / 16).ceil().double())


def test_a_bias_adds_twelve_roundings_of_it_to_a_logit():
    slopes = torch.tensor([0.5, 0.25, 1.0, 2.0])
    _, lse, expected = budget(H, Features(alibi_slopes=slopes))
    size = expected.logit_size * (math.sqrt(32) + 8)
    delta = 2.0**-24 * (size + 12 * expected.bias_size) + 2.0**-22 * expected.lse.abs().clamp(min=1.0)
    torch.testing.assert_close(lse, delta + tau(expected), rtol=1e-12, atol=0)
    assert torch.equal(expected.bias_size[0], 29 * slopes.double())


def test_scales_add_three_roundings_to_a_logit_and_four_to_a_sum():
    plain, _, expected = budget(B, Features(), FN)
    scaled, lse, _ = budget(B, Features(key_scale=ONE, value_scale=ONE), FN)
    delta = 2.0**-24 * 3 * expected.logit_size
    torch.testing.assert_close(
        scaled - plain, (2 * delta[..., None] + 4 * 2.0**-24) * expected.weighted, rtol=1e-6, atol=0
    )
    size = expected.logit_size * (math.sqrt(32) + 11)
    wanted = 2.0**-24 * size + 2.0**-22 * expected.lse.abs().clamp(min=1.0) + tau(expected)
    torch.testing.assert_close(lse, wanted, rtol=1e-12, atol=0)


def test_an_output_of_fp8_is_in_units_of_its_scale_and_cut():
    scale = torch.tensor([2.0**-9])
    found, _, expected = budget(H, Features(out_scale=scale), out=FN)
    plain, _, unscaled = budget(H, Features())
    torch.testing.assert_close(expected.out, unscaled.out * 512)
    assert float(expected.out.abs().max()) > 448, "or nothing is cut"
    summed = tau(expected)[..., None]
    before = (
        plain
        - summed * unscaled.out.abs()
        - 2.0**-11 * unscaled.out.abs()
        - 2.0**-25
        + 4 * 2.0**-24 * unscaled.weighted
    ) * 512
    held = expected.out.clamp(-448, 448).abs()
    wanted = 2.0**-4 * held + (1 + 2.0**-4) * (before + summed * held) + 2.0**-10
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=0)


def test_a_cut_output_is_right_and_one_step_below_is_not():
    batch, features = batch_of(H), Features(out_scale=torch.tensor([2.0**-12]))
    expected = reference(batch, features)
    out = quantise(expected.out, FN)
    assert check(out, None, batch, features, PLAIN, expected).ok
    largest = (expected.out.abs() > 500).nonzero()[0].tolist()
    wrong = out.clone()
    wrong[tuple(largest)] = torch.tensor(math.copysign(384.0, float(expected.out[tuple(largest)]))).to(FN)
    verdict = check(wrong, None, batch, features, PLAIN, expected)
    assert not verdict.ok and verdict.index[:2] == tuple(largest[:2])


def test_the_sums_are_those_of_dequantised_values():
    shape = AttentionShape(4, 2, 32, 8, B, None, FN)
    batch = make_batch([(1, 30)], shape)
    floats = batch.replace(key_cache=batch.key_cache.float() * 4, value_cache=batch.value_cache.float() / 8)
    scaled = reference(batch, Features(key_scale=ONE * 4, value_scale=HEADS / 8))
    plain = reference(floats.replace(query=batch.query.float()), Features())
    for name in ("out", "weighted", "weighted_rms", "visible", "visible_rms", "logit_size", "denominator"):
        torch.testing.assert_close(getattr(scaled, name), getattr(plain, name), msg=name)


def test_few_keys_that_weigh_are_few_where_each_has_its_scale():
    """30 keys, one of which has almost all of V's scale: S says nothing of the row, W does."""
    batch = batch_of(B, FN, lens=((1, 30),))
    scale = torch.full(batch.key_cache.shape[:3], 1e-6)
    scale[int(batch.block_table[0, 0]), 3] = 1.0
    features = Features(value_scale=scale)
    expected = reference(batch, features)
    verdict = check(expected.out.to(B), None, batch, features, PLAIN, expected)
    assert verdict.ok and verdict.element == verdict.row == 0.0 and verdict.worst_case > 0


@pytest.mark.parametrize("dtype", [*FP8, torch.int8], ids=str)
def test_rounding_to_one_byte_cuts_and_rounds_to_nearest(dtype):
    most = 127.0 if dtype == torch.int8 else torch.finfo(dtype).max
    x = torch.tensor([0.0, 1.0, -2.0, most, 10 * most, -10 * most])
    least = -128.0 if dtype == torch.int8 else -most
    assert quantise(x, dtype).float().tolist() == [0.0, 1.0, -2.0, most, most, least]
    assert scale_limit(dtype) == {FNUZ: 224.0}.get(dtype, most)
    cache = torch.ones(4, 2).to(dtype)
    fill_where(cache, torch.tensor([True, False, True, False]), math.nan)
    found = cache.float()
    assert bool((found[::2] == 127).all()) if dtype == torch.int8 else bool(found[::2].isnan().all())
    assert found[1::2].tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_a_contract_that_names_a_dtype_holds_the_kernel_to_it():
    assert Rounding.of(replace(PLAIN, probabilities=B), batch_of(H), Features(), H).u == 2.0**-8


def test_tensor_cores_cut_more_of_a_sum_the_longer_it_is():
    """An H200 lost 7.6e-4 of `out` in one sum over 131,072 keys of fp16: what the budgets allow there, and no more."""
    half = AttentionShape(1, 1, 32, 16, torch.float16)
    batch = make_batch([(1, 16)], half)
    cut = Rounding.of(Precision(), batch, Features(), torch.float16).cut
    assert 7.6e-4 < 131_072 * cut < 1e-3
    single = make_batch([(1, 16)], AttentionShape(1, 1, 32, 16, torch.float32))
    assert Rounding.of(Precision(), single, Features(), torch.float32).cut == 0.0


@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_a_cast_to_fp8_is_no_error_before_it_and_a_shift_is(dtype):
    o = torch.randn(20_000, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    o = torch.cat([o, torch.tensor([0.0, 0.017578125, 2.0**-11, torch.finfo(dtype).max], dtype=torch.float64)])

    def off(before):
        return unrounded(before.to(dtype).double(), o, dtype)

    assert not off(o).any() and not off(o.half()).any()
    shifted = off(o * 1.001)[:-1]
    assert 0.0 < float((shifted / o[:-1].abs().clamp(min=1e-9)).max()) < 1.001e-3 and (shifted > 0).sum() > 50
    assert off(o.bfloat16()).any()


@pytest.mark.parametrize("shift", [1.0, 1.001, 0.999])
def test_a_scale_of_an_fp8_output_is_held_to_what_the_arithmetic_may_be_off_by(shift):
    batch = make_batch([(5, 40), (9, 9)], AttentionShape(4, 2, 64, 8, torch.float32))
    features, own = (Features(out_scale=torch.tensor([scale])) for scale in (0.0123, 0.0123 * shift))
    out = torch.empty(batch.query.shape, dtype=FN)
    emulate(batch, own, out)
    found = check(out, None, batch, features, PLAIN, reference(batch, features))
    assert found.ok == (shift == 1.0), found.reason
