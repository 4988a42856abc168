"""What right kernels come to under the rule of means: the largest mean signed error as a part of what it may be.

    python -m compare study bias [--runs 2000] [--first 0]

The kernels of `common.mutants.right`, in turn, on random cases, every second with V of one sign; one launch each. One
line a contract: runs, and the largest part that a mean, an element, a row and an LSE came to. Exit codes: 0; 1 where
one is more than it may be.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from common.cases.case import Case
from common.cases.fills import positive
from common.cases.random_cases import random_case
from common.cases.trial import Trial
from common.mutants.right import RIGHT, Right
from common.oracle.tolerance import Verdict
from common.spec import Layout
from compare.exits import OK, WRONG
from compare.workloads.numbers import at_least_one, seed

HELP = "how large the mean signed errors of right kernels are, of what the checker allows"
RULES = ("mean", "element", "row", "lse")


@dataclass(frozen=True)
class Run:
    kernel: Right
    case: Case
    verdict: Verdict


def case_of(number: int) -> Case | None:
    """The random case of this number, without values that break kernels; None where its pages are x-packed."""
    case = random_case(number).but(fill=positive if number % 2 else None)
    return None if case.layout is Layout.X_PACKED or case.large else case


def runs(first: int, count: int) -> Iterator[Run]:
    """Kernels in turn, each twice: on V of both signs, then of one."""
    for number in range(first, first + count):
        case, kernel = case_of(number), RIGHT[number // 2 % len(RIGHT)]
        if case is None:
            continue
        trial = Trial.of(case)
        if kernel.takes(trial.batch, trial.features):
            kernel.launch(trial.batch, trial.features, trial.out, trial.lse)
            yield Run(kernel, case, trial.judge(kernel.contract).verdict)


def table(found: list[Run]) -> list[str]:
    """The largest part of each budget, by contract."""
    lines = ["| contract | runs | " + " | ".join(RULES) + " |", "|---|---:|" + "---:|" * len(RULES)]
    for contract in dict.fromkeys(str(right.contract) for right in RIGHT):
        of = [run for run in found if str(run.kernel.contract) == contract]
        worst = (max((getattr(run.verdict, rule) for run in of), default=0.0) for rule in RULES)
        lines.append(f"| {contract} | {len(of):,} | " + " | ".join(f"{part:.2f}" for part in worst) + " |")
    return lines


def options(new: argparse.ArgumentParser) -> None:
    new.add_argument("--runs", type=at_least_one, default=2000, help="random cases; default 2000")
    new.add_argument("--first", type=seed, default=0, help="the number of the first; default 0")


def main(asked: argparse.Namespace) -> int:
    import torch

    torch.set_num_threads(1)
    found = list(runs(asked.first, asked.runs))
    print("\n".join(table(found)))
    wrong = [run for run in found if not run.verdict.ok]
    for run in wrong:
        print(f"{run.kernel.name} on {run.case.name}: {run.verdict.reason}")
    return WRONG if wrong else OK
