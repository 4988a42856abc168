"""The checker accepts what is right: random batches through the unedited emulation, none rejected.

The worst ratios are asserted from both sides: a budget that right results never come near would not see a wrong one.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict

import pytest
import torch

from common.cases.batch import make_batch
from common.mutants.emulation import Schedule, emulate
from common.oracle.reference import reference
from common.oracle.tolerance import check
from common.spec import AttentionShape, Features
from common.spec.kernel import Precision

BATCHES = 1000  # about 12 s on one core
RULES = ("element", "row", "worst_case", "lse")


def random_case(seed: int):
    """(lens, shape, features, schedule): a handful of sequences, one in 25 of them up to 2,500 keys long."""
    rng = random.Random(seed)
    dtype = rng.choice([torch.float16, torch.bfloat16, torch.bfloat16, torch.float32])
    kv_heads, group = rng.choice([1, 2, 3]), rng.choice([1, 2, 3, 4, 5, 8])
    shape = AttentionShape(
        kv_heads * group, kv_heads, rng.choice([32, 64, 80, 128, 256]), rng.choice([8, 16, 24]), dtype
    )
    lens = []
    for _ in range(rng.randint(1, 4)):
        query_len = rng.choice([1, 1, 1, 2, 4, 17, 33])
        context_len = rng.choice([0, 1, 15, 16, 31, rng.randint(0, 200)])
        if rng.random() < 0.04:
            context_len = rng.randint(200, 2500)
        lens.append((query_len, query_len + context_len))
    window = rng.choice([None, None, 1, 7, 33, 128])
    sees = min(max(seq_len for _, seq_len in lens), window or 10**9)
    sinks = torch.randn(shape.num_query_heads, generator=torch.Generator().manual_seed(seed)) + math.log(sees)
    features = Features(rng.random() < 0.8, window, rng.choice([None, None, 5.0, 30.0]), rng.choice([None, sinks]))
    dot = rng.choice(["ieee", "tf32"]) if dtype == torch.float32 else "ieee"
    return lens, shape, features, Schedule(rng.choice([16, 32, 64, 128]), rng.choice([1, 2, 3, 5]), dot=dot)


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


def test_no_false_alarm_on_random_batches(record_property):
    worst = defaultdict(lambda: dict.fromkeys(RULES, 0.0))
    for seed in range(BATCHES):
        name, verdict = run(seed)
        for rule in RULES:
            worst[name][rule] = max(worst[name][rule], getattr(verdict, rule))
    record_property("worst ratios", [f"{BATCHES} random batches", *table(worst)])
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


@pytest.mark.parametrize("prepare", STRUCTURES.values(), ids=STRUCTURES.keys())
def test_no_false_alarm_on_structured_batches(prepare):
    worst = max(run(seed, prepare)[1].worst for seed in range(60))
    assert 0.05 < worst <= 1.0
