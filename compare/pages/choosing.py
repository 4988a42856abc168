"""The figures of docs/choosing-a-dsl.md: a profile of evidence, each row from what was measured, with its command.

    python -m compare.pages.choosing [--write] [--runs peers,serving] [--results docs/results/h200] [--page PAGE]

Fills the page's blocks `<!-- evidence: NAME -->` .. `<!-- end -->` (compare.pages.choosing_blocks) from the committed
runs of one GPU; what was not measured says so and how to. There is no score: a reader weighs the rows. Without --write
it says whether the page is what the runs say (exit 1 where not). --runs names the run folders from now on: the page
keeps them in its first block.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from compare.exits import USAGE
from compare.pages import settle
from compare.pages.choosing_blocks import BLOCKS, Committed
from compare.record import folder as run_folder
from compare.record.folder import NotARun

PAGE = run_folder.ROOT / "docs" / "choosing-a-dsl.md"
RESULTS = run_folder.ROOT / "docs" / "results" / "h200"
BLOCK = re.compile(r"<!-- evidence: (?P<name>[a-z]+)(?P<runs> [\w,-]+)? -->\n.*?<!-- end -->", re.DOTALL)


def render(text: str, results: Path, runs: tuple[str, ...] | None = None) -> str:
    """The page with every block filled. Raises KeyError for a block of another name, NotARun for a broken run."""
    first = BLOCK.search(text)
    kept = tuple((first["runs"] or "").strip().split(",")) if first else ()
    had = Committed(results, runs or kept)

    def fill(found: re.Match) -> str:
        runs = f" {','.join(had.names)}" if found.start() == first.start() else ""
        return f"<!-- evidence: {found['name']}{runs} -->\n{BLOCKS[found['name']](had)}\n<!-- end -->"

    return BLOCK.sub(fill, text)


def main(argv: list[str] | None = None) -> int:
    """0; 1 where the page is not what the runs say; 2 for a run that is none."""
    parser = argparse.ArgumentParser(prog="python -m compare.pages.choosing", description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--runs", help="comma-separated folders of runs under --results")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    asked = parser.parse_args(argv)
    runs = tuple(asked.runs.split(",")) if asked.runs else None
    try:
        new = render(asked.page.read_text(encoding="utf-8"), asked.results, runs)
    except (NotARun, ValueError) as error:
        print(error, file=sys.stderr)
        return USAGE
    return settle(asked.page, new, f"{parser.prog} --write", write=asked.write)


if __name__ == "__main__":
    sys.exit(main())
