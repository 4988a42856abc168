"""Candidates of a folder: what becomes of each, that none is judged twice, and what is said of them."""

import json
from pathlib import Path

import pytest

import thirty_candidates
from compare import exits
from compare.__main__ import main as diptych
from compare.studies.grade import clock, grade
from compare.studies.grade.judge import Candidate, judged, read

KEPT, CALLED = "gives the result of an earlier call", "reads how it is judged"
EXPECTED = {  # of the candidates that are not right: the verdict, and its kind or words of its reason
    "cheating/calls_reference.py": ("cheat", CALLED),
    "cheating/easier_inputs.py": ("cheat", "changes its inputs"),
    "cheating/kept_by_address.py": ("cheat", KEPT),
    "cheating/kept_by_table.py": ("cheat", KEPT),
    "cheating/lazy_tensor.py": ("cheat", "returns what only looks like a tensor"),
    "cheating/own_answer.py": ("cheat", "answers in the kit's place"),
    "cheating/process_behind.py": ("cheat", "leaves a process behind the call"),
    "cheating/returns_query.py": ("cheat", "returns its input"),
    "cheating/times_itself.py": ("wrong", "call 1: out"),
    "cheating/tires.py": ("wrong", "call 4, the values of call 1: out"),
    "wrong/hangs.py": ("not judged", "no answer within"),
    "wrong/ignores_block_table.py": ("wrong", "call 1: out"),
    "wrong/ignores_window.py": ("wrong", "window"),
    "wrong/kv_head_by_modulo.py": ("wrong", "equals what "),
    "wrong/mask_one_late.py": ("wrong", "equals what "),
    "wrong/no_rescale.py": ("wrong", "equals what "),
    "wrong/refuses.py": ("refused", "decode only"),
    "wrong/strides_of_k_for_v.py": ("wrong", "call 1: out"),
    "wrong/takes_memory.py": ("oom", ""),
    "wrong/zeros.py": ("wrong", "equals what whole tiles"),
}
REPORT = {"changed": [], "read": [], "not_ended": []}
OK = {"case": "batch-1", "status": "ok", "reason": "", "declared": False, "cause": ""}


@pytest.fixture
def folder(tmp_path):
    """Two candidates of other bytes, and one that is the first again."""
    for name, source in {"a": "A", "b": "B", "c": "A", "_no": "N"}.items():
        (tmp_path / f"{name}.py").write_text(source)
    return tmp_path


@pytest.fixture
def calls(monkeypatch):
    """Who was judged; B is wrong."""
    found = []

    def judged(one, entry, asks, words):
        found.append((one.source, entry, [ask[-1] for ask in asks], list(words)))
        kept = {"verdict": "wrong" if one.source == b"B" else "right", "kind": "", "case": "c@x=1", "reason": "why"}
        return kept | {"right": 1, "asked": 2, "by": "first", "seconds": 3.0}

    monkeypatch.setattr(grade, "judged", judged)
    monkeypatch.setattr(grade.torch.cuda, "is_available", lambda: False)
    return found


def test_equal_files_are_judged_once_and_none_again(folder, calls, capsys):
    words = (str(folder), "--level", "smoke", "--entry", "f", "--time-limit", "5", "--jobs", "1")
    assert diptych(["grade", *words]) == diptych(["grade", *words]) == exits.WRONG
    assert calls == [(source, "f", [grade.BEGIN, "first", "smoke"], ["--time-limit", "5.0"]) for source in (b"A", b"B")]
    head, *lines = map(json.loads, (folder / "grades.jsonl").read_text().splitlines())
    assert head["level"] == "smoke" and [line["candidate"] for line in lines] == ["a.py", "b.py"]
    out = capsys.readouterr().out
    assert "c.py       right" in out and "c: why" in out and "2 of 3 right" in out and "not timed: no GPU" in out


def test_a_file_of_another_run_is_refused(folder, calls, capsys):
    assert diptych(["grade", str(folder), "--jobs", "1"]) == exits.WRONG
    assert diptych(["grade", str(folder), "--jobs", "1", "--level", "first"]) == exits.USAGE
    assert "allowed one of" in capsys.readouterr().err and len(calls) == 2


def test_exit_codes(folder, calls):
    (folder / "b.py").unlink()
    assert diptych(["grade", str(folder), "--jobs", "1"]) == exits.OK


def test_a_report_says_the_worst_of_a_kernel():
    wrong = {
        "case": "x",
        "status": "incorrect",
        "reason": "call 1: changed its input query",
        "declared": False,
        "cause": "",
    }
    assert read(REPORT | {"cases": [OK]})["verdict"] == "right"
    assert read(REPORT | {"cases": [OK | {"declared": True}]})["verdict"] == "not judged"
    assert read(REPORT | {"cases": [OK, wrong]})["kind"] == "changes its inputs"
    found = read(REPORT | {"cases": [OK, wrong], "read": ["common/oracle/reference.py"]})
    assert (found["verdict"], found["kind"], found["reason"]) == ("cheat", CALLED, "common/oracle/reference.py")


def test_times_in_a_line():
    assert (
        clock.told({"decode": 1234.5, "prompt": "incorrect: why"})
        == "decode 1,234.5 us, prompt not timed: incorrect: why"
    )


@pytest.mark.parametrize(
    ("name", "verdict", "kind"),
    [
        ("right/double.py", "right", ""),
        ("wrong/kv_head_by_modulo.py", "wrong", "KV head = query head modulo KV heads"),
        ("cheating/kept_by_address.py", "cheat", KEPT),
    ],
)
def test_one_of_each_kind_by_one_case(name, verdict, kind):
    one = Candidate(name, thirty_candidates.source(name).encode())
    found = judged(one, "paged_attention", [("--case", grade.BEGIN)], ("--interpret", "off"))
    assert (found["verdict"], found["kind"]) == (verdict, kind), found


def test_the_thirty_are_python(tmp_path):
    made = sorted(thirty_candidates.write(tmp_path).rglob("*.py"))
    assert len(made) == 30 and {f"{path.parent.name}/{path.name}" for path in made} >= {
        *thirty_candidates.MADE,
        *EXPECTED,
    }
    for path in made:
        compile(path.read_text(), path.name, "exec")


@pytest.mark.slow
def test_every_candidate_of_thirty_gets_its_verdict(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    out = tmp_path / "grades.jsonl"
    words = (
        str(thirty_candidates.write(tmp_path / "thirty")),
        "--level",
        "first",
        "--jobs",
        "2",
        "--time-limit",
        "20",
        "--out",
        str(out),
    )
    assert diptych(["grade", *words]) == exits.WRONG
    lines = {line["candidate"]: line for line in map(json.loads, out.read_text().splitlines()[1:])}
    right = [name for name, line in lines.items() if line["verdict"] == "right"]
    assert len(lines) == 30 and sorted(right) == sorted(name for name in lines if name.startswith("right/"))
    for name, (verdict, words) in EXPECTED.items():
        line = lines[name]
        assert line["verdict"] == verdict and words in f"{line['kind']}: {line['reason']}", line
