"""Several worker processes over one plan, side by side: outcomes as they come, whoever finishes first."""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from compare.plan.job import Job
from compare.process.crew import Crew, Lost, Outcome, Worker, environment


def side_by_side(crews: Sequence[Crew], jobs: Sequence[Job]) -> Iterator[Outcome]:
    """Each crew takes the next cell that nobody has. What a crew raises is raised here; close the crews to stop them.

    Cell by cell, not job by job: making a workload's tensors costs milliseconds, a kernel's compilation seconds.
    """
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        for cell in job.cells:
            waiting.put(job.only([cell.id]))
    found: queue.SimpleQueue[Outcome | BaseException | None] = queue.SimpleQueue()

    def work(crew: Crew) -> None:
        try:
            while True:
                for outcome in crew.run(waiting.get_nowait()):
                    found.put(outcome)
        except queue.Empty:
            found.put(None)
        except BaseException as error:
            found.put(error)

    for crew in crews:
        threading.Thread(target=work, args=(crew,), daemon=True).start()
    working = len(crews)
    while working:
        one = found.get()
        if isinstance(one, BaseException):
            raise one
        if one is None:
            working -= 1
        else:
            yield one


# Child processes that work through jobs: one that dies, hangs or floods loses the cell it was at, the rest goes on.
#
# One thread a lane in the parent; its process is the one that compare.process.crew ends and buries for measured runs.
# Lanes take their jobs from a common queue, which may still grow, and keep to one kernel as long as it has jobs: what
# a process imported and generated for a kernel serves the next row.


SILENCE_S = 90.0  # without an event: importing takes 20 s on a busy machine, one compilation at most this long
POLL_S = 0.2  # of a lane that waits for a job
GRACE_S = 15.0  # behind the deadline, for what a process has begun


class Jobs:
    """Jobs (dicts with `id`, `kernel` and perhaps `late`) by kernel, in order. Safe for several threads.

    late: a number, 0 without it; a kernel is not begun while one with a smaller number has jobs. growing: more are
    added until `close`, and takers wait for them.
    """

    def __init__(self, jobs: Iterable[dict[str, Any]] = (), *, growing: bool = False) -> None:
        self._left: dict[str, deque[dict[str, Any]]] = {}
        self._lanes: Counter[str] = Counter()
        self._growing, self._changed = growing, threading.Condition()
        self.add(jobs)

    def add(self, jobs: Iterable[dict[str, Any]]) -> None:
        with self._changed:
            for job in jobs:
                self._left.setdefault(job["kernel"], deque()).append(job)
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._growing = False
            self._changed.notify_all()

    def take(self, last: str | None, over: Callable[[], bool] = lambda: False) -> dict[str, Any] | None:
        """The next job of kernel `last`, else of the one with most jobs for each of its lanes; None at the end."""
        with self._changed:
            while not any(self._left.values()):
                if not self._growing or over():
                    return None
                self._changed.wait(POLL_S)
            soonest = min(left[0].get("late", 0) for left in self._left.values() if left)
            kernels = [k for k, left in self._left.items() if left and left[0].get("late", 0) == soonest]
            if last not in kernels:
                self._lanes[last] -= 1
                last = max(kernels, key=lambda kernel: len(self._left[kernel]) / (1 + self._lanes[kernel]))
                self._lanes[last] += 1
            return self._left[last].popleft()


@dataclass
class Lane:
    """A process's command, what each process of the lane is told first, and what its environment has beside."""

    command: list[str]
    task: dict[str, Any]
    variables: dict[str, str] = field(default_factory=dict)


@dataclass
class Run:
    """One phase. on_row hears each event with a result, one at a time; on_lost the job, cell, status and reason of each
    cell that took its process along. An exception of either ends the run, and every process with it."""

    jobs: Jobs
    deadline: float  # time.time()
    on_row: Callable[[dict[str, Any]], None]
    on_lost: Callable[[dict[str, Any], str, str, str], None]
    silence_s: float = SILENCE_S

    def __post_init__(self) -> None:
        self._turn, self._stop = threading.Lock(), threading.Event()
        self._workers: list[Worker] = []
        self._failures: list[BaseException] = []

    def work(self, lanes: Sequence[Lane]) -> None:
        """Return when all jobs are done or the deadline has passed."""
        threads = [threading.Thread(target=self._lane, args=(lane,), daemon=True) for lane in lanes]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.5)
        finally:
            self.stop()
        if self._failures:
            raise self._failures[0]

    def _over(self) -> bool:
        return self._stop.is_set() or time.time() >= self.deadline

    def stop(self) -> None:
        """End the phase from another thread: nothing more is heard."""
        self._stop.set()
        for worker in list(self._workers):
            worker.kill()  # its own thread closes what it reads from

    def _take(self, last: str | None) -> dict[str, Any] | None:
        return self.jobs.take(last, self._over)

    def _lane(self, lane: Lane) -> None:
        try:
            lost: list[str] = []
            job = self._process(lane, None, lost)
            while job is not None and not self._over():
                job = self._process(lane, job, lost)
        except BaseException as error:
            self._failures.append(error)
            self._stop.set()

    def _process(self, lane: Lane, job: dict[str, Any] | None, lost: list[str]) -> dict[str, Any] | None:
        """One process, from `job` on (None: the next one), which it may have to wait for: it imports meanwhile.

        Returns the job at which it was lost, to be tried again without the lost cell.
        """
        worker = Worker(lane.command, environment("measure") | lane.variables)
        self._workers.append(worker)
        try:
            worker.send(json.dumps(lane.task | {"deadline": self.deadline, "lost": lost}))
            job = job or self._take(None)
            while job is not None and not self._over():
                worker.send(json.dumps(job))
                while (event := worker.event(self._patience()))["event"] != "finished":
                    if event["event"] == "row":
                        with self._turn:
                            self.on_row(event)
                job = self._take(job["kernel"])
            return None
        except Lost as found:
            if self._over():
                return None
            if found.cell is None:  # it never began: another process would do the same
                raise RuntimeError(f"{lane.command}: {found.reason}\n{found.log_tail}") from found
            last = found.log_tail.strip().rpartition("\n")[2]
            with self._turn:
                self.on_lost(job, found.cell, str(found.status), f"{found.reason}: {last}" if last else found.reason)
            lost.append(found.cell)
            return self._take(job["kernel"]) if found.cell == job["id"] else job
        finally:
            self._workers.remove(worker)
            worker.end()

    def _patience(self) -> float:
        return max(min(self.silence_s, self.deadline + GRACE_S - time.time()), 0.1)


def module(name: str) -> list[str]:
    return [sys.executable, "-m", name]
