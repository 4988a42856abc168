"""Documents say what is there: blocks are fresh, links and paths lead somewhere, names exist, commands are accepted."""

import ast
import importlib
import importlib.util
import re
import shlex
import tomllib
from pathlib import Path

import pytest

import diptych_check
from common import gpus
from compare import __main__ as command_line
from compare import exits
from compare.analysis.standing import KINDS
from compare.competitors import registry
from compare.fleet.run import Asked
from compare.plan import selection, situation
from compare.record import records
from compare.report import paper
from compare.run import options

ROOT = Path(__file__).parents[2]
PACKAGES = ("common", "dsl_triton", "dsl_helion", "compare")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

_spec = importlib.util.spec_from_file_location("include", ROOT / "docs" / "include.py")
include = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(include)

DOCUMENTS = sorted({*include.documents(), *(ROOT / "docs").glob("*.md"), ROOT / "docs" / "results" / "README.md"})
WALKED = ("adding-a-kernel.md", "adding-a-feature.md")  # tests/docs/test_adding.py runs their commands
MADE = re.compile(r"^`([\w./-]+)`:\n\n```python$", re.MULTILINE)  # a file that a page has the reader write
PATH = re.compile(rf"(?:{'|'.join(PACKAGES)}|tests|docs|\.ci)/[\w./-]*|[A-Z]\w+\.md|Makefile|LICENSE|pyproject\.toml")
NAME = re.compile(rf"(?:{'|'.join(PACKAGES)})(?:\.\w+)+")
PRINTS = re.compile(r"^python -m compare (report docs/results/.* --print .*)$", re.MULTILINE)  # quoted tables
VALUE = re.compile(rf"({NAME.pattern}) = (.+)")


def own_text(text: str) -> str:
    """Without the included blocks: code there is tested where it comes from."""
    return include.BLOCK.sub("", text)


def spans(text: str) -> list[str]:
    """What stands between single backticks outside of code blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", own_text(text), flags=re.DOTALL))


def broken_links(text: str, home: Path) -> list[str]:
    prose = re.sub(r"```.*?```|`[^`\n]+`", "", text, flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", prose) if not re.match(r"\w+:|#", link)]
    return [link for link in links if not leads_somewhere(home, *link.partition("#")[::2])]


def leads_somewhere(home: Path, name: str, heading: str) -> bool:
    """Whether there is such a file, and in a page such a heading; a line of a source (`#L24`) is include.py's."""
    path = home / name
    return path.exists() and (path.suffix != ".md" or not heading or heading in anchors(path.read_text()))


def anchors(text: str) -> set[str]:
    """What GitHub and the site call a page's headings."""
    shown = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", one).replace("`", "").strip().lower() for one in shown]
    return {re.sub(r"[^\w\- ]", "", one).replace(" ", "-") for one in plain} | set(re.findall(r'id="([^"]+)"', text))


def missing_paths(text: str) -> list[str]:
    made = MADE.findall(text)
    return [s for s in spans(text) if PATH.fullmatch(s) and s not in made and not (ROOT / s).exists()]


def defined(name: str) -> bool:
    """Whether `package.module.object[.member]` stands in the sources; nothing is imported."""
    try:
        include.definition(name)
    except KeyError:
        return False
    return True


def unknown_names(text: str) -> list[str]:
    return [span for span in spans(text) if NAME.fullmatch(span) and not defined(span)]


def wrong_values(text: str) -> list[str]:
    wrong = []
    for span in spans(text):
        if found := VALUE.fullmatch(span):
            module, _, name = found[1].rpartition(".")
            if getattr(importlib.import_module(module), name) != ast.literal_eval(found[2]):
                wrong.append(span)
    return wrong


STARTS = re.compile(r"^\$? ?(?=(?:python (?:-m compare|docs/|tests/)|make |diptych |diptych-check |pip install ))")
ENDS = re.compile(r" (?:2>&1|\||;|&&) .*$")  # a pipe's reader, or the next command


def commands(text: str) -> list[str]:
    """Lines of shell blocks, lines of other blocks and spans that begin as a command of this project does."""
    lines = []
    for language, code in re.findall(r"```(\w*)\n(.*?)```", text, re.DOTALL):
        for line in code.splitlines():
            if language == "sh" or STARTS.match(line):
                lines.append(ENDS.sub("", STARTS.sub("", line)) if language != "sh" else line)
    return [line for line in lines if line.strip()] + mentions(text)


def mentions(text: str) -> list[str]:
    """Commands in sentences, where one may be called by its name alone, and `python -m` may be left out."""
    short = [re.sub(r"^compare (?=[a-z]+ -)", "python -m compare ", span) for span in spans(text)]
    return [span for span in short if STARTS.match(span)]


SHELL = ("|", ">", "2>&1")  # behind these a line is the shell's


def refused(command: str, *, mentioned: bool = False) -> str:
    """Why this project would not understand a command line; empty where it would.

    mentioned: in a sentence, where a verb's name without options is no command line.
    """
    words = shlex.split(command, comments=True)
    words = words[: next((at for at, word in enumerate(words) if word in SHELL), None)]
    try:
        if words[0] in ("export", "tar"):
            return ""
        if words[0] == "make":
            targets = [word for word in words[1:] if "=" not in word]
            extra = [word.removeprefix("ARGS=") for word in words if word.startswith("ARGS=")]
            if extra and targets[0] in ("compare", "gpu"):
                return refused(f"python -m compare run {extra[0]}")
            return "" if set(targets) <= TARGETS else f"no target {targets}"
        if words[0] == "pip":
            extras = re.search(r"\[(.+)\]", words[-1])
            asked = set(extras[1].split(",")) if extras else set()
            return "" if asked <= set(PROJECT["optional-dependencies"]) else f"no extra {asked}"
        if words[0] == "diptych-check":
            diptych_check.parser().parse_args(words[1:])
            return ""
        if words[:3] == ["python", "-m", "compare.run"]:
            return _run_refuses(words[3:])
        if words[0] == "diptych" or words[:3] == ["python", "-m", "compare"]:
            return _verb_refuses(words[1:] if words[0] == "diptych" else words[3:], mentioned)
        if words[:2] == ["python", "-m"] and words[2].startswith("compare."):
            return f"no command {words[2]}"
        module = words[2].replace(".", "/") + ".py" if words[:2] == ["python", "-m"] else words[1]
        return "" if (ROOT / module).exists() else f"no {module}"
    except SystemExit as left:
        return f"refused: {left}" if left.code else ""  # --help
    except ValueError as error:
        return f"refused: {error}"


def _verb_refuses(words: list[str], mentioned: bool) -> str:
    found = command_line.commands(words)
    for command in [] if isinstance(found, str) else found:
        if mentioned and not command.words:
            continue
        words = Asked.of(command.words).words if command.over_a_fleet else command.words
        if command.name == "run":
            return _run_refuses(list(words))
        asked = command.parser().parse_args(words)
        if getattr(asked, "gpu", None) not in (None, "auto"):
            gpus.resolve(asked.gpu)
    return ""


def _run_refuses(words: list[str]) -> str:
    asked = options.parse(words)
    if asked.where.gpu not in (None, "auto"):
        gpus.resolve(asked.where.gpu)
    if asked.rows.trace is None:  # the file is the reader's
        selection.selection(asked.rows, situation.situation(None, "cpu"))
    return ""


@pytest.fixture(params=DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def document(request):
    return request.param


def test_a_document_says_what_is_there(document):
    text = document.read_text()
    assert include.render(text, document.parent) == text, "out of date: run `python docs/include.py`"
    assert not broken_links(text, document.parent)
    assert not missing_paths(text)
    assert not unknown_names(text)
    assert not wrong_values(text)


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if d.name not in WALKED], ids=lambda path: path.name)
def test_commands_are_understood(document):
    text = re.sub(r"at commit \w+, `[^`]+`", "", own_text(document.read_text()))  # what has gone since
    if document.name == "CHANGELOG.md":  # it names what has gone, without `python -m`
        text = text.replace("`compare ", "`")
    in_sentences = set(mentions(text))
    found = {c: why for c in commands(text) if (why := refused(c, mentioned=c in in_sentences))}
    assert not found


def test_tables_over_several_runs_are_what_their_command_prints(document, capsys, monkeypatch):
    text = document.read_text()
    monkeypatch.chdir(ROOT)
    for command in PRINTS.findall(text):
        folder, names, rest = re.fullmatch(r"report ([^{ ]*)(?:\{(.*?)\})?(.*)", command).groups()
        runs = [folder + name for name in (names or "").split(",")]
        assert command_line.main(["report", *runs, *shlex.split(rest)]) == exits.OK
        printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
        assert len(printed) > 2 and "\n".join(printed) in text


def test_documents_quote_tables_over_several_runs():
    quoted = [path.name for path in DOCUMENTS if PRINTS.search(path.read_text())]
    assert quoted == ["features.md", "performance-notes.md", "versions.md"]


def test_every_exit_code_is_documented():
    text = (ROOT / "docs" / "measuring.md").read_text()
    codes = {value for name, value in vars(exits).items() if name.isupper() and isinstance(value, int)}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)} == codes


def test_every_status_and_rung_is_documented():
    text, shared = (ROOT / "docs" / "ladder.md").read_text(), {"auto": "common/serving/choice.py#launch"}
    sources = {rung: shared.get(rung, f"dsl_triton/{rung}.py#") for rung in registry.RUNGS}
    assert all(f"pictures/{rung}.svg" in text and source in text for rung, source in sources.items())
    assert all(f'"{status}"' in (ROOT / "docs" / "measuring.md").read_text() for status in records.Status)


def test_what_is_included_of_a_run_is_what_a_report_has():
    sources = [path.read_text() for path in (ROOT / "compare" / "report").glob("*.py")]
    headings = [title for text in sources for title in re.findall(r'Section\(\s*"\w+",\s*"([^"]+)"', text)]
    asked = [include.ASKED.fullmatch(b["what"]) for d in DOCUMENTS for b in include.BLOCK.finditer(d.read_text())]
    of_runs = [a for a in asked if a["path"].startswith("docs/results/")]
    assert of_runs
    assert not [a["name"] for a in of_runs if a["path"].endswith("report.md") and a["name"] not in headings]
    drawn = {*KINDS, *paper.CAPTIONS, "waves"}
    assert not [a["path"] for a in of_runs if a["path"].endswith(".svg") and Path(a["path"]).stem not in drawn]


def test_a_stale_block_is_seen():
    old = "<!-- include: dsl_triton/primitives.py#dequantise -->\n```python\nold\n```\n<!-- end -->\n"
    new = include.render(old, ROOT)
    assert new != old and "def dequantise" in new and include.render(new, ROOT) == new


@pytest.mark.parametrize(
    "what",
    ["dsl_triton/primitives.py#nothing", 'dsl_triton/primitives.py#score "no such" .. "line"', "README.md#No heading"],
)
def test_a_block_of_something_missing_is_refused(what):
    with pytest.raises(KeyError):
        include.render(f"<!-- include: {what} -->\n<!-- end -->", ROOT)


def test_a_section_ends_at_the_next_heading_and_its_links_lead_from_here(tmp_path):
    (tmp_path / "run").mkdir()
    report = tmp_path / "run" / "report.md"
    report.write_text("# T\n## A\nx ![f](figures/a.svg)\n```\n# no heading\n```\n### below\ny\n## B\nz\n")
    assert include.section(report, "A", tmp_path) == "x ![f](run/figures/a.svg)\n```\n# no heading\n```\n### below\ny"


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (lambda text: broken_links(text, ROOT), "[a](docs/nothing.md)"),
        (lambda text: broken_links(text, ROOT), "[a](docs/ladder.md#q_block)"),
        (missing_paths, "see `compare/nothing.py`"),
        (unknown_names, "`compare.run.command.nothing`"),
        (unknown_names, "`compare.run.command.Run.nothing`"),
        (wrong_values, "`compare.bench.timing.MIN_ROUNDS = 11`"),
    ],
    ids=["link", "heading", "path", "name", "member", "value"],
)
def test_a_wrong_document_is_seen(check, text):
    assert check(text)


@pytest.mark.parametrize("words", [["--help"], ["--nothing"]])
def test_include_writes_nothing_for_a_word_that_is_no_command(words, tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("<!-- include: README.md#Start -->\nold\n<!-- end -->\n")
    monkeypatch.setattr(include, "documents", lambda: [page])
    monkeypatch.setattr(include, "ROOT", tmp_path)
    with pytest.raises(SystemExit) as left:
        include.main(words)
    assert left.value.code == (2 if words == ["--nothing"] else 0) and "old" in page.read_text()


@pytest.mark.parametrize(
    "command",
    [
        "python -m compare.run --sweet peers",
        "python -m compare.run --gpu h2000",
        "make compere",
        "make compare ARGS='--sweet peers'",
        "pip install -e '.[gpu]'",
        "python -m compare.nothing",
        "python -m compare reprot results/a",
        "python -m compare diff results/a",
        "python -m compare study counts --gpu h2000",
        "python -m compare pages figurs --write",
        "diptych explain",
        "diptych bisect --row q1s512",
        "diptych-check my_kernel --levle smoke",
    ],
)
def test_a_wrong_command_is_seen(command):
    assert refused(command)


def test_commands_are_found_in_any_block_and_in_sentences():
    text = "```bash\n$ diptych grade x 2>&1 | tee log\nls\n```\nAsk `compare run --gpu h200` or `pip install '.[x]'`.\n"
    assert commands(text) == ["diptych grade x", "python -m compare run --gpu h200", "pip install '.[x]'"]
    assert commands("`run --gpu h200`, `python -m sglang.x`, `a diptych b`") == []


def test_in_a_sentence_a_name_stands_for_its_command_if_there_is_such_a_one():
    assert refused("python -m compare merge") and not refused("python -m compare merge", mentioned=True)
    assert refused("python -m compare merges", mentioned=True)
    assert refused("python -m compare merge a b --uot c", mentioned=True)
