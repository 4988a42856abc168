"""Helion's own autotuner on the rows of the tuner, as an arm of its own: what its search finds in the same wall time.

It searches Helion's whole config, of which dsl_helion's Config names a part, so what it finds is recorded as a
helion.Config and never written into a tree. It serves kernels of one launch: where several share block sizes, tuning
one would break another. Its best passes the gate and is timed beside the default as any finalist is.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from unittest import mock

from compare.bench.subject import Subject
from compare.bench.task import versions
from compare.competitors import registry
from compare.process import children
from compare.process.channel import Channel
from compare.process.pool import Jobs, Lane, Pool
from compare.tune.records import Log, done, spent
from compare.tune.space import DEFAULT, Policy, start
from compare.tune.worker import Bench, Candidate
from compare.workloads import Workload

ARM = "helion-autotuner"
FOUND = Policy(ARM)
LEAST_S = 20.0  # of search on a row: below it the autotuner has hardly compiled its first generation
SLACK_S = 120.0  # a search overruns its budget by what it has begun
OPTIONS = {"autotune_effort": "quick", "autotune_ignore_errors": True, "autotune_progress_bar": False}


def _modules(original: Any) -> list[ModuleType]:
    """Modules whose `run` is binding's: every one that launches."""
    return [m for m in list(sys.modules.values()) if getattr(m, "run", None) is original]


@contextlib.contextmanager
def _every_run(kernel: ModuleType, replacement: Callable) -> Iterator[None]:
    """`dsl_helion.binding.run`, in which every launch of Helion ends, replaced wherever it was imported."""
    with contextlib.ExitStack() as stack:
        for module in _modules(kernel.run):
            stack.enter_context(mock.patch.object(module, "run", replacement))
        yield


def launches(kernel: ModuleType, launch: Callable[[], None]) -> list[tuple[Any, tuple[Any, ...]]]:
    """(Helion kernel, arguments) of every launch of one call, which happens."""
    seen: list[tuple[Any, tuple[Any, ...]]] = []
    original = kernel.run

    def run(bindable: Any, config: Any, args: tuple[Any, ...], **options: Any) -> None:
        seen.append((bindable, args))
        original(bindable, config, args, **options)

    with _every_run(kernel, run):
        launch()
    return seen


class Tuned(Subject):
    """A kernel of one launch whose helion.Config is another than its own."""

    helion_config: Any = None

    def launch(self, number: int, lse: Any = None) -> None:
        def run(bindable: Any, config: Any, args: tuple[Any, ...], **options: Any) -> None:
            bindable.bind(args).compile_config(self.helion_config)(*args)

        with _every_run(self.kernel, run):
            super().launch(number, lse)


def autotune(bindable: Any, args: tuple[Any, ...], seconds: float, seed: int) -> Any:
    """What Helion's autotuner finds for these arguments. Raises what it raises."""
    bound = bindable.bind(args)
    for name, value in (OPTIONS | {"autotune_budget_seconds": int(seconds), "autotune_random_seed": seed}).items():
        setattr(bound.settings, name, value)
    return bound.autotune(args, force=True)


class Autotuner(Bench):
    """The lane: one kernel on one row a job."""

    def job(self, job: dict[str, Any]) -> None:
        row, kernel_id, cell = Workload.from_dict(job["row"]), job["kernel"], job["id"]
        self.channel.send("start", cell=cell)
        importlib.import_module("helion")  # with scikit-learn for its search, where registry.load would leave that out
        arena = self._arena_of(row)
        kernel = registry.load(kernel_id)
        default = start(DEFAULT, kernel_id, kernel, row, self.gpu)
        ours = Candidate(cell + DEFAULT.name, DEFAULT, Subject(kernel_id, arena, self.gpu, default, "tuning"))
        theirs = Candidate(cell + ARM, FOUND, Tuned(kernel_id, arena, self.gpu, default, "tuning"))
        with self.device_alone(job["id"]):
            found = launches(kernel, lambda: ours.subject.launch(0))
            if len(found) != 1:
                reason = f"{len(found)} launches share block sizes: the autotuner tunes one"
                self.say(theirs.cell, "unsupported", reason)
            else:
                self._search(job, *found[0], theirs)
                self._compete(arena, kernel_id, [ours, theirs])
        self.channel.send("row", cell=cell, done=True)
        self.channel.send("finished", job=cell)

    def _search(self, job: dict[str, Any], bindable: Any, args: tuple[Any, ...], theirs: Candidate) -> None:
        self.channel.send("start", cell=theirs.cell)
        begin = time.perf_counter()
        theirs.subject.helion_config = autotune(bindable, args, job["seconds"], job["seed"])
        plain = json.loads(json.dumps(dict(theirs.subject.helion_config.config), default=str))
        seconds = round(time.perf_counter() - begin, 1)
        self.say(theirs.cell, "ok", "searched", helion_config=plain, search_s=seconds)


def search(run: Any) -> int:
    """The arm, for a compare.tune.tune.Tuning. Returns the exit code."""
    kernels = [kernel for kernel in run.plan if kernel.startswith("helion/")]
    log = Log(run.folder / "candidates.jsonl")
    over, before = done(log.lines, ARM), spent(log.lines, ARM)
    left = [(row, kernel) for row in run.rows for kernel in kernels if (row.label, kernel) not in over]
    machine, total = run.machine, run.arguments.minutes * 60 - before
    share = max(total * len(machine.devices) / max(len(left), 1), LEAST_S)
    begin, found = time.time() - before, {}

    def note(event: dict[str, Any]) -> None:
        kernel, row, policy = event["cell"].split("|")
        fields = event.get("fields") or {"done": True}
        extra = found.setdefault((kernel, row), {}) if policy == ARM else {}
        extra |= {name: fields[name] for name in ("helion_config", "search_s") if name in fields}
        log.add(arm=ARM, kernel=kernel, row=row, policy=policy, t=round(time.time() - begin, 2), **fields | extra)

    how = {"seconds": share, "seed": run.arguments.seed}
    jobs = [{"id": f"{kernel}|{row.label}|", "kernel": kernel, "row": row.to_dict()} | how for row, kernel in left]
    lanes, deadline = [], begin + before + total
    for number, index in enumerate(machine.devices):
        task = {"gpu": machine.gpu.name, "device": machine.device, "memory_share": 0.9}
        variables = {"HELION_DISALLOW_AUTOTUNING": "0", "HELION_SKIP_CACHE": "1"}
        variables |= children.seeing(index) if len(machine.devices) > 1 else {}
        task["lock"] = str(run.folder / f"gpu{number}.lock")
        command = children.command(children.TUNE_HELION)
        lanes.append(Lane(command, task, deadline, variables, share + SLACK_S))
    lanes = lanes[: len(jobs)]
    try:
        for job, event in Pool(lanes, Jobs(jobs), deadline=deadline).results():
            if event["event"] == "lost":
                note({"cell": job["id"] + ARM, "fields": {"status": event["status"], "reason": event["reason"]}})
                event = {"cell": job["id"]}
            note(event)
    finally:
        for lane in lanes:
            lane.kill()
        log.close()
    print("\n".join(_summary(log.lines)), flush=True)
    return 0


def _summary(lines: list[dict[str, Any]]) -> list[str]:
    """A line a row and kernel: both final times."""
    last = {(x["kernel"], x["row"], x["policy"]): x for x in lines if x["arm"] == ARM and not x.get("done")}
    found = []
    for (kernel, row, policy), line in last.items():
        default = last.get((kernel, row, DEFAULT.name), {})
        if policy == ARM and "final_us" in line and "final_us" in default:
            ratio = default["final_us"] / line["final_us"]
            times = f"default {default['final_us']:.1f} us, autotuner {line['final_us']:.1f} us ({ratio:.2f}x)"
            found.append(f"{kernel} {row}: {times} after {line['search_s']} s")
    return found or ["no row was finished by the autotuner"]


def main() -> None:
    channel = Channel()
    channel.send("ready", versions=versions())
    bench = Autotuner(json.loads(sys.stdin.readline()), channel)
    for line in sys.stdin:
        bench.job(json.loads(line))


if __name__ == "__main__":
    main()
