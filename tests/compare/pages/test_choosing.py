"""docs/choosing-a-dsl.md: its figures are what the committed runs say, and every block says how to measure it."""

import json

import pytest

import synthetic_run
from compare.__main__ import main as diptych
from compare.pages import choosing
from compare.pages.choosing import BLOCKS, Committed

EMPTY = "".join(f"<!-- evidence: {name} -->\n<!-- end -->\n" for name in BLOCKS)


@pytest.fixture
def results(tmp_path):
    """A GPU's folder with one invented run, in which Helion is slower by a known factor."""
    synthetic_run.timed_run(tmp_path / "h200" / "peers")
    return tmp_path / "h200"


def test_the_page_is_what_the_committed_runs_say():
    """`python -m compare pages choosing --write` makes it so."""
    assert diptych(["pages", "choosing"]) == 0


def test_every_block_of_the_page_has_a_function_and_every_function_a_block():
    named = [found["name"] for found in choosing.BLOCK.finditer(choosing.PAGE.read_text(encoding="utf-8"))]
    assert sorted(named) == sorted(BLOCKS)


@pytest.mark.parametrize("name", BLOCKS)
def test_what_was_not_measured_says_how(name, tmp_path, monkeypatch):
    monkeypatch.setattr(choosing.capability, "RESULTS", tmp_path / "none")
    assert BLOCKS[name](Committed(tmp_path, ())).startswith("*Not measured yet.* `")


def test_the_ratios_are_those_of_the_rows(results):
    said = choosing.speed(Committed(results, ("peers",)))
    expected = synthetic_run.SPEED["triton/q_block"] / synthetic_run.SPEED["helion/q_block"]
    (line,) = [line for line in said.splitlines() if line.startswith("| `q_block`")]
    assert f"| {expected:.3f} [" in line and f"{expected:.2f} to {expected:.2f}" in line


@pytest.mark.slow
def test_the_first_block_keeps_the_names_of_the_runs(results):
    page = choosing.render(EMPTY.replace("speed -->", "speed peers -->"), results)
    assert page.startswith("<!-- evidence: speed peers -->\n")
    assert choosing.render(page, results) == page


def test_costs_stand_in_the_page_with_what_ran_them(tmp_path):
    row = {"cost": "compile", "kernel": "triton/naive", "state": "cold", "status": "ok", "ran_on": "a CPU, 2 cores"}
    row |= {f"{step}_cpu_s": 1.5 for step in ("import", "first", "next")}
    (tmp_path / "costs").mkdir()
    (tmp_path / "costs" / "costs.jsonl").write_text(json.dumps(row) + "\n")
    said = choosing.compiling(Committed(tmp_path, ()))
    assert "a CPU, 2 cores" in said and "| triton, cold | 1.50 | 1.50 | 1.50 | 1 |" in said


def test_a_broken_run_is_a_usage_error(results, tmp_path, monkeypatch, capsys):
    (results / "peers" / "manifest.json").write_text("[]")
    page = tmp_path / "page.md"
    page.write_text(EMPTY.replace("speed -->", "speed peers -->", 1))
    monkeypatch.setattr(choosing, "PAGE", page)
    monkeypatch.setattr(choosing, "RESULTS", results)
    assert diptych(["pages", "choosing"]) == 2
    assert "peers" in capsys.readouterr().err
