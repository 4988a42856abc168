"""The checker accepts what is right: random batches through the unedited emulation, none rejected.

The worst ratios are asserted from both sides: a budget that right results never come near would not see a wrong one.
"""

import math
from collections import defaultdict

import pytest
import torch
from right_kernels import RULES, random_case

from common.cases.batch import make_batch
from common.mutants.emulation import emulate
from common.oracle.reference import reference
from common.oracle.tolerance import check
from common.spec.precision import Precision

BATCHES = (60, pytest.param(1000, marks=pytest.mark.slow))  # a few of each precision; the ratios hold from 40 on
STRUCTURED = (20, pytest.param(60, marks=pytest.mark.slow))


def run(seed: int, prepare=None):
    """(label of the precision, verdict) of one random case; `prepare(batch)` makes its values structured."""
    lens, shape, features, schedule = random_case(seed)
    batch = make_batch(lens, shape, seed=seed)
    if prepare:
        prepare(batch)
    out = torch.full_like(batch.query, math.nan)
    lse = torch.full(batch.query.shape[:2], math.nan)
    emulate(batch, features, out, schedule, lse=lse)
    contract = Precision(dot=schedule.dot)
    expected = reference(batch, features)
    verdict = check(out, lse, batch, features, contract, expected, structured=prepare is not None)
    assert verdict.ok, f"seed {seed}, {shape}, {lens}, {features}, {schedule}: {verdict.reason}"
    return f"{str(shape.dtype)[6:]} {schedule.dot}", verdict


def table(worst: dict[str, dict[str, float]]) -> list[str]:
    lines = [f"{'':28}" + "".join(f"{rule:>12}" for rule in RULES)]
    return lines + [f"{name:28}" + "".join(f"{worst[name][rule]:12.3f}" for rule in RULES) for name in sorted(worst)]


@pytest.mark.parametrize("batches", BATCHES)
def test_no_false_alarm_on_random_batches(record_property, batches):
    worst = defaultdict(lambda: dict.fromkeys(RULES, 0.0))
    for seed in range(batches):
        name, verdict = run(seed)
        for rule in RULES:
            worst[name][rule] = max(worst[name][rule], getattr(verdict, rule))
    record_property("worst ratios", [f"{batches} random batches", *table(worst)])
    for name in ("float16 ieee", "bfloat16 ieee"):
        assert 0.3 <= max(worst[name]["element"], worst[name]["row"]) <= 0.9
    assert max(row["worst_case"] for row in worst.values()) <= 0.98
    assert max(row["lse"] for row in worst.values()) <= 0.98


def outlier(batch) -> None:
    batch.value_cache[:, 3] *= 1e3


def rising(batch) -> None:
    """Later slots of every page have larger keys."""
    page = batch.key_cache.shape[1]
    batch.key_cache.mul_(torch.linspace(0.1, 5, page, dtype=batch.key_cache.dtype)[:, None, None])


STRUCTURES = {
    "queries x 30": lambda batch: batch.query.mul_(30),
    "queries 0": lambda batch: batch.query.zero_(),
    "queries x 0.01": lambda batch: batch.query.mul_(0.01),
    "one V in a page x 1000": outlier,
    "V x 1e-6": lambda batch: batch.value_cache.mul_(1e-6),
    "rising logits": rising,
    "all keys alike": lambda batch: batch.key_cache.copy_(batch.key_cache[:, :1].nan_to_num(0.5).clone()),
}


@pytest.mark.parametrize("batches", STRUCTURED)
@pytest.mark.parametrize("prepare", STRUCTURES.values(), ids=STRUCTURES.keys())
def test_no_false_alarm_on_structured_batches(prepare, batches):
    worst = max(run(seed, prepare)[1].worst for seed in range(batches))
    assert 0.05 < worst <= 1.0
