"""One arm of a tuning run: the kernels of one DSL on the rows, within one wall budget.

Lanes on all cores compile, the first rows before the others; lanes on every GPU gate and time what compiled, from the
first kernel and rows on whose candidates are through. All that is learnt becomes a line of the log as it is learnt.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.gpus import Gpu
from compare.competitors import registry
from compare.process import children
from compare.process.pool import Jobs, Lane, Pool
from compare.tune import learned
from compare.tune import space as seeds
from compare.tune.records import Log, done, latest, spent
from compare.tune.space import DEFAULT, TREE, Policy, Space, policies, start, with_levers
from compare.workloads import Workload

COMPILE_SHARE = 0.6  # of the budget at most; what is not compiled by then is not tried
# A timing lane generates code on its own core, seconds a config of Helion's, and waits for its GPU half of its time.
LANES_PER_GPU, LANES_PER_KERNEL, CORES_PER_LANE = 16, 3, 1.5
MEMORY_SHARES = 2.0  # of the GPU's memory all lanes together may ask for: rows that need most are few
SPARE = 8  # times as many policies are drawn where some do not fit every row's shape
FIRST_ROWS, NEXT_ROWS = 4, 12  # compiled together: one of each kind soon, then enough to share what is generated


@dataclass(frozen=True)
class Late:
    """A kernel that seldom wins: when its turn comes, and by what its number of policies is divided."""

    turn: int
    divisor: int


_LATE = {  # naive: milliseconds a call; split: two launches, more to compile; auto: what the others are held against
    "naive": Late(2, 4),
    "split": Late(1, 2),
    "auto": Late(-1, 1),
    "native.auto": Late(-1, 1),
}


def late(kernel_id: str) -> Late:
    return _LATE.get(kernel_id.split("/")[1], Late(0, 1))


@dataclass(frozen=True)
class Machine:
    """Where an arm runs: the GPU's row of the table, devices as children see them, cores, the lanes' commands."""

    gpu: Gpu
    devices: tuple[str, ...]
    cores: int
    device: str = "cuda"
    compiler: tuple[str, ...] = tuple(children.command(children.TUNE_COMPILE))
    timer: tuple[str, ...] = tuple(children.command(children.TUNE_WORKER))
    autotuner: tuple[str, ...] = tuple(children.command(children.TUNE_HELION))


def candidates(kernel_id: str, rows: Sequence[Workload], gpu: Gpu, count: int, seed: int) -> list[Policy]:
    """The policies of a kernel: the same for a seed, rows and source; behind the default those that a static ranking
    for the GPU names, where there is one (compare.tune.space). Raises registry.Unavailable.
    """
    kernel = registry.load(kernel_id)
    defaults = [start(DEFAULT, kernel_id, kernel, row, gpu) for row in rows]
    shapes = dict.fromkeys(row.shape for row in rows)
    spaces = {shape: Space(with_levers(kernel.space(shape, gpu), gpu)) for shape in shapes}
    configs = dict.fromkeys(config for space in spaces.values() for config in space.configs)

    def everywhere(policy: Policy) -> bool:  # a config that fits heads of 64 may not fit heads of 128
        return all(spaces[r.shape].allows(policy.config(d), d) for r, d in zip(rows, defaults, strict=True))

    def first(policies: list[Policy]) -> list[Policy]:
        """The policies in order of the learned loss over all rows, after the default."""
        plain = [[registry.config_dict(policy.config(d)) for d in defaults] for policy in policies]
        order = learned.ranked(kernel_id, plain, rows, gpu)
        return sorted(policies, key=lambda policy: (policy != DEFAULT, order.index(policies.index(policy))))

    found: list[Policy] = []
    for number in (count, SPARE * count):
        drawn = policies(configs, defaults, number, seed)
        wanted = dict.fromkeys([*drawn[:1], *seeds.of(gpu.name, kernel_id), *drawn])
        found = [policy for policy in wanted if everywhere(policy)][:count]
        if len(found) == count:
            break
    found = found if seeds.of(gpu.name, kernel_id) else first(found)
    return [*found[:1], TREE, *found[1:]] if _has_winners(kernel_id, gpu) else found


def _has_winners(kernel_id: str, gpu: Gpu) -> bool:
    """Whether a kernel has winners on this GPU: they are timed beside what may replace them."""
    dsl, _, kernel = kernel_id.partition("/")
    return any(one.of == kernel for one in registry.load(f"{dsl}/auto").FAMILY.winners(gpu))


class Arm:
    """`name`: triton, helion. plan: policies by kernel. together: rows compiled and handed over at once, after the
    first FIRST_ROWS; few, and a run that is cut off has whole rows.
    """

    def __init__(
        self,
        name: str,
        plan: dict[str, list[Policy]],
        rows: Sequence[Workload],
        machine: Machine,
        log: Log,
        out: Path,
        together: int = NEXT_ROWS,
    ) -> None:
        self.name, self.plan, self.rows, self.machine, self.log, self.out = name, plan, rows, machine, log, out
        self.together = together
        self._compiled: dict[tuple[str, str, str], dict[str, Any]] = {}  # (kernel, row, policy) -> answer
        self._waiting: Counter[tuple[str, int]] = Counter()  # compiling jobs of a kernel's chunk without an answer
        self._next: Counter[str] = Counter()  # chunk of a kernel that is handed over next
        self._begin = 0.0
        self._over = done(log.lines, name)
        self._turn = threading.Lock()
        self._failures: list[BaseException] = []

    def run(self, seconds: float) -> None:
        """Tune for the rest of `seconds`, the wall budget including compilation. Rows of an earlier run stay done."""
        self._begin = time.time() - spent(self.log.lines, self.name)
        deadline = self._begin + seconds
        if time.time() >= deadline:
            return
        jobs, ready = list(self._compile_jobs()), Jobs(growing=True)
        self._waiting = Counter((job["kernel"], job["chunk"]) for job in jobs)
        timers, soon = self._timers(deadline), time.time() + COMPILE_SHARE * (deadline - time.time())
        compilers = self._compilers(soon, len(timers), len(jobs))
        compiling = Pool(compilers, Jobs(jobs), deadline=soon)
        thread = threading.Thread(target=self._compile, args=(compiling, ready), daemon=True)
        thread.start()
        try:
            for _, event in Pool(timers, ready, deadline=deadline).results():
                self._timed(event)
        finally:
            for lane in [*compilers, *timers]:
                lane.kill()
            thread.join()
        if self._failures:
            raise self._failures[0]

    def report(self) -> list[str]:
        """A few lines that say what became of the candidates."""
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
            "seconds of the timing lanes: " + self._seconds(),
        ]

    def _seconds(self) -> str:
        """A line that says where the lanes' time went on the finished rows."""
        lines = [line for line in self.log.lines if line["arm"] == self.name and line.get("done")]
        names = ("tensors_s", "host_s", "waited_s", "device_s")
        return ", ".join(f"{name.removesuffix('_s')} {sum(x.get(name, 0.0) for x in lines):.0f}" for name in names)

    def note(self, kernel: str, row: str, policy: str, **fields: Any) -> None:
        with self._turn:
            spent_s = round(time.time() - self._begin, 2)
            self.log.add(arm=self.name, kernel=kernel, row=row, policy=policy, t=spent_s, **fields)

    def _left(self, kernel: str, rows: Sequence[Workload]) -> list[Workload]:
        """Those of `rows` on which the kernel was unfinished when this run began."""
        return [row for row in rows if (row.label, kernel) not in self._over]

    def _chunks(self) -> list[tuple[Workload, ...]]:
        ends = range(FIRST_ROWS, len(self.rows) + self.together, self.together)
        return [c for end in ends if (c := tuple(self.rows[max(end - self.together, 0) : end]))]

    def _compile_jobs(self) -> Iterator[dict[str, Any]]:
        """Compile jobs: one policy and the rows of a chunk with equal shape; the defaults come first."""
        kernels = sorted(self.plan, key=lambda kernel: late(kernel).turn)
        for number, chunk in enumerate(self._chunks()):
            for kernel in kernels:
                left = self._left(kernel, chunk)
                shapes = list(dict.fromkeys((row.shape, row.ask) for row in left))
                for policy in self.plan[kernel]:
                    for rank, shape in enumerate(shapes):
                        labels = [row.label for row in left if (row.shape, row.ask) == shape]
                        yield {
                            "id": "|".join([kernel, str(number), str(rank), policy.name]),
                            "kernel": kernel,
                            "chunk": number,
                            "late": (late(kernel).turn, number),
                            "policy": policy.to_dict(),
                            "rows": labels,
                        }

    def _compilers(self, deadline: float, timers: int, jobs: int) -> list[Lane]:
        task = {"gpu": dataclasses.asdict(self.machine.gpu), "rows": [row.to_dict() for row in self.rows]}
        hidden = children.seeing(children.NO_GPU)  # compilers need no GPU context
        lanes = max(self.machine.cores - timers // 2, 1)  # half of the timing lanes wait for the GPU at any time
        return [Lane(self.machine.compiler, task, deadline, hidden) for _ in range(min(lanes, jobs))]

    def _compile(self, compiling: Pool, ready: Jobs[dict[str, Any]]) -> None:
        """The compiling phase. A kernel's rows of a chunk go to `ready` when all their jobs are answered; what a
        deadline left unanswered goes on with what was compiled of it."""
        try:
            for job, event in compiling.results():
                self._compiled |= {
                    (job["kernel"], row, Policy.from_dict(job["policy"]).name): answer
                    for row, answer in _answers(job, event).items()
                }
                self._waiting[job["kernel"], job["chunk"]] -= 1
                self._hand_over(job["kernel"], ready, whole=True)
            for kernel in self.plan:
                self._hand_over(kernel, ready, whole=False)
        except BaseException as error:
            self._failures.append(error)
        finally:
            ready.close()

    def _hand_over(self, kernel: str, ready: Jobs, whole: bool) -> None:
        """Hand over the kernel's chunks in order: those with all jobs answered, or without `whole` all others too."""
        chunks = self._chunks()
        while self._next[kernel] < len(chunks) and not (whole and self._waiting[kernel, self._next[kernel]]):
            rows = self._left(kernel, chunks[self._next[kernel]])
            self._next[kernel] += 1
            ready.add(self._timing_jobs(kernel, self._next[kernel] - 1, rows))

    def _timing_jobs(self, kernel: str, chunk: int, rows: Sequence[Workload]) -> list[dict[str, Any]]:
        """Timing jobs, one a row, the default first. Candidates that did not compile are logged."""
        jobs = []
        for row in rows:
            self._sort_out(kernel, row)
            ok = [p for p in self.plan[kernel] if self._status(kernel, row, p) == "ok"]
            cells = [{"cell": "|".join([kernel, row.label, p.name]), "policy": p.to_dict()} for p in ok]
            job = {"id": "|".join([kernel, row.label, ""]), "kernel": kernel, "row": row.to_dict()}
            if cells:
                jobs.append(job | {"candidates": cells, "late": (late(kernel).turn, chunk)})
        return jobs

    def _sort_out(self, kernel: str, row: Workload) -> None:
        """Keep one candidate of those with equal code or config."""
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

    def _status(self, kernel: str, row: Workload, policy: Policy) -> str:
        return self._compiled.get((kernel, row.label, policy.name), {"status": "not_reached"})["status"]

    def _timers(self, deadline: float) -> list[Lane]:
        """Start timing lanes on every GPU, which take turns on it. None if no row is left."""
        machine, left = self.machine, sum(len(self._left(kernel, self.rows)) for kernel in self.plan)
        gpus = len(machine.devices)
        most = int(machine.cores // gpus / CORES_PER_LANE)
        per_gpu = max(min(LANES_PER_KERNEL * len(self.plan), LANES_PER_GPU, most), 1)
        tasks = self._tasks(per_gpu)
        return [Lane(machine.timer, task, deadline, seen) for task, seen in tasks for _ in range(per_gpu)][:left]

    def _tasks(self, per_gpu: int) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
        """Of each GPU what its lanes are told first, and what their environment says of it."""
        machine = self.machine
        for number, index in enumerate(machine.devices):
            task = {
                "gpu": machine.gpu.name,
                "device": machine.device,
                "lock": str(self.out / f"gpu{number}.lock"),
                "memory_share": min(0.9, MEMORY_SHARES / per_gpu),
            }
            yield task, children.seeing(index) if len(machine.devices) > 1 else {}

    def _timed(self, event: dict[str, Any]) -> None:
        kernel, row, policy = event["cell"].split("|")
        if event["event"] == "lost":
            self.note(kernel, row, policy, config=None, status=event["status"], reason=event["reason"])
        elif "done" in event:
            self.note(kernel, row, "", done=True, **event.get("took", {}))
        else:
            compiled = self._compiled.get((kernel, row, policy), {})
            self.note(kernel, row, policy, **{"config": compiled.get("config")} | event["fields"])


def _answers(job: dict[str, Any], event: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The outcome of a job's policy on each of its rows."""
    if event["event"] == "row":
        return event["answers"]
    # time that ran out says nothing of the policy: `slow`, as a timeout on the GPU is, and never `forbidden`
    became = event["status"] if event["status"] == "timeout" else "compile_error"
    reason = f"the compiler's process: {event['status']}: {event['reason']}"
    return {row: {"status": became, "reason": reason, "config": None, "code": ""} for row in job["rows"]}
