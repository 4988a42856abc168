"""The mutation score of the kit: of wrong kernels that were made by themselves, how many each level rejects.

    python -m compare study mutation --out FOLDER [--count 1300] [--seed 1] [--level full] [--workers 2]

Case by case, each on all kernels that still live; a line a case in FOLDER/deaths.jsonl, where a later call goes on. A
kernel that lives and gave the bits of the right one in every call is taken for equivalent; one that is wrong in a part
of the batches alone, only where it is also right without that limit. Exit codes: 0; 2 where FOLDER is of another run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.kit import levels
from common.mutants.operators import Made, made
from common.process import Child, Lost
from compare.exits import OK, USAGE
from compare.process import children
from compare.process.crew import environment
from compare.process.pool import Jobs, Pool, in_order
from compare.workloads.numbers import at_least_one

HELP = "how many wrong kernels, made by themselves, each level of the kit rejects"
DEATHS = "deaths.jsonl"
SILENCE_S = 300.0  # without a line: a kernel that hangs where no signal reaches it
WHOLE = "without limit: "  # before the name of a case that limited kernels are asked without their limit
PLAIN = "sequence-1"  # a kernel that raises here is no kernel: it is not counted


@dataclass
class Lives:
    """Which kernels live, case by case; kept in a file as it is found."""

    path: Path
    count: int
    seed: int
    dead: dict[int, tuple[str, str]] = field(default_factory=dict)  # number: (case, why)
    differ: set[int] = field(default_factory=set)
    apart: set[int] = field(default_factory=set)  # wrong without their limit
    done: set[str] = field(default_factory=set)

    def load(self) -> bool:
        """What an earlier call found; False where that was of another run."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        head = {"count": self.count, "seed": self.seed}
        if not lines:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(head) + "\n")
        elif json.loads(lines[0]) != head:
            return False
        for line in lines[1:]:
            self.learn(json.loads(line))
        return True

    def learn(self, found: dict[str, Any]) -> None:
        self.done.add(found["case"])
        if found["case"].startswith(WHOLE):
            self.apart |= set(map(int, found["killed"]))
            return
        self.differ |= set(found["differs"])
        for number, why in found["killed"].items():
            self.dead.setdefault(int(number), (found["case"], why))

    def keep(self, found: dict[str, Any]) -> None:
        self.learn(found)
        with self.path.open("a") as file:
            file.write(json.dumps(found) + "\n")

    def alive(self) -> list[int]:
        return [number for number in range(self.count) if number not in self.dead]

    @property
    def same(self) -> list[int]:
        """Kernels that gave the right bits in all cases, and are not known to be wrong where their limit is."""
        return [number for number in self.alive() if number not in self.differ | self.apart]

    @property
    def born(self) -> list[int]:
        """Kernels that run at all."""
        still = {n for n, (case, why) in self.dead.items() if case == PLAIN and why.startswith("raised")}
        return [number for number in range(self.count) if number not in still]


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


def _lane(lives: Lives, numbers: Callable[[], list[int]]) -> Any:
    """One worker after the other; a kernel at which one is lost is dead too."""

    def work(names: Iterator[str]) -> Iterator[dict[str, Any]]:
        child = None
        try:
            for name in names:
                todo, found = numbers(), {"killed": {}, "differs": []}
                while todo:
                    child = child or Child(children.command(children.MUTATION), environment("check"))
                    expression, whole = name.removeprefix(WHOLE), name.startswith(WHOLE)
                    request = {"case": expression, "alive": todo, "whole": whole}
                    request |= {"count": lives.count, "seed": lives.seed}
                    try:
                        _asked(child, request, found)
                        break
                    except Lost as lost:
                        child.end()
                        child = None
                        if "at" not in found:
                            raise
                        at = found.pop("at")
                        found["killed"][str(at)] = f"raised: the process ended: {lost.status}"
                        todo = todo[todo.index(at) + 1 :]
                yield {"case": name, "killed": found["killed"], "differs": found["differs"]}
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


def table(lives: Lives, kernels: list[Made], smoke: set[str]) -> list[str]:
    """The score at each level, by operator."""
    born = lives.born
    same = set(lives.same)
    counts: dict[str, Counter[str]] = {}
    for number in born:
        of = counts.setdefault(kernels[number].operator, Counter())
        of["made"] += 1
        of["equivalent"] += number in same
        of["smoke"] += number in lives.dead and lives.dead[number][0] in smoke
        of["full"] += number in lives.dead
    rows = [*sorted(counts.items()), ("all", sum(counts.values(), Counter()))]
    lines = ["| operator | wrong kernels | equivalent | smoke | full |", "|---|---|---|---|---|"]
    for operator, of in rows:
        wrong = of["made"] - of["equivalent"]
        shares = [f"{of[level]} ({of[level] / wrong:.1%})" if wrong else "-" for level in levels.LEVELS]
        lines.append(f"| {operator} | {wrong} | {of['equivalent']} | {' | '.join(shares)} |")
    return lines


def in_turn(level: str) -> list[str]:
    """The cases of a level; those first in which many features are on, and which therefore reject most."""
    names = sorted(levels.level(level), key=lambda name: not name.startswith("axes-"))
    numbers = [name for name in names if name.startswith("axes-")]
    return [PLAIN, *numbers[::-1], *(name for name in names[len(numbers) :] if name != PLAIN)]


def options(new: argparse.ArgumentParser) -> None:
    new.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    new.add_argument("--count", type=at_least_one, default=1300, help="kernels that are made; default 1300")
    new.add_argument("--seed", type=int, default=1, help="of their drawing; default 1")
    new.add_argument("--level", choices=levels.LEVELS, default="smoke", help="default smoke")
    new.add_argument("--workers", type=at_least_one, default=2, help="processes; default 2")


def main(asked: argparse.Namespace) -> int:
    lives = Lives(asked.out / DEATHS, asked.count, asked.seed)
    if not lives.load():
        print(f"out: found {asked.out} of another count or seed, allowed a folder of this one", file=sys.stderr)
        return USAGE
    smoke = in_turn("smoke")
    run(lives, smoke, asked.workers)
    if asked.level == "full":
        run(lives, in_turn("full"), asked.workers)
    kernels = made(asked.count, asked.seed)
    within = lambda: [number for number in lives.same if kernels[number].whole]  # noqa: E731
    run(lives, [f"{WHOLE}{name}" for name in smoke], asked.workers, within)
    print("\n".join(table(lives, kernels, set(smoke))))
    for number in sorted(set(lives.alive())):
        word = "differs" if number in lives.differ else "wrong at its limit" if number in lives.apart else "same bits"
        print(f"{number} {word}: {kernels[number].name}: {kernels[number].text}")
    return OK
