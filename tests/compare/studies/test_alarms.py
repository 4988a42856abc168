"""False alarms: which right kernels meet which cases, that one is kept and counted, and that a run goes on."""

import json

import pytest

from common.kit import levels
from common.mutants.right import RIGHT, Right
from compare.__main__ import main as diptych
from compare.studies import alarms
from compare.studies.alarms import FOUND, in_turn, judged, spread, table


def test_there_are_twenty_and_each_meets_as_many_cases():
    assert len({right.name for right in RIGHT}) == len(RIGHT) >= 20
    turns = [in_turn(number, 2) for number in range(40)]
    assert {right.name: sum(right in turn for turn in turns) for right in RIGHT} == {one.name: 20 for one in RIGHT}


@pytest.mark.slow
def test_cases_are_of_the_whole_level():
    names, every = spread(2000, 2, 0), list(levels.level("full", 0))
    assert len(names) == len(set(names)) == -(-2000 * 2 // len(RIGHT))
    places = [every.index(name) for name in names]
    assert places == sorted(places) and places[0] < 50 and places[-1] > len(every) - 50


@pytest.mark.parametrize("name", ["everything-at-once", "fp8-scales-of-tokens"])
def test_right_kernels_are_not_rejected(name):
    found = judged(name, list(RIGHT), 0)
    assert found["alarms"] == {} and len(found["asked"]) >= 20


def test_a_wrong_one_is_an_alarm_and_the_next_kernel_meets_the_case_anew():
    wrong = Right("zeros", lambda batch, features, out, lse: batch.query.zero_())
    found = judged("sequence-1", [wrong, RIGHT[0]], 0)
    assert list(found["alarms"]) == ["zeros"] and found["asked"] == ["zeros", RIGHT[0].name]


def test_a_run_goes_on_and_one_of_another_seed_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(levels, "level", lambda name, seed=0: levels.SMOKE)
    monkeypatch.setattr(alarms, "judged", lambda name, kernels, seed: {
        "case": name, "asked": [one.name for one in kernels], "alarms": {}
    })  # fmt: skip
    assert diptych(["study", "alarms", "--out", str(tmp_path), "--runs", "60"]) == 0
    lines = (tmp_path / FOUND).read_text().splitlines()
    (tmp_path / FOUND).write_text("\n".join(lines[:3]) + "\n")
    assert diptych(["study", "alarms", "--out", str(tmp_path), "--runs", "60"]) == 0
    assert (tmp_path / FOUND).read_text().splitlines() == lines
    assert diptych(["study", "alarms", "--out", str(tmp_path), "--runs", "60", "--seed", "1"]) == 2
    assert "of another" not in capsys.readouterr().out


def test_an_alarm_is_in_the_table_and_in_the_exit_code(tmp_path, monkeypatch):
    name = RIGHT[0].name
    monkeypatch.setattr(levels, "level", lambda name, seed=0: levels.SMOKE)
    monkeypatch.setattr(alarms, "judged", lambda case, kernels, seed: {
        "case": case, "asked": [name], "alarms": {name: "call 1: W"}
    })  # fmt: skip
    assert diptych(["study", "alarms", "--out", str(tmp_path), "--runs", "60"]) == 1
    cases = [json.loads(line) for line in (tmp_path / FOUND).read_text().splitlines()[1:]]
    assert table(cases).splitlines()[-1] == f"| all |  | {len(cases)} | {len(cases)} |"
