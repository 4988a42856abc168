"""The mutation score of the kit: how many generated wrong kernels each level rejects.

    python -m compare study mutation --out FOLDER [--count 1300] [--axes 400] [--seed 1] [--level full] [--jobs 2]

The kernels are `count` of the operators, and `axes` that are wrong at one value of one axis alone. Level by level, case
by case, each is asked of all that still live. FOLDER/deaths.jsonl gets one line for each case, and a later call goes on
there: {"case", "killed": {number: why}, "differs": [numbers]}. FOLDER/mutants.jsonl gets one line for each kernel.

A kernel that lives counts as equivalent if it gave the bits of the right one in every call, or the right numbers where
it computes in float64. One that is wrong in a part of the batches must also be right without that limit.
Exit codes: 0; 2 where FOLDER is of another run.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

from common.kit import levels
from common.process import Child, Lost
from compare.exits import OK, USAGE, say
from compare.process import children
from compare.process.crew import environment
from compare.process.pool import Jobs, Pool, in_order
from compare.record.store import Busy, Findings
from compare.studies.mutation import table
from compare.studies.mutation.worker import kernels_of
from compare.workloads.numbers import at_least_one, count, seed

HELP = "how many generated wrong kernels each level of the kit rejects"
DEATHS, MUTANTS = "deaths.jsonl", "mutants.jsonl"
SILENCE_S = 300.0  # without a line: a kernel that hangs where no signal reaches it
WHOLE = "without limit: "  # before the name of a case that limited kernels are asked without their limit
WHOLES = 40  # cases that are asked without limits: they tell which are wrong there at all
EXACT = "in float64: "  # before the name of a case that is asked without limits and without rounding
EXACTS = 150  # such cases: they tell which sum in another order alone
PLAIN = "sequence-1"  # a kernel that raises here is no kernel: it is not counted


class Lives(Findings):
    """Which kernels live, case by case; kept in a file as it is found. A kernel lives until a case rejects it.

    Raises ValueError for a file of another run; Busy.
    """

    def __init__(self, path: Path, count: int, seed: int, of_axes: int = 0, draw: int = 0) -> None:
        self.count, self.seed, self.of_axes, self.draw = count, seed, of_axes, draw
        self.kills: dict[int, set[str]] = {}  # number: the cases that reject it
        self.never: set[int] = set()  # kernels that do not run at all
        self.differ: set[int] = set()
        self.apart: set[int] = set()  # wrong without their limit
        self.inexact: set[int] = set()  # not the right one where nothing is rounded
        self.done: set[str] = set()
        super().__init__(path, {"count": count, "seed": seed, "axes": of_axes, "draw": draw})

    @property
    def total(self) -> int:
        return self.count + self.of_axes

    def learn(self, found: dict[str, Any]) -> None:
        case = found["case"]
        self.done.add(case)
        for word, numbers in ((WHOLE, self.apart), (EXACT, self.inexact)):
            if case.startswith(word):
                numbers |= set(map(int, found["killed"]))
                return
        self.differ |= set(found["differs"])
        for number, why in found["killed"].items():
            self.kills.setdefault(int(number), set()).add(case)
            if case == PLAIN and why.startswith("raised"):
                self.never.add(int(number))

    def alive(self) -> list[int]:
        return [number for number in range(self.total) if number not in self.never | self.kills.keys()]

    @property
    def same(self) -> list[int]:
        """Kernels that gave the right bits in all cases, and are not known to be wrong where their limit is."""
        return [number for number in self.alive() if number not in self.differ | self.apart]

    @property
    def reordered(self) -> list[int]:
        """Kernels that gave other bits, and are not known to be wrong where nothing is rounded."""
        return [number for number in self.alive() if number in self.differ - self.apart - self.inexact]


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
                todo, found = numbers(), {"killed": {}, "differs": []}
                while todo:
                    child = child or Child(children.command(children.MUTATION), environment("check"))
                    expression = name.removeprefix(WHOLE).removeprefix(EXACT)
                    request = {"case": expression, "alive": todo}
                    request |= {"whole": name.startswith(WHOLE), "exact": name.startswith(EXACT)}
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
                yield {"case": name} | {key: found[key] for key in ("killed", "differs")}
        finally:
            if child:
                child.end()

    return work


def run(lives: Lives, names: list[str], workers: int, numbers: Callable[[], list[int]] | None = None) -> None:
    """Ask each case of the kernels that are alive when it begins, or of those in `numbers`."""
    left = [name for name in names if name not in lives.done]
    with closing(Pool([_lane(lives, numbers or lives.alive) for _ in range(workers)], Jobs(left, of=in_order))) as pool:
        for number, found in enumerate(pool.results(), 1):
            lives.add(found)
            if number % 20 == 0:
                print(f"{number} of {len(left)} cases, {len(lives.alive())} live", file=sys.stderr, flush=True)


def in_turn(level: str, draw: int = 0) -> list[str]:
    """The cases of a level; those first in which many features are on, and which therefore reject most."""
    names = list(levels.level(level, draw))
    if level == "first":
        return [PLAIN, *(name for name in names if name != PLAIN)]
    chosen = [name for name in names if name.startswith(("axes-", "drawn-"))]
    return [PLAIN, *chosen[::-1], *(name for name in names if name not in {*chosen, PLAIN})]


def options(new: argparse.ArgumentParser) -> None:
    new.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    new.add_argument("--count", type=at_least_one, default=1300, help="kernels of the operators; default 1300")
    new.add_argument("--axes", type=count, default=400, help="kernels that are wrong at one value; default 400")
    new.add_argument("--seed", type=seed, default=1, help="of their drawing; default 1")
    new.add_argument("--draw", type=seed, default=0, help="the kit's seed, which draws values of axes; default 0")
    new.add_argument("--level", choices=levels.LEVELS, default="smoke", help="and those before it; default smoke")
    new.add_argument("--jobs", type=at_least_one, default=2, help="processes; default 2")


def found(lives: Lives, cases: dict[str, list[str]]) -> tuple[dict[str, Any], list[table.Line]]:
    """The run and its kernels as lines for `table`, without kernels that do not run."""
    import torch

    kernels, lines = kernels_of(lives.count, lives.of_axes, lives.seed), []
    exact = any(case.startswith(EXACT) for case in lives.done)
    same, reordered = set(lives.same), set(lives.reordered if exact else ())
    for number in (number for number in range(lives.total) if number not in lives.never):
        kernel = kernels[number]
        line = {"operator": kernel.operator, "change": f"{kernel.name.rpartition(' ')[2]} {kernel.text}"}
        fate = table.died(lives.kills.get(number, set()), cases)
        if not fate:
            limited = table.AT_LIMIT if number in lives.apart else table.DIFFERS
            fate = {"lives": table.SAME if number in same else table.ORDER if number in reordered else limited}
        lines.append(line | fate)
    words = f"--out FOLDER --count {lives.count} --axes {lives.of_axes} --seed {lives.seed} --draw {lives.draw}"
    asked = {level: [len(lives.done & set(names)), len(names)] for level, names in cases.items()}
    run = {
        "command": f"python -m compare study mutation {words}",
        "torch": torch.__version__,
        "day": date.today().isoformat(),
        "drawn": lives.total,
    }
    return run | {"cases": asked}, lines


def score(lives: Lives, asked: argparse.Namespace) -> None:
    """Print and keep the table of levels and the survivors."""
    kernels = kernels_of(lives.count, lives.of_axes, lives.seed)
    names = levels.LEVELS[: levels.LEVELS.index(asked.level) + 1]
    cases = {level: in_turn(level, lives.draw) for level in names}
    within = lambda: [number for number in lives.same if kernels[number].whole]  # noqa: E731
    wholes = [f"{WHOLE}{name}" for name in in_turn("smoke", lives.draw)[:WHOLES]]
    for level in names:
        run(lives, cases[level], asked.jobs)
    run(lives, wholes, asked.jobs, within)
    exact = [f"{EXACT}{name}" for name in in_turn("smoke", lives.draw)[:EXACTS]]
    run(lives, exact, asked.jobs, lambda: lives.reordered)
    head, lines = found(lives, cases)
    table.write(asked.out / MUTANTS, head, lines)
    print(table.table(lines, head["cases"]), table.survivors(lines, names), sep="\n\n")


def main(asked: argparse.Namespace) -> int:
    try:
        lives = Lives(asked.out / DEATHS, asked.count, asked.seed, asked.axes, asked.draw)
    except (ValueError, Busy) as error:
        say(error)
        return USAGE
    with lives:
        score(lives, asked)
    return OK
