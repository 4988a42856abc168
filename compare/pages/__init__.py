"""Committed pages made of committed results: each can be rewritten, and says whether it is out of date.

In: the runs under docs/results, the kernels' declarations, the cases. Out: pages of docs/, and exit 1 for a stale one.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

from compare.exits import OK, WRONG
from compare.record.folder import ROOT

HELP = "say which committed page is out of date, of all or of the named ones; --write writes it"
NAMED = {
    "figures": "compare.pages.figures",
    "choosing": "compare.pages.choosing",
    "features": "compare.pages.features",
    "reports": "compare.pages.reports",
    "census": "compare.pages.census",
    "history": "compare.pages.history",
}


def add_write(parser: argparse.ArgumentParser) -> None:
    """--write, which every page has."""
    parser.add_argument("--write", action="store_true", help="write it; else say whether it is out of date (exit 1)")


def settle(page: Path, text: str, name: str, *, write: bool) -> int:
    """Write `text` to `page`, or compare: OK where the page has this text, WRONG where it differs or is missing.

    name: the page's name on the command line.
    """
    shown = page.relative_to(ROOT) if page.is_relative_to(ROOT) else page
    if write:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
        print(shown)
        return OK
    fresh = page.is_file() and page.read_text(encoding="utf-8") == text
    print(f"{shown} is fresh" if fresh else f"{shown} is stale: python -m compare pages {name} --write")
    return OK if fresh else WRONG


def settle_all(texts: Mapping[Path, str], name: str, *, write: bool) -> int:
    """`settle` each page; returns the worst code."""
    return max((settle(path, text, name, write=write) for path, text in texts.items()), default=OK)
