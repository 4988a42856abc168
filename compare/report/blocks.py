"""What a report consists of: sections of blocks, which the markdown and the HTML page render alike.

Texts are in one inline markup, that of markdown: `code` and **strong**, nothing else. `tables.Table` is a block too.
"""

from __future__ import annotations

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
    """A figure of the run by its name in `figures/`; `text` says what it shows to whom cannot see it."""

    name: str
    text: str
    kind: str = "picture"


@dataclass(frozen=True)
class Code:
    """A command, a log or a source, as it is."""

    text: str
    caption: str = ""
    kind: str = "code"


@dataclass(frozen=True)
class Fold:
    """Blocks under a heading of their own, which a page may show folded."""

    title: str
    blocks: tuple[Any, ...]
    open: bool = False
    kind: str = "fold"


def pictures(name: str, drawn: Iterable[str], text: str) -> tuple[Any, ...]:
    """The figure of that name, and folded those that hold its other kernels (`name-2`, ...). drawn: all that were."""
    here = [found for found in drawn if re.fullmatch(rf"{re.escape(name)}(-\d+)?", found)]
    more = tuple(Picture(found, f"{text}: the other kernels") for found in here[1:])
    folded = (Fold(f"{text}: the other kernels", more),) if more else ()
    return (*(Picture(found, text) for found in here[:1]), *folded)


@dataclass(frozen=True)
class Section:
    """A heading and its blocks. `anchor` names it within the page."""

    anchor: str
    title: str
    blocks: tuple[Any, ...]
