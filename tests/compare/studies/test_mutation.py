"""The mutation score: who dies of what is kept, gone on with and counted; and the score itself, which takes long."""

import io
import resource
import sys

import pytest

from common.kit import levels
from common.mutants import operators
from common.process import Lost
from compare.__main__ import main as diptych
from compare.studies.mutation import score, table, worker
from compare.studies.mutation.score import PLAIN, Lives


def lives(folder, **more):
    return Lives(folder / "deaths.jsonl", 40, 3, **more)


def test_the_dead_are_kept_and_found_again(tmp_path):
    first = lives(tmp_path)
    first.add({"case": PLAIN, "killed": {"3": "raised NameError", "4": "call 1: W"}, "differs": [5]})
    first.close()
    again = lives(tmp_path)
    assert (again.kills, again.differ, again.done) == (first.kills, {5}, {PLAIN})
    assert 5 in again.alive()


def test_a_folder_of_another_run_is_refused(tmp_path, capsys):
    lives(tmp_path).close()
    assert diptych(["study", "mutation", "--out", str(tmp_path), "--count", "41", "--seed", "3", "--axes", "0"]) == 2
    assert '"count": 40' in capsys.readouterr().err


def test_a_folder_that_another_process_writes_to_is_refused(tmp_path, capsys):
    lives(tmp_path)
    assert diptych(["study", "mutation", "--out", str(tmp_path), "--count", "40", "--seed", "3", "--axes", "0"]) == 2
    assert "another process is writing" in capsys.readouterr().err


def test_the_table_counts_those_that_run_and_are_not_equivalent(tmp_path):
    found = lives(tmp_path)
    found.add({"case": PLAIN, "killed": {"0": "raised NameError", "1": "call 1"}, "differs": [2, 9]})
    found.add({"case": "axes-400", "killed": {"2": "call 1"}, "differs": list(range(4, 40))})
    run, lines = score.found(found, {"smoke": [PLAIN], "full": [PLAIN, "axes-400", "axes-401"]})
    assert run["cases"] == {"smoke": [1, 1], "full": [2, 3]} and run["drawn"] == 40
    rows = table.table(lines, run["cases"]).splitlines()
    assert rows[0].endswith("| smoke | full: 2 of 3 cases |")
    assert rows[-1] == "| all by operators | 38 | 1 | 1 (2.6%) | 2 (5.3%) |"


def test_what_lives_is_told_with_what_it_dies_of_later(tmp_path):
    found = lives(tmp_path)
    found.add({"case": PLAIN, "killed": {"1": "call 1"}, "differs": [2, 9]})
    found.add({"case": "axes-400", "killed": {"2": "call 1"}, "differs": []})
    _, lines = score.found(found, {"smoke": [PLAIN], "full": ["axes-400"]})
    table.write(tmp_path / score.MUTANTS, {}, lines)
    kept = table.read(tmp_path / score.MUTANTS)[1]
    of_smoke, of_full = (table.survivors(kept, names) for names in (["smoke"], ["smoke", "full"]))
    assert [row.split(" | ")[0] for row in of_smoke.splitlines()[2:]] == ["| `axes-400`", "| differs"]
    assert [row.split(" | ")[0] for row in of_full.splitlines()[2:]] == ["| differs"]


def test_a_limited_one_that_is_wrong_without_its_limit_is_not_equivalent(tmp_path):
    found = lives(tmp_path)
    assert found.same == list(range(40))
    found.add({"case": score.WHOLE + PLAIN, "killed": {"7": "call 1"}, "differs": [8]})
    assert found.apart == {7} and 7 not in found.same and 7 in found.alive() and 8 in found.same


def test_one_that_sums_in_another_order_alone_is_equivalent(tmp_path):
    found = lives(tmp_path)
    found.add({"case": PLAIN, "killed": {"1": "call 1"}, "differs": [2, 9]})
    found.add({"case": score.EXACT + PLAIN, "killed": {"9": "other out in float64"}, "differs": []})
    _, lines = score.found(found, {"smoke": [PLAIN]})
    assert found.reordered == [2]
    assert [line["lives"] for line in lines if "lives" in line and line["lives"] != table.SAME] == [
        table.ORDER, table.DIFFERS,
    ]  # fmt: skip


@pytest.mark.parametrize("level", ["first", "smoke", pytest.param("full", marks=pytest.mark.slow)])
def test_every_level_begins_with_the_plain_case_and_asks_each_once(level):
    names = score.in_turn(level)
    assert names[0] == PLAIN and len(names) == len(set(names)) and set(levels.level(level)) <= set(names)


def test_a_worker_that_ends_before_the_first_kernel_is_told_with_its_case(tmp_path, monkeypatch):
    command = [sys.executable, "-c", "input(); raise ValueError('no such batch')"]
    monkeypatch.setattr(score.children, "command", lambda child: command)
    with pytest.raises(Lost, match=f"{PLAIN}: .*exited with 1: ValueError: no such batch"):
        score.run(lives(tmp_path), [PLAIN], 1)


SEGMENTS = "max(1, -(-tiles // at.schedule.segments))"


@pytest.mark.parametrize(
    ("before", "after", "wrong"),
    [
        (SEGMENTS, "1", False),  # another cut of the keys
        ("schedule or Schedule()", "Schedule()", False),  # other tiles, and P's default type
        ("state.l * fade + p.sum(-1)", "state.l * fade + p.half().float().sum(-1)", True),
        ("rows / at.features.out_scale", "1.0001 * rows / at.features.out_scale", True),
    ],
)
def test_in_float64_all_but_another_order_of_sums_shows(before, after, wrong):
    source = operators.SOURCE.read_text(encoding="utf-8")
    assert before in source
    kernel = operators.Made("planted", "planted", 0, "", source.replace(before, after))
    case = worker.asked("window-page@out_dtype=float8_e4m3fn@lens=1/300.3/200@sliding_window=200")
    assert bool(worker.apart(case, kernel)[1]) is wrong


def test_a_worker_has_its_memory_beyond_what_its_imports_took(monkeypatch):
    limits = {}
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limit: limits.update({kind: limit[0]}))
    monkeypatch.setattr(worker.signal, "signal", lambda *_: None)
    monkeypatch.setattr(worker.torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    worker.main()
    assert limits[resource.RLIMIT_AS] > worker.MEMORY
