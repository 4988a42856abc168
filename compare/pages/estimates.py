"""docs/results/{h200,mi300}/estimates.md, the model of times held against measurements, and the spread in reports.

    python -m compare pages estimates [--write]

All of it is made of records and data files. Exit codes: 0; 1 where a file is not what these say.
"""

from __future__ import annotations

import argparse

from compare.pages import add_write, settle
from compare.studies.estimates import page

HELP = "docs/results/{h200,mi300}/estimates.md: the model of times against measurements"


def options(parser: argparse.ArgumentParser) -> None:
    add_write(parser)


def main(asked: argparse.Namespace) -> int:
    """0; 1 where a file is stale."""
    return max([settle(path, text, "estimates", write=asked.write) for path, text in page.texts().items()])
