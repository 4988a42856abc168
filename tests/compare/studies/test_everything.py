"""make gpu: parts one after another, each once, and what happens to one that was cut short."""

import dataclasses
import json
from pathlib import Path

import pytest

from common import gpus
from compare.__main__ import main as diptych
from compare.studies import everything

H200 = gpus.resolve("h200")


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the parts that were started; each ends well unless it is called broken."""
    names: list[str] = []

    def start(command: list[str]) -> int:
        folder = Path(command[command.index("--out") + 1])
        names.append(folder.name)
        (folder / "cells.jsonl").write_text("{}")
        return 3 if folder.name == "broken" else 0

    monkeypatch.setattr(everything, "_start", start)
    monkeypatch.setattr(everything.gpus, "detect", lambda: H200)
    monkeypatch.setattr(everything.doctor, "lacking", list)
    three = tuple(everything.Part(name, (), "") for name in ("first", "broken", "last"))
    monkeypatch.setattr(everything, "parts", lambda gpu: three)
    return names


def test_a_second_call_runs_what_did_not_end_well(ran: list[str], tmp_path: Path) -> None:
    assert diptych(["study", "everything", "--out", str(tmp_path)]) == 3
    assert diptych(["study", "everything", "--out", str(tmp_path)]) == 3
    assert ran == ["first", "broken", "last", "broken"]
    assert (tmp_path / "broken.1" / "cells.jsonl").exists(), "what the first attempt measured is kept"


def test_a_part_of_another_commit_is_run_again(ran: list[str], tmp_path: Path) -> None:
    diptych(["study", "everything", "--out", str(tmp_path), "--only", "first"])
    mark = tmp_path / "first" / "part.json"
    mark.write_text(json.dumps(json.loads(mark.read_text()) | {"commit": "another"}))
    diptych(["study", "everything", "--out", str(tmp_path), "--only", "first"])
    assert ran == ["first", "first"]


def test_a_part_that_left_nothing_behind_has_not_ended(ran, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(everything, "_start", lambda command: ran.append("started") or 1)
    for _ in range(2):
        assert diptych(["study", "everything", "--out", str(tmp_path), "--only", "first"]) == 1
    assert ran == ["started", "started"]


def test_a_gpu_outside_the_table_is_measured_as_auto(ran, tmp_path: Path, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(everything.gpus, "detect", lambda: dataclasses.replace(H200, name="other"))
    monkeypatch.setattr(everything, "parts", lambda gpu: asked.append(gpu) or ())
    assert diptych(["study", "everything", "--out", str(tmp_path)]) == 0 and asked == ["auto"]
