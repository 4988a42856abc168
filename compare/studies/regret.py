"""Regret: what `auto` loses on rows that nobody fitted to, against the best of all kernels and of configs tried there.

    python -m compare study regret --seed 7 --rows 24 --minutes 4 --out DIR      measure (the GPU must be here)
    python -m compare study regret --seed 7 --rows 24 --minutes 4 --out DIR --resume
    python -m compare study regret --of DIR [DIR ...]                            the table again, of one seed or several

Rows are the first of the suite `unseen` of that seed: its shapes and lengths are drawn, and a seed that was looked at
is spent; --workload aims at some of them. On each row `auto` runs as a user gets it, and beside it every kernel that it
may take: with the config that is chosen for it, with its untuned default, and with --configs others of its space,
neighbours of the default and random ones. Where a choice was learned for the GPU (`tune --fit`), its first COUNT are
timed too: the table has what its first pick loses, and the best of them. The tuner's lanes compile, gate and time all,
four rows at a time; regret is auto's time over the best, less one. A row counts where `auto` and another candidate were
timed and no kernel is still to come. What was timed is kept line by line: a run that was cut off has whole rows for
--of, and --resume gives it --minutes more, and more rows of --rows.
Exit codes: 0; 2 usage; 3 the GPU is not here; 5 no row counts.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.choice.learned import COUNT
from compare.analysis import markup, regret
from compare.competitors import registry
from compare.exits import NO_GPU, NOTHING, OK, refusing
from compare.record import folder as run_folder
from compare.record.records import write_manifest
from compare.tune import learned, records, tune, won
from compare.tune.arm import FIRST_ROWS, Arm, Machine
from compare.tune.records import Log
from compare.tune.space import DEFAULT, MODEL, TREE, Policy, model, policies, start
from compare.workloads import Workload, suites
from compare.workloads.numbers import at_least_one, count, count_or_all, positive, seed

HELP = "what auto loses on rows that nobody fitted to, against the best that was tried"
RUNGS = ("q_block", "parallel_softmax", "adjustable_tile", "unpaged")  # that auto may take
AUTO = {"triton": ("triton/auto", "triton/native.auto"), "helion": ("helion/auto",)}
GLUON = "triton/native.sm90_prefill"  # that native.auto may take too; its config follows from the batch


@dataclass(frozen=True)
class Row:
    """One `auto` on one row: its time, the best candidate's time, and the number of timed candidates."""

    label: str
    kind: str
    auto: str
    took: str
    us: float
    best: str
    best_us: float
    timed: int

    @property
    def regret(self) -> float:
        return regret.of(self.us, self.best_us)


def options(new: argparse.ArgumentParser) -> None:
    new.add_argument("--seed", type=seed, default=0, help="of the suite unseen, and of the draw of configs")
    new.add_argument("--rows", type=at_least_one, default=24, help="the first N rows of it (default 24)")
    new.add_argument("--workload", help="of these the ones that match comma-separated globs, as *-prefill-*,*-mixed-*")
    new.add_argument("--configs", type=at_least_one, default=16, help="of each kernel's space (default 16)")
    new.add_argument("--minutes", type=positive, default=10.0, help="wall budget of each DSL (default 10)")
    new.add_argument("--gpu", default="auto", help="assert that this GPU is here (default auto)")
    new.add_argument("--dsl", choices=registry.DSLS, help="one of them (default both)")
    new.add_argument("--gpus", default="1", type=count_or_all, help="of this host: a number or all (default 1)")
    new.add_argument("--cores", type=count, default=0, help="cores to use (default 0: all)")
    new.add_argument("--out", metavar="DIR", help="where lines and table go (default results/regret_<UTC>_...)")
    new.add_argument("--resume", action="store_true", help="go on in --out, for --minutes more")
    new.add_argument("--of", metavar="DIR", nargs="+", help="no measuring: the tables of runs")
    new.add_argument(
        "--begun",
        action="store_true",
        help="of rows too on which auto and its learned candidates were timed and kernels are still to come",
    )


def plan(dsl: str, rows: Sequence[Workload], gpu: Any, configs: int, draw: int) -> dict[str, list[Policy]]:
    """The policies to time: `auto` as users get it, and `configs` more of each kernel that it may take."""
    found = {}
    for kernel_id in (*AUTO[dsl], *(f"{dsl}/{rung}" for rung in RUNGS), *([GLUON] if dsl == "triton" else [])):
        try:
            kernel = registry.load(kernel_id)
        except registry.Unavailable as error:
            print(f"{kernel_id} is left out: {error}", file=sys.stderr)
            continue
        found[kernel_id] = [TREE]
        if kernel_id not in (*AUTO[dsl], GLUON):
            shapes = {row.shape: row for row in rows}
            space = dict.fromkeys(config for shape in shapes for config in kernel.space(shape, gpu))
            defaults = [start(DEFAULT, kernel_id, kernel, row, gpu) for row in rows]
            untuned, *others = policies(space, defaults, configs + 1, draw)  # slow ones are dropped beside the untuned
            found[kernel_id] = [untuned, TREE, *others]
        elif kernel_id.endswith("/auto") and learned.of(dsl, gpu):
            found[kernel_id] += [model(number) for number in range(1, COUNT + 1)]
    return found


def judged(folder: Path, begun: bool = False) -> list[Row]:
    """The rows of a run that count. begun: rows too on which `auto` and its learned candidates were timed and other
    kernels are still to come; the best is of what was timed. Raises FileNotFoundError for a folder without a run."""
    manifest = records.manifest(folder, ["rows"])
    kinds = {plain["label"]: Workload.from_dict(plain).kind for plain in manifest["rows"]}
    lines = records.read(folder / "candidates.jsonl")
    found = []
    for dsl in registry.DSLS:
        times, left = _times(lines, dsl), _left(lines, dsl, manifest.get("policies", {}))
        kernels = {
            (x["kernel"], x["row"], x["policy"]): x["config"]["kernel"]
            for x in lines
            if x["kernel"] in AUTO[dsl] and x.get("config")
        }
        for label, kind in kinds.items():
            if label in left and not begun:
                continue
            mine = {(kernel, policy): us for (kernel, row, policy), us in times.items() if row == label}
            of_model = {key: us for key, us in mine.items() if key[1].startswith(MODEL)}
            others = of_model | {key: us for key, us in mine.items() if key[0] not in AUTO[dsl]}
            for auto in AUTO[dsl]:
                allowed = {key: us for key, us in others.items() if key[0] != GLUON or auto == "triton/native.auto"}
                if (auto, TREE.name) not in mine or not allowed:
                    continue
                best = min(allowed, key=allowed.get)
                name = f"{best[0].split('/')[1]}: {best[1]}"
                taken = {auto: (auto, TREE.name)}
                if label in left and sum(key[0] == auto for key in of_model) < COUNT:
                    continue
                if len(of_it := [key for key in of_model if key[0] == auto]) == COUNT:
                    taken |= {f"{auto}, learned": (auto, model(1).name)}
                    taken |= {f"{auto}, best of {COUNT} learned": min(of_it, key=of_model.get)}
                for what, key in taken.items():
                    took = kernels[key[0], label, key[1]]
                    found.append(Row(label, kind, what, took, mine[key], name, others[best], len(allowed)))
    return found


def _times(lines: Sequence[dict[str, Any]], dsl: str) -> dict[tuple[str, str, str], float]:
    """Final times, and that of the policy whose code a duplicate is. One config under several names (two `auto`s and
    the kernel that they take) is one candidate: each has the least of its times, for what disturbs a sample makes it
    longer.
    """
    last = records.latest(lines, dsl)
    found = {key: line["final_us"] for key, line in last.items() if line["status"] == "ok" and "final_us" in line}
    for (kernel, row, policy), line in last.items():
        if line["status"] == "duplicate" and (us := found.get((kernel, row, line["of"]))) is not None:
            found[kernel, row, policy] = us
    least: dict[tuple[str, str], float] = {}
    for key, us in found.items():
        least[_same(last[key])] = min(us, least.get(_same(last[key]), us))
    return {key: least[_same(last[key])] for key in found}


def _same(line: Mapping[str, Any]) -> tuple[str, str]:
    """The key that lines of one row and config share, whatever the kernel's name."""
    config = line["config"]
    named = config if line["kernel"].endswith("auto") else {"kernel": line["kernel"].split("/")[1], "config": config}
    return line["row"], json.dumps(named | {"path": "", "provenance": ""}, sort_keys=True)


def _left(lines: Sequence[dict[str, Any]], dsl: str, planned: dict[str, list[Any]]) -> set[str]:
    """Rows on which a kernel is still to come: the best is not known there. A kernel of which nothing compiled or fits
    is through when each of its policies has a line."""
    last, over = records.latest(lines, dsl), records.done(lines, dsl)
    became: dict[tuple[str, str], list[str]] = {}
    for (kernel, row, _), line in last.items():
        became.setdefault((row, kernel), []).append(line["status"])
    mine = {kernel: len(policies_) for kernel, policies_ in planned.items() if kernel.startswith(f"{dsl}/")}

    def through(row: str, kernel: str) -> bool:
        found = became.get((row, kernel), [])
        return (row, kernel) in over or (len(found) >= mine[kernel] and "ok" not in found)

    return {row for row in {row for row, _ in became} if not all(through(row, kernel) for kernel in mine)}


def table(folders: Sequence[Path], begun: bool = False) -> str:
    """Markdown: means by class and of `auto`, then the rows, the worst first; empty where no row counts. begun: as
    `judged`."""
    rows = [row for folder in folders for row in judged(folder, begun)]
    if not rows:
        return ""
    means = []
    for auto in dict.fromkeys(row.auto for row in rows):
        mine = [row for row in rows if row.auto == auto]
        for kind in ("all", *tune.KINDS):
            regrets = [row.regret for row in mine if kind in ("all", row.kind)]
            if regrets:
                means.append([auto, kind, len(regrets), *regret.spread(regrets).split(" | ")])
    body = [
        [x.label, x.auto, x.took, f"{x.us:.1f}", x.best, f"{x.best_us:.1f}", x.timed, f"{100 * x.regret:.1f}"]
        for x in sorted(rows, key=lambda row: -row.regret)
    ]
    by_class = markup.table(["auto", "class", "rows", "regret: mean %", "p90 %", "worst %"], means, 2)
    head = ["row", "auto", "takes", "us", "best of the others", "us", "of", "regret %"]
    return f"{by_class}\n\n{markup.table(head, body, 3)}"


def measure(asked: argparse.Namespace, machine: Machine, folder: Path) -> None:
    """Measure into the folder's log; lines of an earlier run are kept."""
    rows = suites.pick(suites.unseen(asked.seed, asked.rows), asked.workload)
    dsls = [asked.dsl] if asked.dsl else list(registry.DSLS)
    plans = {dsl: plan(dsl, rows, machine.gpu, asked.configs, asked.seed) for dsl in dsls}
    identity = {"gpu": machine.gpu.name, "seed": asked.seed, "rows": [row.to_dict() for row in rows]}
    before = folder / "manifest.json"
    if before.exists():
        found = json.loads(before.read_text())
        shorter = min(len(found["rows"]), len(rows))  # of one seed, the one is the other's beginning
        same = found["rows"][:shorter] == identity["rows"][:shorter]
        if not (asked.resume and same and all(found[name] == identity[name] for name in ("gpu", "seed"))):
            raise records.NotThisRun(f"out: found {folder}, which holds a run; allowed a new folder, or --resume of it")
    policies_ = {kernel: [p.to_dict() for p in found] for plan_ in plans.values() for kernel, found in plan_.items()}
    more = {"commit": run_folder.commit(), "versions": run_folder.versions(), "minutes": asked.minutes}
    more |= {"started": run_folder.now()}
    more |= {"sources": won.stamps([kernel for planned in plans.values() for kernel in planned])}
    write_manifest(before, identity | more | {"policies": policies_})
    for dsl, planned in plans.items():
        log = Log(folder / "candidates.jsonl")
        try:
            arm = Arm(dsl, planned, rows, machine, log, folder, together=FIRST_ROWS)
            arm.run(asked.minutes * 60 + records.spent(log.lines, dsl))
        finally:
            log.close()
        print("\n".join(f"{dsl}: {line}" for line in arm.report()), flush=True)


@refusing(ValueError)
def main(asked: argparse.Namespace) -> int:
    if not asked.of:
        machine = tune.machine(asked)
        if machine is None:
            return NO_GPU
        folder = run_folder.named(asked.out, machine.gpu.name, "regret_")
        measure(asked, machine, folder)
    folders = [Path(name) for name in asked.of] if asked.of else [folder]
    text = table(folders, asked.begun)
    print(text or "no row counts: neither auto nor another candidate was timed")
    if text and not asked.of:
        (folder / "regret.md").write_text(text + "\n", encoding="utf-8")
    return OK if text else NOTHING
