"""docs/paper.md: fresh, whole, and every command in it is understood."""

import dataclasses
import json
import re
import shlex

import pytest

import synthetic_figures
from common.gpus import resolve
from compare.pages import paper
from compare.pages.paper import MEASURES, Runs, speeds
from compare.plan import selection, situation
from compare.run import options

_, GROUPS = paper.rows()
ITEMS = [item for group in GROUPS for item in group.items]
HERE = situation.Situation(resolve("h200"), True, "cuda:0", "")


def test_every_row_of_the_checklist_is_there_once():
    assert sorted(int(item.id[1:]) for item in ITEMS) == list(range(1, 32))
    assert set(MEASURES) <= {item.id for item in ITEMS}


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.id)
def test_a_row_has_a_figure_an_explanation_or_what_is_open(item):
    assert item.theirs.endswith(".") and (item.here or item.open or item.id in MEASURES)
    assert item.id in MEASURES or item.open or item.here
    assert item.command or item.id not in MEASURES, "a measured row says how to repeat it"


@pytest.mark.parametrize("command", sorted({item.command for item in ITEMS if "compare.run" in item.command}))
def test_commands_select_rows_and_kernels(command):
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "compare.run"]
    rows = options.parse(words[3:]).rows
    if rows.trace is None:
        chosen = selection.selection(rows, HERE)
        assert chosen.workloads and chosen.kernels


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Invented runs of all four figures."""
    folder = tmp_path_factory.mktemp("h200")
    for name in ("fig6", "fig7", "fig8", "fig9"):
        synthetic_figures.run(folder / name, name)
    return Runs(folder)


@pytest.mark.parametrize("item", ["E4", "E8", "E9", "E13", "E14", "E15", "E16", "E31"])
def test_a_committed_run_fills_its_rows(runs, item, tmp_path):
    assert re.search(r"\d", MEASURES[item](runs))
    assert MEASURES[item](Runs(tmp_path)) is None, "nothing is said without the run"


def test_a_speed_is_the_others_time_over_the_kernels_own(runs):
    """The invented adjustable_tile takes the floor times 1.8 on prompts; with tiles of a page q_block 2 times 1.6."""
    said = speeds("fig7", "*/adjustable_tile", "*/q_block@page", lambda p: p.share == 0, "rows of prompts")(runs)
    assert "(2 rows of prompts of fig7)" in said  # a tile cannot be a page of 544
    triton = float(re.search(r"`triton/adjustable_tile` ([\d.]+)×", said)[1])
    assert triton == pytest.approx(2.0 * 1.6 / 1.8, rel=0.02)


def test_rows_without_a_pair_are_not_counted(runs):
    found = runs.points("fig7")
    tiled = {p.load.id for p in found if p.kernel == "triton/adjustable_tile"}
    paired = tiled & {p.load.id for p in found if p.kernel == "triton/q_block@page"}
    said = speeds("fig7", "triton/adjustable_tile", "triton/q_block@page")(runs)
    assert len(paired) < len({p.load.id for p in found}) and f"({len(paired)} rows of fig7)" in said


def test_the_state_of_a_row_follows_from_its_fields():
    measured = next(item for item in ITEMS if item.id == "E13")
    assert measured.state("1×") == "measured" and measured.state(None) == "not measured yet"
    assert dataclasses.replace(measured, open="why").state("1×") == "measured, in part"
    assert dataclasses.replace(measured, id="E99").state(None) == "in the code"
    assert dataclasses.replace(measured, id="E99", open="why").state(None) == "open"


def test_what_tuning_cost_is_read_from_the_costs(tmp_path):
    row = {
        "cost": "tuning",
        "kernel": "triton/q_block",
        "arm": "triton",
        "status": "ok",
        "run": "tune",
        "spent_s": 300.0,
    }
    rows = [row | {"to_95%_s": 40.0}, row | {"kernel": "triton/naive", "to_95%_s": None}]
    (tmp_path / "costs").mkdir()
    (tmp_path / "costs" / "costs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert MEASURES["E10"](Runs(tmp_path)).startswith(
        "to 95% of the best known: triton: 1 of 2 kernels after 40 to 40 s"
    )
    rows = [row | {"to_95%_s": 0.0, "untuned": 0.96}, row | {"kernel": "triton/naive", "to_95%_s": 9.0, "untuned": 0.9}]
    (tmp_path / "costs" / "costs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert MEASURES["E10"](Runs(tmp_path)) == (
        "to 95% of the best known: triton: 2 of 2 kernels after 0 to 9 s, 300 s spent, 90% to 96% untuned (costs)"
    )
