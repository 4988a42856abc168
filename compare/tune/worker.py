"""The measuring lane of the tuner: gates, screens and times the candidates of a kernel on a row, on one GPU.

Several lanes share a GPU: what a row and a candidate cost the host (block tables, code generation, loading code)
happens beside the others, all launches happen under a lock, so nobody is timed while another launches; what is left is
the filling of a new row's tensors, milliseconds, which the median of a final's rounds does not see.

A screened candidate passed one poisoned run; a finalist passed the whole gate and was timed again, in fresh rounds,
beside the other finalists of its kernel. Rules of a sample: compare/bench/timing.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import torch

from common import gpus
from compare.bench import gate, timing
from compare.bench.arena import Arena, page_sets
from compare.bench.subject import Subject, device_is_sick, failure
from compare.bench.task import versions
from compare.competitors import registry
from compare.process.channel import Channel
from compare.tune.space import DEFAULT, TREE, Policy, start
from compare.workloads import Workload

FINALISTS = 5
SCREEN_ROUNDS = 2  # of all, then of the better half
FINAL_S = 0.4  # of fresh rounds for the finalists of a kernel and row; ten rounds at least
MAX_SETS = 16  # page sets of a row: a replay visits each once, behind a read that empties the last-level cache
HOPELESS, HOST_US = 3.0, 200.0  # a first launch above 3 x the default + what the host may add is not screened
SIGN_S = 20.0  # of waiting for the GPU between two signs of life
ALONE_SHARE = 0.6  # of the GPU's memory for a row that exceeds a lane's share: the other lanes keep their tensors
LOSES, TWICE = 2.0, 2  # above 2 x the best in two rows of a kind, never below: not tried in the others of that kind


@dataclass
class Candidate:
    """A policy's config set up on an arena, with its runner and samples."""

    cell: str
    policy: Policy
    subject: Subject
    runner: Any = None
    samples: tuple[float, ...] = ()

    @property
    def us(self) -> float:
        return timing.quantile(self.samples, 0.5)

    @property
    def sets(self) -> list[int]:
        return sorted({number for part in self.runner.parts for number in part})


def _parts(sets: int, call_us: float) -> list[tuple[int, ...]]:
    """Page sets split into graphs, as compare.bench.timing splits a long cycle."""
    if sets * call_us <= timing.WHOLE_CYCLE_US:
        return [tuple(range(sets))]
    return timing.partition(sets, call_us)


class Bench:
    """One lane. `task`: gpu, device, lock (a file), memory_share, deadline, lost (cells that took a process along)."""

    def __init__(self, task: dict[str, Any], channel: Any) -> None:
        self.channel, self.deadline, self.lost = channel, task["deadline"], set(task["lost"])
        self.device = torch.device(task["device"])
        self.gpu = gpus.resolve(task["gpu"]) if task["gpu"] in gpus.TABLE else gpus.detect()
        self._lock = task["lock"]
        self._ratios: dict[tuple[str, str, str], list[float]] = defaultdict(list)  # kind, kernel, policy
        self._arena: Arena | None = None
        self._share, self._alone = task["memory_share"], False
        self._most_memory(self._share)
        self.clock = timing.make_clock(self.device)

    def _most_memory(self, share: float) -> None:
        """Free cached memory and limit this process to a share of the GPU's memory."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.set_per_process_memory_fraction(share)

    @contextlib.contextmanager
    def device_alone(self, cell: str) -> Iterator[None]:
        """Hold the GPU's lock for the context. Waiting sends signs of life."""
        if self._alone:
            yield
            return
        with open(self._lock, "w") as file:
            told = time.monotonic()
            while not _locked(file):
                if time.monotonic() - told > SIGN_S:
                    self.channel.send("start", cell=cell)
                    told = time.monotonic()
                time.sleep(0.01)
            self._alone = True
            try:
                yield
            finally:
                self._alone = False

    def late(self) -> bool:
        return time.time() > self.deadline

    def say(self, cell: str, status: str, reason: str = "", **fields: Any) -> None:
        self.channel.send("row", cell=cell, fields={"status": status, "reason": reason} | fields)

    def job(self, job: dict[str, Any]) -> None:
        """Measure one kernel on one row. If its tensors exceed the lane's share of memory, it runs alone on the GPU."""
        self.channel.send("start", cell=job["id"])
        heavy = False
        try:
            self._work(job)
        except torch.OutOfMemoryError:
            heavy = True
        if heavy:  # after the handler: the exception keeps the tensors alive
            self._arena = None
            with self.device_alone(job["id"]):
                self._heavy(job)
        self.channel.send("finished", job=job["id"])

    def _heavy(self, job: dict[str, Any]) -> None:
        self._most_memory(ALONE_SHARE)
        try:
            self._work(job)
        except torch.OutOfMemoryError as error:
            for entry in job["candidates"]:
                self._failed(entry["cell"], error)
        finally:
            self._arena = None
            self._most_memory(self._share)

    def _work(self, job: dict[str, Any]) -> None:
        moments = [time.perf_counter()]
        arena = self._arena_of(Workload.from_dict(job["row"]))
        moments.append(time.perf_counter())
        candidates = self._set_up(arena, job["kernel"], job["candidates"])
        moments.append(time.perf_counter())
        with self.device_alone(job["id"]):
            moments.append(time.perf_counter())
            if candidates and not self.late():
                self._compete(arena, job["kernel"], candidates)
        moments.append(time.perf_counter())
        del candidates
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        if not self.late():
            names = ("tensors_s", "host_s", "waited_s", "device_s")
            took = {n: round(end - begin, 2) for n, begin, end in zip(names, moments, moments[1:], strict=False)}
            self.channel.send("row", cell=job["id"], done=True, took=took)

    def _arena_of(self, row: Workload) -> Arena:
        """The row's tensors. Those of the last row are kept, as its jobs follow each other."""
        if self._arena is None or self._arena.workload != row:
            self._arena = None  # free the old ones first
            self._arena = Arena(row, min(page_sets(row, self.gpu.llc_bytes), MAX_SETS), self.device)
            self._arena.sync()
        return self._arena

    def _failed(self, cell: str, error: Exception) -> None:
        """Send the row of a candidate that raised. If the device is lost, the process ends."""
        if device_is_sick(self.device):
            raise error
        found = failure(error)
        self.say(cell, str(found["status"]), found["reason"])

    def _set_up(self, arena: Arena, kernel_id: str, entries: list[dict[str, Any]]) -> list[Candidate]:
        """Set up the candidates on the host, including code generation; launches nothing."""
        candidates, kind, row = [], arena.workload.kind, arena.workload
        for entry in entries:
            cell, policy = entry["cell"], Policy.from_dict(entry["policy"])
            if cell in self.lost or self.late():
                continue
            ratios = self._ratios[kind, kernel_id, policy.name]
            if policy not in (DEFAULT, TREE) and len(ratios) >= TWICE and min(ratios) > LOSES:
                self.say(cell, "raced", f"above {LOSES:g} x the best in {len(ratios)} rows of {kind}")
                continue
            self.channel.send("start", cell=cell)
            try:
                kernel = registry.load(kernel_id)
                config = policy.config(start(policy, kernel_id, kernel, row, self.gpu))
                subject = Subject(kernel_id, arena, self.gpu, config, "tuning")
                with _compiled_only():
                    subject.launch(0)
                candidates.append(Candidate(cell, policy, subject))
            except Exception as error:
                self._failed(cell, error)
        return candidates

    def _compete(self, arena: Arena, kernel_id: str, candidates: list[Candidate]) -> None:
        """Gate and screen all, then time the best and the default again."""
        ready = self._enter(arena, candidates)
        if not ready:
            return
        self._rounds(ready)
        ready.sort(key=lambda c: c.us)
        self._rounds(ready[: max(len(ready) // 2, FINALISTS)])
        ready.sort(key=lambda c: c.us)
        best = ready[0].us
        for c in ready:
            self._ratios[arena.workload.kind, kernel_id, c.policy.name].append(c.us / best)
            self.say(c.cell, "ok", screen_us=round(c.us, 3))
        finalists = ready[:FINALISTS] + [c for c in ready[FINALISTS:] if c.policy in (DEFAULT, TREE)]
        self._final(arena, finalists)

    def _enter(self, arena: Arena, candidates: list[Candidate]) -> list[Candidate]:
        """The candidates that are right and not hopelessly slow, each with a warm runner."""
        ready, default_us = [], math.inf
        for c in candidates:
            if self.late():
                break
            self.channel.send("start", cell=c.cell)
            try:
                call_us = timing.first_launch_us(c.subject.launch, len(arena.batches))
                if c.policy == DEFAULT:
                    default_us = call_us
                elif call_us > HOPELESS * default_us + HOST_US:
                    self._ratios[arena.workload.kind, c.subject.kernel_id, c.policy.name].append(math.inf)
                    self.say(c.cell, "hopeless", f"{call_us:.0f} us at first, the default {default_us:.0f}")
                    continue
                c.runner = timing.captured(c.subject, _parts(len(arena.batches), call_us), self.clock)
                gate.once(arena, c.runner.run, c.sets, c.subject.kernel.CONTRACT)
                c.runner.sample(0)  # the first replay uploads the graph
                ready.append(c)
            except Exception as error:
                self._failed(c.cell, error)
        return ready

    def _rounds(self, candidates: list[Candidate]) -> None:
        for number in range(SCREEN_ROUNDS):
            for i in timing.round_order(len(candidates), number):
                c = candidates[i]
                self.channel.send("start", cell=c.cell)
                c.samples += (c.runner.sample(len(c.samples) % len(c.runner.parts)),)

    def _final(self, arena: Arena, finalists: list[Candidate]) -> None:
        """Gate the finalists fully and time them in fresh interleaved rounds; only these times are quoted."""
        tracks = []
        for c in finalists:
            self.channel.send("start", cell=c.cell)
            try:
                gate.before(arena, c.runner.run, c.sets, c.subject.kernel.CONTRACT)
                tracks.append((c, timing.Track(c.cell, c.runner, [])))
            except Exception as error:
                self._failed(c.cell, error)
        timing.interleave([t for _, t in tracks], FINAL_S, before=lambda cell: self.channel.send("start", cell=cell))
        for c, track in tracks:
            low, middle, high = (round(timing.quantile(track.samples, q), 3) for q in (0.05, 0.5, 0.95))
            times = {"final_us": middle, "p05_us": low, "p95_us": high, "rounds": len(track.samples)}
            self.say(c.cell, "ok", screen_us=round(c.us, 3), **times)


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _compiled_only() -> contextlib.AbstractContextManager[None]:
    """In the context launches of Triton kernels only compile."""
    if "triton" not in sys.modules:
        return contextlib.nullcontext()
    from compare.static.jit import compiled_only

    return compiled_only()


def main(kind: type[Bench] = Bench) -> None:
    channel = Channel()
    channel.send("ready", versions=versions())
    task = json.loads(sys.stdin.readline())
    bench = kind(task, channel)
    for line in sys.stdin:
        bench.job(json.loads(line))


if __name__ == "__main__":
    main()
