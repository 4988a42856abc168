"""The score of `explain --pair`: what was measured beside what is said."""

import dataclasses

import pytest

from common import gpus
from compare.__main__ import main as diptych
from compare.analysis import merge, verdict
from compare.analysis.runs import read
from compare.analysis.verdict import Outcome, Verdict
from compare.static.pair import Trade
from compare.stats import Ratio
from compare.studies import pairs
from compare.studies.estimates import RESULTS

H200 = gpus.resolve("h200")


@pytest.fixture(scope="module")
def peers():
    run = merge.as_one(read(RESULTS / "h200" / "peers"))
    return pairs.pairs(run, verdict.twin_pairs(run.raw), 1)


@pytest.fixture
def uncompiled(monkeypatch):
    """As where nothing compiles: every pair is counted from the facts of the timed code."""
    monkeypatch.setattr(pairs, "compile_in_child", lambda jobs, gpu: (Nothing() for _ in jobs))


class Nothing:
    facts = ()


def case(outcome, estimate, cause, ratio=1.2):
    info = dataclasses.make_dataclass("Info", ["id", "label", "kind"])("id", "q2k", "prefill")
    speed = Ratio(1 / ratio, 1 / ratio, 1 / ratio, 2)
    return pairs.Case(Verdict(info, "helion/q_block", "triton/q_block", outcome, speed, ""), estimate, cause, True)


def test_every_rung_of_a_row_is_a_pair_with_the_facts_of_the_timed_code(peers):
    assert {mine.kernel.partition("/")[2] for _, mine, _ in peers} >= {"naive", "q_block", "auto"}
    assert all(mine.facts and other.facts and mine.workload.id == other.workload.id for _, mine, other in peers)


def test_what_has_no_rule_is_left_out_and_the_others_are_said(peers, uncompiled):
    found = list(pairs.cases(peers, H200))
    assert len(found) == len(peers) and None in found  # the static grid of that day
    said = [one for one in found if one]
    assert len(said) >= 6 and not any(one.simulated for one in said)
    assert all((one.cause is None) == (abs(max(one.estimate, 1 / one.estimate) - 1) < 0.02) for one in said)


def test_code_is_as_timed_where_a_tile_has_as_many_instructions(peers):
    facts = peers[1][1].facts
    more = [
        {**one, "loops": [{**loop, "instructions": loop["instructions"] * 2} for loop in one["loops"]]} for one in facts
    ]
    assert pairs.as_timed(facts, facts) and not pairs.as_timed(more, facts) and not pairs.as_timed((), facts)


def test_the_score_counts_what_is_said_against_what_was_measured():
    mask = Trade("mask", 3.0)
    found = [case(Outcome.SLOWER, 1.3, mask), case(Outcome.SLOWER, 0.8, mask), case(Outcome.SAME, 1.0, None, 1.0)]
    told = pairs.score([*found, None])
    assert "4 pairs; the model has a rule for 3, and 3 are read from SASS" in told
    assert "Of 2 measured more than 2% apart, 2 are estimated apart, 1 of these in the measured order" in told
    assert "1 lean the right way" in told
    assert "| measured slower | 2 | 1 | 1 | 0 |" in told and "| mask | 2 | 1 of 2 |" in told


def test_an_ablation_is_right_where_the_sentence_names_what_was_made():
    one = next(one for one in pairs.ABLATIONS if "mask" in one.causes)
    found = [(one, case(Outcome.SLOWER, 1.3, Trade(name, 1.0))) for name in ("mask", "mask", "loads")]
    told = pairs.causes(found)
    assert "On 2 of 3 rows" in told and "mask 2, loads 1" in told


def test_an_ablation_that_changes_nothing_is_right_where_the_two_are_alike():
    one = next(one for one in pairs.ABLATIONS if not one.causes)
    assert "On 1 of 1 rows" in pairs.causes([(one, case(Outcome.SAME, 1.0, None))])


@pytest.mark.parametrize("words", [["--gpu", "h2000"], ["--gpu", "mi300"]], ids=["unknown", "no-runs"])
def test_what_has_no_runs_is_said(words, capsys):
    assert diptych(["study", "pairs", *words]) == 2
    assert capsys.readouterr().err
