"""make gpu: parts one after another, each run into its own folder, where a run goes on."""

import argparse
from pathlib import Path

import pytest

from common import gpus
from compare.__main__ import main as diptych
from compare.plan.situation import Situation
from compare.run.options import Options, parser
from compare.studies import everything

H200 = gpus.resolve("h200")


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were started; each ends well unless its folder is called new_kv."""
    commands: list[list[str]] = []

    def start(command: list[str], check: bool) -> argparse.Namespace:
        commands.append(command[2:])
        return argparse.Namespace(returncode=3 if command[-1].endswith("new_kv") else 0)

    monkeypatch.setattr(everything.subprocess, "run", start)
    monkeypatch.setattr(everything, "situation", lambda *asked: Situation(H200, True, "cuda:0", ""))
    monkeypatch.setattr(everything.doctor, "lacking", list)
    return commands


def test_every_part_is_run_and_the_worst_code_is_returned(ran: list[list[str]], tmp_path: Path) -> None:
    assert diptych(["study", "everything", "--out", str(tmp_path)]) == 3
    assert [Path(words[-1]).name for words in ran] == [part.name for part in everything.parts("h200")]


def test_a_run_goes_on_in_its_folder(ran: list[list[str]], tmp_path: Path) -> None:
    assert diptych(["study", "everything", "--out", str(tmp_path), "--only", "peers,fig6"]) == 0
    for words in ran:
        asked = Options.of(parser().parse_args(words[2:]))
        assert asked.resume == "" and asked.out == words[-1] and asked.where.gpu == "h200"


def test_no_part_begins_behind_the_minutes(ran: list[list[str]], tmp_path: Path) -> None:
    assert diptych(["study", "everything", "--out", str(tmp_path), "--minutes", "-1"]) == 0 and not ran


def test_a_gpu_outside_the_table_is_measured_as_auto(ran: list[list[str]], tmp_path: Path, monkeypatch) -> None:
    asked, other = [], gpus.Gpu(**vars(H200) | {"name": "other"})
    monkeypatch.setattr(everything, "situation", lambda *_: Situation(other, True, "cuda:0", ""))
    monkeypatch.setattr(everything, "parts", lambda gpu: asked.append(gpu) or ())
    assert diptych(["study", "everything", "--out", str(tmp_path)]) == 0 and asked == ["auto"]


def test_an_unknown_part_is_refused(ran: list[list[str]], capsys) -> None:
    assert diptych(["study", "everything", "--only", "peer"]) == 2
    assert "--only: found peer" in capsys.readouterr().err and not ran
