"""The mutation score of the kit: of wrong kernels that were made by themselves, how many each level rejects.

    python -m compare study mutation --out FOLDER [--count 1300] [--axes 400] [--seed 1] [--level full] [--jobs 2]
    python -m compare study mutation --out FOLDER --kills --jobs 16      every case on all kernels: who kills whom

The kernels are `count` of the operators, and `axes` that are wrong at one value of one axis alone. Case by case, each
on all that still live, or with --kills on all; a line a case in FOLDER/deaths.jsonl, where a later call goes on:
{"case", "seconds": of the processor for a right kernel, "killed": {number: why}, "differs": [numbers]}. A kernel that
lives and gave the bits of the right one in every call is taken for equivalent; one that is wrong in a part of the
batches alone, only where it is also right without that limit. Exit codes: 0; 2 where FOLDER is of another run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.kit import levels
from common.mutants.operators import Made
from common.process import Child, Lost
from compare.exits import OK, USAGE
from compare.process import children
from compare.process.crew import environment
from compare.process.pool import Jobs, Pool, in_order
from compare.studies.mutation.worker import kernels_of
from compare.workloads.numbers import at_least_one

HELP = "how many wrong kernels, made by themselves, each level of the kit rejects"
DEATHS = "deaths.jsonl"
SILENCE_S = 300.0  # without a line: a kernel that hangs where no signal reaches it
WHOLE = "without limit: "  # before the name of a case that limited kernels are asked without their limit
WHOLES = 40  # cases that are asked without limits: they tell which are wrong there at all
LEVELS = ("smoke", "full")
PLAIN = "sequence-1"  # a kernel that raises here is no kernel: it is not counted


@dataclass
class Lives:
    """Which kernels live, case by case; kept in a file as it is found."""

    path: Path
    count: int
    seed: int
    of_axes: int = 0
    draw: int = 0
    kills: dict[int, set[str]] = field(default_factory=dict)  # number: the cases that reject it
    never: set[int] = field(default_factory=set)  # kernels that do not run at all
    seconds: dict[str, float] = field(default_factory=dict)
    differ: set[int] = field(default_factory=set)
    apart: set[int] = field(default_factory=set)  # wrong without their limit
    done: set[str] = field(default_factory=set)

    @property
    def total(self) -> int:
        return self.count + self.of_axes

    def load(self) -> bool:
        """What an earlier call found; False where that was of another run."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        head = {"count": self.count, "seed": self.seed, "axes": self.of_axes, "draw": self.draw}
        if not lines:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(head) + "\n")
        elif json.loads(lines[0]) != head:
            return False
        for line in lines[1:]:
            self.learn(json.loads(line))
        return True

    def learn(self, found: dict[str, Any]) -> None:
        case = found["case"]
        self.done.add(case)
        if case.startswith(WHOLE):
            self.apart |= set(map(int, found["killed"]))
            return
        self.seconds[case] = found.get("seconds", 0.0)
        self.differ |= set(found["differs"])
        for number, why in found["killed"].items():
            self.kills.setdefault(int(number), set()).add(case)
            if case == PLAIN and why.startswith("raised"):
                self.never.add(int(number))

    def keep(self, found: dict[str, Any]) -> None:
        self.learn(found)
        with self.path.open("a") as file:
            file.write(json.dumps(found) + "\n")

    def alive(self) -> list[int]:
        return [number for number in range(self.total) if number not in self.kills]

    @property
    def same(self) -> list[int]:
        """Kernels that gave the right bits in all cases, and are not known to be wrong where their limit is."""
        return [number for number in self.alive() if number not in self.differ | self.apart]

    @property
    def born(self) -> list[int]:
        """Kernels that run at all."""
        return [number for number in range(self.total) if number not in self.never]


def _asked(child: Child, request: dict[str, Any], found: dict[str, Any]) -> None:
    """What the child finds, as it says it. Raises Lost; `at` is then the kernel that it was at."""
    child.send(json.dumps(request).encode())
    while "done" not in (said := json.loads(child.line(SILENCE_S))):
        if "killed" in said:
            found["killed"][str(said["killed"])] = said["why"]
        elif "differs" in said:
            found["differs"].append(said["differs"])
        else:
            found["at"] = said["at"]
    found["seconds"] = said["seconds"]


def _at(name: str, lost: Lost) -> Lost:
    """The loss, with the case that it happened at and the last line that the child wrote."""
    last = lost.log_tail.strip().rpartition("\n")[2]
    return Lost(lost.status, ": ".join(filter(None, (name, lost.reason, last))), lost.log_tail, lost.code)


def _lane(lives: Lives, numbers: Callable[[], list[int]]) -> Any:
    """One worker after the other; a kernel at which one is lost is dead too."""

    def work(names: Iterator[str]) -> Iterator[dict[str, Any]]:
        child = None
        try:
            for name in names:
                todo, found = numbers(), {"seconds": 0.0, "killed": {}, "differs": []}
                while todo:
                    child = child or Child(children.command(children.MUTATION), environment("check"))
                    expression, whole = name.removeprefix(WHOLE), name.startswith(WHOLE)
                    request = {"case": expression, "alive": todo, "whole": whole}
                    request |= {"count": lives.count, "seed": lives.seed, "families": lives.of_axes}
                    try:
                        _asked(child, request, found)
                        break
                    except Lost as lost:
                        child.end()
                        child = None
                        if "at" not in found:  # no kernel was called yet: the case is at fault
                            raise _at(name, lost) from lost
                        at = found.pop("at")
                        found["killed"][str(at)] = f"raised: the process ended: {lost.status}"
                        todo = todo[todo.index(at) + 1 :]
                yield {"case": name} | {key: found[key] for key in ("seconds", "killed", "differs")}
        finally:
            if child:
                child.end()

    return work


def run(lives: Lives, names: list[str], workers: int, numbers: Callable[[], list[int]] | None = None) -> None:
    """Each case on those that live when it begins, or on those of `numbers`."""
    left = [name for name in names if name not in lives.done]
    pool: Pool = Pool([_lane(lives, numbers or lives.alive) for _ in range(workers)], Jobs(left, of=in_order))
    try:
        for number, found in enumerate(pool.results(), 1):
            lives.keep(found)
            if number % 20 == 0:
                print(f"{number} of {len(left)} cases, {len(lives.alive())} live", file=sys.stderr, flush=True)
    finally:
        pool.close()


def table(lives: Lives, kernels: Sequence[Made], cases: dict[str, set[str]]) -> list[str]:
    """The score of each level, whose cases are given, by operator and by axis."""
    same = set(lives.same)
    counts: dict[str, Counter[str]] = {}
    for number in lives.born:
        of = counts.setdefault(kernels[number].operator, Counter())
        of["made"] += 1
        of["equivalent"] += number in same
        of.update(level for level, names in cases.items() if lives.kills.get(number, set()) & names)
    groups = (("all by operators", False), ("all by axes", True))
    rows = sorted(counts.items())
    for word, by_axis in groups:
        of = [count for name, count in rows if name.startswith("axis ") is by_axis]
        rows = [*rows, (word, sum(of, Counter()))] if of else rows
    lines = [f"| wrong by | wrong kernels | equivalent | {' | '.join(cases)} |", "|---|---|---|" + "---|" * len(cases)]
    for operator, of in rows:
        wrong = of["made"] - of["equivalent"]
        shares = [f"{of[level]} ({of[level] / wrong:.1%})" if wrong else "-" for level in cases]
        lines.append(f"| {operator} | {wrong} | {of['equivalent']} | {' | '.join(shares)} |")
    return lines


def best(lives: Lives, count: int) -> list[tuple[str, int, float]]:
    """The cases that reject most a second of what those before them let live: (case, how many more, seconds)."""
    by: dict[str, set[int]] = {}
    for number, names in lives.kills.items():
        for name in names if number not in lives.never else ():
            by.setdefault(name, set()).add(number)
    chosen, dead = [], set()
    while by and len(chosen) < count:
        name = max(by, key=lambda name: (len(by[name] - dead) / (lives.seconds[name] + 0.02), name))
        more = by.pop(name) - dead
        if not more:
            break
        dead |= more
        chosen.append((name, len(more), lives.seconds[name]))
    return chosen


def in_turn(level: str, draw: int = 0) -> list[str]:
    """The cases of a level; those first in which many features are on, and which therefore reject most."""
    names = list(levels.level(level, draw))
    chosen = [name for name in names if name.startswith(("axes-", "drawn-"))]
    return [PLAIN, *chosen[::-1], *(name for name in names if name not in {*chosen, PLAIN})]


def options(new: argparse.ArgumentParser) -> None:
    new.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    new.add_argument("--count", type=at_least_one, default=1300, help="kernels of the operators; default 1300")
    new.add_argument("--axes", type=int, default=400, help="kernels that are wrong at one value; default 400")
    new.add_argument("--seed", type=int, default=1, help="of their drawing; default 1")
    new.add_argument("--draw", type=int, default=0, help="the kit's seed, which draws values of axes; default 0")
    new.add_argument("--level", choices=LEVELS, default="smoke", help="default smoke")
    new.add_argument("--kills", action="store_true", help="each case on all kernels, the dead too")
    new.add_argument("--jobs", type=at_least_one, default=2, help="processes; default 2")


def main(asked: argparse.Namespace) -> int:
    lives = Lives(asked.out / DEATHS, asked.count, asked.seed, asked.axes, asked.draw)
    if not lives.load():
        print(f"out: found {asked.out} of another run, allowed a folder of this one", file=sys.stderr)
        return USAGE
    kernels = kernels_of(asked.count, asked.axes, asked.seed)
    cases: dict[str, set[str]] = {}
    everyone = (lambda: [number for number in range(lives.total) if number not in lives.never]) if asked.kills else None
    for level in LEVELS[: LEVELS.index(asked.level) + 1]:
        names = in_turn(level, asked.draw)
        run(lives, names, asked.jobs, everyone)
        cases[level] = set(names).union(*cases.values())
    within = lambda: [number for number in lives.same if kernels[number].whole]  # noqa: E731
    run(lives, [f"{WHOLE}{name}" for name in in_turn("smoke", asked.draw)[:WHOLES]], asked.jobs, within)
    print("\n".join(table(lives, kernels, cases)))
    for name, more, seconds in best(lives, 60) if asked.kills else ():
        print(f"{name}: {more} more in {seconds:.2f} s")
    for number in sorted(set(lives.alive())):
        word = "differs" if number in lives.differ else "wrong at its limit" if number in lives.apart else "same bits"
        print(f"{number} {word}: {kernels[number].name}: {kernels[number].text}")
    return OK
