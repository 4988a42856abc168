"""What a report consists of: sections of blocks, which the markdown and the HTML page render alike.

Texts are in one inline markup, that of markdown: `code` and **strong**, nothing else. `tables.Table` is a block too.
"""

from __future__ import annotations

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


@dataclass(frozen=True)
class Section:
    """A heading and its blocks. `anchor` names it within the page."""

    anchor: str
    title: str
    blocks: tuple[Any, ...]
