"""What a run of the kit says at its end: the verdict first, and what it stands on."""

import hashlib
import json
import os
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import diptych_check
from common import conformance
from common.conformance import Summary
from common.kit.declared import Declared
from common.kit.isolate import Isolated, Noted, plain
from common.kit.kit import Kit, Result
from common.kit.own_files import OwnFiles
from common.spec.precision import Precision

ROOT = Path(__file__).parents[3]
PLAIN = Declared("paged", frozenset({"causal", "lse", "alibi", "sinks"}), {}, Precision(), True)


def summary_of(results, declared=PLAIN, report=None):
    said = []
    kit = Kit("somebody:kernel", 3, Isolated(), _declared=declared)
    kit.child.not_isolated = ""
    made = Summary(kit, report, 43, said.append)
    for result in results:
        made.add(result)
    return made, said


OK = [Result("batch-1", "ok"), Result("keys-4500", "ok"), Result("page-24", "unsupported", "LIMITS", declared=True)]


def test_ok_names_what_was_asked_and_warns_of_what_was_not():
    lines = summary_of(OK)[0].lines()
    assert lines[0] == "right in all 2 cases that were asked"
    assert "asked in 2 cases: causal 2, lse 2" in lines
    assert any("keys 30 to 4500" in line and line.startswith("of ") for line in lines)
    assert "warning: declared and not asked: alibi, sinks" in lines


def test_a_weaker_contract_stands_in_the_verdict():
    declared = replace(PLAIN, contract=Precision(dot="tf32", tanh="fast"))
    made = summary_of(OK, declared)[0]
    assert made.lines()[0].endswith("under a precision weaker than the default: dot tf32, tanh fast")
    assert made.to_dict()["weaker_than_default"] == {"dot": "tf32", "tanh": "fast"}


def test_a_failure_comes_first_in_less_than_200_characters():
    wrong = Result("batch-1", "incorrect", "call 1: " + "out: found nan " * 40, repro="diptych-check x --case batch-1")
    first = summary_of([*OK, wrong])[0].lines()[0]
    assert first.startswith("WRONG in 1 of 3 cases; batch-1: call 1: out: found nan") and len(first) < 200


LATE = Result("page-24", "timeout", "call 1: no answer within 60 s", repro="diptych-check x --case page-24")


def test_no_answer_in_time_is_no_verdict(tmp_path):
    made, said = summary_of([*OK, LATE], report=str(tmp_path / "report.json"))
    made.close()
    assert not LATE.failed and not LATE.judged
    assert made.lines()[0] == "right in 2 of 3 cases; 1 NOT JUDGED: no answer in time"
    assert any(
        line.startswith("warning: no answer in time in 1 cases, which --strict lets fail") for line in made.lines()
    )
    assert said == ["not judged  page-24: call 1: no answer within 60 s", "    diptych-check x --case page-24"]
    assert json.loads((tmp_path / "report.json").read_text())["not_judged"] == ["page-24"]


def test_a_kernel_that_never_answers_is_not_right_and_not_asked_for_ever():
    made, _ = summary_of([LATE] * 4)
    assert not made.hopeless and made.lines()[0] == "nothing was judged: no answer came in time in any of 4 cases"
    made.add(LATE)
    assert made.hopeless
    assert not summary_of([*OK, *[LATE] * 9])[0].hopeless


def test_a_failure_is_told_before_a_smaller_case_is_looked_for():
    wrong = Result("batch-1", "incorrect", "call 1: out: found nan", repro="diptych-check x --case batch-1")
    made, said = summary_of([wrong])
    assert said == ["incorrect  batch-1: call 1: out: found nan", "    diptych-check x --case batch-1"]
    made.kit.smallest = lambda case: (said.append(case), replace(wrong, case="batch-1@lens=1/1"))[1]
    made.close()
    assert said[2].startswith("looking for a smaller case than batch-1") and said[3] == "batch-1"
    assert made.smallest.case == "batch-1@lens=1/1"


def test_a_kernel_that_is_not_isolated_is_told_so_in_the_verdict_and_in_the_report():
    made = summary_of(OK)[0]
    made.kit.child.not_isolated = "without root"
    assert made.lines()[0] == "right in all 2 cases that were asked; not isolated: without root"
    made.add(LATE)
    assert made.lines()[0].endswith("NOT JUDGED: no answer in time; not isolated: without root")
    assert (made.to_dict()["isolated"], made.to_dict()["not_isolated"]) == (False, "without root")


@pytest.mark.parametrize(
    ("noted", "said"),
    [
        (Noted(read={"common/oracle/reference.py"}), "the kernel read how it is judged: nothing below counts: common"),
        (Noted(unended=[7, 8]), "processes of the kernel could not be ended: nothing below counts: 7, 8"),
    ],
)
def test_what_spoils_a_run_is_its_verdict(noted, said):
    made = summary_of(OK)[0]
    made.kit.child.noted = noted
    assert made.lines()[0].startswith(said) and made.to_dict()["tampered"]


def test_nothing_asked_is_not_right():
    assert summary_of(OK[2:])[0].lines()[0] == conformance.NOTHING


def test_the_report_has_what_the_terminal_has(tmp_path):
    made, _ = summary_of(OK, report=str(tmp_path / "report.json"))
    made.close()
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["asked"]["features"] == {"causal": 2, "lse": 2} and found["asked"]["sizes"]["keys"] == [30, 4500]
    assert found["declared_and_not_asked"] == ["alibi", "sinks"] and found["weaker_than_default"] == {}
    assert (found["tampered"], found["changed"], found["isolated"]) == (False, [], True)
    digest = hashlib.sha256((tmp_path / "report.json").read_bytes()).hexdigest()
    assert made.lines()[-1] == f"report: {tmp_path / 'report.json'}, sha256 {digest}"


def test_a_library_that_changes_is_named(tmp_path):
    (tmp_path / "common").mkdir()
    library, module = tmp_path / "library.so", tmp_path / "module.py"
    for path in (library, module):
        path.write_text("1")
    own = OwnFiles(tmp_path / "common", [library, module])
    assert own.changed() == []
    library.write_text("22")
    module.unlink()
    assert own.changed() == ["library.so", "module.py"]


def test_progress_is_told_at_times(monkeypatch):
    monkeypatch.setattr(conformance, "TELL_S", 0.0)
    _, said = summary_of(OK[:2])
    assert [line.split(";")[0] for line in said] == ["1 of 43 cases, 0 wrong", "2 of 43 cases, 0 wrong"]


@pytest.mark.parametrize("said", ["a\x1b[31m\nb\ud800", 7, None, ["x"], "y" * 5000])
def test_what_a_child_says_is_one_line_that_can_be_printed(said):
    found = plain(said)
    assert found.isprintable() and len(found) <= 500 and found.encode("utf-8")


def compiled(folder: Path, source: str, text: str) -> Path:
    """Code of `text` where Python looks for that of `source`."""
    import importlib.util
    import marshal

    path = Path(importlib.util.cache_from_source(str(folder / source)))
    path.parent.mkdir(exist_ok=True)
    header = importlib.util.MAGIC_NUMBER + struct.pack("<III", 0, 0, 0)
    path.write_bytes(header + marshal.dumps(compile(text, str(folder / source), "exec", dont_inherit=True)))
    return path


def test_compiled_code_counts_by_what_it_says(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "pycache_prefix", None)
    common = tmp_path / "common"
    common.mkdir()
    (common / "a.py").write_text("X = 1\n")
    own = OwnFiles(common)
    assert own.changed() == []
    path = compiled(common, "a.py", "X = 1\n")
    assert own.changed() == []  # another process imported it
    compiled(common, "a.py", "X = 2\n")
    assert own.changed() == [str(path.relative_to(tmp_path))]
    path.write_bytes(path.read_bytes()[:-1])
    assert own.changed() == [str(path.relative_to(tmp_path))]
    path.write_bytes(b"junk")  # Python looks at its first bytes, and reads the source
    assert own.changed() == []
    path.unlink()
    (common / "b.py").write_text("")
    (common / "a.py").write_text("X = 2\n")
    assert own.changed() == ["common/a.py", "common/b.py"]


MISUSED = {
    "--case=tree-of-8@tree=1.0": "--case: found tree=(1, 0), allowed of each token the parent",
    "--case=window-page@sliding_window=0": "--case: found sliding_window",
    "--supports=alibbi": "--supports: found 'alibbi'",
    "--report=nowhere/report.json": "a file that can be written",
    "--limits=nowhere.json": "--limits: found nowhere.json: No such file",
    "--limits=.": "--limits: found ., which is no regular file",
    "--case=axes-99999": "--case: found 'axes-99999'",  # at once: to count the cases of `full` takes a while
    "--limits=/dev/zero": "--limits: found",
    "--case=batch-1 --level=smoke": "--level: found 'smoke' beside --case",
    "--list --report=r.json": "--report: found 'r.json' beside --list",
    "--level=most": "--level: found 'most', allowed first, smoke, full",
    "--device=cuda": "torch finds no GPU here; allowed cpu",
    "--device=tpu": "--device: found 'tpu'",
    "--adapter=x": "--adapter: found 'x'",
}


def asked(*words):
    return diptych_check.parser().parse_args(["kit_callables:right", *words])


@pytest.mark.parametrize("word", MISUSED)
def test_an_option_that_cannot_be_meant_is_told_by_its_name(word, monkeypatch):
    monkeypatch.setattr(conformance.torch.cuda, "is_available", lambda: False)
    assert MISUSED[word] in conformance._misused(asked(*word.split()))


def test_options_that_can_be_meant_are():
    words = ("--supports= causal, lse,", "--case=batch-1@dtype=float16", "--device=cpu", "--seed=random", "--list")
    assert conformance._misused(asked(*words)) == ""
    assert conformance._outside(asked(*words)) == {"supports": ["causal", "lse"]}


@pytest.mark.parametrize(
    ("results", "code"),
    [(OK, 0), (OK[2:], 5), ([*OK, replace(LATE, status="incorrect")], 1), ([*OK, LATE], 0), ([LATE], 5)],
)
def test_the_exit_code_is_the_verdicts(results, code):
    assert summary_of(results)[0].code == code


def test_strict_fails_a_run_with_a_case_that_was_not_judged_and_a_spoiled_one_fails_anyway():
    made = summary_of([*OK, LATE])[0]
    made.strict = True
    assert made.code == 1
    made = summary_of(OK)[0]
    made.kit.child.noted = Noted(unended=[7])
    assert made.code == 1


class Asked:
    """Lanes whose cases end as they are called, one with an error of the kit."""

    def result(self, case):
        if case == "kit":
            raise RuntimeError("an error of the kit")
        return Result(case, case)


def test_an_error_of_the_kit_is_printed_and_the_other_cases_are_asked(capsys):
    made, _ = summary_of([])
    assert not conformance._judge(made, Asked(), ["ok", "kit", "incorrect", "ok"], exitfirst=False)
    assert [one.case for one in made.results] == ["ok", "incorrect", "ok"]
    assert "an error of the kit" in capsys.readouterr().err
    made, _ = summary_of([])
    assert conformance._judge(made, Asked(), ["ok", "incorrect", "ok"], exitfirst=True) and len(made.results) == 2


def command(folder, *words):
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    line = [sys.executable, str(ROOT / "diptych_check.py"), *words]
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def test_a_list_of_cases_is_their_names(tmp_path):
    done = command(tmp_path, "kit_callables:right", "--list", "--case", "batch-1", "--case", "page-24")
    assert (done.returncode, done.stdout.startswith("batch-1\npage-24\n")) == (0, True), done.stdout


def test_what_cannot_be_asked_is_one_line(tmp_path):
    done = command(tmp_path, "my_package:my_kernel")
    assert (done.returncode, done.stdout.strip()) == (2, ""), done.stdout + done.stderr
    said = "diptych-check: kernel: found my_package:my_kernel, which does not load: ModuleNotFoundError"
    assert done.stderr.startswith(said) and len(done.stderr.splitlines()) == 1


NUMBERS = {
    diptych_check.seconds: (["nan", "inf", "-inf", "0", "-1", "1e400", "１２", "", "x", "4e7"], ["1", "0.5", "1e3"]),
    diptych_check.processes: (["0", "-1", "65", "1.5", "", "x", "１"], ["1", "64"]),
    diptych_check.seed: (["-1", "1.5", "9223372036854775808", "１２", "", "nan", "²"], ["0", "9223372036854775807"]),
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_a_number_that_means_nothing_is_refused(kind):
    wrong, right = NUMBERS[kind]
    for text in wrong:
        with pytest.raises(diptych_check.argparse.ArgumentTypeError, match="found"):
            kind(text)
    assert all(kind(text) >= 0 for text in right)
    assert diptych_check.seed("random") == "random"
