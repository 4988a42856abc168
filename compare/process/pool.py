"""A pool of lanes that share jobs and yield outcomes in the order in which they finish.

A lane is a function from the jobs that it takes to what becomes of them, in a thread of its own, with whatever child it
keeps. `Lane` is one whose processes answer with events: one that dies, hangs or floods loses the cell it was at.
"""

import math
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from common.process import Lost
from compare.plan import job as planned
from compare.process.crew import Crew, Outcome, Worker, environment, status_of

SILENCE_S = 90.0  # without an event: importing takes 20 s on a busy machine, one compilation at most this long
POLL_S = 0.2  # of a lane that waits for a job until a deadline
GRACE_S = 15.0  # behind the deadline, for what a process has begun
Job, Found = TypeVar("Job"), TypeVar("Found")


def _of_dict(job: Any) -> tuple[str, Any]:
    return job["kernel"], job.get("late", 0)


def in_order(job: Any) -> tuple[str, int]:
    """The order of jobs without a kernel: as they were added."""
    return "", 0


class Jobs(Generic[Job]):
    """Jobs by kernel, in order. Safe for several threads.

    of: a job's kernel, and its turn, a number or tuple: none is taken while one with a smaller turn is there; of a dict
    `kernel` and, where it has one, `late`. growing: more are added until `close`, and takers wait for them.
    """

    def __init__(
        self, jobs: Iterable[Job] = (), *, growing: bool = False, of: Callable[[Job], tuple[str, Any]] = _of_dict
    ) -> None:
        self._left: dict[str, deque[Job]] = {}
        self._lanes: Counter[str] = Counter()
        self._growing, self.of, self._changed = growing, of, threading.Condition()
        self.add(jobs)

    def __len__(self) -> int:
        return sum(map(len, self._left.values()))

    def add(self, jobs: Iterable[Job]) -> None:
        with self._changed:
            for job in jobs:
                self._left.setdefault(self.of(job)[0], deque()).append(job)
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._growing = False
            self._changed.notify_all()

    def rest(self) -> list[Job]:
        """Remove and return the jobs that nobody has taken."""
        with self._changed:
            rest = [job for left in self._left.values() for job in left]
            self._left.clear()
            return rest

    def take(self, last: str | None, over: Callable[[], bool] | None = None) -> Job | None:
        """The next job of kernel `last`, else of the one with most jobs for each of its lanes; None at the end, and
        where it was `over` while there was none."""
        with self._changed:
            while not any(self._left.values()):
                if not self._growing or (over and over()):
                    return None
                self._changed.wait(POLL_S if over else None)
            soonest = min(self.of(left[0])[1] for left in self._left.values() if left)
            kernels = [k for k, left in self._left.items() if left and self.of(left[0])[1] == soonest]
            if last not in kernels:
                self._lanes[last] -= 1
                last = max(kernels, key=lambda kernel: len(self._left[kernel]) / (1 + self._lanes[kernel]))
                self._lanes[last] += 1
            return self._left[last].popleft()


class Pool(Generic[Job, Found]):
    """Jobs in, what the lanes find out. `close` stops the lanes behind what they are at; no job begins then, nor behind
    the deadline (time.time()).

    blame: what became of the job at which a lane ended too early, by an error or without one (None); and behind the
    last lane of every job that is left: somebody waits for them. Without it what a lane raises is raised by `results`.
    """

    def __init__(
        self,
        lanes: Iterable[Callable[[Iterator[Job]], Iterator[Found]]],
        jobs: Jobs[Job],
        *,
        deadline: float = math.inf,
        blame: Callable[[Job, BaseException | None], Found] | None = None,
    ) -> None:
        self._jobs, self._deadline, self._blame = jobs, deadline, blame
        self._found: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._turn, self._stop = threading.Lock(), threading.Event()
        given = list(lanes)
        # lanes that take jobs, and those whose end `results` has not met; all before one begins: the first may end, and
        # behind the last lane nobody waits for what is left
        self.working = self._heard = len(given)
        for lane in given:
            self._begin(lane)

    def start(self, lane: Callable[[Iterator[Job]], Iterator[Found]]) -> None:
        with self._turn:
            self.working += 1
        self._heard += 1
        self._begin(lane)

    def _begin(self, lane: Callable[[Iterator[Job]], Iterator[Found]]) -> None:
        threading.Thread(target=self._work, args=(lane,), daemon=True).start()

    def results(self) -> Iterator[Found]:
        """Yield outcomes until every lane has ended."""
        while self._heard:
            kind, one = self._found.get()
            if kind == "raised":
                raise one
            if kind == "found":
                yield one
            else:
                self._heard -= 1

    def close(self) -> None:
        self._stop.set()
        self._jobs.close()

    def _over(self) -> bool:
        return self._stop.is_set() or time.time() >= self._deadline

    def _taken(self, at: list[Job]) -> Iterator[Job]:
        """The jobs of one lane. at: the one of which it has found nothing yet."""
        last, over = None, None if self._deadline == math.inf else self._over
        while (job := self._jobs.take(last, over)) is not None and not self._over():
            last = self._jobs.of(job)[0]
            at[:] = [job]
            yield job

    def _work(self, lane: Callable[[Iterator[Job]], Iterator[Found]]) -> None:
        at: list[Job] = []
        raised = None
        try:
            for found in lane(self._taken(at)):
                if self._stop.is_set():
                    break
                at.clear()
                self._found.put(("found", found))
        except BaseException as error:
            raised = error
        with self._turn:
            self.working -= 1
            left = at if self.working or self._stop.is_set() else [*at, *self._jobs.rest()]
        if self._blame:
            for job in left:
                self._found.put(("found", self._blame(job, raised)))
        elif raised is not None:
            self._found.put(("raised", raised))
        self._found.put(("ended", None))


def side_by_side(crews: Sequence[Crew], jobs: Sequence[planned.Job]) -> Iterator[Outcome]:
    """Each crew takes the next cell that nobody has. What a crew raises is raised here; close the crews to stop them.

    Cell by cell, not job by job: making a workload's tensors costs milliseconds, a kernel's compilation seconds.
    """

    def lane(crew: Crew) -> Callable[[Iterator[planned.Job]], Iterator[Outcome]]:
        return lambda taken: (outcome for job in taken for outcome in crew.run(job))

    cells = Jobs([job.only([cell.id]) for job in jobs for cell in job.cells], of=in_order)
    with closing(Pool(map(lane, crews), cells)) as pool:
        yield from pool.results()


@dataclass
class Lane:
    """Processes of one command, one after the other, that work through jobs (dicts with `id`) and answer with events.

    task: what each is told first; variables: what its environment has beside. Nothing begins behind the deadline
    (time.time()), and what a process has begun ends GRACE_S later. Yields each job with its `row` events, and with a
    `lost` event for a cell that took its process along: the job is tried again without it, where it was not the job
    itself.
    """

    command: Sequence[str]
    task: dict[str, Any]
    deadline: float
    variables: dict[str, str] = field(default_factory=dict)
    silence_s: float = SILENCE_S
    _worker: Worker | None = None
    _killed: bool = False

    def __call__(self, jobs: Iterator[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        lost: list[str] = []
        job: dict[str, Any] | None = None
        while not self._over():
            worker = self._worker = Worker(self.command, environment("measure") | self.variables)
            try:
                worker.tell(self.task | {"deadline": self.deadline, "lost": lost})
                job = job or next(jobs, None)  # it imports while the lane waits for a job
                while job is not None and not self._over():
                    worker.tell(job)
                    while (event := worker.event(self._patience()))["event"] != "finished":
                        if event["event"] == "row":
                            yield job, event
                    job = next(jobs, None)
                return
            except Lost as found:
                if self._over():
                    return
                if worker.current is None:  # it never began, and another process would not either
                    raise RuntimeError(f"{self.command}: {found.reason}\n{found.log_tail}") from found
                last = found.log_tail.strip().rpartition("\n")[2]
                reason = f"{found.reason}: {last}" if last else found.reason
                cell, status = worker.current, str(status_of(found))
                yield job, {"event": "lost", "cell": cell, "status": status, "reason": reason}
                lost.append(cell)
                if cell == job["id"] and (job := next(jobs, None)) is None:
                    return
            finally:
                worker.end()

    def kill(self) -> None:
        """End the process from another thread."""
        self._killed = True
        if self._worker is not None:
            self._worker.kill()

    def _over(self) -> bool:
        return self._killed or time.time() >= self.deadline

    def _patience(self) -> float:
        return max(min(self.silence_s, self.deadline + GRACE_S - time.time()), 0.1)
