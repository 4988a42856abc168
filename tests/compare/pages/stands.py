"""Which speeds a page states, of tables, marks and sentences alike: to find one that stands in two values.

A speed is of a class, a kernel, a unit (whose time is divided) and a set of rows. Tables that name no set of rows are
read as the headline's, so a page that quotes other rows has to say which.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from compare.analysis.standing import KINDS
from compare.pages.quoted import HEADLINE

NAMES = {  # how pages call a kernel -> its short name
    "triton": "triton", "triton/auto": "triton", "helion": "helion", "helion/auto": "helion",
    "gluon": "gluon", "gluon (hopper only)": "gluon", "triton/native.auto": "gluon",
    "vllm": "vllm", "vllm's triton": "vllm", "baseline/vllm_triton": "vllm",
    "helion over triton": "helion-over-triton",
}  # fmt: skip
WITHIN = ("rows of", "group")  # titles of the column that names the set of rows
_MARK = re.compile(r"<!--= (?P<group>[\w-]+)\.(?P<kind>\w+)\.(?P<kernel>[\w-]+)(?: value)? -->(?P<said>[^<]*)<!--/-->")
_VALUE = re.compile(r"\**(\d+\.\d\d)(?:\d*)\b(?!%)")
_LIST = re.compile(rf"\b({'|'.join(KINDS)}) \(?(\d+\.\d\d)\b")
_KERNEL = re.compile(r"Gluon|Helion|vLLM's Triton|Triton", re.IGNORECASE)


class Stands(NamedTuple):
    """A speed as a page states it. unit: whose time is divided. rows: a group of figures.toml."""

    kind: str
    kernel: str
    unit: str
    rows: str
    value: str


def stands(text: str) -> Iterator[Stands]:
    """Every speed of a class that a page states."""
    for mark in _MARK.finditer(text):
        if mark["kind"] in KINDS:
            yield _of(mark["kind"], mark["kernel"], mark["group"], mark["said"])
    for table in re.findall(r"(?:^\|[^\n]*\n?){3,}", text, re.MULTILINE):
        yield from _table(table)
    for block in re.split(r"\n\s*\n", re.sub(r"^[|#][^\n]*$|<!--.*?-->", "", text, flags=re.MULTILINE)):
        for sentence in re.split(r"(?<=\.) (?=[A-Z])", " ".join(block.split())):
            yield from _sentence(sentence)


def _of(kind: str, kernel: str, rows: str, value: str) -> Stands:
    name, _, unit = kernel.partition("-over-")
    return Stands(kind, name, unit or "FA3", rows, value)


def _table(table: str) -> Iterator[Stands]:
    """Speeds where a class and a kernel meet: classes and kernels as lines or as titles, in either order."""
    lines = [[cell.strip(" `*") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()]
    head, body = lines[0], [line for line in lines[2:] if len(line) == len(lines[0])]
    group = next((i for i, title in enumerate(head) if title.lower() in WITHIN), None)
    over = head.index("over") if "over" in head else None
    for line in body:
        kind = next((k for cell in line for k in KINDS if re.match(rf"{k}\b", cell)), None)
        named = [line[head.index("kernel")]] if "kernel" in head else line
        kernel = next((NAMES[cell.lower()] for cell in named if cell.lower() in NAMES), None)
        rows = line[group] if group is not None else HEADLINE
        for title, cell in zip(head, line, strict=True):
            of = NAMES.get(title.lower()) if kernel is None else kernel
            where = title if title in KINDS else kind
            speed = title in KINDS or title.lower() in NAMES or "mean" in title.lower()
            if of and where and speed and (found := _VALUE.match(cell)):
                one = _of(where, of, rows, found[1])
                yield one if over is None else one._replace(unit=line[over])


def _sentence(sentence: str) -> Iterator[Stands]:
    """`decode (1.17)` or `decode 1.17`, of the kernel that was named last, in a sentence about FlashAttention 3."""
    if not re.search("FA3|FlashAttention", sentence):
        return
    for found in _LIST.finditer(sentence):
        if named := _KERNEL.findall(sentence[: found.start()]):
            yield _of(found[1], NAMES[named[-1].lower()], HEADLINE, found[2])


def contradictions(pages: Mapping[str, str]) -> list[str]:
    """A sentence for each speed that stands in two values. pages: name -> text."""
    found: dict[tuple[str, ...], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for page, text in pages.items():
        for one in stands(text):
            found[one[:-1]][one.value].add(page)
    return [
        f"{kernel} over {unit} in {kind}, rows of {rows}: "
        + "; ".join(f"{value} in {', '.join(sorted(where))}" for value, where in sorted(values.items()))
        for (kind, kernel, unit, rows), values in found.items()
        if len(values) > 1
    ]
