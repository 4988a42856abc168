"""Under every precision that a contract may name, right kernels pass near their budgets and nonsense does not."""

import functools
import math
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from right_kernels import RULES, random_case, schedule

from common.cases.batch import make_batch
from common.cases.trial import Trial
from common.kit.levels import LONG_PLANTED
from common.mutants import MUTANTS
from common.mutants.emulation import Schedule, emulate
from common.mutants.right import RIGHT, Rounded, exp2_by_polynomial
from common.oracle.reference import gather, reference
from common.oracle.rounding import EXP2_POLYNOMIAL
from common.oracle.tolerance import check, sum_error
from common.spec import AttentionShape, Features
from common.spec.precision import Precision

B, HALF, FP8, FNUZ = torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e4m3fnuz
WEAKEST = Precision(FP8, dot="tf32", exp2="polynomial", tanh="fast", sums=B)
SUMS = Precision(sums=B)
# Beside each the least part of its budget that the rules come to: one that right kernels never come near is too wide.
SHIPPED = {
    "tf32": (Precision(dot="tf32"), torch.float32, 0.5),
    "P in bf16": (Precision(B), HALF, 0.7),
    "P in fp8": (Precision(FP8), B, 0.7),
    "P in fp8 of AMD": (Precision(FNUZ), B, 0.7),
    "polynomial exp2": (Precision(exp2="polynomial"), B, 0.6),
    "polynomial exp2, P in fp32": (Precision(torch.float32, exp2="polynomial"), torch.float32, 0.5),
    "fast tanh": (Precision(tanh="fast"), HALF, 0.5),
    "fast tanh, P in fp32": (Precision(torch.float32, tanh="fast"), torch.float32, 0.4),
    "running sum in bf16": (Precision(sums=B), B, 0.5),
    "all at once": (WEAKEST, HALF, 0.7),
}


@functools.lru_cache(100)
def made(seed: int):
    """(batch, features, what the definition says), which every contract is asked with."""
    lens, shape, features, _ = random_case(seed)
    batch = make_batch(lens, shape, seed=seed)
    return batch, features, reference(batch, features)


def worst_of(contract: Precision, seeds: range) -> dict[torch.dtype, float]:
    """The largest part of a budget that right kernels of this precision use, by the dtype of the query."""
    worst: dict[torch.dtype, float] = defaultdict(float)
    for seed in seeds:
        batch, features, expected = made(seed)
        out, lse = torch.full_like(batch.query, math.nan), torch.full(batch.query.shape[:2], math.nan)
        emulate(batch, features, out, schedule(contract, seed), lse=lse, edits=Rounded(contract))
        verdict = check(out, lse, batch, features, contract, expected)
        assert verdict.ok, f"seed {seed}, {batch.shape}, {features}: {verdict.reason}"
        dtype = batch.shape.dtype
        worst[dtype] = max(worst[dtype], *(getattr(verdict, rule) for rule in RULES))
    return worst


@pytest.mark.parametrize(("contract", "dtype", "near"), SHIPPED.values(), ids=SHIPPED)
def test_right_kernels_of_a_precision_pass_and_come_near_its_budget(contract, dtype, near):
    assert near <= worst_of(contract, range(70))[dtype] <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize("contract", [contract for contract, _, _ in SHIPPED.values()], ids=SHIPPED)
def test_no_false_alarm_on_a_thousand_batches(contract):
    assert max(worst_of(contract, range(70, 1070)).values()) <= 1.0


@pytest.mark.parametrize("name", [name for name in SHIPPED if name != "all at once"])
def test_what_a_precision_allows_is_wrong_where_it_is_not_declared(name):
    contract, dtype, _ = SHIPPED[name]
    lens = [(1, 2), (1, 700), (5, 300)]
    batch, features = make_batch(lens, AttentionShape(4, 2, 64, 16, dtype)), Features(softcap=5.0)
    batch.query.mul_(3)  # logits that a cap of 5 bends
    out, lse = torch.empty_like(batch.query), torch.empty(batch.query.shape[:2])
    emulate(batch, features, out, schedule(contract, 0), lse=lse, edits=Rounded(contract))
    expected = reference(batch, features)
    assert [check(out, lse, batch, features, one, expected).ok for one in (contract, Precision())] == [True, False]


def zeros(batch, expected):
    return torch.zeros_like(expected.out)


def mean_of_v(batch, expected):
    return _rows(batch, lambda values: values.mean(0))


def last_row_of_v(batch, expected):
    return _rows(batch, lambda values: values[-1])


def _rows(batch, of):
    group = batch.shape.queries_per_kv
    lens = batch.seq_lens.tolist()
    rows = [of(gather(batch.value_cache, batch.block_table[i], n)) for i, n in enumerate(lens)]
    return torch.stack(rows).repeat_interleave(group, 1)


@pytest.mark.parametrize("dtype", [HALF, B, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("wrong", "softcap"),
    [(zeros, None), (mean_of_v, None), (last_row_of_v, None), (zeros, 30.0)]
    + [pytest.param(wrong, 30.0, marks=pytest.mark.slow) for wrong in (mean_of_v, last_row_of_v)],
)
@pytest.mark.parametrize("lengths", [(2, 300), pytest.param((12, 45, 2000, 40_000), marks=pytest.mark.slow)], ids=str)
def test_no_contract_lets_nonsense_pass(wrong, dtype, softcap, lengths):
    """Each row by itself, with the LSE right, from 2 keys to 40,000."""
    features = Features(softcap=softcap)
    for length in lengths:
        batch = make_batch([(1, length)], AttentionShape(2, 1, 64, 16, dtype), seed=length)
        expected = reference(batch, features)
        out, lse = wrong(batch, expected).to(dtype), expected.lse.float()
        for contract in Precision.all():
            assert not check(out, lse, batch, features, contract, expected).ok, f"{length} keys under {contract}"


# One key of 2,605 that are alike, one percent of a scale, and what the weakest contract allows by its words.
ONE_KEY = {"last_key_dropped", "first_key_dropped", "segment_boundary_key_dropped", "key_counted_in_two_segments"}
ALLOWED_BY_IT = ONE_KEY | {
    "scale_one_percent_off", "accumulator_in_bf16", "probabilities_in_e4m3", "tf32_undeclared",
    "probabilities_cut_in_bf16",
}  # fmt: skip
BUGS = [mutant for mutant in MUTANTS if mutant.name not in ALLOWED_BY_IT]


@pytest.mark.parametrize("mutant", BUGS[::9], ids=lambda mutant: mutant.name)
def test_a_bug_dies_under_the_weakest_contract(mutant):
    assert not mutant.run(WEAKEST).ok


@pytest.mark.parametrize("contract", [WEAKEST, Precision(FP8), SUMS], ids=["the weakest", "P in fp8", "sums in bf16"])
def test_a_partial_page_that_is_lost_is_no_error_of_a_sum(contract):
    """13 keys of 2,605."""
    assert not next(mutant for mutant in MUTANTS if mutant.name == "partial_page_dropped").run(contract).ok


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_which_bugs_die_under_the_weakest_contract(mutant):
    assert mutant.run(WEAKEST).ok == (mutant.name in ALLOWED_BY_IT)


@pytest.mark.parametrize("dtype", [B, torch.float32], ids=str)
def test_one_key_of_4500_is_seen_under_the_weakest_contract_where_it_is_planted(dtype):
    trial = Trial.of(LONG_PLANTED.but(dtype=dtype))
    expected = reference(trial.batch, trial.features)
    edits = {"right": Rounded(WEAKEST)} | {mutant.name: mutant.edits() for mutant in MUTANTS if mutant.name in ONE_KEY}
    passed = []
    for name, edit in edits.items():
        emulate(trial.batch, trial.features, trial.out, Schedule(64, 4, FP8), lse=trial.lse, edits=edit)
        passed += [name] if trial.judge(WEAKEST, expected).ok else []
    assert len(edits) == 1 + len(ONE_KEY) and passed == ["right"]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [HALF, B, torch.float32], ids=str)
def test_no_right_kernel_is_rejected_where_keys_are_planted(dtype):
    """P that is rounded behind its division is smaller by the number of planted keys."""
    trial = Trial.of(LONG_PLANTED.but(dtype=dtype))
    expected = reference(trial.batch, trial.features)
    wrong = {}
    for right in RIGHT:
        right.launch(trial.batch, trial.features, trial.out, trial.lse)
        if not (found := trial.judge(right.contract, expected)).ok:
            wrong[right.name] = found.reason
    assert wrong == {}


def test_the_polynomial_is_the_published_one():
    x = torch.linspace(-20.0, 0.0, 200_001)
    error = float((exp2_by_polynomial(x).double() / torch.exp2(x.double()) - 1).abs().max())
    assert 8.7e-5 < error < EXP2_POLYNOMIAL


def beside_sinks(length, edits, parts=(0.02, 0.3, 0.6, 0.9, 0.97)):
    """What the checker says of a decode of so many keys whose heads' sinks have these parts of the sum of P."""
    batch = make_batch([(1, length)], AttentionShape(len(parts), 1, 64, 16, B), seed=length)
    of_keys = reference(batch, Features()).lse[0].double()
    features = Features(sinks=(of_keys + torch.tensor(parts, dtype=torch.float64).logit()).float())
    out, lse = torch.empty_like(batch.query), torch.empty(1, len(parts))
    emulate(batch, features, out, Schedule(64), lse=lse, edits=edits)
    return check(out, lse, batch, features, SUMS, reference(batch, features))


class Sink(Rounded):
    def __init__(self, change):
        super().__init__(SUMS)
        self.change = change

    def sink(self, at, sinks):
        return self.change(sinks)


class Scale(Rounded):
    def scale(self, at, scale):
        return 1.3 * scale


WRONG_SINKS = {
    "dropped": Sink(lambda sinks: torch.full_like(sinks, -math.inf)),
    "of the next head": Sink(lambda sinks: sinks.roll(1)),
    "counted twice": Sink(lambda sinks: sinks + math.log(2.0)),
    "in units of log2": Sink(lambda sinks: sinks * math.log2(math.e)),
    "scale": Scale(SUMS),
}


@pytest.mark.parametrize("length", [65, 300, 1500, 4000])
def test_a_sum_in_bf16_that_begins_with_a_sink_is_right_and_no_nearer_bug_is(length):
    assert beside_sinks(length, Rounded(SUMS)).ok
    passed = [bug for bug, edits in WRONG_SINKS.items() if beside_sinks(length, edits).ok]
    assert not passed, f"{passed} at {length} keys"


def test_what_tiles_beside_a_heavy_sink_lose_is_nearly_all_of_the_budget():
    """All the keys beside a sink of 0.97: 0.9 of what is allowed there; the sum would be as right without a sink."""
    assert 0.9 <= beside_sinks(1500, Rounded(SUMS), (0.97, 0.95, 0.94)).lse <= 1.0


@pytest.mark.parametrize("length", [300, 4500, 40_000])
def test_zeros_pass_under_no_contract_in_structured_inputs(length):
    batch = make_batch([(1, length)], AttentionShape(2, 1, 64, 16, B), seed=length)
    batch.value_cache.abs_()
    expected = reference(batch, Features())
    for contract in Precision.all():
        out = torch.zeros_like(batch.query)
        assert not check(out, None, batch, Features(), contract, expected, structured=True).ok, contract


def _row_off_by(batch, features, along, across, dtype=B):
    """The verdict on the right rows times 1 + along, to either side in turn, plus `across` of their norm at a right
    angle to them."""
    expected = reference(batch, features)
    o = expected.out
    angle = torch.randn(o.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    angle -= (angle * o).sum(-1, keepdim=True) / o.square().sum(-1, keepdim=True) * o
    turn = 1.0 - 2.0 * (torch.arange(o.shape[0])[:, None] + torch.arange(o.shape[1])).remainder(2)[..., None]
    off = o * (1.0 + along * turn) + across * o.norm(dim=-1, keepdim=True) * angle / angle.norm(dim=-1, keepdim=True)
    out = off.clamp(-448.0, 448.0) if dtype is FP8 else off
    return check(out.to(dtype), None, batch, features, SUMS, expected)


def test_a_sum_may_be_off_along_a_row_and_not_across_it():
    batch = make_batch([(1, 2605), (3, 700)], AttentionShape(4, 2, 64, 16, B))
    off = {"along": (0.012, 0.0), "across": (0.0, 0.012), "along and rounded": (0.012, 0.002)}
    verdicts = {name: _row_off_by(batch, Features(), *by) for name, by in off.items()}
    assert [verdict.ok for verdict in verdicts.values()] == [True, False, True]
    assert verdicts["across"].row > 1.0


def test_lanes_that_saturate_are_not_off_beside_a_sum_that_is():
    """A third of the lanes is at the largest number of fp8, and stays there while the others grow."""
    batch = make_batch([(1, 700), (3, 300)], AttentionShape(4, 2, 64, 16, B))
    features = Features(out_scale=torch.tensor(reference(batch, Features()).out.abs().median().item() / 300.0))
    expected = reference(batch, features).out.abs()
    assert 0.2 < (expected > 448.0).double().mean() < 0.4
    assert _row_off_by(batch, features, 0.012, 0.0, FP8).ok


@pytest.mark.parametrize("tiles", [4, 16, 68, 128])
def test_a_running_sum_of_bf16_is_off_by_less_than_its_budget_and_not_by_much_less(tiles):
    """Sums of tiles that are alike, and such that are not; rounded to bf16 behind each."""
    draw, worst = torch.Generator().manual_seed(0), 0.0
    for spread in (0.0, 0.001, 0.02, 0.3):
        sums = 1.0 + spread * torch.randn(64, tiles, generator=draw, dtype=torch.float64)
        sums *= 1.0 + torch.rand(64, 1, generator=draw, dtype=torch.float64)
        running = torch.zeros(64, dtype=torch.float64)
        for tile in sums.T:
            running = (running + tile).to(B).double()
        worst = max(worst, ((running - sums.sum(1)).abs() / sums.sum(1)).max().item())
    rows = SimpleNamespace(keys=torch.tensor([[64.0 * tiles]]), sunk=torch.zeros(1, 1), random=torch.zeros(1, 1).bool())
    budget = sum_error(rows, SimpleNamespace(u_sum=2.0**-8, short_sum=True), True).item()
    assert 0.45 * budget < worst < budget
