"""Tune the kernels of both DSLs for the GPU that is here, and keep the measured winners.

    python -m compare tune --kernels 'triton/*,helion/*' --gpu auto --minutes 10
    python -m compare tune --rank --gpu mi300       for a GPU that is not here: which configs to try first there
    python -m compare tune --model 32:8:128         the best five of what logs teach on the batches of one model
    python -m compare tune --fit RUN [RUN ...]      from logs winners, a portfolio of configs, and what ranks them

Rows are those of the suite `tuning`; both DSLs get the same rows, seed and wall budget. Every candidate becomes a line
of OUT/candidates.jsonl; the winners are written to OUT and to the user's own (common/serving/winners.py), which every
call reads from then on. docs/tuning.md says more. Exit codes: 0 winners written; 2 usage; 3 the GPU is not here; 5 too
little was measured; 130 interrupted, what was measured is kept: --resume goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.gpus import UnknownGpu
from common.process import cores
from common.spec import SpecError
from compare.competitors import registry
from compare.exits import NO_GPU, NOTHING, OK, refusing
from compare.identity import StrangerPackage, ensure_own_packages
from compare.plan.situation import situation
from compare.process import children
from compare.record import folder as run_folder
from compare.record.records import write_manifest
from compare.tune import arm as tune_arm
from compare.tune import helion, learn, model, rank, space, won
from compare.tune.arm import Arm, Machine, candidates
from compare.tune.records import Log, NotThisRun
from compare.tune.records import manifest as manifest_of
from compare.tune.space import DEFAULT, Policy
from compare.workloads import GrammarError, Workload, suites
from compare.workloads.numbers import count, count_or_all, page, positive, seed
from compare.workloads.suites import least_ms

HELP = "find configs for this GPU; --model: for one model; --rank: for an absent GPU; --fit: from logs"

KINDS = ("prefill", "decode", "mixed", "speculative")
# A light row: 0.4 ms of an H200 at least, so 1.8 GB of K and V and about 1 ms of a good kernel; its output's float64
# check takes milliseconds. Below the trifle a launch takes longer than what it reads.
LIGHT_MS, LIGHT_TOKENS, TRIFLE_MS = 0.4, 8192, 0.002
USED = {  # options that these ways to ask read; a search reads all others
    "rank": ("--kernels", "--gpu", "--candidates", "--seed"),
    "fit": ("--kernels", "--out", "--no-install"),
    "model": ("--kernels", "--gpu", "--minutes", "--block-size", "--dtype"),
}
_USAGE_ERRORS = (UnknownGpu, registry.UnknownKernel, GrammarError, SpecError, StrangerPackage, run_folder.CannotWrite)


def options(new: argparse.ArgumentParser) -> None:
    new.add_argument("--kernels", default="triton/*,helion/*", help="comma-separated ids or globs")
    new.add_argument("--gpu", default="auto", help="assert that this GPU is here (default auto: the one that is)")
    new.add_argument("--minutes", type=positive, default=10.0, help="wall budget of each DSL (default 10)")
    new.add_argument("--rows", type=count, default=24, metavar="N", help="rows of the suite (default 24; 0: all)")
    new.add_argument("--candidates", type=count, default=16, metavar="N", help="policies a kernel (default 16)")
    new.add_argument("--seed", type=seed, default=0, help="of the draw of candidates")
    new.add_argument("--gpus", default="1", type=count_or_all, help="of this host: a number or all (default 1)")
    new.add_argument("--cores", type=count, default=0, help="cores to use (default 0: all)")
    new.add_argument("--out", metavar="DIR", help="the run's folder (default results/tune_<UTC>_<gpu>_<commit>)")
    new.add_argument("--resume", action="store_true", help="go on with the run in --out; its budget counts on")
    new.add_argument(
        "--fit",
        metavar="DIR",
        nargs="+",
        help="no measuring: from the logs of runs, of `study regret` too, winners, a portfolio and a model a DSL and"
        " GPU, judged on rows held out",
    )
    new.add_argument(
        "--model",
        metavar="SHAPE",
        help="heads:kv_heads:head_size or a model's name: measure its decodes, prompts and mixed batches",
    )
    new.add_argument("--block-size", type=page, default=16, help="of --model: tokens of a KV-cache page (default 16)")
    new.add_argument("--dtype", default="bf16", help="of --model: bf16 (default), fp16, fp32")
    new.add_argument(
        "--rank", action="store_true", help="no measuring: compile for --gpu, rank configs by the estimate"
    )
    new.add_argument(
        "--no-install", action="store_true", help="leave the user's winners and dsl_*/heuristics alone: OUT only"
    )
    new.add_argument("--arm", choices=("search", helion.ARM), default="search", help="who searches (default search)")


def pick_rows(count: int) -> tuple[Workload, ...]:
    """`count` rows of the suite: the kinds take turns, each giving light rows first, spread over their work. 0: all.

    A row of 2.3 million keys holds 9 GB, and gating it held an H200 for 16 s a kernel: so heavy rows come last. Of the
    light ones those of the most common shape come first, as any other shape's code has to be compiled as well; rows
    that need next to nothing differ in launches alone and come behind both.
    """
    rows = suites.suite("tuning")
    common = Counter(row.shape for row in rows).most_common(1)[0][0]

    def late(row: Workload) -> tuple[bool, bool, bool]:
        light = least_ms(row) <= LIGHT_MS and row.stats.num_tokens <= LIGHT_TOKENS
        return not light, least_ms(row) < TRIFLE_MS, row.shape != common

    queues = []
    for kind in KINDS:
        mine = [row for row in rows if row.kind == kind]
        classes = sorted({late(row) for row in mine})
        queues.append([row for which in classes for row in _spread([r for r in mine if late(r) == which])])
    dealt: list[Workload] = []
    while any(queues):
        dealt += [queue.pop(0) for queue in queues if queue]
    return tuple(dealt[: count or None])


def _spread(rows: Sequence[Workload]) -> list[Workload]:
    """The rows reordered so that every prefix covers the range of work: the most, the least, then the middles."""
    ordered = sorted(rows, key=least_ms, reverse=True)
    chosen, left = [0], list(range(1, len(ordered)))
    while left:
        chosen.append(max(left, key=lambda i: min(abs(i - other) for other in chosen)))
        left.remove(chosen[-1])
    return [ordered[i] for i in chosen]


def plan(kernels: Sequence[str], rows: Sequence[Workload], arguments: argparse.Namespace, gpu: Any) -> dict:
    """Policies of every kernel that has a space and can be imported; the others are named on stderr."""
    found: dict[str, list[Policy]] = {}
    for kernel_id in kernels:
        try:
            if kernel_id.endswith("/auto") or not hasattr(registry.load(kernel_id), "space"):
                continue
            if arguments.arm == helion.ARM:
                if kernel_id.startswith("helion/"):
                    found[kernel_id] = [DEFAULT, helion.FOUND]
                continue
            number = max(arguments.candidates // tune_arm.late(kernel_id).divisor, 1)
            found[kernel_id] = candidates(kernel_id, rows, gpu, number, arguments.seed)
        except registry.Unavailable as error:
            print(f"{kernel_id} is left out: {error}", file=sys.stderr)
    return found


class Tuning:
    """A tuning run in a folder: its manifest, log and tables."""

    def __init__(self, arguments: argparse.Namespace, machine: Machine) -> None:
        self.arguments, self.machine = arguments, machine
        self.rows = pick_rows(arguments.rows)
        self.plan = plan(registry.select(arguments.kernels), self.rows, arguments, machine.gpu)
        self.folder = run_folder.named(arguments.out, machine.gpu.name, "tune_")
        self.manifest = self._manifest()
        before = self.folder / "manifest.json"
        if before.exists():
            found = manifest_of(self.folder)
            if not arguments.resume or found.get("plan") != self.manifest["plan"]:
                why = "another plan" if arguments.resume else "a run already; allowed a new folder, or --resume"
                raise NotThisRun(f"out: found {self.folder}, which holds {why}")
            now = {"minutes": arguments.minutes, "resumed": [*found.get("resumed", []), self.manifest["started"]]}
            self.manifest = found | now
        write_manifest(before, self.manifest)

    def _manifest(self) -> dict[str, Any]:
        policies = {kernel: [policy.to_dict() for policy in found] for kernel, found in self.plan.items()}
        rows = [row.to_dict() for row in self.rows]
        identity = json.dumps([rows, policies, self.machine.gpu.name], sort_keys=True)
        return {
            "command": " ".join(["python -m compare tune", *self.arguments.words]),
            "started": run_folder.now(),
            "commit": run_folder.commit(),
            "gpu": self.machine.gpu.name,
            "gpus": len(self.machine.devices),
            "cores": self.machine.cores,
            "minutes": self.arguments.minutes,
            "seed": self.arguments.seed,
            "versions": run_folder.versions(),
            "plan": hashlib.sha256(identity.encode()).hexdigest()[:16],
            "rows": rows,
            "policies": policies,
            "sources": won.stamps(list(self.plan)),
        }

    def search(self) -> None:
        """Run one arm after another, each with the whole budget and machine."""
        if self.arguments.arm == helion.ARM:
            self._run(helion.Autotuning, helion.ARM, self.plan)
            return
        for name in registry.families(self.plan):
            mine = {kernel: policies for kernel, policies in self.plan.items() if kernel.split("/")[0] == name}
            self._run(Arm, name, mine)

    def _run(self, kind: type[Arm], name: str, plan: dict[str, list[Policy]]) -> None:
        log = Log(self.folder / "candidates.jsonl")
        try:
            arm = kind(name, plan, self.rows, self.machine, log, self.folder)
            arm.run(self.arguments.minutes * 60)
        finally:
            log.close()
        print("\n".join([f"{name}: {line}" for line in arm.report()]), flush=True)


def machine(arguments: argparse.Namespace) -> Machine | None:
    """The GPUs of this machine; prints why and returns None if the one asked for is not here. Raises GrammarError."""
    if arguments.resume and not arguments.out:
        raise GrammarError("--resume: found alone, allowed beside --out DIR, whose run goes on")
    now = situation(arguments.gpu, None)
    if not now.measure:
        print(f"{now.line}; tuning needs the GPU itself", file=sys.stderr)
        return None
    here = children.visible()
    wanted = arguments.gpus or len(here)
    if wanted > len(here):
        raise GrammarError(f"--gpus: found {wanted}, allowed 1 to {len(here)} or all")
    return Machine(now.target, tuple(here[:wanted]), arguments.cores or cores())


@refusing(*_USAGE_ERRORS)
def main(arguments: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    ensure_own_packages()
    if way := next((name for name in USED if getattr(arguments, name)), ""):
        for word in (word.partition("=")[0] for word in arguments.words if word.startswith("--")):
            if word not in (f"--{way}", *USED[way]):
                raise GrammarError(f"{word}: found beside --{way}, allowed {', '.join(USED[way])}")
    if arguments.rank:
        return rank.main(arguments)
    if arguments.fit:
        out = Path(arguments.out) if arguments.out else None
        return learn.write(
            list(map(Path, arguments.fit)), registry.select(arguments.kernels), not arguments.no_install, out
        )
    if arguments.model:
        asked = registry.select(arguments.kernels)
        return NO_GPU if machine(arguments) is None else model.measure(arguments, asked)
    found = machine(arguments)
    return NO_GPU if found is None else tune(arguments, found)


def tune(arguments: argparse.Namespace, machine: Machine) -> int:
    """Search on `machine` and write the tables; returns the exit code."""
    run = Tuning(arguments, machine)
    if not run.plan or not run.rows:
        print("nothing selected", file=sys.stderr)
        return NOTHING
    print(
        f"{machine.gpu.name} x {len(machine.devices)}, {machine.cores} cores: {len(run.rows)} rows, "
        f"{len(run.plan)} kernels, {sum(map(len, run.plan.values()))} policies, {arguments.minutes:g} min a DSL",
        flush=True,
    )
    if space.path(machine.gpu.name).exists():
        print(f"first to be tried: a {space.LABEL}", flush=True)
    run.search()
    if arguments.arm == helion.ARM:
        return OK  # what it found is no Config, and so no winner
    return OK if won.write(run.folder, not arguments.no_install) else NOTHING
