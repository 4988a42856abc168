"""The cases of the kit's level `first`: few that reject most wrong kernels a second of an interpreted kernel.

    python -m compare study first --out FOLDER [--count 120] [--seed 1] [--seconds 150]

Cheap cases of smoke and of the random ones, each on the known mutants and on COUNT that are made by operators; one that
ENOUGH cases reject is not asked again. A line a case in FOLDER/kills.jsonl, where a later call goes on. Then the case
with most new kills a second, again and again, until SECONDS of a naive kernel are spent: FOLDER/first.json, which
stands in common/kit. Exit codes: 0; 2 where FOLDER is of another run.
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

from common.cases.case import Case
from common.kit import levels
from compare.exits import OK, USAGE, say
from compare.record.store import Busy
from compare.studies.findings import Findings
from compare.workloads.numbers import at_least_one

HELP = "the cases of the kit's level first, chosen by what they reject a second"
KILLS, CHOSEN = "kills.jsonl", "first.json"
RANDOM = 40  # cases that are looked at beside those of smoke
MOST_S = 3.0  # of a case: the budget is for many
ENOUGH, MOST = 3, 40
# Of faults that begin behind thousands of keys, in few steps.
LONG = (
    "keys-4500@lens=1/2605", "keys-4500@lens=1/2605@heads=1/1@dtype=float32@softcap=2.0@sinks=near",
    "keys-4500@lens=1/2605.1/40@heads=1/1@dtype=float16@sliding_window=2200",
    "keys-4500-planted@lens=1/2605@heads=1/1", "keys-4500@lens=2/2305@heads=1/1@block_size=24",
)  # fmt: skip
# Of a naive Triton kernel, interpreted: a program a query token and head, 32 keys a step.
STEP_S, CASE_S, CALLS, KEYS, BESIDE = 4e-3, 0.3, 4, 32, 2


def seconds(case: Case) -> float:
    """Processor time of a case: of an interpreted kernel's steps, in four calls."""
    steps = sum(query_len * (seq_len / KEYS + BESIDE) for query_len, seq_len in case.lens) * case.heads[0]
    return CASE_S + CALLS * STEP_S * steps


def candidates() -> dict[str, dict[str, str] | None]:
    """Cheap cases, the cheapest first but for LONG: by their names, with their fields where they are no named ones."""
    found: dict[str, dict[str, str] | None] = {}
    names = [*levels.level("smoke"), *(f"random-{number}" for number in range(RANDOM))]
    others = sorted(map(levels.read, names), key=seconds)
    for case in (*map(levels.read, LONG), *others):
        if case.large or seconds(case) > MOST_S:
            continue
        if levels.write(case) in levels.BY_NAME:
            found[case.name] = None
            continue
        told = levels.frozen(case)
        found[f"first-{zlib.crc32(json.dumps(told, sort_keys=True).encode()):08x}"] = told
    return found


def read(name: str, told: dict[str, str] | None) -> Case:
    return levels.read(name) if told is None else levels.thawed(name, told)


@cache
def _kernels(count: int, seed: int) -> dict[str, Any]:
    """Wrong kernels by their names, each a function that makes one without a memory of other cases."""
    from common.mutants import MUTANTS
    from common.mutants.emulation import emulate
    from common.mutants.operators import load, made
    from compare.studies.mutation.worker import launcher

    def known(mutant: Any) -> Any:
        one = mutant.edits()
        return lambda batch, features, out, lse: emulate(batch, features, out, mutant.case.schedule, lse=lse, edits=one)

    found = {f"known {mutant.name}": lambda mutant=mutant: known(mutant) for mutant in MUTANTS}
    operators = enumerate(made(count, seed))
    return found | {f"{n} {one.name}": lambda source=one.source: launcher(load(source)) for n, one in operators}


def kills(name: str, told: dict[str, str] | None, kernels: dict[str, Any]) -> dict[str, Any]:
    """Which wrong kernels a case rejects, and what it costs."""
    import signal

    import torch

    from common.kit.fitting import fitted
    from common.kit.inside import Asked
    from common.mutants import emulation
    from compare.studies.mutation.worker import LIMIT_S, SUPPORTS, late, launcher

    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, late)
    case = read(name, told)
    case = case if told is None else fitted(case, SUPPORTS, {})
    found: dict[str, Any] = {"case": name, "seconds": round(seconds(case), 2), "kills": []}
    if case.asked - SUPPORTS:
        return found
    asked = Asked.of(case)
    for kernel, make in kernels.items():
        try:
            signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
            launch = make()
            same = asked.same_as_right(launch, launcher(emulation)) and "kept" not in kernel
            why = "" if same else asked.why_not(make())
        except Exception as error:
            why = f"raised {type(error).__name__}"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if why:
            found["kills"].append(kernel)
        if "changed its input" in why or "wrote outside" in why or why.startswith("raised"):
            asked = Asked.of(case)  # its inputs are no longer what they were
    return found


def table(path: Path, head: dict[str, int]) -> Iterator[dict[str, Any]]:
    """`kills` of every candidate, from a file or found now and kept there. Raises ValueError for one of another run."""
    with closing(Findings(path, head)) as kept:
        known = {found["case"]: found for found in kept.found}
        yield from known.values()
        counts = Counter(kernel for found in known.values() for kernel in found["kills"])
        left = {name: told for name, told in candidates().items() if name not in known}
        for done, (name, told) in enumerate(left.items(), len(known) + 1):
            kernels = {kernel: make for kernel, make in _kernels(**head).items() if counts[kernel] < ENOUGH}
            found = kills(name, told, kernels)
            counts.update(found["kills"])
            kept.add(found)
            print(f"{done} of {len(known) + len(left)} cases, {len(kernels)} kernels", file=sys.stderr, flush=True)
            yield found


def greedy(cases: list[dict[str, Any]], most_s: float) -> list[dict[str, Any]]:
    """The cases with most kills a second, the best first, in `most_s` together and MOST at most; a kernel that was
    rejected before counts half as much each time."""
    left, spent, dead, chosen = list(cases), 0.0, Counter(), []
    while len(chosen) < MOST:
        left = [case for case in left if spent + case["seconds"] <= most_s]
        gains = {case["case"]: sum(0.5 ** dead[kernel] for kernel in case["kills"]) / case["seconds"] for case in left}
        if not gains or max(gains.values()) == 0.0:
            break
        best = max(left, key=lambda case: (gains[case["case"]], case["case"]))
        chosen.append(best | {"new": sum(not dead[kernel] for kernel in best["kills"])})
        dead.update(best["kills"])
        spent += best["seconds"]
        left.remove(best)
    return chosen


def options(new: argparse.ArgumentParser) -> None:
    new.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    new.add_argument("--count", type=at_least_one, default=120, help="kernels that are made by operators; default 120")
    new.add_argument("--seed", type=at_least_one, default=1, help="of their drawing; default 1")
    new.add_argument("--seconds", type=at_least_one, default=150, help="of a naive interpreted kernel; default 150")


def main(asked: argparse.Namespace) -> int:
    head = {"count": asked.count, "seed": asked.seed}
    try:
        cases = sorted(table(asked.out / KILLS, head), key=lambda found: found["case"])
    except (ValueError, Busy) as error:
        say(error)
        return USAGE
    chosen, fields = greedy(cases, asked.seconds), candidates()
    every, dead = (len(set().union(*(set(case["kills"]) for case in of))) for of in (cases, chosen))
    spent = round(sum(case["seconds"] for case in chosen))
    chose = f"python -m compare study first --count {asked.count} --seed {asked.seed} --seconds {asked.seconds}"
    made = {
        "chosen_by": chose, "of_cases": len(cases), "of_wrong_kernels_that_one_of_them_rejects": every,
        "rejected": dead, "seconds_of_a_naive_interpreted_kernel": spent,
        "new_kills": {case["case"]: case["new"] for case in chosen},
        "cases": {case["case"]: fields[case["case"]] for case in chosen},
    }  # fmt: skip
    (asked.out / CHOSEN).write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(f"{len(chosen)} of {len(cases)} cases reject {dead} of {every} in {spent} s")
    return OK
