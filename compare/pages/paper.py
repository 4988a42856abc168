"""docs/paper.md: every statement of the paper as a row, with the command that repeats it, its figure and ours.

    python -m compare.pages.paper            print the page from the runs that are committed
    python -m compare.pages.paper --write    write docs/paper.md
    python -m compare.pages.paper --check    exit 1 where docs/paper.md says something else

What the paper states is compare/pages/templates/paper.toml. Figures of ours are read from docs/results/h200; a row
whose run is not there says so.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from compare.analysis.tables import Table
from compare.exits import OK
from compare.pages import settle
from compare.pages.paper_measures import MEASURES, OF_SOURCES, Runs
from compare.record.folder import ROOT

PAGE = ROOT / "docs" / "paper.md"
ROWS = Path(__file__).parent / "templates" / "paper.toml"
MEASURED_ON = "h200"
DRAWN = {
    "fig6": ("fig6-by-length", "fig6-by-share"),
    "fig7": ("fig7-by-page",),
    "fig8": ("fig8-by-choice",),
    "fig9": ("fig9-by-output",),
    "graphs": ("waves",),
}


@dataclass(frozen=True)
class Item:
    """One statement. theirs: their figure, with its limits. open: why it is not done, or not wholly."""

    id: str
    what: str
    source: str
    theirs: str
    here: str = ""
    command: str = ""
    open: str = ""

    @property
    def anchor(self) -> str:
        """The name that a markdown page gives to the heading."""
        return re.sub(r"[^\w\- ]", "", f"{self.id}: {self.what}".lower()).replace(" ", "-")

    def state(self, ours: str | None) -> str:
        """measured, not measured yet, open, in the code; `, in part` where something of it is open."""
        if self.id not in MEASURES:
            return "open" if self.open else "in the code"
        return ("measured" if ours else "not measured yet") + (", in part" if self.open else "")


@dataclass(frozen=True)
class Group:
    title: str
    items: list[Item] = field(default_factory=list)


def rows() -> tuple[str, list[Group]]:
    """(introduction, groups) of paper.toml. Raises TypeError for a field that an Item does not have."""
    plain = tomllib.loads(ROWS.read_text(encoding="utf-8"))
    return plain["introduction"].strip(), [
        Group(group["title"], [Item(**{k: " ".join(v.split()) for k, v in item.items()}) for item in group["item"]])
        for group in plain["group"]
    ]


def page(runs: Runs) -> str:
    """The document."""
    introduction, groups = rows()
    items = [item for group in groups for item in group.items]
    said = {item.id: MEASURES[item.id](runs) if item.id in MEASURES else None for item in items}
    columns = (("row", False), ("what", False), ("where it is from", False), ("state", False))
    index = [[f"[{i.id}](#{i.anchor})", i.what, i.source, i.state(said[i.id])] for i in items]
    parts = ["# The paper, row by row", introduction, Table(columns, index).markdown]
    for group in groups:
        parts += [f"## {group.title}"]
        for item in group.items:
            parts += [f"### {item.id}: {item.what}", "\n".join(_lines(item, said[item.id]))]
    parts += ["## Drawn", *_figures()]
    return "\n\n".join(parts) + "\n"


def _lines(item: Item, ours: str | None) -> Iterator[str]:
    yield f"- Theirs ({item.source}): {item.theirs}"
    if item.here:
        yield f"- Here: {item.here}"
    if item.command:
        yield f"- Repeat: `{item.command}`"
    if ours:
        where = "" if item.id in OF_SOURCES else f", {MEASURED_ON.upper()}"
        yield f"- Ours{where}: {ours}."
    elif item.id in MEASURES:
        yield f"- Ours: *not measured yet; no such run of the {MEASURED_ON.upper()} is committed.*"
    if item.open:
        yield f"- Open: {item.open}"


def _figures() -> Iterator[str]:
    """Blocks as docs/include.py fills them."""
    for run, names in DRAWN.items():
        for name in names:
            path = f"results/{MEASURED_ON}/{run}/figures/{name}.svg"
            there = (ROOT / "docs" / path).exists()
            missing = f"*Not measured yet: no run is committed as docs/{path}.*"
            shown = f"![{run}: {name}]({path})" if there else missing
            yield f"<!-- include: docs/{path}#{run}: {name} -->\n{shown}\n<!-- end -->"


def main(argv: Sequence[str] | None = None) -> int:
    """0; 1 where --check finds another page."""
    new = argparse.ArgumentParser(prog="python -m compare.pages.paper", description=__doc__.splitlines()[0])
    new.add_argument("--write", action="store_true", help="write docs/paper.md")
    new.add_argument("--check", action="store_true", help="exit 1 where docs/paper.md says something else")
    asked = new.parse_args(argv)
    text = page(Runs(ROOT / "docs" / "results" / MEASURED_ON))
    if asked.check or asked.write:
        return settle(PAGE, text, f"{new.prog} --write", write=asked.write and not asked.check)
    print(text, end="")
    return OK


if __name__ == "__main__":
    sys.exit(main())
