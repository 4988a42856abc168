"""Two copies of one kernel are the same, 5% is found, and what failed is counted beside every mean."""

import dataclasses

import pytest
from sampled_run import DECODE, LOADS, MIXED, PREFILL, SPEC, rows, sampled

from compare import verdict
from compare.noise import Noise
from compare.stats import Ratio
from compare.verdict import Outcome, decide

FA3 = verdict.FA3
PAIR = {"triton/q_block": 1.0, FA3: 1.0}


def one(speeds, **how):
    (found,) = verdict.verdicts(rows(DECODE, speeds, **how))
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
    (found,) = verdict.verdicts([*alone, *unit])
    assert found.basis == "2 processes, 64 rounds, not paired" and found.outcome is Outcome.SLOWER


def test_three_samples_get_student_and_one_sample_gets_no_verdict():
    three = [sampled(DECODE, "triton/naive", [900, 905, 910]), sampled(DECODE, FA3, [100, 101, 102])]
    (found,) = verdict.verdicts(three)
    assert found.outcome is Outcome.SLOWER and found.basis == "3 samples: Student's t"
    single = [sampled(DECODE, "triton/naive", [900]), sampled(DECODE, FA3, [100])]
    (found,) = verdict.verdicts(single)
    assert found.outcome is Outcome.AMBIGUOUS


def test_a_cell_that_failed_in_one_process_has_no_verdict():
    records = rows(DECODE, PAIR)
    broken = rows(DECODE, {"triton/q_block": None}, processes=1)[0]
    assert not verdict.verdicts([broken.replace(process=2), *(r for r in records if r.process != 2)])


def test_the_unit_is_fa3_or_the_kernel_timed_most_and_never_a_bound():
    assert verdict.unit_of(rows(DECODE, PAIR)) == FA3
    records = rows(DECODE, {"baseline/sdpa_dense": 0.5, "triton/naive": 9.0, "triton/auto": 1.0})
    records += rows(PREFILL, {"baseline/sdpa_dense": 0.5, "triton/naive": None, "triton/auto": 1.0})
    assert verdict.unit_of(records) == "triton/auto"
    assert verdict.unit_of(rows(DECODE, {"triton/auto": None})) is None and verdict.verdicts([]) == []


def test_twins_are_the_kernels_of_one_name():
    speeds = {"triton/auto": 1.0, "helion/auto": 1.1, "helion/naive": 5.0, FA3: 1.0}
    (found,) = verdict.twins(rows(DECODE, speeds))
    assert (found.kernel, found.against, found.outcome) == ("helion/auto", "triton/auto", Outcome.SLOWER)


def suite():
    """auto: 2x on decode, 0.5x on prefill, equal on the mixture, and crashed on the speculative row."""
    records = []
    for number, (load, speed) in enumerate(zip(LOADS, (0.5, 2.0, 1.0, None), strict=True)):
        speeds = {"triton/auto": speed, "triton/naive": 4.0, FA3: 1.0}
        records += rows(load, speeds, seed=number)
    return records


def standing(group, kernel="triton/auto"):
    records = suite()
    found = verdict.standings(records, verdict.verdicts(records))
    return next(s for s in found if s.group == group and s.kernel == kernel)


def test_a_suite_has_the_mean_the_tally_and_the_failures():
    whole = standing("all")
    assert whole.speed.ratio == pytest.approx(1.0, abs=0.01) and whole.speed.low < 1 < whole.speed.high
    assert (whole.cells, whole.compared) == (4, 3) and dict(whole.missing) == {"crash": 1}
    counts = [whole.outcomes[o] for o in (Outcome.FASTER, Outcome.SLOWER, Outcome.SAME)]
    assert counts == [1, 1, 1]


def test_means_of_the_shared_cells_can_be_compared_with_each_other():
    naive = standing("all", "triton/naive")
    assert (naive.compared, naive.shared_cells) == (4, 3) and naive.shared == pytest.approx(0.25, rel=0.01)


def test_it_is_split_by_class_and_by_decode_share():
    assert standing("decode").speed.ratio == pytest.approx(2.0, rel=0.01)
    assert standing("decode share 50%").compared == 1 and standing("decode share 100%").cells == 1
    assert standing("decode share 0%").compared == 1 and dict(standing("decode share 0%").missing) == {"crash": 1}
    assert [verdict.decode_share(load) for load in (DECODE, PREFILL, MIXED, SPEC)] == ["100%", "0%", "50%", "0%"]


def test_a_row_that_the_unit_lost_is_named_as_such():
    records = rows(DECODE, PAIR) + rows(PREFILL, PAIR | {FA3: None})
    (whole,) = [s for s in verdict.standings(records, verdict.verdicts(records)) if s.group == "all"]
    assert (whole.cells, whole.compared) == (2, 1) and dict(whole.missing) == {"crash of the unit": 1}


def test_the_profile_counts_a_crash_as_beyond_every_factor():
    found = verdict.profile(suite(), taus=(1.05, 2.5, 5.0, 1e6))
    assert found["triton/auto"] == (0.5, 0.75, 0.75, 0.75)
    assert found[FA3] == (0.75, 1.0, 1.0, 1.0) and found["triton/naive"] == (0.0, 0.0, 0.75, 1.0)
