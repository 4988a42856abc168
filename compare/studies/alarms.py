"""False alarms of the kit: ask right kernels of other arithmetic the cases of a level; none may be rejected.

    python -m compare study alarms --out FOLDER [--runs 10000] [--seed 0] [--share 2] [--level full] [--jobs 1]

Cases from all over the level call one in `--share` of the kernels of `common.mutants.right`, in turn. Each case adds a
line to FOLDER/alarms.jsonl; a later call resumes there. Exit codes: 0 without an alarm, 1 with one; 2 where FOLDER is
of another run.
"""

import argparse
import random
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from common.kit import levels
from common.kit.inside import Asked
from common.mutants.right import RIGHT, Right
from compare.analysis import markup
from compare.exits import OK, WRONG, refusing
from compare.record.store import Findings
from compare.studies.mutation.worker import asked
from compare.workloads.numbers import at_least_one, seed

HELP = "false alarms: right kernels of other arithmetic, of which the kit may reject none"
FOUND = "alarms.jsonl"


def in_turn(number: int, share: int) -> list[Right]:
    """The kernels that are asked this case."""
    return [right for place, right in enumerate(RIGHT) if place % share == number % share]


def num_cases(runs: int, share: int) -> int:
    """The number of cases for a number of runs."""
    return -(-runs * share // len(RIGHT))


def spread(runs: int, share: int, seed: int, level: str = "full") -> list[str]:
    """Cases from all over a level, so many that the kernels are called `runs` times."""
    names = list(levels.level(level, seed))
    count = min(len(names), num_cases(runs, share))
    return [names[number * len(names) // count] for number in range(count)]


def judged(expression: str, kernels: list[Right], seed: int) -> dict[str, Any]:
    """{"case", "asked": names, "alarms": {name: the kit's reason}}; without kernels where none supports the case."""
    found: dict[str, Any] = {"case": expression, "asked": [], "alarms": {}}
    case = asked(expression, seed)
    for kernel in kernels if case else ():
        if not kernel.takes(case.batch, case.features):
            continue
        found["asked"].append(kernel.name)
        if why := _why(case, kernel):
            found["alarms"][kernel.name] = why[:300]
            case = asked(expression, seed)  # its inputs may be damaged
    return found


def _judged(job: tuple[int, str, int, int]) -> dict[str, Any]:
    number, name, share, seed = job
    return judged(name, in_turn(number, share), seed)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _found(jobs: list[tuple[int, str, int, int]], processes: int) -> Iterator[dict[str, Any]]:
    """Judge the cases, in this process or in several."""
    if processes == 1:
        yield from map(_judged, jobs)
        return
    with ProcessPoolExecutor(processes, get_context("spawn"), _one_thread) as pool:
        yield from (done.result() for done in as_completed([pool.submit(_judged, job) for job in jobs]))


def _why(case: Asked, kernel: Right) -> str:
    try:
        return case.why_not(kernel.launch, kernel.contract)
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"


def run(path: Path, head: dict[str, Any], processes: int = 1) -> Iterator[dict[str, Any]]:
    """Every case of a run, read from its file or judged now and added. Raises ValueError for a file of another run."""
    with Findings(path, head) as kept:
        known = {found["case"]: found for found in kept.found}
        yield from known.values()
        names = list(enumerate(spread(head["runs"], head["share"], head["seed"], head["level"])))
        random.Random(head["seed"]).shuffle(names)  # so that a part of a run covers the whole level
        left = [(number, name, head["share"], head["seed"]) for number, name in names if name not in known]
        for done, found in enumerate(_found(left, processes), len(known) + 1):
            kept.add(found)
            if done % 50 == 0:
                print(f"{done} of {len(names)} cases", file=sys.stderr, flush=True)
            yield found


def table(cases: list[dict[str, Any]]) -> str:
    """Each kernel, how often it was called on a case, and how often it was rejected."""
    runs, alarms = Counter(), Counter()
    for case in cases:
        runs.update(case["asked"])
        alarms.update(case["alarms"].keys())
    body = [[one.name, one.contract, f"{runs[one.name]:,}", alarms[one.name]] for one in RIGHT]
    body.append(["all", "", f"{runs.total():,}", alarms.total()])
    return markup.table(["right kernel", "contract", "cases", "alarms"], body, 2)


def options(new: argparse.ArgumentParser) -> None:
    new.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    new.add_argument("--runs", type=at_least_one, default=10_000, help="of a kernel on a case; default 10000")
    new.add_argument("--seed", type=seed, default=0, help="of the values; default 0")
    new.add_argument("--share", type=at_least_one, default=2, help="each case on one kernel in so many; default 2")
    new.add_argument("--level", choices=levels.LEVELS, default="full", help="whose cases; default full")
    new.add_argument("--jobs", type=at_least_one, default=1, help="processes; default 1")


@refusing(ValueError)
def main(asked: argparse.Namespace) -> int:
    _one_thread()
    names = zlib.crc32(" ".join(levels.level(asked.level, asked.seed)).encode())
    head = {"runs": asked.runs, "seed": asked.seed, "share": asked.share, "level": asked.level, "names": names}
    cases = list(run(asked.out / FOUND, head, asked.jobs))
    print(table(cases))
    wrong = [(case["case"], name, why) for case in cases for name, why in case["alarms"].items()]
    for case, name, why in wrong:
        print(f"{name} on {case}: {why}")
    return WRONG if wrong else OK
