"""Two copies of one kernel are the same, 5% is found, and nothing is said of too little."""

import dataclasses

import pytest

from compare.analysis import verdict
from compare.analysis.verdict import Outcome, decide
from compare.record import contract
from compare.record.noise import Noise
from compare.stats import Ratio
from sampled_run import DECODE, PREFILL, rows, sampled

FA3 = contract.UNIT
PAIR = {"triton/q_block": 1.0, FA3: 1.0}


def against_unit(records):
    unit = verdict.unit_of(records)
    return verdict.judge(records, verdict.unit_pairs(records, unit)) if unit else []


def one(speeds, **how):
    (found,) = against_unit(rows(DECODE, speeds, **how))
    return found


@pytest.mark.parametrize("between", [0.0, 0.003, 0.006])
def test_two_copies_are_never_faster_or_slower(between):
    """Forty runs each; up to an offset of 0.3% between processes nearly all are `same`, beyond that some ambiguous."""
    outcomes = [one(PAIR, seed=seed, between=between).outcome for seed in range(40)]
    assert set(outcomes) <= {Outcome.SAME, Outcome.AMBIGUOUS}
    assert outcomes.count(Outcome.SAME) >= (38 if between <= 0.003 else 20)


@pytest.mark.parametrize(("factor", "outcome"), [(1.05, Outcome.SLOWER), (1 / 1.05, Outcome.FASTER)])
def test_five_percent_are_found(factor, outcome):
    assert {one(PAIR | {"triton/q_block": factor}, seed=s, between=0.003).outcome for s in range(20)} == {outcome}


def test_what_straddles_the_margin_is_ambiguous_and_the_margin_is_alike_on_both_sides():
    assert decide(Ratio(1.03, 1.019, 1.04)) is decide(Ratio(0.99, 0.97, 1.0)) is Outcome.AMBIGUOUS
    assert decide(Ratio(1.03, 1.021, 1.04)) is Outcome.FASTER
    assert decide(Ratio(1 / 1.03, 1 / 1.04, 1 / 1.021)) is Outcome.SLOWER
    assert decide(Ratio(1.0, 0.99, 1.019)) is Outcome.SAME


def test_the_noise_floor_widens_the_margin_and_never_narrows_it():
    def noise(within):
        return Noise("h200", "graph-cold-interleaved/2", "triton/q_block", 3, within, 0.05)

    assert verdict.margin_of(noise(0.04)) == 0.04
    assert verdict.margin_of(noise(0.001)) == verdict.margin_of(None) == verdict.MARGIN
    assert decide(Ratio(1.05, 1.03, 1.06), 0.04) is Outcome.AMBIGUOUS


def test_pairs_are_rounds_of_one_process_and_a_common_drift_cancels():
    found = one(PAIR)
    assert found.basis == "3 processes, 96 rounds, paired"
    assert found.speed.high / found.speed.low < 1.01  # the drift alone is 3%


def test_one_process_says_so():
    assert one(PAIR, processes=1).basis == "1 process: only rounds are resampled, 32 rounds, paired"


def test_long_calls_of_their_own_and_missing_processes_are_not_paired():
    mine, unit = rows(DECODE, {"triton/q_block": 2.0}), rows(DECODE, {FA3: 1.0}, processes=2)
    alone = [dataclasses.replace(r, timing=dataclasses.replace(r.timing, order="alone")) for r in mine]
    (found,) = against_unit([*alone, *unit])
    assert found.basis == "2 processes, 64 rounds, not paired" and found.outcome is Outcome.SLOWER


def test_three_samples_get_student_and_one_sample_gets_no_verdict():
    three = [sampled(DECODE, "triton/naive", [900, 905, 910]), sampled(DECODE, FA3, [100, 101, 102])]
    (found,) = against_unit(three)
    assert found.outcome is Outcome.SLOWER and found.basis == "3 samples: Student's t"
    single = [sampled(DECODE, "triton/naive", [900]), sampled(DECODE, FA3, [100])]
    (found,) = against_unit(single)
    assert found.outcome is Outcome.AMBIGUOUS


def test_a_cell_that_failed_in_one_process_has_no_verdict():
    records = rows(DECODE, PAIR)
    broken = rows(DECODE, {"triton/q_block": None}, processes=1)[0]
    assert not against_unit([broken.replace(process=2), *(r for r in records if r.process != 2)])


def test_the_unit_is_fa3_or_the_kernel_timed_most_and_never_a_bound():
    assert verdict.unit_of(rows(DECODE, PAIR)) == FA3
    records = rows(DECODE, {"baseline/sdpa_dense": 0.5, "triton/naive": 9.0, "triton/auto": 1.0})
    records += rows(PREFILL, {"baseline/sdpa_dense": 0.5, "triton/naive": None, "triton/auto": 1.0})
    assert verdict.unit_of(records) == "triton/auto"
    assert verdict.unit_of(rows(DECODE, {"triton/auto": None})) is None and against_unit([]) == []


def test_twins_are_the_kernels_of_one_name():
    speeds = {"triton/auto": 1.0, "helion/auto": 1.1, "helion/naive": 5.0, FA3: 1.0}
    records = rows(DECODE, speeds)
    (found,) = verdict.judge(records, verdict.twin_pairs(records))
    assert (found.kernel, found.against, found.outcome) == ("helion/auto", "triton/auto", Outcome.SLOWER)
