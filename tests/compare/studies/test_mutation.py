"""The mutation score: who dies of what is kept, gone on with and counted; and the score itself, which takes long."""

import argparse
import io
import json
import resource
import sys

import pytest

from common.kit import levels
from common.process import Lost
from compare.studies.mutation import score, table, worker
from compare.studies.mutation.score import PLAIN, Lives

CASES = [PLAIN, "everything-at-once", "sinks-near-the-mass"]


def lives(folder, **more):
    return Lives(folder / "deaths.jsonl", 40, 3, **more)


def asked(folder, *words):
    parser = argparse.ArgumentParser()
    score.options(parser)
    return parser.parse_args(["--out", str(folder), *words])


def test_the_dead_are_kept_and_found_again(tmp_path):
    first = lives(tmp_path)
    first.keep({"case": PLAIN, "killed": {"3": "raised NameError", "4": "call 1: W"}, "differs": [5]})
    first.close()
    again = lives(tmp_path)
    assert (again.kills, again.differ, again.done) == (first.kills, {5}, {PLAIN})
    assert 3 not in again.born and 4 in again.born and 5 in again.alive()


def test_a_folder_of_another_run_is_refused(tmp_path, capsys):
    lives(tmp_path).close()
    assert score.main(asked(tmp_path, "--count", "41", "--seed", "3", "--axes", "0")) == 2
    assert '"count": 40' in capsys.readouterr().err


def test_a_folder_that_another_process_writes_to_is_refused(tmp_path, capsys):
    lives(tmp_path)
    assert score.main(asked(tmp_path, "--count", "40", "--seed", "3", "--axes", "0")) == 2
    assert "another process is writing" in capsys.readouterr().err


def test_the_table_counts_those_that_run_and_are_not_equivalent(tmp_path):
    found = lives(tmp_path)
    found.keep({"case": PLAIN, "killed": {"0": "raised NameError", "1": "call 1"}, "differs": [2, 9]})
    found.keep({"case": "axes-400", "killed": {"2": "call 1"}, "differs": list(range(4, 40))})
    run, lines = score.found(found, {"smoke": [PLAIN], "full": [PLAIN, "axes-400", "axes-401"]})
    assert run["cases"] == {"smoke": [1, 1], "full": [2, 3]} and run["drawn"] == 40
    rows = table.table(lines, run["cases"])
    assert rows[0].endswith("| smoke | full: 2 of 3 cases |")
    assert rows[-1] == "| all by operators | 38 | 1 | 1 (2.6%) | 2 (5.3%) |"


def test_what_lives_is_told_with_what_it_dies_of_later(tmp_path):
    found = lives(tmp_path)
    found.keep({"case": PLAIN, "killed": {"1": "call 1"}, "differs": [2, 9]})
    found.keep({"case": "axes-400", "killed": {"2": "call 1"}, "differs": []})
    _, lines = score.found(found, {"smoke": [PLAIN], "full": ["axes-400"]})
    table.write(tmp_path / score.MUTANTS, {}, lines)
    kept = table.read(tmp_path / score.MUTANTS)[1]
    of_smoke, of_full = (table.survivors(kept, names) for names in (["smoke"], ["smoke", "full"]))
    assert [row.split(" | ")[0] for row in of_smoke[2:]] == ["| `axes-400`", "| differs"]
    assert [row.split(" | ")[0] for row in of_full[2:]] == ["| differs"]


def test_a_limited_one_that_is_wrong_without_its_limit_is_not_equivalent(tmp_path):
    found = lives(tmp_path)
    assert found.same == list(range(40))
    found.keep({"case": score.WHOLE + PLAIN, "killed": {"7": "call 1"}, "differs": [8]})
    assert found.apart == {7} and 7 not in found.same and 7 in found.alive() and 8 in found.same


@pytest.mark.parametrize("level", ["first", "smoke", pytest.param("full", marks=pytest.mark.slow)])
def test_every_level_begins_with_the_plain_case_and_asks_each_once(level):
    names = score.in_turn(level)
    assert names[0] == PLAIN and len(names) == len(set(names)) and set(levels.level(level)) <= set(names)


def test_a_kernel_is_asked_until_enough_cases_reject_it(tmp_path):
    found = lives(tmp_path, enough=2)
    found.keep({"case": "one", "killed": {"1": "W", "2": "W"}, "differs": []})
    found.keep({"case": "two", "killed": {"1": "W"}, "differs": []})
    assert 1 not in found.alive() and 2 in found.alive()
    assert found.by_case() == {"one": {1, 2}, "two": {1}}


def test_a_kernel_that_does_not_run_is_asked_no_more_and_counts_for_no_case(tmp_path):
    found = lives(tmp_path, enough=2)
    found.keep({"case": PLAIN, "killed": {"1": "raised NameError", "2": "W"}, "differs": []})
    assert 1 not in found.alive() and found.by_case() == {PLAIN: {2}}


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


@pytest.mark.slow
def test_the_score_chooses_from_what_it_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(score.first, "candidates", lambda: CASES)
    words = ("--count", "40", "--axes", "4", "--seed", "3", "--jobs", "1", "--first", "30")
    assert score.main(asked(tmp_path, *words)) == 0
    made = json.loads((tmp_path / score.CHOSEN).read_text())
    assert set(made["cases"]) <= set(CASES) and made["rejected"] >= 10
    assert made["rejected"] == sum(made["new_kills"].values()) == made["of_wrong_kernels_that_one_of_them_rejects"]


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
    names = score.in_turn("smoke")
    score.run(found, names, 2)
    wrong = [n for n in found.born if n in found.kills or n in found.differ]
    assert sum(n in found.kills for n in wrong) >= 0.9 * len(wrong)
