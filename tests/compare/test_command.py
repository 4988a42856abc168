"""The one command: what it lists, whom it imports, and what it says to a name that it does not know."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from compare import __main__ as command
from compare import exits
from compare.process.children import CHILDREN

ROOT = Path(__file__).parents[2]
STUDIES, PAGES = (command.constant(command.VERBS[verb], "NAMED") for verb in ("study", "pages"))
# The words of everything that has options of its own.
NAMES = [
    *([verb] for verb in command.VERBS if verb not in ("study", "pages")),
    *(["study", name] for name in STUDIES),
    *(["pages", name] for name in PAGES),
]


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, str]:
    """What a list says of each name."""
    assert command.main(words) == exits.OK
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    return dict(line.split(None, 1) for line in lines)


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]], ids=" ".join)
def test_it_lists_its_verbs_with_a_line_each(words, capsys):
    assert list(listed(capsys, *words)) == [
        "run", "report", "diff", "merge", "tune", "explain", "doctor", "pack", "grade", "exchange", "census",
        "history", "bisect", "fleet", "study", "pages",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "names"), [(["study"], STUDIES), (["study", "--help"], STUDIES), (["pages", "--help"], PAGES)], ids=str
)
def test_a_table_lists_its_names_with_a_line_each(words, names, capsys):
    assert list(listed(capsys, *words)) == list(names)


@pytest.mark.parametrize("words", [["--help"], ["study"], ["pages", "--help"], ["reprot"]], ids=" ".join)
def test_a_list_waits_for_no_torch(words):
    """It is printed by a process that imports little: torch alone takes seconds."""
    code = f"import sys; from compare import __main__ as it; it.main({words}); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", NAMES, ids=" ".join)
def test_every_help_has_an_example_and_exit_codes(words, capsys):
    with pytest.raises(SystemExit) as left:
        command.main([*words, "--help"])
    told = capsys.readouterr().out
    _, _, behind = told.partition("xample")
    assert left.value.code == exits.OK
    assert f"python -m compare{'.' if words == ['run'] else ' '}{' '.join(words)}" in behind
    assert "Exit codes: 0" in " ".join(told.split()) or words[0] == "pages"


def test_a_name_like_none_is_refused_with_all_that_there_are(capsys):
    assert command.main(["xyzzy"]) == exits.USAGE
    said = capsys.readouterr().err
    assert "did you mean" not in said and all(verb in said for verb in command.VERBS)


def test_nothing_is_written_before_every_page_is_known(capsys):
    assert command.main(["pages", "reports", "figurs", "--write"]) == exits.USAGE
    assert not capsys.readouterr().out


def test_of_several_pages_the_worst_counts(monkeypatch, capsys):
    codes = {"pages reports": exits.OK, "pages figures": exits.WRONG}
    monkeypatch.setattr(command.Command, "run", lambda self: codes[self.name])
    assert command.main(["pages", "figures", "reports"]) == exits.WRONG
    assert command.main(["pages", "reports"]) == exits.OK


def test_pages_without_a_name_are_all(monkeypatch):
    found = command.commands(["pages", "--write"])
    assert [one.name for one in found] == [f"pages {name}" for name in PAGES]
    assert {one.words for one in found} == {("--write",)}


def test_a_verb_is_told_its_words(monkeypatch):
    """A manifest says the command as it was typed."""
    from compare.analysis import merge

    told = []
    monkeypatch.setattr(merge, "main", lambda asked: told.append(asked.words) or exits.OK)
    assert command.main(["merge", "a", "b", "--out", "c"]) == exits.OK
    assert told == [["a", "b", "--out", "c"]]


def test_the_version_is_that_of_run(capsys):
    assert command.main(["--version"]) == exits.OK
    assert capsys.readouterr().out.startswith("diptych ")


def test_interrupted_is_130(monkeypatch):
    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(command.Command, "run", interrupted)
    assert command.main(["explain", "q1s2k"]) == exits.INTERRUPTED


def test_every_name_stands_in_a_room_that_the_table_allows():
    row = tomllib.loads((ROOT / "tests" / "rooms.toml").read_text())["rooms"]["compare.__main__"]
    modules = [*command.VERBS.values(), *command.OVER_A_FLEET.values(), *STUDIES.values(), *PAGES.values()]
    assert {".".join(module.split(".")[:2]) for module in modules} == set(row["dynamic"])


def test_who_is_run_by_name_is_the_command_the_verb_run_and_the_children():
    """A child says so by being started; anything for people is a verb."""
    found = [path for package in ("common", "compare") for path in (ROOT / package).rglob("*.py")]
    started = {str(path.relative_to(ROOT)) for path in found if _runs(path)}
    children = {f"{module.replace('.', '/')}.py" for module in CHILDREN}
    assert started == children | {
        "common/kit/enter.py",
        "common/kit/isolated.py",
        "common/serving/ahead.py",
        "compare/__main__.py",
        "compare/run/__main__.py",
    }


def _runs(path: Path) -> bool:
    ifs = (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.If))
    return any("__main__" in ast.unparse(node.test) for node in ifs)


@pytest.mark.parametrize("verb", ["history", "census", "pages"])
def test_a_verb_that_reads_committed_results_says_so_where_there_are_none(verb, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "FOLDER", tmp_path)
    assert command.main([verb]) == exits.USAGE
    assert "allowed a checkout, which has docs/results" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="0"):
        command.main([verb, "--help"] if verb != "pages" else ["pages", "figures", "--help"])
