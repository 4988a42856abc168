"""A mean over a suite stands beside what failed, split by class."""

import dataclasses

import pytest

from compare.analysis import standing, verdict
from compare.analysis.verdict import Outcome
from compare.record.contract import UNIT as FA3
from sampled_run import DECODE, LOADS, PREFILL, rows

PAIR = {"triton/q_block": 1.0, FA3: 1.0}


def suite():
    """auto: 2x on decode, 0.5x on prefill, equal on the mixture, and crashed on the speculative row."""
    records = []
    for number, (load, speed) in enumerate(zip(LOADS, (0.5, 2.0, 1.0, None), strict=True)):
        speeds = {"triton/auto": speed, "triton/naive": 4.0, FA3: 1.0}
        records += rows(load, speeds, seed=number)
    return records


def standings(records):
    pairs = verdict.unit_pairs(records, FA3)
    return standing.standings(records, verdict.judge(records, pairs), pairs)


def of(group, kernel="triton/auto"):
    return next(s for s in standings(suite()) if s.group == group and s.kernel == kernel)


def test_a_suite_has_the_mean_the_tally_and_the_failures():
    whole = of("all")
    assert whole.speed.ratio == pytest.approx(1.0, abs=0.01) and whole.speed.low < 1 < whole.speed.high
    assert (whole.cells, whole.compared) == (4, 3) and dict(whole.missing) == {"crash": 1}
    counts = [whole.outcomes[o] for o in (Outcome.FASTER, Outcome.SLOWER, Outcome.SAME)]
    assert counts == [1, 1, 1]


def test_means_of_the_shared_cells_can_be_compared_with_each_other():
    naive = of("all", "triton/naive")
    assert (naive.compared, naive.shared_cells) == (4, 3) and naive.shared == pytest.approx(0.25, rel=0.01)


def test_it_is_split_by_class():
    assert of("decode").speed.ratio == pytest.approx(2.0, rel=0.01)
    assert of("mixed").compared == 1 and of("speculative").cells == 1
    assert of("speculative").compared == 0 and dict(of("speculative").missing) == {"crash": 1}


def test_a_row_that_the_unit_lost_is_named_as_such():
    records = rows(DECODE, PAIR) + rows(PREFILL, PAIR | {FA3: None})
    (whole,) = [s for s in standings(records) if s.group == "all"]
    assert (whole.cells, whole.compared) == (2, 1) and dict(whole.missing) == {"crash of the other": 1}


def test_a_kernel_that_failed_everywhere_is_still_listed():
    records = rows(DECODE, {"triton/auto": None, FA3: 1.0})
    (whole,) = [s for s in standings(records) if s.group == "all"]
    assert (whole.kernel, whole.cells, whole.compared, whole.speed) == ("triton/auto", 1, 0, None)
    assert dict(whole.missing) == {"crash": 1} and not whole.outcomes


def test_unpaired_cells_widen_the_mean_and_one_sample_leaves_it_without_interval():
    records = rows(DECODE, {"triton/auto": 1.0, FA3: 1.0}) + rows(PREFILL, {"triton/auto": 1.0}, rounds=20)
    records += rows(PREFILL, {FA3: 1.0}, rounds=30)
    (whole,) = [s for s in standings(records) if s.group == "all"]
    assert whole.compared == 2 and 0 < whole.speed.low < 1 < whole.speed.high < 1.2
    single = [r.replace(timing=dataclasses.replace(r.timing, samples_us=())) for r in records if r.process == 0]
    (whole,) = [s for s in standings(single) if s.group == "all"]
    assert whole.speed.low == 0.0
