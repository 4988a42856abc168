"""Child processes that work through jobs: a lane that dies, hangs or floods loses the job it was at and goes on behind.

One thread a lane in the parent; each lane's process is the one that compare.crew ends and buries for measured runs.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from compare.crew import _Lost, _Worker, environment

SILENCE_S = 90.0  # without an event: importing takes 20 s on a busy machine, one compilation at most this long
GRACE_S = 15.0  # behind the deadline, for what a worker has begun


@dataclass
class Lane:
    """A process's command, what every process of the lane is told, and its jobs (dicts with an `id`)."""

    command: list[str]
    task: dict[str, Any]
    jobs: list[dict[str, Any]]
    variables: dict[str, str] = field(default_factory=dict)


def module(name: str) -> list[str]:
    return [sys.executable, "-m", name]


def run(
    lanes: Sequence[Lane],
    deadline: float,
    on_row: Callable[[dict[str, Any]], None],
    on_lost: Callable[[str, str, str], None],
    silence_s: float = SILENCE_S,
) -> None:
    """Run all lanes until their jobs are done or `deadline` (time.time()) has passed.

    on_row hears each event that has a result, one at a time; on_lost the cell, status and reason of each that took its
    process along. An exception of either ends the run, and every process with it.
    """
    turn, failures, workers = threading.Lock(), [], []
    stop = threading.Event()

    def safely(call: Callable[..., None], *values: Any) -> None:
        with turn:
            call(*values)

    def work(lane: Lane) -> None:
        try:
            _drive(
                lane, deadline, lambda e: safely(on_row, e), lambda *v: safely(on_lost, *v), silence_s, stop, workers
            )
        except BaseException as error:
            failures.append(error)
            stop.set()

    threads = [threading.Thread(target=work, args=(lane,), daemon=True) for lane in lanes if lane.jobs]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.5)
    finally:
        stop.set()
        for worker in workers:
            worker.end()
    if failures:
        raise failures[0]


def _drive(
    lane: Lane,
    deadline: float,
    on_row: Callable[[dict[str, Any]], None],
    on_lost: Callable[[str, str, str], None],
    silence_s: float,
    stop: threading.Event,
    workers: list[_Worker],
) -> None:
    """One lane, with as many processes as it uses up."""
    left, lost_cells, done = list(lane.jobs), [], []
    while left and not stop.is_set() and time.time() < deadline:
        worker = _Worker(lane.command, environment("measure") | lane.variables)
        workers.append(worker)
        try:
            worker.send(json.dumps(lane.task | {"jobs": left, "deadline": deadline, "lost": lost_cells, "done": done}))
            while (event := worker.event(_patience(deadline, silence_s)))["event"] != "done":
                if event["event"] == "row":
                    on_row(event)
                    done += [event["done"]] if "done" in event else []
                elif event["event"] == "finished":
                    left = [job for job in left if job["id"] != event["job"]]
            return
        except _Lost as lost:
            if time.time() > deadline or stop.is_set():
                return
            if lost.cell is None:  # it never began: another process would do the same
                raise RuntimeError(f"{lane.command}: {lost.reason}\n{lost.log_tail}") from lost
            on_lost(lost.cell, str(lost.status), lost.reason)
            lost_cells.append(lost.cell)
        finally:
            worker.end()
            workers.remove(worker)


def _patience(deadline: float, silence_s: float) -> float:
    return max(min(silence_s, deadline + GRACE_S - time.time()), 0.1)
