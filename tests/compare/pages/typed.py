"""Figures that somebody typed into a page, outside of all marks."""

import re

# Text of a page that is kept up to date automatically.

_AUTOMATIC = re.compile(
    r"<!--= .*?<!--/-->|<!-- (?:include|evidence|figures): .*?<!-- end -->|<!-- dated: .*?<!-- end dated -->"
    r"|```sh\n[^`]*--print [^`]*```(?:\s*\n\|[^\n]*)+"  # a table that a test compares with what the command prints
    r"|```.*?```|`[^`\n]+`",
    re.DOTALL,
)
_NAME = "(?:Triton|Helion|vLLM|Gluon)"
_SECONDS = rf"(?= ?(?:s|ms|µs|us) in {_NAME})"
_NUMBER = re.compile(
    r"(?<![\w.])(?:(?:\d\.\d{1,3}|\d,\d\d?)(?![\w.]|,\d)|\d+(?:\.\d+)?(?= ?%| ?percent\b| times\b|[x×](?!\w))"
    rf"|\d+(?= of \d+ pairs)|\d+(?:\.\d+)?{_SECONDS})"
)
_COMPARED = re.compile(
    rf"FA3|FlashAttention|{_NAME}(?:'s)?(?: Triton)?(?: kernels?)?(?:'s)? (?:speed|time)s?\b|of (?:its speed|{_NAME}'s)"
    rf"|vLLM's Triton|\bbeat(?:s|en)?\b|(?:as fast as|faster than|slower than|ahead of|behind) {_NAME}"
    rf"|\b(?:loses?|lost) [^.|]*\bto {_NAME}|(?:faster|slower) in \d+ of \d+ pairs|\d{_SECONDS}|\| speed \|"
)


def unmarked(text: str) -> list[str]:
    """Sentences and table rows that compare speeds by a number outside of all marks.

    A row is read together with its table's head, which says what its numbers are.
    """
    rest = _AUTOMATIC.sub(" ", text)
    found = []
    for block in re.split(r"\n\s*\n", rest):
        head = ""
        for piece in re.split(r"\n(?=\s*[-|*] ?)|(?<=[.:;]) (?=[A-Z])", block):
            said = " ".join(piece.split())
            if not said.startswith("|"):
                head = ""
            elif not head:
                head = said
            if _COMPARED.search(f"{head} {said}" if head else said) and _NUMBER.search(said):
                found.append(said)
    return found
