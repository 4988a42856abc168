"""How pages quote figures of the one table, docs/results/figures.toml: by name, between marks.

    <!--= headline.decode.triton -->1.19<!--/-->          its value
    <!--= headline.decode.triton worst -->1.00<!--/-->    another of its FORMS
    <!-- figures: classes -->                             a table or a sentence of BLOCKS
    <!-- end -->

Marks are comments, which a rendered page does not show. No mark may begin a line: markdown would end the paragraph
there. `filled` writes what stands between marks. Figures of the past stand between `<!-- dated: WHAT -->` and
`<!-- end dated -->`; nothing updates them.
"""

import difflib
import itertools
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from compare.analysis import markup
from compare.analysis.committed import KERNELS as COLUMNS
from compare.analysis.standing import KINDS
from compare.analysis.verdict import MARGIN
from compare.record.folder import ROOT

ASKED = Path(__file__).parent / "templates" / "figures.toml"  # which runs count
TABLE = ROOT / "docs" / "results" / "figures.toml"
WORDS = ("ahead of", "level with", "behind")


@dataclass(frozen=True)
class Figure:
    """A figure. value: a speed is the other's time over the kernel's, above 1 is faster.

    rows: how many are in the mean, of how many asked. worst: the least of them, and its row. command: prints it again.
    day: of the newest run behind it, as 2026-11-28.
    """

    value: float
    command: str
    rows: int = 1
    asked: int = 1
    worst: float | None = None
    worst_row: str = ""
    day: str = ""

    @property
    def word(self) -> str:
        """The mean as one of WORDS, by the margin of verdicts."""
        if self.value > 1 + MARGIN:
            return WORDS[0]
        return WORDS[1] if self.value >= 1 / (1 + MARGIN) else WORDS[2]


def _than(speed: float) -> str:
    """`5% slower` for 0.95, `5% faster` for 1.05: what stands before `than`."""
    return f"{abs(speed - 1):.0%} {'slower' if speed < 1 else 'faster'}"


# The forms in which a page can quote a figure.
FORMS: dict[str, Callable[[Figure], str]] = {
    "value": lambda f: f"{f.value:.2f}",
    "short": lambda f: f"{f.value:.1f}",
    "whole": lambda f: f"{f.value:,.0f}",
    "percent": lambda f: f"{f.value:.0%}",
    "than": lambda f: _than(f.value),
    "worst_than": lambda f: _than(f.worst),
    "word": lambda f: f.word,
    "rows": lambda f: str(f.rows),
    "worst": lambda f: f"{f.worst:.2f}",
    "row": lambda f: f"`{f.worst_row}`",
    "day": lambda f: f.day,
}


class NoFigure(ValueError):
    """A page asks for an unknown figure, form or block; the message names the nearest."""


def table(text: str | None = None) -> dict[str, Figure]:
    """The committed table, or that of a text."""
    plain = tomllib.loads(TABLE.read_text(encoding="utf-8") if text is None else text)
    return {name: Figure(**row) for name, row in plain.items()}


def pages() -> list[Path]:
    """The pages whose figures come from the table."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


MARK = re.compile(r"<!--= (?P<name>[\w.-]+)(?: (?P<form>\w+))? -->.*?<!--/-->", re.DOTALL)
BLOCK = re.compile(r"<!-- figures: (?P<name>[\w-]+) -->\n.*?<!-- end -->", re.DOTALL)
Table = Mapping[str, Figure]


def filled(text: str, figures: Table) -> str:
    """The page with every mark and block filled from the table. Raises NoFigure."""

    def one(found: re.Match) -> str:
        form = found["form"] or "value"
        said = _of(FORMS, form, "form")(_of(figures, found["name"], "figure"))
        return f"<!--= {found['name']}{f' {form}' if found['form'] else ''} -->{said}<!--/-->"

    def block(found: re.Match) -> str:
        return f"<!-- figures: {found['name']} -->\n{_of(BLOCKS, found['name'], 'block')(figures)}\n<!-- end -->"

    return BLOCK.sub(block, MARK.sub(one, text))


def _of(named: Mapping, name: str, what: str):
    if name not in named:
        near = difflib.get_close_matches(name, named, n=3, cutoff=0.3)
        raise NoFigure(f"{what}: found {name!r}, near it: {', '.join(near) or 'none'}; allowed those of {TABLE.name}")
    return named[name]


WEIGHTS = ("nothing", "lines", "loss")  # what a refusal costs: nothing, more code, or speed or a feature


def refused() -> list[dict[str, str]]:
    """The rows of the table of what Helion refused, in docs/choosing-a-dsl.md: column -> cell."""
    text = (ROOT / "docs" / "choosing-a-dsl.md").read_text(encoding="utf-8")
    head, _, *rows = re.search(r"\| written \|.*?(?=\n\n)", text, re.DOTALL)[0].splitlines()
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in (head, *rows)]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[1:]]


# Tables and sentences of several figures.

HEADLINE = "headline"  # the group that README.md has
CLASSES = {  # what each class is, for readers who do not know the word
    "decode": "one new token each",
    "speculative": "2 to 16 draft tokens each",
    "prefill": "prompts and long chunks",
    "mixed": "decodes beside prompts",
}
LIMITS = {  # the rate of each class by which it is limited, and its unit
    "decode": ("gbps", "GB/s"),
    "speculative": ("gbps", "GB/s"),
    "prefill": ("tflops", "TFLOP/s"),
    "mixed": ("tflops", "TFLOP/s"),
}
SPACE = "\u00a0"  # does not break


def _speed(one: Figure | None, rows: int) -> str:
    """A mean with its worst row, and of how many rows where it has not `rows`."""
    if one is None:
        return ""
    return f"{one.value:.2f}{SPACE}({one.worst:.2f}{f'; of {one.rows}' if one.rows != rows else ''})"


def classes(figures: Table) -> str:
    """The README's table: a class a line, speed relative to FlashAttention 3, the worst row in brackets; what Triton's
    kernels take and reach."""
    body = []
    for kind in KINDS:
        own = [figures.get(f"{HEADLINE}.{kind}.{short}") for short in COLUMNS]
        if first := own[0]:
            cells = [_speed(one, first.rows) for one in own]
            cells[0] = cells[0].replace(SPACE, f"**{SPACE}", 1)
            reached = _reached(figures, kind, "triton")
            body.append(
                [
                    f"**{kind}**: {CLASSES[kind]}",
                    str(first.rows),
                    f"**{cells[0]}",
                    *cells[1:3],
                    "1",
                    *cells[3:],
                    *reached,
                ]
            )
    names = list(COLUMNS.values())
    header = ["", "rows", *names[:3], "FA3", *names[3:], "Triton's time", "its rate", "of the ceiling"]
    return markup.table(header, body)


def _reached(figures: Table, kind: str, short: str) -> list[str]:
    """Time, rate and share of the ceiling."""
    us, rate, share = (figures.get(f"{HEADLINE}.{kind}.{short}.{what}") for what in ("us", "rate", "share"))
    if us is None:
        return ["", "", ""]
    unit = LIMITS[kind][1]
    return [f"{us.value:,.0f}{SPACE}µs", f"{rate.value:,.0f}{SPACE}{unit}", f"{share.value:.0%}"]


def absolute(figures: Table) -> str:
    """Time, rate and share of the ceiling of every kernel, class by class."""
    names = COLUMNS | {"fa3": "FA3"}
    body = []
    for kind in KINDS:
        for short, title in names.items():
            if (share := figures.get(f"{HEADLINE}.{kind}.{short}.share")) is not None:
                cells = [str(share.rows), *_reached(figures, kind, short), f"{share.worst:.0%}", f"`{share.worst_row}`"]
                body.append([kind, title, *cells])
    header = ["class", "kernel", "rows", "time", "rate", "of the ceiling", "least share", "in row"]
    return markup.table(header, body, 2, 1)


def groups(figures: Table) -> str:
    """Every speed of the table: a line for each group and class."""
    asked = tomllib.loads(ASKED.read_text(encoding="utf-8"))["group"]
    body = []
    for group, kind in itertools.product(asked, (*KINDS, "all")):
        own = [figures.get(f"{group}.{kind}.{short}") for short in (*COLUMNS, "helion-over-triton")]
        if there := [one for one in own if one]:
            most, row = there[0].rows, f"`{own[0].worst_row}`" if own[0] else ""
            body.append([group, kind, str(most), *(_speed(one, most) for one in own), row])
    names = [*COLUMNS.values(), "Helion over Triton", "Triton's worst row"]
    header = ["rows of", "class", "rows", *names]
    return markup.table(header, body, 2, 1)


def rungs(figures: Table) -> str:
    """Each rung against FlashAttention 3, class by class, Triton before Helion."""
    body = []
    for rung in tomllib.loads(ASKED.read_text(encoding="utf-8"))["group"]["rungs"]["kernels"]:
        dsl, _, name = rung.partition("-")
        if dsl == "triton":
            pairs = [[figures.get(f"rungs.{kind}.{d}-{name}") for d in ("triton", "helion")] for kind in KINDS]
            cells = [" / ".join(f"{one.value:.2f}" if one else "-" for one in pair) for pair in pairs]
            body.append([f"`{name}`", *cells])
    return markup.table(["rung, Triton / Helion", *KINDS], body)


def sources(_: Table) -> str:
    """Each group of the table, what its rows are, and the reports of its runs."""
    groups = tomllib.loads(ASKED.read_text(encoding="utf-8"))
    where = groups["results"].removeprefix("docs/")
    body = []
    for name, group in groups["group"].items():
        runs = [f"[{run}]({where}/{run}/report.md)" for run in group["runs"]]
        body.append([name, group["about"], ", ".join(runs)])
    return markup.table(["group", "rows", "measured in"], body, 3)


def summary(figures: Table) -> str:
    """In which classes Triton's kernels are ahead of, level with or behind FlashAttention 3; and what Gluon adds."""
    of = {kind: figures[name] for kind in KINDS if (name := f"{HEADLINE}.{kind}.triton") in figures}
    said = {word: [f"{kind} ({one.value:.2f})" for kind, one in of.items() if one.word == word] for word in WORDS}
    parts = [f"{word} it in {listed(kinds)}" for word, kinds in said.items() if kinds]
    portable = f"Against FlashAttention 3, the portable Triton kernels are {listed(parts)}."
    gluon = {kind: figures[name] for kind in KINDS if (name := f"{HEADLINE}.{kind}.gluon") in figures}
    won = [kind for kind, one in gluon.items() if kind in of and one.word == WORDS[0] != of[kind].word]
    if not won:
        return portable
    ahead = listed([f"{kind} ({gluon[kind].value:.2f})" for kind in won])
    takes = "On Hopper GPUs the public call takes a Gluon kernel where it predicts that one faster"
    return f"{portable} {takes}: ahead in {ahead}."


def listed(parts: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


BLOCKS: dict[str, Callable[[Table], str]] = {
    "classes": classes,
    "absolute": absolute,
    "groups": groups,
    "rungs": rungs,
    "sources": sources,
    "summary": summary,
}
