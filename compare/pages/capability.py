"""docs/capability.md from a conformance run.

    python -m compare pages capability [--write] [--results FILE]
    CASES="$(python -m compare pages capability --cases)"
    python -m pytest tests/conformance/test_conformance.py -k "$CASES" --conformance-out FILE

Exit codes: 0; 1 where the page says something else; 2 for a file that is no conformance run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from compare.exits import OK, USAGE, say
from compare.pages import add_write, settle
from compare.record.folder import ROOT
from compare.studies.capability import RESULTS, NoResults, cover, read, render

HELP = "docs/capability.md: what each kernel keeps of the named cases"
PAGE = ROOT / "docs" / "capability.md"


def options(parser: argparse.ArgumentParser) -> None:
    add_write(parser)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE", help="cells of a conformance run")
    parser.add_argument("--cases", action="store_true", help="print pytest's -k for a cover of the aspects, and end")


def main(asked: argparse.Namespace) -> int:
    """0; 1 where the page says something else; 2 for a file that is no conformance run."""
    if asked.cases:
        print(" or ".join(f"{case}-" for case in cover()))
        return OK
    try:
        text = render(read(asked.results))
    except NoResults as error:
        say(error)
        return USAGE
    return settle(PAGE, text, "capability", write=asked.write)
