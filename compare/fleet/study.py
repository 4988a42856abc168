"""`study` with --fleet: one seat of each kind of GPU runs the study.

    python -m compare study regret --seed 7 --out results/regret --fleet --gpu h200,mi300

The study runs in a child process of the seat. The driver prints its lines and copies its files into a folder of the
kind beside the named one: `results/h200/regret`, `results/mi300/regret`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import gpus
from common.process import Child
from common.process import Lost as Ended
from compare.exits import NO_GPU, WRONG, ending
from compare.fleet import muster
from compare.fleet.asked import Asked, Command
from compare.fleet.cluster import Cluster, Lost, NoFleet, RemoteSeat
from compare.process import children

PROGRAM = "compare.__main__"
SILENCE_S = 3600.0  # a study that prints nothing for so long is lost


class NoPlace(ValueError):
    """The study cannot run on a fleet; the message says which option it lacks."""


@dataclass
class SeatedStudy:
    """A work (compare.fleet.seat.Work): the only share is the words of a study; results are its lines, files and exit
    code. name: of the folder or file that it writes."""

    name: str
    _folder: str = ""

    def open(self, seat: str) -> None:
        self._folder = tempfile.mkdtemp(prefix="diptych-study-")

    def do(self, words: Sequence[str]) -> Iterator[tuple[str, Any]]:
        """Yield ("line", text) as they come, then ("file", (path, bytes)) for each file, then ("code", number)."""
        command = [*children.command(PROGRAM), "study", *words, "--out", os.path.join(self._folder, self.name)]
        child = Child(command, dict(os.environ), name=shlex.join(words[:1]))
        try:
            while True:
                yield "line", child.line(SILENCE_S).decode(errors="replace")
        except Ended as ended:
            yield from (("line", line) for line in ended.log_tail.splitlines())
            code = WRONG if ended.code is None else ended.code
        finally:
            child.end()
        for path in sorted(Path(self._folder).rglob("*")):
            if path.is_file():
                yield "file", (str(path.relative_to(self._folder)), path.read_bytes())
        yield "code", code

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def main(asked: Command) -> int:
    """Run a study with --fleet; returns the worst exit code over the kinds of GPU."""
    name = asked.name.removeprefix("study ")
    return ending(lambda: _main(name, asked.parser(), Asked.of(asked.words)), (NoFleet, NoPlace, gpus.UnknownGpu))


def _main(name: str, parser: argparse.ArgumentParser, over: Asked) -> int:
    ours = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    ours.add_argument("--gpu", default="auto")
    ours.add_argument("--out", type=Path)
    asked, rest = ours.parse_known_args(over.words)
    known = parser._option_string_actions
    if over.mixed:
        raise NoPlace("--mixed: found beside a study, which has one seat of each kind, allowed with run and tune")
    if "--out" not in known or "--gpu" not in known:
        raise NoPlace(f"--fleet: found study {name}, allowed a study of a GPU that writes a folder (--gpu, --out)")
    if asked.out is None:
        raise NoPlace("--out: found none beside --fleet, allowed a folder: its name is that of each kind's")
    parser.parse_args([*rest, "--out", str(asked.out)])  # refuse wrong words before any seat starts
    kinds = muster.kinds(asked.gpu)
    with Cluster(over.address) as cluster:
        found = muster.gpus(cluster, kinds, lambda line: print(line, file=sys.stderr), pretended=muster.pretending())
        lacking = [kind for kind in kinds or () if kind not in found.of]
        for kind in lacking:
            print(f"{kind} is not in the fleet; the study needs the GPU itself", file=sys.stderr)
        jobs = [(kind, seats[0], [name, *rest, "--gpu", kind]) for kind, seats in found.of.items()]
        for other in (seat for seats in found.of.values() for seat in seats[1:]):
            other.end()
        if not jobs:
            return NO_GPU
        with ThreadPoolExecutor(len(jobs)) as pool:
            codes = list(pool.map(lambda job: asking(*job, asked.out), jobs))
    return max([*codes, *([NO_GPU] if lacking else [])])


def asking(kind: str, seat: RemoteSeat, words: Sequence[str], out: Path) -> int:
    """Run the study on one seat, print its lines with the kind in front, and keep its files. Returns its exit code."""
    place, code = out.parent / kind, WRONG
    try:
        seat.open(SeatedStudy(out.name), SILENCE_S)
        for what, found in seat.do(list(words)):
            if what == "line":
                print(f"{kind}: {found}", flush=True)
            elif what == "file":
                path = place / found[0]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(found[1])
            else:
                code = found
    except Lost as lost:
        print(f"{kind}: {seat.name}: {lost}; what it wrote is gone with it", file=sys.stderr)
    with contextlib.suppress(Lost):
        seat.close()
    seat.end()
    return code
