"""A folder of candidates against the spec: each file has one entry point and is judged by itself, and timed if right.

    python -m compare grade FOLDER [--level first] [--entry forward] [--jobs 2] [--time-limit 20] [--out grades.jsonl]

Each file NAME.py is judged by diptych-check until it is wrong: by one case of several calls, which tells a cheat from a
mistake, then by levels, the cheapest first. A call has 60 s, or
--time-limit; a candidate that does not answer in time is not judged. Times need a GPU, and are taken one after the
other when all are judged. --out gets a line as soon as a candidate is judged; the next call goes on there: a
file with the same bytes is not judged again. Exit codes: 0 all right; 1 a candidate that is not; 2 usage; 5 none was
judged; 130 interrupted, and what was judged is kept.
"""

import argparse
import os
import signal
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from common import process
from common.kit import levels
from compare.exits import NOTHING, OK, USAGE, WRONG, say
from compare.process.pool import Jobs, Pool, in_order
from compare.record.store import Busy, Findings
from compare.studies.grade import clock
from compare.studies.grade.judge import CHEAT, RIGHT, UNJUDGED, Candidate, judged
from compare.workloads.numbers import at_least_one, seconds

HELP = "judge a folder of candidate kernels, one file each, and time the right ones"
MOST_JOBS, WIDTH, REASON = 4, 200, 110  # of a table that is no terminal's; of a reason, in characters
BEGIN = "query-15-16-17"  # the case that is asked first
STYLES = {RIGHT: "green", UNJUDGED: "yellow", CHEAT: "bold red"}


def candidates(folder: Path) -> list[Candidate]:
    """The files NAME.py in the folder and below, sorted, except names that begin with an underscore. Raises
    ValueError where there is none."""
    paths = [path for path in sorted(folder.rglob("*.py")) if path.is_file() and not path.name.startswith("_")]
    if not paths:
        raise ValueError(f"folder: found {folder}, allowed one with files NAME.py")
    return [Candidate(str(path.relative_to(folder)), path.read_bytes()) for path in paths]


class Grades(Findings):
    """The file of a run: lines of verdicts, by the candidate's hash, and of times. Raises ValueError for a file of
    another run; Busy."""

    def __init__(self, path: Path, head: dict[str, Any]) -> None:
        self.of: dict[str, dict[str, Any]] = {}
        super().__init__(path, head)

    def learn(self, found: dict[str, Any]) -> None:
        self.of[found["sha256"]] = self.of.get(found["sha256"], {}) | found


def judge(
    given: Sequence[Candidate],
    grades: Grades,
    entry: str,
    asks: Sequence[Sequence[str]],
    words: Sequence[str],
    jobs: int,
) -> None:
    """Judge the candidates without a line, `jobs` at once, and equal files once."""
    left: dict[str, Candidate] = {}
    for one in given:
        if one.sha256 not in grades.of:
            left.setdefault(one.sha256, one)

    def lane(taken: Iterator[Candidate]) -> Iterator[tuple[Candidate, dict[str, Any]]]:
        return ((one, judged(one, entry, asks, words)) for one in taken)

    pool: Pool = Pool([lane] * min(jobs, len(left)), Jobs(left.values(), of=in_order))
    try:
        for number, (one, found) in enumerate(pool.results(), 1):
            grades.add({"candidate": one.name, "sha256": one.sha256} | found)
            print(f"{number} of {len(left)}: {one.name} {found['verdict']}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        pool.close()
        with process.started() as judges:  # each ends its kernel's processes, then itself
            for pid in judges:
                os.kill(pid, signal.SIGINT)
        for _ in pool.results():
            pass
        raise
    finally:
        pool.close()


def table(given: Sequence[Candidate], grades: Grades) -> Table:
    """One row for each candidate."""
    made = Table(box=None, pad_edge=False)
    for title in ("candidate", "verdict", "level"):
        made.add_column(title, no_wrap=True)
    for title in ("right of", "s"):
        made.add_column(title, justify="right", no_wrap=True)
    made.add_column("why, or times")
    for one in given:
        line = grades.of[one.sha256]
        case = line["case"].partition("@")[0]
        why = ": ".join(filter(None, (line["kind"], case if case != line["by"] else "", line["reason"])))
        told = (
            clock.told(line.get("times"))
            if line["verdict"] == RIGHT
            else textwrap.shorten(why, REASON, placeholder="...")
        )
        counts = f"{line['right']} of {line['asked']}" if line["asked"] else "-"
        word = f"[{STYLES.get(line['verdict'], 'red')}]{line['verdict']}[/]"
        made.add_row(escape(one.name), word, line["by"], counts, f"{line['seconds']:.0f}", escape(told))
    return made


def options(new: argparse.ArgumentParser) -> None:
    new.add_argument("folder", type=Path, metavar="FOLDER")
    new.add_argument("--level", choices=levels.LEVELS, default="smoke", help="the last that is asked; default smoke")
    new.add_argument("--entry", default="paged_attention", metavar="NAME", help="of each file; default paged_attention")
    new.add_argument(
        "--jobs", type=at_least_one, help="candidates at once; default 1 on a GPU, else the cores, at most 4"
    )
    new.add_argument("--time-limit", type=seconds, metavar="SECONDS", help="of one call; default 60")
    new.add_argument("--out", type=Path, metavar="FILE", help="default grades.jsonl in FOLDER")


def main(asked: argparse.Namespace) -> int:
    asks = [("--case", BEGIN)]
    asks += [("--level", level) for level in levels.LEVELS[: levels.LEVELS.index(asked.level) + 1]]
    words = ["--time-limit", str(asked.time_limit)] if asked.time_limit else []
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    jobs = asked.jobs or (1 if torch.cuda.is_available() else min(process.cores(), MOST_JOBS))
    head = {"level": asked.level, "entry": asked.entry, "time_limit": asked.time_limit, "device": device}
    try:
        given = candidates(asked.folder)
        grades = Grades(asked.out or asked.folder / "grades.jsonl", head)
    except (ValueError, Busy) as error:
        say(error)
        return USAGE
    with grades:
        judge(given, grades, asked.entry, asks, words, jobs)
        if torch.cuda.is_available():
            for one in given:
                line = grades.of[one.sha256]
                if line["verdict"] == RIGHT and "times" not in line:
                    grades.add({"sha256": one.sha256, "times": clock.times(one, asked.entry)})
    console = Console()
    console = console if console.is_terminal else Console(width=WIDTH)
    console.print(table(given, grades))
    found = [grades.of[one.sha256]["verdict"] for one in given]
    console.print(f"{found.count(RIGHT)} of {len(found)} right, by {asked.level} on {device}")
    if set(found) == {UNJUDGED}:
        return NOTHING
    return OK if set(found) == {RIGHT} else WRONG
