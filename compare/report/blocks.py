"""The parts of a report: sections of blocks, which markdown and HTML render alike.

Texts use markdown's inline marks `code` and **strong**, nothing else. `tables.Table` is a block too.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str
    kind: str = "text"


@dataclass(frozen=True)
class Bullets:
    """A list of sentences."""

    lines: tuple[str, ...]
    kind: str = "bullets"


@dataclass(frozen=True)
class Picture:
    """A figure of the run by its name in `figures/`; `text` is its alternative text."""

    name: str
    text: str
    kind: str = "picture"


@dataclass(frozen=True)
class Code:
    """A command, a log or a source, verbatim."""

    text: str
    caption: str = ""
    kind: str = "code"


@dataclass(frozen=True)
class Fold:
    """Blocks under their own heading, which a page may fold."""

    title: str
    blocks: tuple[Any, ...]
    open: bool = False
    kind: str = "fold"


def pictures(name: str, drawn: Iterable[str], text: str) -> tuple[Any, ...]:
    """The figure of that name, and folded those of its other kernels (`name-2`, ...). drawn: all drawn figures."""
    here = [found for found in drawn if re.fullmatch(rf"{re.escape(name)}(-\d+)?", found)]
    more = tuple(Picture(found, f"{text}: the other kernels") for found in here[1:])
    folded = (Fold(f"{text}: the other kernels", more),) if more else ()
    return (*(Picture(found, text) for found in here[:1]), *folded)


@dataclass(frozen=True)
class Section:
    """A heading and its blocks. `anchor` is its id within the page."""

    anchor: str
    title: str
    blocks: tuple[Any, ...]
