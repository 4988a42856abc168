"""The mutation score: who dies of what is kept, gone on with and counted; and the score itself, which takes long."""

import argparse
import io
import json
import resource
import sys

import pytest

from common.mutants.operators import made
from common.process import Lost
from compare.studies.mutation import score, worker
from compare.studies.mutation.score import PLAIN, Lives, table

CASES = [PLAIN, "everything-at-once", "sinks-near-the-mass"]


def lives(folder):
    found = Lives(folder / "deaths.jsonl", 40, 3)
    assert found.load()
    return found


def asked(folder, *words):
    parser = argparse.ArgumentParser()
    score.options(parser)
    return parser.parse_args(["--out", str(folder), *words])


def test_the_dead_are_kept_and_found_again(tmp_path):
    first = lives(tmp_path)
    first.keep({"case": PLAIN, "killed": {"3": "raised NameError", "4": "call 1: W"}, "differs": [5]})
    again = lives(tmp_path)
    assert (again.kills, again.differ, again.done) == (first.kills, {5}, {PLAIN})
    assert 3 not in again.born and 4 in again.born and 5 in again.alive()


def test_a_folder_of_another_run_is_refused(tmp_path, capsys):
    lives(tmp_path)
    assert score.main(asked(tmp_path, "--count", "41", "--seed", "3", "--axes", "0")) == 2
    assert "of another run" in capsys.readouterr().err


def test_the_table_counts_those_that_run_and_are_not_equivalent(tmp_path):
    found, kernels = lives(tmp_path), made(40, 3)
    found.keep({"case": PLAIN, "killed": {"0": "raised NameError", "1": "call 1"}, "differs": [2, 9]})
    found.keep({"case": "axes-400", "killed": {"2": "call 1"}, "differs": list(range(4, 40))})
    cases = {"smoke": {PLAIN}, "full": {PLAIN, "axes-400"}}
    assert table(found, kernels, cases)[-1] == "| all by operators | 38 | 1 | 1 (2.6%) | 2 (5.3%) |"


def test_a_limited_one_that_is_wrong_without_its_limit_is_not_equivalent(tmp_path):
    found = lives(tmp_path)
    assert found.same == list(range(40))
    found.keep({"case": score.WHOLE + PLAIN, "killed": {"7": "call 1"}, "differs": [8]})
    assert found.apart == {7} and 7 not in found.same and 7 in found.alive() and 8 in found.same


def test_every_level_begins_with_the_plain_case_and_asks_each_once():
    for level in ("smoke", "full"):
        names = score.in_turn(level)
        assert names[0] == PLAIN and len(names) == len(set(names)) and names[1].startswith("drawn-")


def test_the_best_cases_reject_most_a_second_of_what_is_left(tmp_path):
    found = lives(tmp_path)
    found.keep({"case": "dear", "seconds": 9.0, "killed": {str(n): "W" for n in range(9)}, "differs": []})
    found.keep({"case": "cheap", "seconds": 0.1, "killed": {"1": "W", "2": "W"}, "differs": []})
    found.keep({"case": "in vain", "seconds": 0.1, "killed": {"1": "W"}, "differs": []})
    assert score.best(found, 5) == [("cheap", 2, 0.1), ("dear", 7, 9.0)]


@pytest.mark.slow
def test_workers_reject_wrong_kernels_and_a_second_call_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(score, "in_turn", lambda level, draw: CASES)
    assert score.main(asked(tmp_path, "--count", "40", "--axes", "4", "--seed", "3", "--jobs", "1")) == 0
    first = [json.loads(line) for line in (tmp_path / score.DEATHS).read_text().splitlines()]
    asked_of = [line.get("case") for line in first[1:]]
    assert asked_of == [*CASES, *(score.WHOLE + name for name in CASES)]
    assert sum(len(line["killed"]) for line in first[1:4]) >= 10
    assert "| all by axes |" in capsys.readouterr().out
    monkeypatch.setattr(Lives, "keep", lambda lives, found: pytest.fail("a case is asked again"))
    assert score.main(asked(tmp_path, "--count", "40", "--axes", "4", "--seed", "3")) == 0


def test_a_worker_that_ends_before_the_first_kernel_is_told_with_its_case(tmp_path, monkeypatch):
    command = [sys.executable, "-c", "input(); raise ValueError('no such batch')"]
    monkeypatch.setattr(score.children, "command", lambda child: command)
    with pytest.raises(Lost, match=f"{PLAIN}: .*exited with 1: ValueError: no such batch"):
        score.run(lives(tmp_path), [PLAIN], 1)


def test_a_worker_has_its_memory_beyond_what_its_imports_took(monkeypatch):
    limits = {}
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limit: limits.update({kind: limit[0]}))
    monkeypatch.setattr(worker.signal, "signal", lambda *_: None)
    monkeypatch.setattr(worker.torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    worker.main()
    assert limits[resource.RLIMIT_AS] > worker.MEMORY


@pytest.mark.slow
def test_the_score_at_smoke(tmp_path):
    """Of a sample that no case was chosen for; survivors may be equivalent, so that this is a lower bound."""
    found = Lives(tmp_path / "deaths.jsonl", 200, 77)
    assert found.load()
    names = score.in_turn("smoke")
    score.run(found, names, 2)
    wrong = [n for n in found.born if n in found.kills or n in found.differ]
    assert sum(n in found.kills for n in wrong) >= 0.9 * len(wrong)
