"""What a verdict costs: a line a kernel and level is kept, the last counts, and a part stands for the whole."""

import argparse
import json

import pytest

from compare.studies import checking


def asked(path, *words):
    parser = argparse.ArgumentParser()
    checking.options(parser)
    return parser.parse_args(["--out", str(path), *words])


@pytest.fixture
def calls(monkeypatch):
    """What the command was called with; each case takes two seconds, and to begin five."""
    found = []

    def once(kernel, cases):
        found.append((kernel, list(cases)))
        return {"processor_s": 5.0 + 2.0 * len(cases), "judged": len(cases), "right": kernel != "wrong"}

    monkeypatch.setattr(checking, "once", once)
    monkeypatch.setattr(checking.levels, "level", lambda name: [f"{name}-{number}" for number in range(20)])
    return found


def test_every_fifth_case_stands_for_five_beside_the_start(calls):
    line = checking.measured("mine", "smoke", 5)
    assert (line["processor_s"], line["asked"], line["cases"]) == (7 + 5 * 6, 4, 20)
    assert [len(cases) for _, cases in calls] == [4, 1]


def test_the_last_line_of_a_kernel_and_level_counts(calls, tmp_path, capsys):
    path = tmp_path / "times.jsonl"
    assert checking.main(asked(path, "--only", "torch", "--level", "first", "--share", "4")) == 0
    assert checking.main(asked(path, "--only", "torch", "--level", "first")) == 0
    assert [row["asked"] for row in checking.rows(path)] == [20] and len(path.read_text().splitlines()) == 2
    assert "| a torch callable | 45 s | not measured |" in capsys.readouterr().out


def test_a_wrong_verdict_is_told(calls, tmp_path, monkeypatch):
    monkeypatch.setitem(checking.KERNELS, "torch", ("a torch callable", "wrong"))
    assert checking.main(asked(tmp_path / "times.jsonl", "--only", "torch", "--level", "first")) == 1


def test_a_part_is_told_as_a_part():
    line = {"kind": "triton", "level": "smoke", "processor_s": 4200, "asked": 50, "cases": 493}
    assert "about 4,200 s, by 50 of 493 cases" in checking.table([line])[3]


def test_the_committed_times_are_of_right_kernels():
    from compare.pages.conformance import TIMES

    lines = [json.loads(line) for line in TIMES.read_text(encoding="utf-8").splitlines()]
    assert {line["level"] for line in lines} <= set(checking.LEVELS) and all(line["right"] for line in lines)
