"""The map of the rooms in docs/index.md is what the imports are."""

import importlib.util
import re
from pathlib import Path

import pytest

from goldens import table

ROOT = Path(__file__).parents[2]
UNPINNED = table.unpinned("matplotlib")


@pytest.fixture(scope="module")
def rooms():
    spec = importlib.util.spec_from_file_location("rooms", ROOT / "docs" / "rooms.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(bool(UNPINNED), reason=UNPINNED)
def test_the_map_is_drawn_from_the_imports_of_today(rooms):
    assert rooms.picture() == rooms.PICTURE.read_text(encoding="utf-8"), "python docs/rooms.py"


def test_every_room_is_on_the_map_below_all_that_import_it(rooms):
    below = rooms.graph()
    floor = rooms.floors(below)
    assert set(below) == set(rooms.ROOMS) - rooms.LEFT_OUT
    assert all(floor[room] > floor[other] for room, under in below.items() for other in under)


def test_an_arrow_is_left_out_only_where_others_lead_there(rooms):
    below = {"a": {"b", "c"}, "b": {"c"}, "c": set()}
    assert rooms.plain(below) == {"a": {"b"}, "b": {"c"}, "c": set()}


def test_a_circle_is_refused(rooms):
    with pytest.raises(SystemExit, match="a circle"):
        rooms.floors({"a": {"b"}, "b": {"a"}})


def test_the_index_names_every_room_and_answers_ten_questions(rooms):
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert {room for room in rooms.ROOMS if f"`{room}`" not in text} <= rooms.LEFT_OUT | {"dsl_triton", "dsl_helion"}
    questions = text.split("## Where is it decided that ...?")[1].split("\n## ")[0]
    answers = [line for line in questions.splitlines() if re.match(r"\| (?!that \.\.\.).*\[`", line)]
    assert len(answers) >= 10
