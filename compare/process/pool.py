"""Several worker processes over one plan, side by side: outcomes as they come, whoever finishes first."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence

from compare.plan.plan import Job
from compare.process.crew import Crew, Outcome


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
