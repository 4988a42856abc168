"""What is wrong by little and always to one side is found; what right kernels round to either side is none of it."""

import math
from functools import cache

import pytest
import torch

from common.cases.batch import make_batch
from common.cases.case import Case
from common.cases.signed import LONG, LONGEST, ROWS, SIGNED
from common.cases.trial import Trial
from common.mutants.biased import BIASED, truncated
from common.mutants.emulation import Edits, Schedule, emulate
from common.mutants.mutant import Probe, judge
from common.mutants.right import Rounded
from common.oracle.reference import reference
from common.oracle.rounding import PROMOTED, Rounding, unit_roundoff
from common.oracle.rows import LogitErrors
from common.oracle.tolerance import Verdict, check
from common.spec import AttentionShape, Features
from common.spec.paged_batch import E4M3
from common.spec.precision import Precision

B = torch.bfloat16
CONTRACTS = list(Precision.all())
DAILY = {0, 1, 33, 64, 71, 95}  # the default; sums; P in fp8, with and without; the weakest
NAMED = {case.name: case for case in SIGNED}


@cache
def asked(case: Case):
    trial = Trial.of(case)
    return trial, reference(trial.batch, trial.features)


def verdict(case: Case, contract: Precision, gain=1.0, shift: float = 0.0, lse: bool = True) -> Verdict:
    """A right kernel's under a contract, its rows times `gain` and its LSE plus `shift`."""
    trial, expected = asked(case)
    given = trial.batch, trial.features
    emulate(*given, trial.out, Schedule(64, 1, contract.probabilities), lse=trial.lse, edits=Rounded(contract))
    out = (trial.out.double() * gain).to(trial.out.dtype)
    return check(out, trial.lse + shift if lse else None, *given, contract, expected)


EVERY = [pytest.param(c, id=str(c), marks=[] if i in DAILY else pytest.mark.slow) for i, c in enumerate(CONTRACTS)]


@pytest.mark.parametrize("contract", EVERY)
def test_one_percent_is_wrong_under_every_contract_and_right_is_right(contract):
    assert len(CONTRACTS) == 96
    case = ROWS[0]
    right = [verdict(case, contract, lse=lse) for lse in (True, False)]
    assert all(found.ok and found.mean < 0.6 for found in right), right
    for gain in (0.99, 1.01):
        assert not verdict(case, contract, gain).ok and not verdict(case, contract, gain, lse=False).ok
    for shift in (0.01, -0.01):
        assert not verdict(case, contract, shift=shift).ok


def gains(case: Case, part: str) -> torch.Tensor:
    """0.99 in a part of the rows and heads, else 1."""
    trial, _ = asked(case)
    gain, starts = torch.ones(*trial.out.shape[:2], 1, dtype=torch.float64), trial.batch.query_start_loc.tolist()
    where = {
        "head": (slice(None), 1), "KV head": (slice(None), slice(4)), "sequence": (slice(starts[1], starts[2]),),
        "token": (starts[1] - 1,),
    }  # fmt: skip
    gain[where[part]] = 0.99
    return gain


@pytest.mark.parametrize("part", ["head", "KV head", "sequence"])
@pytest.mark.parametrize("contract", [CONTRACTS[i] for i in sorted(DAILY)], ids=str)
def test_one_percent_in_a_part_is_wrong_and_named(contract, part):
    found = verdict(ROWS[0], contract, gains(ROWS[0], part))
    assert not found.ok and found.mean > 1.0 and part in found.reason


@pytest.mark.slow
@pytest.mark.parametrize("form", ["bf16", "e4m3", "e5m2", "int8", "fp8-query"])
@pytest.mark.parametrize("contract", [CONTRACTS[i] for i in sorted(DAILY)], ids=str)
def test_one_percent_in_one_token_of_many_keys_is_wrong_under_every_kind_of_contract(contract, form):
    case = NAMED[f"signed-16400-{form}"]
    assert verdict(case, contract).ok
    assert not verdict(case, contract, gains(case, "token")).ok


@pytest.mark.slow
@pytest.mark.parametrize("case", [*LONG, *LONGEST], ids=lambda case: case.name)
def test_a_kernel_that_promotes_each_tile_is_right_and_one_that_does_not_is_wrong(case):
    """The second where queries are of fp8, as the accumulator is short for their products alone."""
    run = Probe(case, tile=32)
    found = judge(run, Edits())
    assert found.ok, found.reason
    if case.fp8_query:
        assert not judge(run, Short()).ok


class Short(Edits):
    """One accumulator for all keys, cut to 13 bits of fraction behind each 32."""

    def accumulator(self, at, acc):
        return truncated(acc, 13)


def test_the_longest_sum_of_fp8_is_no_part_of_any_budget():
    """Budgets of logits stop growing with the head, and nothing in them grows with the keys."""

    def products(head_size, keys):
        batch = make_batch([(1, keys)], AttentionShape(2, 1, head_size, 16, E4M3[0]))
        expected, r = reference(batch, Features()), Rounding.of(Precision(), batch, Features(), B)
        return r, LogitErrors.of(expected, Features(), r).products / expected.logit_size

    short, long = products(PROMOTED, 40), products(2 * PROMOTED, 400)
    assert torch.allclose(short[1], long[1][:, :1].expand_as(short[1]))
    assert short[0].sums * short[0].u_acc == long[0].sums * long[0].u_acc == 2.0**-11


@pytest.mark.parametrize("dtype", [*E4M3, B], ids=str)
def test_roundings_of_probabilities_that_are_spread_have_little_in_common(dtype):
    u, draw = unit_roundoff(dtype), torch.Generator().manual_seed(0)
    for spread in (4.0 * u, 0.3, 1.0):
        logits = spread * torch.randn(200_000, generator=draw, dtype=torch.float64)
        for offset in (0.0, 0.2, 0.37, 0.8):
            p = torch.exp(logits + offset)
            found = abs(float(p.to(dtype).double().sum() / p.sum()) - 1.0)
            noise = u * float(p.square().sum().sqrt() / p.sum())
            assert found < (0.3 + 0.15 / spread) * u**2 + 2.0 * noise


def test_what_lies_alike_on_the_steps_of_out_is_no_error_of_a_kernel():
    """Equal V: every lane is rounded the same way, by up to half a step."""
    batch = make_batch([(20, 300), (3, 40)], AttentionShape(8, 2, 64, 16, B))
    for value in (0.7979, 0.999, 1.004):
        batch.value_cache.fill_(value)
        expected = reference(batch, Features())
        shifted = {part: (expected.out * (1.0 + part)).to(B) for part in (0.0, 1e-4, -1e-4, 0.01, -0.01)}
        ok = {
            part: check(out, None, batch, Features(), Precision(), expected).mean <= 1.0
            for part, out in shifted.items()
        }
        assert ok == {0.0: True, 1e-4: True, -1e-4: True, 0.01: False, -0.01: False}, value


def test_an_output_and_an_lse_that_are_off_by_one_sum_are_right_and_by_two_are_not():
    """Of many tiles a sum of 16 bits may be off by more than one percent; then both are, in opposite directions."""
    case, contract = NAMED["signed-16400-bf16"], Precision(sums=B)
    trial, expected = asked(case)
    given = trial.batch, trial.features

    def found(gain, shift):
        return check((expected.out * gain).to(B), (expected.lse + shift).float(), *given, contract, expected)

    assert found(1.0 / 1.03, math.log(1.03)).ok
    assert not found(1.0 / 1.03, 0.0).ok and not found(1.0, math.log(1.03)).ok
    assert "sum of P V" in found(1.0 / 1.03, 0.0).reason


def test_mutants_are_many():
    assert len(BIASED) >= 15
