"""One arm of a tuning run: the kernels of one DSL on the rows, within one wall budget.

Candidates are compiled by lanes on all cores first; then lanes on every GPU gate and time what compiled. All that is
learnt of a candidate becomes a line of the log as it is learnt.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.gpus import Gpu
from compare import registry, tune_lanes
from compare.tune_lanes import Jobs, Lane
from compare.tune_records import Log, done, latest, spent
from compare.tune_space import Policy, policies
from compare.workloads import Workload

COMPILE_SHARE = 0.45  # of the budget at most; what is not compiled by then is not tried
LANES_PER_GPU, CORES_PER_LANE = 8, 2  # a lane generates and loads code on its own core
MEMORY_SHARES = 2.0  # of the GPU's memory all lanes together may ask for: rows that need most are few


@dataclass(frozen=True)
class Machine:
    """Where it runs: the GPU's row of the table, CUDA indices as text, cores, and what a lane's process is called."""

    gpu: Gpu
    devices: tuple[str, ...]
    cores: int
    device: str = "cuda"
    compiler: tuple[str, ...] = tuple(tune_lanes.module("compare.tune_compile"))
    timer: tuple[str, ...] = tuple(tune_lanes.module("compare.tune_worker"))


def candidates(kernel_id: str, rows: Sequence[Workload], gpu: Gpu, count: int, seed: int) -> list[Policy]:
    """The policies of a kernel: the same for a seed, rows and source. Raises registry.Unavailable."""
    kernel = registry.load(kernel_id)
    defaults = [registry.default_config(kernel_id, kernel, r.shape, r.stats, gpu, "default")[0] for r in rows]
    shapes = dict.fromkeys(row.shape for row in rows)
    configs = dict.fromkeys(config for shape in shapes for config in kernel.space(shape, gpu))
    return policies(configs, defaults, count, seed)


class Arm:
    """`name`: triton, helion. plan: policies by kernel. seconds: the wall budget, compilation included."""

    def __init__(
        self, name: str, plan: dict[str, list[Policy]], rows: Sequence[Workload], machine: Machine, log: Log, out: Path
    ) -> None:
        self.name, self.plan, self.rows, self.machine, self.log, self.out = name, plan, rows, machine, log, out
        self._compiled: dict[tuple[str, str, str], dict[str, Any]] = {}  # (kernel, row, policy) -> answer
        self._begin = 0.0

    def run(self, seconds: float) -> None:
        """Spend what is left of the budget. What an earlier run finished is not done again."""
        self._begin = time.time() - spent(self.log.lines, self.name)
        deadline = self._begin + seconds
        if time.time() >= deadline:
            return
        self._compile(time.time() + COMPILE_SHARE * (deadline - time.time()))
        self._sort_out()
        self._measure(deadline)

    def report(self) -> list[str]:
        """What became of the candidates, in a few lines."""
        last = latest(self.log.lines, self.name)
        statuses = Counter(line["status"] for line in last.values())
        rows = Counter(kernel for _, kernel in done(self.log.lines, self.name))
        asked = sum(len(policies) for policies in self.plan.values()) * len(self.rows)
        finals = sum("final_us" in line for line in last.values())
        seconds = time.time() - self._begin
        found = ", ".join(f"{count} {status}" for status, count in statuses.most_common())
        return [
            f"{asked} candidates of {len(self.plan)} kernels x {len(self.rows)} rows in {seconds:.0f} s: {found}; "
            f"{finals} timed twice; {asked - len(last)} not reached",
            "rows done: " + ", ".join(f"{kernel} {rows[kernel]}" for kernel in sorted(self.plan)),
        ]

    def note(self, kernel: str, row: str, policy: str, **fields: Any) -> None:
        spent_s = round(time.time() - self._begin, 2)
        self.log.add(arm=self.name, kernel=kernel, row=row, policy=policy, t=spent_s, **fields)

    def _left(self) -> dict[str, list[Workload]]:
        """Kernels with the rows that they are not done on."""
        over = done(self.log.lines, self.name)
        return {kernel: [r for r in self.rows if (r.label, kernel) not in over] for kernel in self.plan}

    def _compile(self, deadline: float) -> None:
        """Ask the compiling lanes for every policy: a job is a policy and the rows of one shape, the defaults first.

        Shapes of fewer rows are half a list of policies behind.
        """
        left = self._left()
        by_shape: dict[Any, list[str]] = {}
        for row in self.rows:
            by_shape.setdefault((row.shape, row.ask), []).append(row.label)
        classes = sorted(by_shape.values(), key=len, reverse=True)
        jobs = []
        for kernel in (k for k in sorted(left) if left[k]):
            for number, policy in enumerate(self.plan[kernel]):
                for rank, labels in enumerate(classes):
                    name = " ".join([kernel, str(rank), policy.name])
                    behind = number + rank * len(self.plan[kernel]) // 2
                    job = {"id": name, "kernel": kernel, "policy": policy.to_dict(), "rows": labels}
                    jobs.append((behind, job))
        jobs.sort(key=lambda pair: pair[0])
        by_id = {job["id"]: (job["kernel"], Policy.from_dict(job["policy"]).name) for _, job in jobs}

        def on_row(event: dict[str, Any]) -> None:
            kernel, policy = by_id[event["cell"]]
            for row, answer in event["answers"].items():
                self._compiled[kernel, row, policy] = answer

        def on_lost(job: dict[str, Any], cell: str, status: str, reason: str) -> None:
            answer = {"status": "compile_error", "reason": f"the compiler's process: {status}: {reason}"}
            for row in job["rows"]:
                self._compiled[job["kernel"], row, by_id[cell][1]] = answer | {"config": None, "code": ""}

        task = {"gpu": dataclasses.asdict(self.machine.gpu), "rows": [row.to_dict() for row in self.rows]}
        hidden = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}  # a compiler needs no context on the GPU
        lane = Lane(list(self.machine.compiler), task, hidden)
        phase = tune_lanes.Run(Jobs(job for _, job in jobs), deadline, on_row, on_lost)
        phase.work([lane] * min(max(self.machine.cores - 1, 1), len(jobs)))

    def _sort_out(self) -> None:
        """Log what dropped out before the GPU; keep one of those whose code or config is the same."""
        for kernel, rows in self._left().items():
            for row in rows:
                seen: dict[str, str] = {}
                for policy in self.plan[kernel]:
                    answer = self._compiled.get((kernel, row.label, policy.name))
                    if answer is None:
                        continue
                    fields = {"config": answer["config"], "status": answer["status"], "reason": answer["reason"]}
                    if answer["status"] == "ok":
                        first = seen.setdefault(answer["code"] or str(answer["config"]), policy.name)
                        if first == policy.name:
                            continue
                        fields |= {"status": "duplicate", "reason": f"the same code as {first}", "of": first}
                    self.note(kernel, row.label, policy.name, **fields)
                    self._compiled[kernel, row.label, policy.name] = answer | {"status": fields["status"]}

    def _jobs(self) -> list[dict[str, Any]]:
        """A job for each kernel and row that is not done: the candidates that compiled, the default first."""
        jobs, left = [], self._left()
        for row in self.rows:
            for kernel in (k for k in sorted(self.plan) if row in left[k]):
                ok = [p for p in self.plan[kernel] if self._status(kernel, row, p) == "ok"]
                cells = [{"cell": "|".join([kernel, row.label, p.name]), "policy": p.to_dict()} for p in ok]
                job = {"id": "|".join([kernel, row.label, ""]), "kernel": kernel, "row": row.to_dict()}
                if cells:
                    jobs.append(job | {"candidates": cells})
        return jobs

    def _status(self, kernel: str, row: Workload, policy: Policy) -> str:
        return self._compiled.get((kernel, row.label, policy.name), {"status": "not_reached"})["status"]

    def _measure(self, deadline: float) -> None:
        """Lanes on every GPU take the jobs from one queue; those of a GPU take turns on it."""
        machine = self.machine
        gpus, jobs = len(machine.devices), self._jobs()
        per_gpu = max(min(len(self.plan), LANES_PER_GPU, machine.cores // gpus // CORES_PER_LANE), 1)
        lanes = []
        for number, index in enumerate(machine.devices):
            task = {
                "gpu": machine.gpu.name,
                "device": machine.device,
                "lock": str(self.out / f"gpu{number}.lock"),
                "memory_share": min(0.9, MEMORY_SHARES / per_gpu),
            }
            seen = {"CUDA_VISIBLE_DEVICES": index, "HIP_VISIBLE_DEVICES": index} if gpus > 1 else {}
            lanes += [Lane(list(machine.timer), task, seen)] * per_gpu
        tune_lanes.Run(Jobs(jobs), deadline, self._timed, self._lost).work(lanes[: len(jobs)])

    def _timed(self, event: dict[str, Any]) -> None:
        kernel, row, policy = event["cell"].split("|")
        if "done" in event:
            self.note(kernel, row, "", done=True)
        else:
            config = self._compiled[kernel, row, policy]["config"]
            self.note(kernel, row, policy, config=config, **event["fields"])

    def _lost(self, job: dict[str, Any], cell: str, status: str, reason: str) -> None:
        kernel, row, policy = cell.split("|")
        self.note(kernel, row, policy, config=None, status=status, reason=reason)
