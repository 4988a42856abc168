"""H: what the commands of documents, manifests and committed cells parse to.

The golden holds the commands too, so that an edit of a document is no difference: that a new command is understood,
tests/docs/test_docs.py says. A command that a document gives in part is refused, and stays so.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shlex
from collections.abc import Iterable
from typing import Any
from unittest import mock

from compare import __main__ as command_line
from goldens.table import Rows
from tests.docs import test_docs

RESULTS = test_docs.ROOT / "docs" / "results"
FORMER = {  # verbs by the modules whose names committed manifests have
    "compare.diff": "diff",
    "compare.graphs": "study graphs",
    "compare.merge": "merge",
    "compare.run": "run",
    "compare.tune": "tune",
}


class Parsed(Exception):
    """Raised in the place of what a command does."""


def rows() -> Rows:
    """Of the commands that stand there now."""
    return meanings(sorted({*documented(), *of_manifests(), *of_cells()}))


def meanings(commands: Iterable[str]) -> Rows:
    """By command, as `diff before after`: of `run` what differs from its defaults, which stand beside it."""
    defaults = meaning("run")
    found: Rows = {"run": defaults}
    for command in commands:
        asked = meaning(command)
        if command.startswith("run "):
            asked = {name: value for name, value in asked.items() if value != defaults.get(name)}
        found[command] = asked
    return found


def meaning(command: str) -> dict[str, Any]:
    """What a command's parser makes of its words; nothing is done."""
    stopped = mock.patch.object(argparse.ArgumentParser, "parse_args", _stop)
    with stopped, contextlib.redirect_stderr(io.StringIO()):
        try:
            command_line.main(shlex.split(command))
        except Parsed as parsed:
            text = json.dumps(vars(parsed.args[0]), default=str, sort_keys=True)
            return json.loads(text.replace(f"{test_docs.ROOT}/", ""), parse_constant=str)  # --max-time inf is no JSON
        except SystemExit as left:
            return {"refused": left.code}
    raise AssertionError(f"{command}: found a command without a parser, which was run")


def _stop(self: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> None:
    found, rest = self.parse_known_args(args, namespace)
    if rest:
        self.error(f"unrecognized arguments: {rest}")
    raise Parsed(found)


def _named(command: str) -> str:
    """`python -m compare diff A B  # why` and `make compare ARGS=...` by their verb; empty for others and lists."""
    words = shlex.split(command, comments=True)
    if words[:2] == ["make", "compare"]:
        return " ".join(["run", *(word.removeprefix("ARGS=") for word in words if word.startswith("ARGS="))])
    if words[:2] != ["python", "-m"]:
        return ""
    if words[2] == "compare":
        return "" if isinstance(command_line.commands(words[3:]), str) else shlex.join(words[3:])
    return shlex.join([*FORMER[words[2]].split(), *words[3:]]) if words[2] in FORMER else ""


def documented() -> set[str]:
    texts = [test_docs.own_text(document.read_text(encoding="utf-8")) for document in test_docs.DOCUMENTS]
    return {_named(command) for text in texts for command in test_docs.commands(text)} - {""}


def of_manifests() -> set[str]:
    return {_command(path.read_text("utf-8")) for path in RESULTS.rglob("manifest.json")} - {""}


def of_cells() -> set[str]:
    """Each row and each kernel of each suite and GPU once: the commands of cells differ in these alone."""
    chosen: dict[Any, str] = {}
    for path in sorted(RESULTS.rglob("cells.jsonl")):
        for command in sorted({_command(line) for line in path.read_text("utf-8").splitlines()} - {""}):
            rest = shlex.split(command)
            kernels, row = _taken(rest, "--kernels"), _taken(rest, "--workload")
            chosen.setdefault((*rest, "kernels", kernels), command)
            chosen.setdefault((*rest, "row", row), command)
    return set(chosen.values())


def _taken(words: list[str], option: str) -> str:
    """The value of an option, which is taken out of the words."""
    if option not in words:
        return ""
    at = words.index(option)
    value = words[at + 1]
    del words[at : at + 2]
    return value


def _command(text: str) -> str:
    command = json.loads(text).get("command", "")
    return _named(command) if command else ""
