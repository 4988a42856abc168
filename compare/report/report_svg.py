"""A figure inside a page: without its prologue and fixed size, in the page's colours, with the ids that it needs."""

from __future__ import annotations

import html
import re
from pathlib import Path

# A figure's neutral and DSL colours follow the page, light or dark; the rest is legible on both.
COLOURS = {
    "#000000": "var(--ink)",
    "#ffffff": "var(--sheet)",
    "#dddddd": "var(--rule)",
    "#f4f4f4": "var(--stripe)",
    "#0072b2": "var(--triton)",
    "#d55e00": "var(--helion)",
}
_COLOUR = re.compile("|".join(COLOURS), re.IGNORECASE)
_SIZE = re.compile(r'\s(?:width|height)="[\d.]+pt"')


def inline(path: Path, prefix: str, text: str) -> str:
    """The SVG of a file as an element of a page. prefix: of its ids. text: what it shows, for who cannot see it."""
    whole = path.read_text(encoding="utf-8")
    body = whole[whole.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<style.*?</style>", "", body, flags=re.DOTALL)  # its `*` would reach the page
    body = re.sub(r"<!--.*?-->\s*", "", body, flags=re.DOTALL)
    used = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', body))
    names = {name for pair in used for name in pair if name}
    body = re.sub(r' id="([^"]+)"', lambda m: f' id="{prefix}-{m[1]}"' if m[1] in names else "", body)
    body = re.sub(r'href="#', f'href="#{prefix}-', body)
    body = body.replace("url(#", f"url(#{prefix}-")
    body = _COLOUR.sub(lambda match: COLOURS[match.group().lower()], body)
    opening, rest = body.split(">", 1)
    opening = _SIZE.sub("", opening)
    label = html.escape(text, quote=True)
    return f'{opening} role="img" aria-label="{label}">{rest}'.strip()
