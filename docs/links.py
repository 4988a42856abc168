"""Links of a built site that lead nowhere; the hooks of the site, website.py, ask for them."""

import html
import os
import re
from pathlib import Path
from urllib.parse import unquote

LINK = re.compile(r"<(?:a|img|link|script|source)\b[^>]*?\b(?:href|src|srcset)=\"([^\"]+)\"")


def broken(site: Path) -> list[str]:
    """Links of built pages to a file or an anchor that is not there: `page: link`."""
    texts = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    anchors = {path: set(re.findall(r"\bid=\"([^\"]+)\"", text)) for path, text in texts.items()}
    found = []
    for page, text in texts.items():
        for link in {html.unescape(link) for link in LINK.findall(text)}:
            path, _, anchor = link.partition("#")
            if re.match(r"\w+:|//|/", link) or link in (".", ".."):
                continue
            target = Path(os.path.normpath(page.parent / unquote(path))) if path else page
            if not target.exists() or (anchor and target in anchors and unquote(anchor) not in anchors[target]):
                found.append(f"{page.relative_to(site)}: {link}")
    return sorted(found)
