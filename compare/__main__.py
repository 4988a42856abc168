"""The one command: `python -m compare VERB`, installed as `diptych`.

A verb is a module: HELP is its line in the list, `options(parser)` its options, `main(asked)` what it does, as an exit
code; its docstring is its --help. `study` and `pages` are tables, NAMED, of such modules. Only the one that is asked
for is imported, and lists are read from the sources: a list does not wait for torch.
"""

import argparse
import ast
import importlib
import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import versions
from compare.exits import OK, Parser, ending, nearest
from compare.identity import FOLDER, IMPORTED_FROM

VERBS = {
    "run": "compare.run.command",
    "report": "compare.report.report",
    "diff": "compare.analysis.diff",
    "merge": "compare.analysis.merge",
    "tune": "compare.tune.tune",
    "explain": "compare.run.explain",
    "doctor": "compare.run.doctor",
    "pack": "compare.run.pack",
    "grade": "compare.studies.grade.grade",
    "exchange": "compare.studies.exchange.exchange",
    "census": "compare.pages.census",
    "history": "compare.pages.history",
    "bisect": "compare.studies.bisect",
    "fleet": "compare.fleet.fleet",
    "study": "compare.studies",
    "pages": "compare.pages",
}
# Who does the work of a verb whose words have --fleet.
OVER_A_FLEET = {"run": "compare.fleet.run"}
_ASKS_FOR_HELP = ("-h", "--help")


class UnknownName(ValueError):
    """An unknown verb, study or page; the message names the nearest."""


class NeedsCheckout(RuntimeError):
    """A verb that reads committed results, in an installation without them."""


@dataclass(frozen=True)
class Command:
    """A verb, study or page by its name, its module, and the words behind it."""

    name: str
    module: str
    words: tuple[str, ...]

    @property
    def over_a_fleet(self) -> str | None:
        """The module that runs it on other machines; None without --fleet."""
        asked = any(word.partition("=")[0] == "--fleet" for word in self.words)
        return OVER_A_FLEET.get(self.name) if asked else None

    def parser(self) -> argparse.ArgumentParser:
        found = importlib.import_module(self.module)
        first, _, rest = (found.__doc__ or found.HELP).partition("\n")
        new = Parser(
            prog=f"{_program()} {self.name}",
            description=first,
            epilog="examples:\n" + rest.strip("\n"),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        found.options(new)
        return new

    def run(self) -> int:
        asks_for_help = set(self.words) & set(_ASKS_FOR_HELP)
        if self.module.startswith("compare.pages") and not (FOLDER / "docs" / "results").is_dir() and not asks_for_help:
            raise NeedsCheckout(f"{self.name}: found an installation, allowed a checkout, which has docs/results")
        if over := self.over_a_fleet:
            return importlib.import_module(over).main(self)
        found = importlib.import_module(self.module)
        if self.name == "run":  # it has its own parser
            return found.main(self.words)
        asked = self.parser().parse_args(self.words)
        asked.words = list(self.words)  # as typed, for a manifest
        return found.main(asked)


def constant(module: str, name: str) -> Any:
    """The literal that a module assigns to a name, read from its source; None where there is none."""
    path = IMPORTED_FROM.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]:
            return ast.literal_eval(node.value)
    return None


def commands(words: Sequence[str]) -> list[Command] | str:
    """The commands of a command line, or the text of the list that it asks for. Raises UnknownName."""
    if not words or words[0] in _ASKS_FOR_HELP:
        return _listing("", "VERB ...", __doc__.partition("\n")[0], VERBS)
    if words[0] == "--version":
        words = ("run", "--version")
    verb, rest = words[0], tuple(words[1:])
    module = _of(VERBS, "verb", verb)
    if (named := constant(module, "NAMED")) is None:
        return [Command(verb, module, rest)]
    if verb == "study":
        names, rest = rest[:1], rest[1:]
        if not names or names[0] in _ASKS_FOR_HELP:
            return _listing("study", "NAME ...", constant(module, "HELP"), named)
    else:
        names = tuple(itertools.takewhile(lambda word: not word.startswith("-"), rest))
        rest = rest[len(names) :]
        if not names and set(rest) & set(_ASKS_FOR_HELP):
            return _listing("pages", "[NAME ...] [--write]", constant(module, "HELP"), named)
    return [Command(f"{verb} {name}", _of(named, verb, name), rest) for name in names or named]


def _of(known: Mapping[str, str], what: str, name: str) -> str:
    if name in known:
        return known[name]
    raise UnknownName(f"{what}: found {name}, allowed {', '.join(known)}{nearest(name, known, 1)}")


def _listing(before: str, usage: str, about: str, known: Mapping[str, str]) -> str:
    """A list of names with their HELP, a line each. before: the words in front of a name."""
    first = " ".join([_program(), *before.split(), next(iter(known))])
    lines = [f"  {name:12} {constant(module, 'HELP')}" for name, module in known.items()]
    head = " ".join([f"usage: {_program()}", *before.split(), usage])
    return "\n".join([head, "", about, "", *lines, "", f"{first} --help: its options, with an example"])


def _program() -> str:
    return "diptych" if Path(sys.argv[0]).stem == "diptych" else "python -m compare"


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of a command line (compare.exits); of several pages the largest."""

    def work() -> int:
        found = commands(sys.argv[1:] if argv is None else argv)
        if isinstance(found, str):
            print(found)
            return OK
        versions.admit("compare")
        return max([command.run() for command in found], default=OK)

    return ending(work, (UnknownName, NeedsCheckout, versions.Unsuitable))


if __name__ == "__main__":
    sys.exit(main())
