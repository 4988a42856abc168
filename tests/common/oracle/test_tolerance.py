"""The checker: its formulas against a row worked by hand, its exact rules one by one, and what it says."""

import math
from dataclasses import replace

import pytest
import torch

from common.cases.batch import make_batch
from common.oracle.reference import reference
from common.oracle.rounding import half_subnormal, unit_roundoff
from common.oracle.tolerance import Verdict, check, times
from common.spec import AttentionShape, Features
from common.spec.kernel import Precision

SHAPE = AttentionShape(4, 2, 32, 16)
LENS = [(1, 70), (5, 40), (3, 0), (30, 30)]


@pytest.fixture
def case():
    batch = make_batch(LENS, SHAPE, pad_tokens=2)
    return batch, reference(batch, Features())


def judge(case, out=None, lse=None, contract=None, features=None, structured=False) -> Verdict:
    batch, expected = case
    out = expected.out.to(batch.query.dtype) if out is None else out
    return check(out, lse, batch, features or Features(), contract or Precision(), expected, structured=structured)


def rounded(case) -> torch.Tensor:
    batch, expected = case
    return expected.out.to(batch.query.dtype)


@pytest.mark.parametrize(
    ("dtype", "u", "eta"),
    [
        (torch.bfloat16, 2.0**-8, 2.0**-134),
        (torch.float16, 2.0**-11, 2.0**-25),
        (torch.float32, 2.0**-24, 2.0**-150),
        (torch.float8_e4m3fn, 2.0**-4, 2.0**-10),
        (torch.float8_e5m2, 2.0**-3, 2.0**-17),
    ],
)
def test_rounding_constants(dtype, u, eta):
    assert (unit_roundoff(dtype), half_subnormal(dtype)) == (u, eta)


def test_the_rounded_reference_is_right(case):
    verdict = judge(case, lse=case[1].lse.float())
    assert verdict.ok and verdict.reason == "" and verdict.tier == "S+W"
    assert 0.0 < verdict.element < 0.5 and 0.0 < verdict.row < 0.6 and 0.0 < verdict.worst_case < 0.6
    assert verdict.lse < 0.3


def row_terms(case, token: int, head: int) -> dict[str, torch.Tensor]:
    """The budget's sums of one row, from dense K and V."""
    batch, _ = case
    seq = 1  # tokens 1..5, 40 keys
    page = batch.key_cache.shape[1]
    keys = range(40 - 5 + token)  # token 1 is the first of five queries: it sees 36 keys
    slots = [(int(batch.block_table[seq, j // page]), j % page) for j in keys]
    k = torch.stack([batch.key_cache[slot][head // 2].double() for slot in slots])
    v = torch.stack([batch.value_cache[slot][head // 2].double() for slot in slots])
    s = k @ batch.query[token, head].double() * batch.softmax_scale
    e = (s - s.max()).exp()
    p = e / e.sum()
    return {
        "o": p @ v,
        "a": p @ v.abs(),
        "b": (p**2 @ v**2).sqrt(),
        "w1": v.abs().sum(0) / e.sum(),
        "w2": (v**2).sum(0).sqrt() / e.sum(),
        "s": s.abs().max(),
        "deviation": (p.numel() * (p**2).sum() - 1).sqrt(),
    }


def tau(case, token: int) -> float:
    """Of a float32 sum over tiles of 16 keys whose terms differ."""
    return 1.5 * 2.0**-24 * math.sqrt(1 + math.ceil(int(case[1].num_visible[token]) / 16))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_budgets_are_the_documented_ones(dtype):
    batch = make_batch(LENS, replace(SHAPE, dtype=dtype))
    case = (batch, reference(batch, Features()))
    token, head, lane = 3, 2, 17
    t = row_terms(case, token, head)
    u, eta_o = unit_roundoff(dtype), half_subnormal(dtype)
    eta = 2 * eta_o
    sums = 4 * 2.0**-24 + float(case[1].num_visible[token]) / 16 * 2.0**-23
    found = case[1].out.clone().to(dtype)
    found[token, head, lane] += 0.25
    error = (found[token, head].double() - t["o"]).abs()
    common = (0.3 + 0.15 / t["deviation"]) * u**2 * t["o"].abs() + sums * t["a"]
    element = (u + tau(case, token)) * t["o"].abs() + 3 * u * t["b"] + 3 * eta * t["w2"] + common + eta_o
    norm = ((u * t["o"]) ** 2 + (u * t["b"]) ** 2 + (eta * t["w2"]) ** 2 + eta_o**2).sum()
    lasting = (0.3 + 0.15 / t["deviation"]) * u**2 * t["o"].norm() + sums * t["a"].norm()
    assert t["o"].norm() < 0.75 * t["a"].norm()
    row = (norm + lasting**2).sqrt() + tau(case, token) * t["o"].norm()
    delta = 2.0**-24 * t["s"] * (math.sqrt(32) + 8)
    worst_case = (u + tau(case, token)) * t["o"].abs() + (u + 2 * delta + sums) * t["a"] + eta * t["w1"] + eta_o
    verdict = judge(case, found)
    assert verdict.element == pytest.approx(float((error / element)[lane]))
    assert verdict.row == pytest.approx(float(error.norm() / row))
    assert verdict.worst_case == pytest.approx(float((error / worst_case)[lane]))
    assert verdict.index in ((token, head, lane), (token, head))


def test_lse_budget_is_the_documented_one(case):
    lse = case[1].lse.float()
    lse[3, 2] += 1e-3
    delta = 2.0**-24 * float(row_terms(case, 3, 2)["s"]) * (math.sqrt(32) + 8)
    wanted = float(case[1].lse[3, 2])
    error = abs(float(lse[3, 2]) - wanted)
    assert judge(case, lse=lse).lse == pytest.approx(error / (delta + 2.0**-22 * max(1.0, wanted) + tau(case, 3)))


def test_one_fault_in_a_long_row_is_seen_beside_short_ones():
    batch = make_batch([(1, 3000), (1, 2)], SHAPE)
    case = (batch, reference(batch, Features()))
    out = rounded(case)
    out[0, 1, 5] += 0.01  # two thirds of one standard deviation of such a row; far below 1e-2 of the short row
    verdict = judge(case, out)
    assert not verdict.ok and verdict.index[:2] == (0, 1)


def test_structured_inputs_meet_the_worst_case_alone(case):
    verdict = judge(case, structured=True)
    assert (verdict.tier, verdict.element, verdict.row) == ("W", 0.0, 0.0) and verdict.worst_case > 0


def test_fp32_meets_the_worst_case_alone_and_tf32_must_be_declared():
    batch = make_batch(LENS, replace(SHAPE, dtype=torch.float32))
    case = (batch, reference(batch, Features()))
    out = rounded(case) * (1 + 2.0**-11)
    assert judge(case).tier == "W"
    assert not judge(case, out).ok
    assert judge(case, out, contract=Precision(dot="tf32")).ok


def test_declared_tf32_gives_16_bit_inputs_no_slack(case):
    lse = case[1].lse.float()
    lse[3, 2] += 1e-4
    assert not judge(case, lse=lse, contract=Precision(dot="tf32")).ok


def test_narrow_probabilities_must_be_declared(case):
    out = case[1].out + 3 * 2.0**-6 * case[1].weighted_rms
    assert not judge(case, out.to(torch.bfloat16)).ok
    assert judge(case, out.to(torch.bfloat16), contract=Precision(probabilities=torch.float8_e4m3fn)).ok


def test_float32_probabilities_are_held_to_the_output_alone(case):
    verdict = judge(case, contract=Precision(probabilities=torch.float32))
    assert verdict.ok and verdict.tier == "W" and 0.5 < verdict.worst_case <= 1.0


FAULTS = {
    "nan": (0, math.nan),
    "inf": (0, math.inf),
    "a number where no key is seen": (6, 1e-30),
    "minus zero where no key is seen": (6, -0.0),
    "nan where no key is seen": (7, math.nan),
}


@pytest.mark.parametrize(("token", "value"), FAULTS.values(), ids=FAULTS.keys())
@pytest.mark.parametrize("structured", [False, True])
def test_exact_rules_of_out(case, token, value, structured):
    out = rounded(case)
    out[token, 1, 3] = value
    verdict = judge(case, out, structured=structured)
    assert not verdict.ok and math.isinf(verdict.worst)
    assert verdict.index[:2] == (token, 1)
    assert "breaks an exact rule" in verdict.reason


@pytest.mark.parametrize(("token", "value"), [(6, 0.0), (6, math.inf), (6, math.nan), (0, -math.inf), (0, math.nan)])
def test_exact_rules_of_lse(case, token, value):
    lse = case[1].lse.float()
    lse[token, 1] = value
    verdict = judge(case, lse=lse)
    assert not verdict.ok and math.isinf(verdict.lse)


@pytest.mark.parametrize(("found", "ok"), [(2.0, True), (2.0 + 1e-4, False), (-math.inf, False), (math.nan, False)])
def test_a_sink_alone_is_the_lse(found, ok):
    features = Features(sinks=torch.tensor([2.0, -math.inf, 0.0, 1.0]))
    batch = make_batch([(3, 0), (1, 20)], SHAPE)
    case = batch, reference(batch, features)
    lse = case[1].lse.float()
    assert lse[1].tolist() == [2.0, -math.inf, 0.0, 1.0]
    lse[1, 0] = found
    assert judge(case, lse=lse, features=features).ok is ok


def test_finite_where_the_reference_is_not_is_wrong():
    batch = make_batch([(20, 20)], SHAPE)
    batch.value_cache[batch.block_table[0, 0].long(), 3, 1, 4] = math.nan
    case = (batch, reference(batch, Features(sliding_window=4)))
    out = rounded(case)
    assert judge(case, out, features=Features(sliding_window=4)).ok
    out[5, 2, 4] = 0.0
    assert judge(case, out, features=Features(sliding_window=4)).index == (5, 2, 4)


def test_rows_past_the_last_sequence_are_not_looked_at(case):
    out = rounded(case)
    out[case[1].num_tokens :] = 3.0
    assert judge(case, out).ok


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda out: out[:-1], "lanes of value_cache"),
        (lambda out: out.float(), "allowed torch.bfloat16"),
        (lambda out: out.transpose(1, 2).contiguous().transpose(1, 2), "last dimension"),
    ],
    ids=["shape", "dtype", "stride"],
)
def test_shape_and_dtype_are_a_verdict(case, change, words):
    verdict = judge(case, change(rounded(case)))
    assert not verdict.ok and verdict.index is None and words in verdict.reason


def test_the_reason_says_where_what_and_by_how_much(case):
    out = rounded(case)
    out[3, 2, 17] = 2.5
    reason = judge(case, out, structured=True).reason
    assert reason.startswith("out (worst rounding): found 2.5, expected ")
    assert "at token 3, head 2, lane 17 that sees 38 keys: " in reason
    assert reason.endswith(" times the allowed error")


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (1.004, "just over the allowed error"), (1.5, "1.50 times"), (9.996, "10.0 times"), (42.37, "42.4 times"),
        (1.18e5, "118,000 times"), (math.inf, "where no error is allowed"),
    ],
)  # fmt: skip
def test_an_error_is_told_as_people_write_numbers(part, words):
    assert times(part).startswith(words)


def test_chunks_do_not_matter(case, monkeypatch):
    out, lse = rounded(case), case[1].lse.float()
    out[33, 3, 1] += 0.1
    whole = judge(case, out, lse=lse)
    monkeypatch.setattr("common.oracle.tolerance.CHUNK_ELEMENTS", 300)
    assert judge(case, out, lse=lse) == whole


def test_no_rows_is_right():
    batch = make_batch([], SHAPE)
    verdict = check(batch.query.clone(), None, batch, Features(), Precision(), reference(batch, Features()))
    assert verdict.ok and verdict.index is None and verdict.worst == 0.0
