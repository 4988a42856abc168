"""docs/capability.md from a conformance run.

CASES="$(python -m compare.pages.capability --cases)"
python -m pytest tests/conformance/test_conformance.py -k "$CASES" --conformance-out RESULTS
python -m compare.pages.capability [RESULTS] [--write docs/capability.md] [--check docs/capability.md]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from compare.exits import OK, USAGE
from compare.pages import settle
from compare.studies.capability import RESULTS, NoResults, cover, read, render


def main(argv: list[str] | None = None) -> int:
    """0; 1 where --check finds another text; 2 for a file that is no conformance run."""
    parser = argparse.ArgumentParser(prog="python -m compare.pages.capability", description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", type=Path, default=RESULTS)
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--check", type=Path, metavar="FILE")
    parser.add_argument("--cases", action="store_true", help="print pytest's -k for a cover of the aspects, and end")
    arguments = parser.parse_args(argv)
    if arguments.cases:
        print(" or ".join(f"{case}-" for case in cover()))
        return OK
    try:
        text = render(read(arguments.results))
    except NoResults as error:
        print(error, file=sys.stderr)
        return USAGE
    page = arguments.check or arguments.write
    if page is not None:
        return settle(page, text, f"{parser.prog} --write {page}", write=arguments.check is None)
    print(text)
    return OK


if __name__ == "__main__":
    sys.exit(main())
