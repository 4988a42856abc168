"""Turn a report's text into markdown, HTML or figure text; records reach a page only through here.

A report's texts have two marks, `code` and **strong**. Everything else that a page would interpret is escaped: labels,
run ids and machines come from files that anybody may have written.
"""

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

_HELD = {"`": "\ue000", "*": "\ue001"}  # quoted characters that are no marks of ours
_GIVEN = {ord(held): mark for mark, held in _HELD.items()}
_MARKS = re.compile(r"(`[^`]+`|\*\*)")
# Control and direction characters, which a page does not show or which reorder the text around them.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
# Characters with a meaning in markdown, or in HTML inside it.
_SPECIAL = re.compile(r"[\\`*]|<(?=[A-Za-z/!?])|&(?=#?\w+;)|\](?=[(\[:])|(?<![^\W_])~|(?<![^\W_])(?<!~)_|_(?![^\W_])")
_BLOCK = re.compile(r"^(?:[-+=#>]|\d+(?=[.)]))")


def said(text: Any) -> str:
    """A kernel's or library's words, without marks, for use inside a text of ours."""
    return re.sub(r"[`*]", lambda match: _HELD[match[0]], str(text))


def seen(text: Any) -> str:
    """The text with unprintable characters replaced, as a code block shows it."""
    return _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", str(text))


def _parts(text: Any) -> Iterator[tuple[str, str]]:
    """("text" | "code" | "open" | "close", words) of one line; an unpaired ** is text."""
    found = _MARKS.split(re.sub(r"\s+", " ", seen(text)))
    pairs = sum(part == "**" for part in found) // 2
    open_now = False
    for part in filter(None, found):
        if part == "**" and (open_now or pairs):
            yield "close" if open_now else "open", part
            pairs -= not open_now
            open_now = not open_now
        elif len(part) > 2 and part[0] == part[-1] == "`":
            yield "code", part[1:-1].translate(_GIVEN)
        else:
            yield "text", part.translate(_GIVEN)


class Made(str):
    """Markdown made by this project."""


def inline(text: Any) -> Made:
    """A line of markdown that begins no block, to stand behind other text."""
    if isinstance(text, Made):
        return text
    made = {
        "text": lambda words: _SPECIAL.sub(r"\\\g<0>", words),
        "code": lambda words: f"`{words.replace('`', chr(39))}`",
        "open": str,
        "close": str,
    }
    return Made("".join(made[kind](words) for kind, words in _parts(text)))


def markdown(text: Any) -> Made:
    """A line of markdown that is a paragraph and no other block."""
    if isinstance(text, Made):
        return text
    return Made(_BLOCK.sub(lambda m: f"{m[0]}\\" if m[0].isdigit() else f"\\{m[0]}", inline(text).strip()))


def cell(text: Any) -> Made:
    """An entry of a markdown table."""
    return Made(inline(text).replace("|", "\\|"))


def table(header: Sequence[str], body: Iterable[Sequence[Any]], words: int = 1, last: int = 0) -> str:
    """A markdown table of trusted cells: figures stand between the first `words` and the `last` columns."""
    figures = range(words, len(header) - last)
    marks = "".join("---:|" if number in figures else "---|" for number in range(len(header)))
    first, *rows = (" | ".join(str(entry).replace("|", "\\|") for entry in row) for row in (header, *body))
    return "\n".join([f"| {first} |", f"|{marks}", *(f"| {row} |" for row in rows)])


class Html(str):
    """HTML made by this project; jinja calls __html__."""

    def __html__(self) -> str:
        return str(self)


def page(text: Any) -> Html:
    """One line of HTML."""
    made = {
        "text": html.escape,
        "code": lambda words: f"<code>{html.escape(words)}</code>",
        "open": lambda _: "<strong>",
        "close": lambda _: "</strong>",
    }
    return Html("".join(made[kind](words) for kind, words in _parts(text)))
