"""Helion's own autotuner as an arm: what its search finds on the tuner's rows in the same wall time.

It searches Helion's whole config, of which a Config of dsl_helion names a part: what it finds is a line of the log, its
`config` a helion.Config, and never a winner. It passes the gate and is timed beside the default as any finalist is. It
serves kernels of one launch: of several, which share block sizes, tuning one would break another.
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

from compare.bench.gate import Rejected
from compare.bench.subject import Subject
from compare.competitors import registry
from compare.process.pool import Jobs, Lane, Pool
from compare.record.records import Status
from compare.tune.arm import Arm
from compare.tune.records import latest, spent
from compare.tune.space import DEFAULT, Policy
from compare.tune.worker import Bench, Candidate, main

ARM = "helion-autotuner"
FOUND = Policy(ARM)
SEED = 0  # of the search, as the tuner's own draw has it by default
LEAST_S = 20.0  # of search on a row: below it the autotuner has hardly compiled its first generation
SLACK_S = 120.0  # a search overruns its budget by what it has begun
OPTIONS = {"autotune_effort": "quick", "autotune_ignore_errors": True, "autotune_progress_bar": False}
VARIABLES = {"HELION_DISALLOW_AUTOTUNING": "0", "HELION_SKIP_CACHE": "1"}  # of a lane: each row is searched


@contextlib.contextmanager
def _every_run(kernel: ModuleType, replacement: Callable[..., None]) -> Iterator[None]:
    """`dsl_helion.binding.run`, in which every launch of Helion ends, replaced wherever it was imported."""
    original = kernel.run
    with contextlib.ExitStack() as stack:
        for module in [m for m in list(sys.modules.values()) if getattr(m, "run", None) is original]:
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


def autotune(bindable: Any, args: tuple[Any, ...], seconds: float, seed: int) -> Any:
    """The helion.Config that Helion's autotuner finds for these arguments. Raises what it raises."""
    bound = bindable.bind(args)
    for name, value in (OPTIONS | {"autotune_budget_seconds": int(seconds), "autotune_random_seed": seed}).items():
        setattr(bound.settings, name, value)
    return bound.autotune(args, force=True)


class Tuned(Subject):
    """A kernel of one launch whose helion.Config is another than its own."""

    helion_config: Any = None

    def launch_on(self, batch: Any, number: int, lse: Any = None) -> None:
        def run(bindable: Any, config: Any, args: tuple[Any, ...], **options: Any) -> None:
            bindable.bind(args).compile_config(self.helion_config)(*args)

        with _every_run(self.kernel, run):
            super().launch_on(batch, number, lse)


class Autotuner(Bench):
    """The lane: a job is one kernel on one row; the default is timed beside what is found."""

    def job(self, job: dict[str, Any]) -> None:
        self._how, self._told = (job["seconds"], job["seed"]), {}
        super().job(job)

    def say(self, cell: str, status: str, reason: str = "", **fields: Any) -> None:
        super().say(cell, status, reason, **{"config": None} | self._told.get(cell, {}) | fields)

    def _set_up(self, arena: Any, kernel_id: str, entries: list[dict[str, Any]]) -> list[Candidate]:
        importlib.import_module("helion")  # whole: registry.load leaves out what its search needs
        default, found = entries
        ready = super()._set_up(arena, kernel_id, [default])
        for ours in list(ready):
            self._told[ours.cell] = {"config": registry.config_dict(ours.subject.config)}
            self.channel.send("start", cell=found["cell"])
            try:
                ready.append(Candidate(found["cell"], FOUND, self._search(ours.subject, found["cell"])))
            except Exception as error:
                self._failed(found["cell"], error)
        return ready

    def _search(self, subject: Subject, cell: str) -> Tuned:
        calls = launches(subject.kernel, lambda: subject.launch(0))
        if len(calls) != 1:
            reason = f"{len(calls)} launches share block sizes: the autotuner tunes one"
            raise Rejected(Status.UNSUPPORTED, reason)
        tuned = Tuned(subject.kernel_id, subject.arena, self.gpu, subject.config, "tuning")
        begin = time.perf_counter()
        tuned.helion_config = autotune(*calls[0], *self._how)
        plain = json.loads(json.dumps(dict(tuned.helion_config.config), default=str))
        self._told[cell] = {"config": plain, "search_s": round(time.perf_counter() - begin, 1)}
        return tuned


class Autotuning(Arm):
    """The arm: its budget is dealt evenly over kernels and rows. No lanes compile; one a GPU searches and times."""

    def run(self, seconds: float) -> None:
        self._begin = time.time() - spent(self.log.lines, self.name)
        deadline = self._begin + seconds
        left = [(kernel, row) for row in self.rows for kernel in self.plan if self._left(kernel, [row])]
        share = max((deadline - time.time()) * len(self.machine.devices) / max(len(left), 1), LEAST_S)
        jobs = [self._job(kernel, row, share) for kernel, row in left]
        patience = share + SLACK_S  # a search says nothing
        command = self.machine.autotuner
        lanes = [Lane(command, task, deadline, seen | VARIABLES, patience) for task, seen in self._tasks(1)]
        try:
            for _, event in Pool(lanes[: len(jobs)], Jobs(jobs), deadline=deadline).results():
                self._timed(event)
        finally:
            for lane in lanes:
                lane.kill()

    def report(self) -> list[str]:
        """What became of the candidates, and one line for each row and kernel with both final times."""
        last = latest(self.log.lines, self.name)
        lines = super().report()
        for (kernel, row, policy), line in last.items():
            default = last.get((kernel, row, DEFAULT.name), {})
            if policy == ARM and "final_us" in line and "final_us" in default:
                ratio = default["final_us"] / line["final_us"]
                times = f"default {default['final_us']:.1f} us, autotuner {line['final_us']:.1f} us ({ratio:.2f}x)"
                lines.append(f"{kernel} {row}: {times} after {line['search_s']} s")
        return lines

    def _job(self, kernel: str, row: Any, share: float) -> dict[str, Any]:
        cells = [
            {"cell": f"{kernel}|{row.label}|{policy.name}", "policy": policy.to_dict()} for policy in self.plan[kernel]
        ]
        job = {"id": f"{kernel}|{row.label}|", "kernel": kernel, "row": row.to_dict(), "candidates": cells}
        return job | {"seconds": share, "seed": SEED}


if __name__ == "__main__":
    main(Autotuner)
