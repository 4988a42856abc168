"""Committed pages that are made of committed results: each writes itself, or says whether it is out of date.

In: the runs under docs/results, the kernels' declarations, the cases. Out: pages of docs/, and exit 1 for a stale one.
"""

from __future__ import annotations

from pathlib import Path

from compare.exits import OK, WRONG
from compare.record.folder import ROOT


def settle(page: Path, text: str, command: str, *, write: bool) -> int:
    """Write `text` to `page`; or OK where the page says it, WRONG where it says something else or is not there.

    command: what makes the page fresh.
    """
    name = page.relative_to(ROOT) if page.is_relative_to(ROOT) else page
    if write:
        page.write_text(text, encoding="utf-8")
        print(name)
        return OK
    fresh = page.is_file() and page.read_text(encoding="utf-8") == text
    print(f"{name} is fresh" if fresh else f"{name} is stale: {command}")
    return OK if fresh else WRONG
