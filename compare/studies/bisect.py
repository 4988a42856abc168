"""Which commit made a row slower, or wrong: `git bisect` in a worktree, the comparison of one row at each midpoint.

    python -m compare bisect --row '16q4s4k~@8:1:128' --suite serving --kernel helion/auto --bad HEAD --good e4f9068
    python -m compare bisect --row q1s512 --kernel triton/auto --bad HEAD --what right

git chooses the commits and skips those at which the row does not run. A speed is the time of --unit, which takes turns
with the kernel, over the kernel's; a commit is bad below the mean of the good and the bad commit's speeds. Without
--good, ancestors of --bad are tried in doubling steps. Runs of commits are kept, so the same command resumes.
Exit codes: 0 found; 1 only skipped commits are left; 2 usage, or nothing was lost; 3 no GPU for a speed.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common import gpus
from compare.analysis import runs
from compare.competitors.registry import UnknownKernel
from compare.exits import NO_GPU, OK, WRONG, refusing, say
from compare.plan.selection import selection
from compare.plan.situation import situation
from compare.record.contract import UNIT
from compare.record.folder import ROOT, NotARun, ensure_writable
from compare.record.records import Status
from compare.run.options import parse
from compare.workloads import GrammarError

HELP = "which commit made a row slower or wrong: git bisect by worktrees"
LEAST = 0.05  # of the good commit's speed: what the bad one has to lose
STEPS = 13  # doubling ones back from --bad
JUDGED = (Status.OK, Status.INCORRECT, Status.NONDETERMINISTIC)


class CannotBisect(ValueError):
    """The words, the repository or the speeds allow no bisection; the message names argument, found and allowed."""


@dataclass(frozen=True)
class Row:
    """A cell as words of `compare run`. unit: the kernel at speed 1; None where the cell is only judged."""

    words: tuple[str, ...]
    kernel: str
    unit: str | None

    @property
    def asked(self) -> list[str]:
        """The row, its kernels and the device, as words of `compare run`."""
        kernels, where = (self.kernel, ["--device", "cpu"]) if self.unit is None else (f"{self.kernel},{self.unit}", [])
        return [*self.words, "--kernels", kernels, *where]

    def ensure_one(self) -> None:
        """Raise CannotBisect unless the words name one row and one kernel here, before a commit is run."""
        try:
            options = parse(self.asked)
            chosen = selection(options.rows, situation(options.where.gpu, options.where.device))
        except (UnknownKernel, GrammarError) as error:
            raise CannotBisect(str(error)) from error
        kernels = [name for name in chosen.kernels if name != self.unit or name == self.kernel]
        for option, names in (("--row", [row.label for row in chosen.workloads]), ("--kernel", kernels)):
            if len(names) != 1:
                raise CannotBisect(f"{option}: found {len(names)}, {', '.join(names[:3])}, ..., allowed one")

    def run(self, tree: Path, out: Path) -> None:
        """Run it with the tree's code and this environment's packages, into `out`."""
        command = [sys.executable, "-m", "compare.run", *self.asked, "--out", str(out)]
        with (out / "log").open("wb") as log:
            inside = os.environ | {"PYTHONPATH": str(tree)}
            subprocess.run(command, cwd=tree, env=inside, stdout=log, stderr=log, check=False)

    def value(self, out: Path) -> float | None:
        """The unit's time over the kernel's, or 1 right and 0 wrong; None where the row did not run."""
        try:
            found = {record.kernel: record for record in runs.read(out).records}
        except NotARun:
            return None
        mine = found.get(self.kernel)
        if self.unit is None:
            return float(mine.status is Status.OK) if mine and mine.status in JUDGED else None
        times = [one.timing.median_us for one in (found.get(self.unit), mine) if one and one.timing]
        return times[0] / times[1] if len(times) == 2 else None


@dataclass(frozen=True)
class Bisection:
    """In a folder: `tree`, git's worktree of the repository, and `runs/<commit>`, what `run` left of each commit."""

    repository: Path
    folder: Path
    run: Callable[[Path, Path], None]  # (tree, folder of the run)
    value: Callable[[Path], float | None]  # how good a run is: the more the better

    @property
    def tree(self) -> Path:
        return self.folder / "tree"

    def git(self, *words: str, at: Path | None = None, may_fail: bool = False) -> str:
        """What git printed. Raises CannotBisect where it refuses and may not."""
        done = subprocess.run(["git", "-C", str(at or self.tree), *words], capture_output=True, text=True, check=False)
        if done.returncode and not may_fail:
            raise CannotBisect(f"git {words[0]}: found {' '.join(words[1:])}, which it refuses: {done.stderr.strip()}")
        return done.stdout.strip()

    def measured(self, commit: str) -> float | None:
        """The value of a commit, run once."""
        out = self.folder / "runs" / commit[:10]
        if not (out / "done").exists():
            if self.git("rev-parse", "HEAD") != commit:
                self.git("checkout", "-q", "--detach", commit)
            shutil.rmtree(out, ignore_errors=True)  # of a run that was interrupted
            out.mkdir(parents=True)
            self.run(self.tree, out)
            (out / "done").touch()
        found = self.value(out)
        print(f"{commit[:10]}  {'does not run' if found is None else f'{found:.4g}'}", flush=True)
        return found

    def first(self, bad: str, good: str | None) -> str | None:
        """The first bad commit; None where only skipped ones are left. Raises CannotBisect."""
        bad = self._commit("--bad", bad)
        known = [] if good is None else [self._commit("--good", good)]
        if not self.tree.exists():
            ensure_writable(self.folder)
            self.git("worktree", "prune", at=self.repository)
            self.git("worktree", "add", "-q", "--detach", str(self.tree), bad, at=self.repository)
        limit, good = self._limit(bad, known)
        if not (log := self.git("bisect", "log", may_fail=True)):
            self.git("bisect", "start", bad, good)
            log = self.git("bisect", "log")
        while not (found := re.search(r"^# first bad commit: \[(\w+)\]", log, re.MULTILINE)):
            if "# only skipped commits left" in log:
                return None
            value = self.measured(self.git("rev-parse", "HEAD"))
            self.git("bisect", "skip" if value is None else "good" if value > limit else "bad", may_fail=True)
            log = self.git("bisect", "log")
        self.git("worktree", "remove", "--force", str(self.tree), at=self.repository)
        return found[1]

    def _commit(self, option: str, name: str) -> str:
        found = self.git("rev-parse", "-q", "--verify", f"{name}^{{commit}}", at=self.repository, may_fail=True)
        if not found:
            raise CannotBisect(f"{option}: found {name!r}, allowed a commit of {self.repository}")
        return found

    def _limit(self, bad: str, known: list[str]) -> tuple[float, str]:
        """Halfway between the values of the bad commit and of a good one, and that one."""
        worse = self.measured(bad)
        if worse is None:
            raise CannotBisect(
                f"--bad: found {bad[:10]}, where the row does not run, allowed one with it ({self.folder})"
            )
        before = self.git("rev-list", "--first-parent", f"-{1 + 2**STEPS}", bad, at=self.repository).split()
        for good in known or [before[min(2**n, len(before) - 1)] for n in range(STEPS)]:
            better = self.measured(good)
            if better is not None and worse < better * (1 - LEAST):
                return (better + worse) / 2, good
        raise CannotBisect(
            f"--bad: found {bad[:10]}, as good as its ancestors; allowed one that is wrong, or lost {LEAST:.0%}"
        )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--row", required=True, help="the row by its name, as `diptych history` prints it")
    parser.add_argument("--bad", required=True, metavar="COMMIT", help="at which the row is slower, or wrong")
    parser.add_argument("--good", metavar="COMMIT", help="an ancestor at which it is not (default: looked for)")
    parser.add_argument("--kernel", default="triton/auto", help="(default triton/auto)")
    parser.add_argument("--unit", default=UNIT, help=f"the kernel that a speed is over (default {UNIT})")
    parser.add_argument("--suite", help="the suite that has the row")
    parser.add_argument("--seed", default="0", help="of suite unseen")
    parser.add_argument(
        "--what", choices=("speed", "right"), default="speed", help="right needs no GPU (default speed)"
    )
    parser.add_argument("--out", type=Path, help="the bisection's folder (default results/bisect_...)")


@refusing(CannotBisect)
def main(asked: argparse.Namespace) -> int:
    if asked.what == "speed" and gpus.detect() is None:
        say("--what: found speed without a GPU, allowed right, or a machine with one")
        return NO_GPU
    name = re.sub(r"[^\w.]+", "-", f"bisect_{asked.what}_{asked.kernel}_{asked.row}")
    words = (*(("--suite", asked.suite) if asked.suite else ()), "--workload", asked.row, "--seed", asked.seed)
    row = Row(words, asked.kernel, asked.unit if asked.what == "speed" else None)
    row.ensure_one()
    one = Bisection(ROOT, (asked.out or Path("results") / name).resolve(), row.run, row.value)
    first = one.first(asked.bad, asked.good)
    if first is None:
        print(f"only commits that do not run are left; {one.tree}: git bisect log")
        return WRONG
    print(f"first bad commit: {one.git('log', '-1', '--format=%h %ad %s', '--date=short', first, at=ROOT)}")
    return OK
